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
from vertinumpyro.core.errors import (
    AlignmentError,
    ArgumentError,
    InferenceWarning,
    LongFitWarning,
    PlanSpentError,
    PrivacyError,
    UnprovenError,
)
from vertinumpyro.data import TableFacts
from vertinumpyro.data.table import in_kind_of
from vertinumpyro.dpvi import inference
from vertinumpyro.marginals import MarginalPosterior
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.privacy import FitTime, Plan, PrivacyWarning
from vertinumpyro.session import InProcessSession, OrganisationSession
from vertinumpyro.session.cost_estimate import announce
from vertinumpyro.session.session import SessionWrapper

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

    kept = {"account": tmp_path / "people", "total_epsilon": 6.0}
    with pytest.warns(vnp.errors.InferenceWarning, match="cannot have made them"):  # ill and plan hang together
        made = vnp.twin(TABLES, epsilon=5.0, schema=PAIR, model=model, run_dir=tmp_path / "run", **kept)
    assert isinstance(made.fitted, MarginalPosterior)
    assert len(made.table) == N
    record = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert record["status"] == "finished"
    assert record["account"] == "First release on these records (on account in people)."
    with pytest.raises(PrivacyError, match="allows 6; nothing was begun"):
        vnp.twin(TABLES, epsilon=5.0, schema=PAIR, model=model, **kept)
    with pytest.raises(ArgumentError, match="total_epsilon must be above 0, and needs an account"):
        vnp.twin(TABLES, epsilon=5.0, schema=PAIR, total_epsilon=6.0)


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


LONG = FitTime(before={"the tables": 1.0}, after={"the field": 700.0}, shorter="Give 'visits' fewer values. ")


@pytest.mark.skipif(not has_engine(), reason="Markov random fields: extra `mrf`")
def test_what_takes_long_is_asked_for_before_anything_is_spent(monkeypatch, tmp_path):
    def twin(**settings):
        return vnp.twin(
            TABLES, epsilon=5.0, schema=SCHEMA, rng_key=jax.random.key(0), run_dir=tmp_path / "run", **settings
        )

    monkeypatch.setattr(vnp.VertiMRF, "time", lambda self, facts, plan: LONG)
    with pytest.raises(ArgumentError, match=r"allow_long: .*12 min .*the field 12 min.*'visits'.*allow_long=True"):
        twin()
    assert not (tmp_path / "run").exists()
    with pytest.warns(LongFitWarning, match="12 min"):
        twin(allow_long=True)


def test_a_run_that_goes_on_and_a_plan_that_is_spent_are_not_asked(monkeypatch, tmp_path):
    dpvi, run = vnp.DPVI(num_components=1, warm_start=False), tmp_path / "run"
    dataset = vnp.VerticalDataset.from_frames(SCHEMA, TABLES)
    plan = dpvi.plan(dataset, epsilon=5.0, num_steps=2)
    monkeypatch.setattr(inference, "fit_time", lambda *arguments: LONG)

    def fit(**settings):
        return dpvi.fit(dataset, plan, jax.random.key(0), run_dir=run, progress_bar=False, **settings)

    with pytest.raises(ArgumentError, match="allow_long: "):
        fit()
    assert not run.exists()
    with pytest.warns(LongFitWarning):
        fit(allow_long=True)
    fit(resume=True)
    with pytest.raises(PlanSpentError):
        fit()


def test_no_party_between_organisations_is_asked():
    class Elsewhere(SessionWrapper):
        num_records = N
        inner = object.__new__(OrganisationSession)

    plan = vnp.DPVI(num_components=1, warm_start=False).plan(TableFacts(SCHEMA, N), epsilon=5.0)
    settings = {"run_dir": None, "resume": False, "allow_long": False}
    announce(Elsewhere(), plan, lambda: LONG, **settings)
    with pytest.raises(ArgumentError, match="allow_long: "):
        announce(InProcessSession(vnp.VerticalDataset.from_frames(SCHEMA, TABLES), vnp.FixedPoint()), plan,
                 lambda: LONG, **settings)  # fmt: skip


def test_a_plan_says_how_long_a_fit_takes_and_where_the_time_goes(monkeypatch):
    plan = vnp.DPVI(num_components=1, warm_start=False).plan(TableFacts(SCHEMA, N), epsilon=5.0, num_steps=2)
    assert plan.known_time is None
    found = plan.time
    assert list(found.before) == ["compiling", "2 steps"]
    assert found.seconds > 0
    assert plan.known_time is found
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert Plan.from_dict(plan.to_dict()).time is None
    tables = vnp.VertiMRF().plan(TableFacts(SCHEMA, N), epsilon=5.0)
    parts = vnp.MarginalInference(num_components=2).time(TableFacts(SCHEMA, N), tables)
    assert list(parts.after)[-2:] == ["the model", "the synthetic table"]
    assert ("the field" in parts.after) == has_engine()


def test_a_time_names_its_large_parts_and_what_it_leaves_out():
    found = FitTime(before={"trying": 1.0, "steps": 200.0}, after={"the field": 7200.0}, unknown="the network")
    assert found.words == "about 2.1 h on this machine (the field 2.0 h); not in it: the network"
    assert found.words_after == "the field, about 2.0 h"
    assert FitTime().words == "about 1 s on this machine"
