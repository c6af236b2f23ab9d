"""Generalised linear models across parties, by noisy steps as scikit-learn estimators, or from tables."""

from vertinumpyro.regression.families import FAMILIES
from vertinumpyro.regression.glm_model import glm_model
from vertinumpyro.regression.glm_predictions import VerticalPredictor
from vertinumpyro.regression.marginal_glm import TABLE_FAMILIES, GLMPosterior, MarginalGLM
from vertinumpyro.regression.saturated_model import cell_model
from vertinumpyro.regression.vertical_glm import VerticalGLM

__all__ = [
    "FAMILIES",
    "TABLE_FAMILIES",
    "GLMPosterior",
    "MarginalGLM",
    "VerticalGLM",
    "VerticalPredictor",
    "cell_model",
    "glm_model",
]
