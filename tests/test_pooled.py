"""A twin in one call, for whoever holds all tables."""

import copy
import json
import pickle
import re

import jax
import numpy as np
import pandas as pd
import pytest

import vertinumpyro as vnp
from vertinumpyro import pooled
from vertinumpyro.core.errors import AlignmentError, ArgumentError, InferenceWarning, LongFitWarning, UnprovenError
from vertinumpyro.data.dataframe_interop import in_kind_of
from vertinumpyro.marginals import MarginalPosterior
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.privacy import PrivacyWarning

N = 400
_rng = np.random.default_rng(0)
_ill = _rng.random(N) < 0.4
CLINIC = pd.DataFrame({"id": range(N), "ill": _ill, "visits": _rng.poisson(1 + 3 * _ill).astype("int16")})
INSURER = pd.DataFrame({"plan": np.where(_rng.random(N) < 0.3 + 0.4 * _ill, "full", "basic"), "id": range(N)})
TABLES = {"clinic": CLINIC, "insurer": INSURER.sample(frac=1, random_state=1)}
SCHEMA = vnp.Schema.from_toml("""
[parties.clinic.columns.ill]
type = "binary"

[parties.clinic.columns.visits]
type = "count"
upper = 15

[parties.insurer.columns.plan]
type = "categorical"
categories = ["basic", "full"]
""")
PAIR = vnp.Schema.from_toml("""
[parties.clinic.columns.ill]
type = "binary"

[parties.insurer.columns.plan]
type = "binary"
categories = ["basic", "full"]
""")


@pytest.fixture(scope="module")
def made():
    return vnp.twin(TABLES, epsilon=5.0, schema=SCHEMA, rng_key=jax.random.key(0))


def test_a_twin_has_the_tables_columns_types_and_dependence(made):
    twin = made.table
    assert list(twin) == ["ill", "visits", "plan"]
    assert len(twin) == N
    assert twin["ill"].dtype == bool
    assert twin["visits"].dtype == np.int16
    lift = [(table["plan"][table["ill"]] == "full").mean() - (table["plan"][~table["ill"]] == "full").mean()
            for table in (twin, CLINIC.assign(plan=INSURER["plan"]))]  # fmt: skip
    assert abs(lift[0] - lift[1]) < 0.2
    assert made.plan.epsilon() <= 5.0
    assert "tables" in made.why
    assert "not DP" not in repr(made)
    assert re.match(r"The (twin|release that it follows from) holds .* pairs of columns", repr(made))


def test_further_tables_cost_nothing_and_are_others(made):
    tables = [made.sample(50, rng_key=jax.random.key(seed)) for seed in (1, 2)]
    assert [len(table) for table in tables] == [50, 50]
    assert not tables[0].equals(tables[1])
    restored = copy.deepcopy(pickle.loads(pickle.dumps(made)))
    assert restored.sample(50, rng_key=jax.random.key(1)).equals(tables[0])


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_a_twin_is_of_the_tables_library(library, monkeypatch, made):
    kind = pytest.importorskip(library)
    convert = kind.from_pandas if library == "polars" else lambda f: kind.Table.from_pandas(f, preserve_index=False)
    again = in_kind_of(type(convert(CLINIC)), made.table)
    assert type(again).__module__.startswith(library)
    columns = list(again.column_names if library == "pyarrow" else again.columns)
    assert columns == ["ill", "visits", "plan"]
    back = again.to_pandas()
    assert (back["visits"].to_numpy() == made.table["visits"].to_numpy()).all()


def test_a_model_is_learned_from_tables_and_the_run_is_on_record(tmp_path):
    import numpyro
    import numpyro.distributions as dist

    def model(data, num_records):
        share = numpyro.sample("share", dist.Beta(1, 1).expand([2]).to_event(1))
        with vnp.party_plate("clinic", num_records):
            numpyro.sample("ill", dist.Bernoulli(share[0]), obs=data["ill"])
        with vnp.party_plate("insurer", num_records):
            numpyro.sample("plan", dist.Bernoulli(share[1]), obs=data["plan"])

    with pytest.warns(vnp.errors.InferenceWarning, match="cannot have made them"):  # ill and plan hang together
        made = vnp.twin(TABLES, epsilon=5.0, schema=PAIR, model=model, run_dir=tmp_path / "run")
    assert isinstance(made.fitted, MarginalPosterior)
    assert len(made.table) == N
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["status"] == "finished"


