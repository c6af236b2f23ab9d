"""Synthetic tables from Markov random fields over columns that several parties hold: VertiMRF, made private."""

from vertinumpyro.mrf.marginals import Marginals
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.quality import TwinQuality, twin_quality
from vertinumpyro.mrf.twin import MarkovTwin
from vertinumpyro.mrf.vertimrf import VertiMRF

__all__ = ["MRFPlan", "Marginals", "MarkovTwin", "TwinQuality", "VertiMRF", "twin_quality"]
