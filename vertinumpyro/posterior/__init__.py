"""What every posterior of a split model shares, whatever it was learned from: guides, draws, twins."""

from vertinumpyro.posterior.guide import GuideFactory, Params, ReparameterisedGuide
from vertinumpyro.posterior.predictive import PredictivePosterior
from vertinumpyro.posterior.synthesis import TwinColumns, TwinWarning

__all__ = ["GuideFactory", "Params", "PredictivePosterior", "ReparameterisedGuide", "TwinColumns", "TwinWarning"]
