"""Generalised linear models across parties, by noisy steps as scikit-learn estimators, or from tables."""

from vertinumpyro.glm.between import VerticalPredictor
from vertinumpyro.glm.cells import cell_model
from vertinumpyro.glm.estimator import VerticalGLM
from vertinumpyro.glm.families import FAMILIES
from vertinumpyro.glm.from_tables import MarginalGLM
from vertinumpyro.glm.model import glm_model
from vertinumpyro.glm.table_posterior import TABLE_FAMILIES, GLMPosterior

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
