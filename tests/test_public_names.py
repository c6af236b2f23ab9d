"""What `import vertinumpyro as vnp` and its packages offer, and that to import them brings nothing heavy."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import vertinumpyro as vnp
from vertinumpyro import data, evaluation, model, mrf

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
OF_DATA = {
    *("Schema", "Order", "PartySchema", "Rows", "Take", "OBSERVED_SUFFIX"),
    *("Column", "CodedColumn", "RealColumn", "BinnedColumn", "IntegerColumn", "CountColumn"),
    *("CategoricalColumn", "BinaryColumn", "Cells", "Kind", "Missing", "OutOfBounds"),
    *(
        "VerticalDataset",
        "CsvFormat",
        "DateColumn",
        "Determined",
        "Impossible",
        "read_ids",
        "read_table",
        "read_everything",
        "decode_table",
        "DatasetInfo",
        "TableFacts",
    ),
    *("draft_schema", "SchemaDraft"),
    *("align", "record_ids", "alignment_digest", "check_digests", "Linkage", "normalised_ids"),
    *("load_abalone", "load_adult", "load_dutch", "load_nltcs", "load_rand_hie", "load_wine"),
}
OF_MODEL = {
    *("party_plate", "party_sum", "mixture_model", "UNOBSERVED", "Unobserved"),
    *("split_model", "SplitModel", "inspect_model", "ModelStructure", "DrawnAt"),
    *("OwnFactor", "PiecewiseHazard"),
}


def test_the_surface_is_pinned():
    assert vnp.__all__ == NAMES
    assert dir(vnp) == sorted(NAMES)
    assert set(data.__all__) == OF_DATA
    assert set(model.__all__) == OF_MODEL
    for package in (evaluation, mrf):
        assert sorted(package.__all__) == list(package.__all__)


@pytest.mark.parametrize("package", [vnp, evaluation, model, mrf], ids=lambda package: package.__name__)
def test_every_name_loads_and_is_documented(package):
    assert all(getattr(package, name).__doc__ for name in package.__all__ if name != "__version__")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'party_plates'"):
        vnp.party_plates  # noqa: B018


@pytest.mark.parametrize(
    ("package", "name", "heavy"),
    [
        ("vertinumpyro", "party_plate", {"jax", "pandas"}),
        ("vertinumpyro.data", "Schema", {"jax", "numpyro", "statsmodels", "torch"}),
        ("vertinumpyro.evaluation", "evaluate_twin", {"jax", "matplotlib", "sklearn"}),
    ],
)
def test_importing_brings_nothing_heavy(package, name, heavy):
    code = f"import sys, {package} as package; assert not {heavy} & set(sys.modules); package.{name}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_module_knows_the_engine_of_markov_fields():
    importing = re.compile(r"^\s*(import|from) mbi\b", re.MULTILINE)
    modules = Path(mrf.__file__).parent.glob("*.py")
    assert [m.name for m in modules if importing.search(m.read_text(encoding="utf-8"))] == ["field.py"]
