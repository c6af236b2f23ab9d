"""Differential privacy: exact noise, batch selection, accounting per adversary, plans and their spending.

`GradientPlan` ties the parts together. This package imports nothing of the library but `core`, and no JAX.

Short because it says what others may use, and nothing else.
"""

from vertinumpyro.privacy.accounting import (
    GaussianEvent,
    NeighbouringRelation,
    PoissonEvent,
    PoissonKnownEvent,
    PrivacyEvent,
    PureEvent,
    neighbouring,
)
from vertinumpyro.privacy.adversary import OUTSIDE_ANALYST, Adversary, AdversaryRow, NoiseSource, NoisySum, Release
from vertinumpyro.privacy.discrete_gaussian import sample_discrete_gaussian
from vertinumpyro.privacy.files_account import AccountWarning
from vertinumpyro.privacy.forecast import FitTime
from vertinumpyro.privacy.gradient_plan import GradientPlan, calibrate_noise_multiplier
from vertinumpyro.privacy.holder_plan import ClientPlan
from vertinumpyro.privacy.ledger import Ledger, LedgerRegistry
from vertinumpyro.privacy.noise_shares import draw_noise_share
from vertinumpyro.privacy.plan import Plan, PrivacyWarning
from vertinumpyro.privacy.sampling import Batches, BatchStream, DisjointBatches, NoSteps, PoissonSampling, Sampling

PrivacyPlan = GradientPlan  # its name before 0.2

__all__ = [
    "OUTSIDE_ANALYST",
    "AccountWarning",
    "Adversary",
    "AdversaryRow",
    "BatchStream",
    "Batches",
    "ClientPlan",
    "DisjointBatches",
    "FitTime",
    "GaussianEvent",
    "GradientPlan",
    "Ledger",
    "LedgerRegistry",
    "NeighbouringRelation",
    "NoSteps",
    "NoiseSource",
    "NoisySum",
    "Plan",
    "PoissonEvent",
    "PoissonKnownEvent",
    "PoissonSampling",
    "PrivacyEvent",
    "PrivacyPlan",
    "PrivacyWarning",
    "PureEvent",
    "Release",
    "Sampling",
    "calibrate_noise_multiplier",
    "draw_noise_share",
    "neighbouring",
    "sample_discrete_gaussian",
]
