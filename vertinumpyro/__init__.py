"""Private Bayesian models and synthetic twins of tables whose columns sit at different organisations.

    import vertinumpyro as vnp

    dataset = vnp.load_rand_hie()
    dpvi = vnp.DPVI()
    plan = dpvi.plan(dataset, epsilon=1.0)
    posterior = dpvi.fit(dataset, plan, rng_key)
    twin = posterior.sample_synthetic(rng_key=rng_key)

Names load on first use, so that `vertinumpyro.privacy` and `vertinumpyro.data` never bring JAX with them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vertinumpyro.core import __version__

if TYPE_CHECKING:
    from vertinumpyro import data, evaluation, privacy
    from vertinumpyro.core import errors
    from vertinumpyro.data import (
        PartySchema,
        Schema,
        VerticalDataset,
        draft_schema,
        load_abalone,
        load_adult,
        load_dutch,
        load_nltcs,
        load_rand_hie,
        load_wine,
    )
    from vertinumpyro.dpvi import DPVI, Diagnostics, Posterior, SecondMoments
    from vertinumpyro.dpvi.horizontal import HorizontalDPVI
    from vertinumpyro.glm import MarginalGLM, VerticalGLM
    from vertinumpyro.marginals import MarginalInference, MarginalPosterior, release_marginals
    from vertinumpyro.model import OwnFactor, PiecewiseHazard, mixture_model, party_plate, party_sum
    from vertinumpyro.mrf import Marginals, MarkovTwin, MRFPlan, VertiMRF
    from vertinumpyro.pooled import twin
    from vertinumpyro.privacy import DisjointBatches, GradientPlan, NeighbouringRelation, PoissonSampling, PrivacyPlan
    from vertinumpyro.regression import BayesianLinearRegression, VerticalLinearRegression, VerticalLogisticRegression
    from vertinumpyro.reports.files import write_report
    from vertinumpyro.secure import SPU, Crypten, FixedPoint, Plaintext
    from vertinumpyro.secure.dca import SecureAggregation
    from vertinumpyro.session import OrganisationSession, PartyTask, ProcessSession

__all__ = [
    "DPVI",
    "SPU",
    "BayesianLinearRegression",
    "Crypten",
    "Diagnostics",
    "DisjointBatches",
    "FixedPoint",
    "GradientPlan",
    "HorizontalDPVI",
    "MRFPlan",
    "MarginalGLM",
    "MarginalInference",
    "MarginalPosterior",
    "Marginals",
    "MarkovTwin",
    "NeighbouringRelation",
    "OrganisationSession",
    "OwnFactor",
    "PartySchema",
    "PartyTask",
    "PiecewiseHazard",
    "Plaintext",
    "PoissonSampling",
    "Posterior",
    "PrivacyPlan",
    "ProcessSession",
    "Schema",
    "SecondMoments",
    "SecureAggregation",
    "VertiMRF",
    "VerticalDataset",
    "VerticalGLM",
    "VerticalLinearRegression",
    "VerticalLogisticRegression",
    "__version__",
    "data",
    "draft_schema",
    "errors",
    "evaluation",
    "load_abalone",
    "load_adult",
    "load_dutch",
    "load_nltcs",
    "load_rand_hie",
    "load_wine",
    "mixture_model",
    "party_plate",
    "party_sum",
    "privacy",
    "release_marginals",
    "twin",
    "write_report",
]

_MODULES = {"data": "data", "errors": "core.errors", "evaluation": "evaluation", "privacy": "privacy"}
_HOMES = {
    "data": (
        "PartySchema",
        "Schema",
        "VerticalDataset",
        "draft_schema",
        "load_abalone",
        "load_adult",
        "load_dutch",
        "load_nltcs",
        "load_rand_hie",
        "load_wine",
    ),
    "dpvi": (
        "DPVI",
        "Diagnostics",
        "Posterior",
        "SecondMoments",
    ),
    "dpvi.horizontal": ("HorizontalDPVI",),
    "glm": (
        "MarginalGLM",
        "VerticalGLM",
    ),
    "marginals": (
        "MarginalInference",
        "MarginalPosterior",
        "release_marginals",
    ),
    "model": (
        "OwnFactor",
        "PiecewiseHazard",
        "mixture_model",
        "party_plate",
        "party_sum",
    ),
    "mrf": (
        "MRFPlan",
        "Marginals",
        "MarkovTwin",
        "VertiMRF",
    ),
    "pooled": ("twin",),
    "privacy": (
        "DisjointBatches",
        "GradientPlan",
        "NeighbouringRelation",
        "PoissonSampling",
        "PrivacyPlan",
    ),
    "regression": (
        "BayesianLinearRegression",
        "VerticalLinearRegression",
        "VerticalLogisticRegression",
    ),
    "reports.files": ("write_report",),
    "secure": (
        "Crypten",
        "FixedPoint",
        "Plaintext",
        "SPU",
    ),
    "secure.dca": ("SecureAggregation",),
    "session": (
        "OrganisationSession",
        "PartyTask",
        "ProcessSession",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use."""
    if name in _MODULES:
        value = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What a newcomer needs, loaded or not."""
    return list(__all__)
