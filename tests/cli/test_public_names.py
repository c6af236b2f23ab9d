"""What `import vertinumpyro as vnp` offers."""

import subprocess
import sys
from pathlib import Path

import pytest

import vertinumpyro as vnp

NAMES = [
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


def test_the_surface_is_pinned():
    assert vnp.__all__ == NAMES
    assert dir(vnp) == sorted(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_every_name_loads_and_is_documented(name: str):
    assert getattr(vnp, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'party_plates'"):
        vnp.party_plates  # noqa: B018


def test_the_version_is_the_projects():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{vnp.__version__}"' in project


def test_importing_the_package_brings_nothing_heavy():
    code = "import sys, vertinumpyro as vnp; assert not {'jax', 'pandas'} & set(sys.modules); vnp.party_plate"
    subprocess.run([sys.executable, "-c", code], check=True)
