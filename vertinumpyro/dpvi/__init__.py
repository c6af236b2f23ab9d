"""Private variational inference."""

from vertinumpyro.dpvi.inference import DPVI
from vertinumpyro.dpvi.posterior import Diagnostics, Posterior
from vertinumpyro.dpvi.second_moments import SecondMoments
from vertinumpyro.dpvi.training_loop import DPVIState, Kernel, StepInfo, StepInput
from vertinumpyro.posterior.synthesis import TwinColumns, TwinWarning

__all__ = [
    "DPVI",
    "DPVIState",
    "Diagnostics",
    "Kernel",
    "Posterior",
    "SecondMoments",
    "StepInfo",
    "StepInput",
    "TwinColumns",
    "TwinWarning",
]
