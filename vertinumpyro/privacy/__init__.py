"""Differential privacy: exact noise, batch selection, accounting per adversary, plans and their spending.

`PrivacyPlan` ties the parts together. This package imports nothing of the library but `core`, and no JAX.
"""

from vertinumpyro.privacy.accounting import (
    GaussianEvent,
    NeighbouringRelation,
    PoissonEvent,
    PoissonKnownEvent,
    PrivacyEvent,
)
from vertinumpyro.privacy.adversary import OUTSIDE_ANALYST, Adversary, AdversaryRow, NoiseSource, NoisySum
from vertinumpyro.privacy.client_plan import ClientPlan
from vertinumpyro.privacy.discrete_gaussian import sample_discrete_gaussian
from vertinumpyro.privacy.ledger import Spending, resume_spending, start_spending
from vertinumpyro.privacy.noise_shares import draw_noise_share
from vertinumpyro.privacy.plan import PrivacyPlan, PrivacyWarning, calibrate_noise_multiplier
from vertinumpyro.privacy.sampling import Batches, BatchStream, DisjointBatches, PoissonSampling, Sampling

__all__ = [
    "OUTSIDE_ANALYST",
    "Adversary",
    "AdversaryRow",
    "BatchStream",
    "Batches",
    "ClientPlan",
    "DisjointBatches",
    "GaussianEvent",
    "NeighbouringRelation",
    "NoiseSource",
    "NoisySum",
    "PoissonEvent",
    "PoissonKnownEvent",
    "PoissonSampling",
    "PrivacyEvent",
    "PrivacyPlan",
    "PrivacyWarning",
    "Sampling",
    "Spending",
    "calibrate_noise_multiplier",
    "draw_noise_share",
    "resume_spending",
    "sample_discrete_gaussian",
    "start_spending",
]
