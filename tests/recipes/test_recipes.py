"""The recipes of CONTRIBUTING.md, followed: each in less than 40 lines, with nothing else changed.

What a recipe calls a line in a table is one line with `monkeypatch` here.
"""

import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import potential_energy

from tests.cli.conftest import Project
from tests.model.test_party_sum import released
from tests.recipes import toy_backend, toy_column, toy_command, toy_encoder, toy_outcome, toy_plan
from tests.secure import problems, toy_links
from vertinumpyro import DPVI, VertiMRF
from vertinumpyro.cli.methods import base as methods
from vertinumpyro.core import compat
from vertinumpyro.core.errors import PlanSpentError, UnprovenError
from vertinumpyro.data import PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.data import schema_parsing as schema_spec
from vertinumpyro.evaluation.table_plots import cell_labels
from vertinumpyro.model import outcomes, party_plate, party_sum, split_model
from vertinumpyro.mrf import MRFPlan, encoders
from vertinumpyro.mrf.cells import cell_columns
from vertinumpyro.privacy import Ledger, NeighbouringRelation, Plan
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.regression.features import FeatureLayout
from vertinumpyro.secure import BACKENDS, LINKS, FixedPoint, Plaintext

_MOST_LINES = 40
RNG = np.random.default_rng(0)


def lines_of(*objects):
    """Lines of code that the implementation of a recipe takes, blank ones and docstrings left out."""
    written = "\n".join(inspect.getsource(thing) for thing in objects)
    return sum(bool(line.strip()) and '"""' not in line for line in written.splitlines())


def test_a_link():
    """One class; `tests/secure/test_links.py` runs the whole contract on it."""
    assert lines_of(toy_links.Residual) < _MOST_LINES
    shape = problems.shape_of(K=1, clip_norm=0.5, link=toy_links.Residual())
    with compat.x64():
        problem = problems.benign(K=1)
        apart = problems.run(FixedPoint(), shape, problem) - problems.run(Plaintext(), shape, problem)
    assert np.linalg.norm(apart) <= FixedPoint().error_bound(shape)


def test_an_outcome_of_a_sum(monkeypatch):
    """The derivative as the model has it, and as each secure arithmetic computes it."""
    link, kind = toy_outcome.LogisticNoiseLink, toy_outcome.LogisticNoise
    assert max(lines_of(link), lines_of(kind)) < _MOST_LINES
    monkeypatch.setitem(LINKS, link.name, link)
    monkeypatch.setattr(outcomes, "OUTCOMES", (*outcomes.OUTCOMES, kind))

    def model(data, num_records):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        eta = party_sum("eta", {"clinic": w[0] * data["age"], "insurer": w[1] * data["debt"]})
        with party_plate("insurer", num_records):
            numpyro.sample("income", dist.Logistic(eta, 0.25), obs=data["income"])

    data = VerticalDataset.example(PLAIN, 30, RNG).pooled()
    split, flat = split_model(model, PLAIN), jnp.array([0.4, -0.7])
    assert split.structure.summed[0].outcome == kind(0.25)
    for backend in (Plaintext(), FixedPoint()):
        with compat.x64():
            found, _ = released(split, backend, flat, data, 30)
            exact = -jax.grad(lambda w: potential_energy(model, (data, 30), {}, {"w": w}))(flat)
            gradient = split.gather(found) + jax.grad(split.log_prior)(flat)
            np.testing.assert_allclose(gradient, exact, rtol=1e-3, atol=1e-3)


PLAIN = Schema(
    {
        "clinic": PartySchema({"age": RealColumn(bounds=(0, 100)), "weight": RealColumn(bounds=(0, 200))}),
        "insurer": PartySchema({"income": RealColumn(bounds=(0, 9)), "debt": RealColumn(bounds=(0, 5))}),
    }
)


def test_an_encoder(monkeypatch):
    pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")
    assert lines_of(toy_encoder.Guess) < _MOST_LINES
    monkeypatch.setitem(encoders.ENCODERS, "guess", toy_encoder.Guess)
    system, dataset = VertiMRF(encoder="guess", max_cells=4, iterations=20), VerticalDataset.example(PLAIN, 200, RNG)
    plan = system.plan(dataset, epsilon=2.0)
    assert plan.epsilon() <= 2.0
    assert MRFPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert all(row.knows == () or row.knows[1].startswith("nothing beside") for row in plan.adversaries)
    twin = system.fit(dataset, plan)
    across = [m for m in twin.measurements if set(m.columns) == {"age", "debt"}]
    assert np.ptp(across[0].values) == 0


ANSWERS = """
[parties.clinic.columns.smokes]
type = "ordinal"
steps = ["never", "sometimes", "often", "always"]
missing = "category"
[parties.clinic.columns.drinks]
type = "ordinal"
steps = ["never", "sometimes", "always"]
[parties.insurer.columns.claims]
type = "count"
upper = 9
"""


