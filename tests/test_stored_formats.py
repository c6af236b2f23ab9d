"""What commit 326fdbb stored loads: posteriors, releases, fields, runs, accounts, agreements and approvals.

`golden/make.py` wrote the files; records of plans of every kind are in `privacy/golden`.
"""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from vertinumpyro.cli.main import app
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.files import load_arrays
from vertinumpyro.data import BinaryColumn, CategoricalColumn, Linkage, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.glm import VerticalGLM
from vertinumpyro.marginals import MarginalInference
from vertinumpyro.mrf import Marginals, MarkovTwin
from vertinumpyro.privacy.account import accounts
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.regression import BayesianLinearRegression
from vertinumpyro.study import Agreement, Approval

GOLDEN = Path(__file__).parent / "golden"
COLUMNS = ["ill", "age", "plan"]
SCHEMA = Schema(
    {
        "clinic": PartySchema({"ill": BinaryColumn(), "age": RealColumn(bounds=(0.0, 100.0))}),
        "insurer": PartySchema({"plan": CategoricalColumn(categories=("a", "b", "c"))}),
    }
)
STEPS = {"dpvi": 2, "field_run": 2, "linear": 2, "horizontal": 2, "bayesian_linear": 2, "glm": 22, "command_line": 2}


@pytest.mark.parametrize(("run", "steps"), STEPS.items())
def test_the_record_of_a_run(run, steps):
    record = read_record(GOLDEN / run / "privacy.json")
    assert (record.status, record.steps_spent) == ("finished", steps)
    stored = json.loads((GOLDEN / run / "privacy.json").read_text())
    assert record.plan.fingerprint() == stored["fingerprint"]


def test_a_posterior_of_dpvi_gives_the_twin_that_it_gave():
    posterior = DPVI(num_components=2, warm_start=False).load(GOLDEN / "dpvi" / "posterior.npz")
    assert posterior.plan.num_steps == 2
    twin = posterior.sample_synthetic(5, rng_key=jax.random.PRNGKey(1))
    assert list(twin.columns) == COLUMNS


def test_a_release_of_tables_and_the_posterior_learned_from_it():
    pytest.importorskip("mbi")
    release = Marginals.load(GOLDEN / "marginals")
    assert release.plan.num_records == 100
    posterior = MarginalInference(num_components=1, law="tables").load(GOLDEN / "marginals" / "posterior.npz")
    assert posterior.law == "tables"
    assert list(posterior.sample_synthetic(5, rng_key=jax.random.PRNGKey(1)).columns) == COLUMNS


def test_a_field_gives_a_twin():
    pytest.importorskip("mbi")
    twin = MarkovTwin.load(GOLDEN / "field")
    assert list(twin.sample_synthetic(5, rng_key=jax.random.PRNGKey(1)).columns) == COLUMNS


def test_holders_posterior_gives_a_twin():
    posterior = DPVI(num_components=2, warm_start=False).load(GOLDEN / "horizontal" / "posterior.npz")
    assert list(posterior.sample_synthetic(5, rng_key=jax.random.key(1)).columns) == COLUMNS


def test_a_resumed_regression_of_holders_is_what_was_released(tmp_path):
    shutil.copytree(GOLDEN / "bayesian_linear", tmp_path / "run")
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (200, 2)), rng.uniform(-1, 1, 200)
    linear = BayesianLinearRegression(epsilon=1.0, bounds=1.0, target_bound=1.0)
    fitted = linear.fit(X, y, run_dir=tmp_path / "run", resume=True)
    assert fitted.coef_.shape == (2,)


def test_a_resumed_regression_by_steps_spends_nothing(tmp_path):
    shutil.copytree(GOLDEN / "glm", tmp_path / "run")
    data = VerticalDataset.example(SCHEMA, 100, np.random.default_rng(0))
    fitted = VerticalGLM(label="ill", epsilon=1.0, delta=1e-5).fit(data, run_dir=tmp_path / "run", resume=True)
    assert np.isfinite(fitted.coef_).all()
    assert "did not keep where steps were taken" in repr(fitted.posterior_)


def test_a_linkage():
    linkage = Linkage.load(GOLDEN / "linkage.npz")
    assert (linkage.topic, linkage.rows.tolist()) == ("a topic", [0, 2, 5])
    frame = pd.DataFrame({"id": [f"person {number}" for number in range(6)]})
    assert linkage.applied(frame, SCHEMA, "clinic")["id"].tolist() == ["person 0", "person 2", "person 5"]


def test_the_folder_of_a_fit_by_the_command_line_gives_another_twin(tmp_path):
    pytest.importorskip("mbi")
    shutil.copytree(GOLDEN / "command_line", tmp_path / "run")
    result = CliRunner().invoke(
        app, ["synthesize", str(tmp_path / "run"), "-n", "7", "--out", str(tmp_path / "twin.csv")]
    )
    assert result.exit_code == 0, result.output
    assert list(pd.read_csv(tmp_path / "twin.csv")) == COLUMNS


def test_an_account_with_a_finished_plan(tmp_path):
    shutil.copy(GOLDEN / "account.sqlite", tmp_path)
    (account,) = accounts(tmp_path / "account.sqlite")
    (entry,) = account.entries()
    assert (account.party, account.data_set) == ("clinic", "visits")
    assert (entry.plan.kind, entry.steps_spent, entry.finished) == ("functional_mechanism", 1, True)
    assert max(total.epsilon for total in account.totals()) == pytest.approx(1.0, abs=0.05)


def test_an_agreement_whose_approval_has_to_be_given_anew():
    study = Agreement.load(GOLDEN / "study" / "study.toml")
    assert (study.name, study.method, list(study.members)) == ("a study", "vertimrf", ["clinic", "insurer"])
    with pytest.raises(ArgumentError, match="approve it anew"):  # digests had no order of columns and helpers
        Approval.load(GOLDEN / "study" / "clinic.approval")


@pytest.mark.parametrize("file", sorted(GOLDEN.rglob("*.npz")), ids=lambda path: path.relative_to(GOLDEN).as_posix())
def test_stored_arrays_are_finite(file):
    _, arrays = load_arrays(file)
    assert arrays
    assert all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")
