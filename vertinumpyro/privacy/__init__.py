"""Differential privacy: exact noise, batch selection, accounting per adversary, plans and their spending.

`PrivacyPlan` ties the parts together. This package imports nothing of the library but `core`, and no JAX.
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
from vertinumpyro.privacy.adversary import OUTSIDE_ANALYST, Adversary, AdversaryRow, NoiseSource, NoisySum
from vertinumpyro.privacy.client_plan import ClientPlan
from vertinumpyro.privacy.discrete_gaussian import sample_discrete_gaussian
from vertinumpyro.privacy.gradient_plan import PrivacyPlan, calibrate_noise_multiplier
from vertinumpyro.privacy.ledger import Book, Ledger
from vertinumpyro.privacy.noise_shares import draw_noise_share
from vertinumpyro.privacy.plan import Plan, PrivacyWarning
from vertinumpyro.privacy.release import Release
from vertinumpyro.privacy.sampling import Batches, BatchStream, DisjointBatches, PoissonSampling, Sampling

__all__ = [
    "OUTSIDE_ANALYST",
    "Adversary",
    "AdversaryRow",
    "BatchStream",
    "Batches",
    "Book",
    "ClientPlan",
    "DisjointBatches",
    "GaussianEvent",
    "Ledger",
    "NeighbouringRelation",
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