def test_a_plan_is_shown_with_what_it_will_hold_before_anything_is_spent(tmp_path):
    class StoppedError(Exception):
        pass

    def stop(plan):
        assert "Pairs of columns that it will hold: about" in str(plan)
        assert "Pairs" not in str(pickle.loads(pickle.dumps(plan)))  # a plan of a record has no forecast
        raise StoppedError

    with pytest.raises(StoppedError):
        vnp.twin(TABLES, epsilon=5.0, schema=SCHEMA, run_dir=tmp_path / "run", on_plan=stop)
    assert not (tmp_path / "run").exists()
    with pytest.warns(InferenceWarning, match="of little use for relations"):
        vnp.twin(TABLES, epsilon=0.01, schema=SCHEMA)


def test_bounds_that_nobody_confirmed_need_an_opt_in_and_are_named():
    with pytest.raises(UnprovenError, match=r"schema: .*draft_schema.*allow_unproven=True"):
        vnp.twin(TABLES, epsilon=1.0)
    clinic = CLINIC.assign(name=[f"patient {n}" for n in range(N)])
    with pytest.warns(PrivacyWarning) as caught:
        made = vnp.twin({**TABLES, "clinic": clinic}, epsilon=5.0, allow_unproven=True)
    texts = [str(warning.message) for warning in caught]
    assert any("read from the tables" in text for text in texts)
    assert any("'name'" in text and "free text" in text for text in texts)
    assert list(made.table) == ["ill", "visits", "plan"]
    assert "not DP" in repr(made)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"tables": CLINIC}, ArgumentError, "tables"),
        ({"tables": {}}, ArgumentError, "tables"),
        ({"tables": {"clinic": CLINIC}}, ArgumentError, "'insurer'"),
        ({"tables": {**TABLES, "insurer": INSURER[:-1]}}, AlignmentError, "'clinic'"),
        ({"epsilon": -1.0}, ArgumentError, "epsilon"),
        ({"epsilon": "1"}, ArgumentError, "epsilon"),
        ({"delta": 2.0}, ArgumentError, "delta"),
        ({"rng_key": 3}, ArgumentError, "rng_key"),
        ({"schema": "schema.toml"}, ArgumentError, "schema"),
        ({"schema": None, "allow_unproven": True, "id_column": "person"}, ArgumentError, "id_column"),
        ({"model": "mixture"}, ArgumentError, "model"),
    ],
)
def test_mistakes_are_named(arguments, error, match):
    given = {"tables": TABLES, "epsilon": 1.0, "schema": SCHEMA, **arguments}
    with pytest.raises(error, match=match):
        vnp.twin(**given)


WIDE = vnp.Schema.from_dict(
    {
        "parties": {
            party: {"columns": {name: {"type": "categorical", "categories": [f"{name}{i}" for i in range(600)]}}}
            for party, name in (("clinic", "code"), ("insurer", "town"))
        }
    }
)


@pytest.mark.skipif(not has_engine(), reason="Markov random fields: extra `mrf`")
def test_columns_too_wide_for_a_table_are_counted_in_groups():
    rng, chosen = np.random.default_rng(0), {"clinic": "code", "insurer": "town"}
    tables = {
        p: pd.DataFrame({"id": range(N), c: [f"{c}{i}" for i in rng.integers(0, 600, N)]}) for p, c in chosen.items()
    }
    made = vnp.twin(tables, epsilon=5.0, schema=WIDE, rng_key=jax.random.key(0))
    assert "'code', 'town' in 387 groups" in made.why
    assert set(made.table["code"]) <= set(WIDE.columns["code"].labels)


def test_steps_that_take_long_are_told_before_anything_is_spent(monkeypatch, tmp_path):
    def twin(**settings):
        return vnp.twin(
            TABLES, epsilon=5.0, schema=SCHEMA, rng_key=jax.random.key(0), run_dir=tmp_path / "run", **settings
        )

    monkeypatch.setattr(pooled, "_candidates", lambda model, schema, on_estimate: [_stepping(on_estimate, 601.0)])
    with pytest.raises(ArgumentError, match=r"allow_long: .*about 10 minutes.*'visits'.*allow_long=True"):
        twin()
    assert not (tmp_path / "run").exists()
    with pytest.warns(LongFitWarning, match="about 10 minutes"):
        twin(allow_long=True)


def _stepping(on_estimate, seconds):
    """DPVI's steps, as if they took so long."""
    dpvi = vnp.DPVI(num_components=1, warm_start=False)

    def told(found):
        assert 0 < found < seconds
        on_estimate(seconds)

    return (
        "steps",
        lambda data, epsilon, delta: dpvi.plan(data, epsilon=epsilon, num_steps=2),
        lambda data, plan, key, run_dir: dpvi.fit(
            data, plan, key, run_dir=run_dir, on_estimate=told, progress_bar=False
        ),
    )