def test_a_column_type(monkeypatch):
    assert lines_of(toy_column.OrdinalColumn) < _MOST_LINES
    monkeypatch.setattr(schema_spec, "COLUMN_TYPES", {**schema_spec.COLUMN_TYPES, "ordinal": toy_column.OrdinalColumn})
    schema = Schema.from_toml(ANSWERS)
    assert Schema.from_dict(schema.to_dict()) == schema
    smokes = schema.columns["smokes"]
    assert smokes.describe() == "never < sometimes < often < always, missing is a category"
    assert cell_labels(smokes, 3, 2) == ["never", "often", "missing"]
    dataset = VerticalDataset.example(schema, 200, RNG)
    read = VerticalDataset.from_pooled(schema, dataset.to_frame())
    np.testing.assert_array_equal(read.pooled()["smokes"], dataset.pooled()["smokes"])
    assert [cells.num_cells for cells in cell_columns(schema, max_cells=2)] == [3, 2, 2]
    layout = FeatureLayout.of(schema, "claims")
    assert [group.shape for group in layout.feature_groups] == ["one_hot", "scalar"]
    assert set(np.unique(layout.encode(dataset, "clinic")[:, -1]) / layout.scale) == {-1.0, 0.0, 1.0}
    split = DPVI(num_components=2).split(schema)
    assert {group.column for group in split.groups["clinic"] if group.is_table} == {"smokes", "drinks"}


def test_a_backend(monkeypatch):
    assert lines_of(toy_backend.Backwards) < _MOST_LINES
    monkeypatch.setitem(BACKENDS, "backwards", toy_backend.Backwards)
    backend, shape = BACKENDS["backwards"](), problems.shape_of()
    with compat.x64():
        problem = problems.benign()
        apart = problems.run(backend, shape, problem) - problems.run(Plaintext(), shape, problem)
        vectors, noise = np.arange(6).reshape(3, 2), np.ones((2, 2), np.int64)
        assert backend.noisy_sum(vectors, noise).tolist() == [8, 11]
    assert np.linalg.norm(apart) <= backend.error_bound(shape)
    dpvi = DPVI(num_components=2, backend=backend)
    with pytest.raises(UnprovenError, match="floating point"):
        dpvi.plan(VerticalDataset.example(PLAIN, 200, RNG), noise_multiplier=2.0)


@pytest.mark.parametrize("relation", list(NeighbouringRelation))
def test_a_mechanism(relation):
    assert lines_of(toy_plan.LaplaceEvent) < _MOST_LINES
    event, moved = toy_plan.LaplaceEvent(scale=1.5), relation.sensitivity
    x = np.linspace(-60, 60, 400_001)
    p, q = (np.exp(-np.abs(x - shift) / 1.5) / 3 for shift in (moved, 0))
    for epsilon in (0.0, 0.2, moved / 1.5):
        integrated = np.maximum(p - np.exp(epsilon) * q, 0).sum() * (x[1] - x[0])
        assert event.delta(epsilon, relation) == pytest.approx(integrated, abs=1e-3)
    assert event.epsilon(1e-9, relation) == pytest.approx(moved / 1.5, rel=1e-6)


def test_a_plan_kind(monkeypatch, tmp_path):
    assert lines_of(toy_plan.declare, toy_plan.NoisyCount) < _MOST_LINES
    monkeypatch.setattr(Plan, "_kinds", dict(Plan._kinds))
    plan = toy_plan.declare()(laplace_scale=2.0, num_records=100)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.epsilon() == pytest.approx(1.0, abs=1e-5)
    assert (plan.num_steps, plan.step_names) == (1, ("a noisy count",))
    with Ledger.start(plan, tmp_path / "privacy.json") as ledger:
        ledger.reserve(1)
        with pytest.raises(PlanSpentError, match="0 of 1 steps left"):
            ledger.reserve(1)
    assert read_record(tmp_path / "privacy.json").plan == plan


def test_a_command(monkeypatch, tmp_path):
    """One class and a line in `METHODS`: every command knows the method."""
    assert lines_of(toy_command) < _MOST_LINES
    monkeypatch.setattr(methods, "METHODS", {**methods.METHODS, "ridge": "tests.recipes.toy_command:RidgeCommand"})
    project = Project.create(tmp_path)
    settings = project.config.read_text().split("[model]")[0]
    project.config.write_text(settings + '[privacy]\nepsilon = 4.0\n\n[regression]\nlabel = "visits"\n')
    assert "ridge" in project.run("plan", project.config, "--method", "ridge").output
    fitted = project.run("fit", project.config, "--method", "ridge")
    assert fitted.exit_code == 0, fitted.stderr
    assert (project.run_dir / "coefficients.csv").exists()
