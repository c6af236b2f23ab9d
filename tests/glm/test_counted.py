"""`MarginalGLM` between processes and organisations: each party counts at home, and all get what one process gets."""

import functools

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, CountColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.glm import MarginalGLM
from vertinumpyro.marginals import MarginalInference
from vertinumpyro.mrf import Marginals
from vertinumpyro.secure import Crypten, FixedPoint
from vertinumpyro.session import InProcessSession, OrganisationSession, PartyTask, ProcessSession
from vertinumpyro.transport import Member, ProcessGroup

pytestmark = pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning")
needs_crypten = pytest.mark.skipif(Crypten().missing() is not None, reason=str(Crypten().missing()))

SEED, NUM_RECORDS = 4, 120
SCHEMA = Schema(
    {
        "clinic": PartySchema({"smoker": BinaryColumn(), "state": CategoricalColumn(categories=("well", "poor"))}),
        "insurer": PartySchema({"visits": CountColumn(upper=20), "claim": BinaryColumn(categories=("no", "yes"))}),
    }
)
BUILD = functools.partial(MarginalGLM, schema=SCHEMA, family="poisson", label="visits")


@pytest.fixture(autouse=True)
def no_model_is_fitted(monkeypatch):
    """Plans try the fit; tests of the fit have their own module."""
    monkeypatch.setattr(MarginalInference, "rehearse", lambda *arguments: None)


@pytest.fixture(scope="module")
def dataset():
    return VerticalDataset.example(SCHEMA, NUM_RECORDS, np.random.default_rng(2))


@pytest.fixture(scope="module")
def files(dataset, tmp_path_factory):
    folder, frame = tmp_path_factory.mktemp("tables"), dataset.to_frame()
    frame.insert(0, "id", [f"{i:04d}" for i in range(NUM_RECORDS)])
    found = {party: folder / f"{party}.csv" for party in SCHEMA.parties}
    for party, path in found.items():
        columns = ["id", *SCHEMA.column_names(party)]
        frame[columns].sample(frac=1.0, random_state=len(party)).to_csv(path, index=False)
    return found


def tasks_of(files, folder, schema=SCHEMA, **settings):
    build = functools.partial(BUILD, backend=Crypten(), schema=schema)
    return [
        PartyTask(party=p, schema=schema.to_dict(), table=files[p], build=build, ledger=folder / p, **settings)
        for p in schema.parties
    ]


def equal(first: Marginals, second: Marginals):
    assert [m.columns for m in first.measurements] == [m.columns for m in second.measurements]
    for one, other in zip(first.measurements, second.measurements, strict=True):
        np.testing.assert_array_equal(one.values, other.values)
    assert first.schema == second.schema


@needs_crypten
def test_parties_in_processes_release_what_one_process_does_on_the_same_noise(dataset, files, tmp_path):
    regression = BUILD()
    with ProcessSession(tasks_of(files, tmp_path, insecure_seed=SEED)) as session:
        plan = regression.plan(session, epsilon=2.0)
        apart = regression.release(session, plan, run_dir=tmp_path / "run", insecure_seed=SEED)
        with pytest.raises(PlanSpentError):
            regression.release(session, plan, insecure_seed=SEED)
    here = regression.release(dataset, regression.plan(dataset, epsilon=2.0), insecure_seed=SEED)
    equal(apart, here)
    counts = here.measurements[0].values
    assert counts.shape == (2, 6)
    assert abs(counts.sum() - NUM_RECORDS) < 60


def test_what_is_counted_at_home_is_what_the_table_has(dataset):
    """With next to no noise, against pandas on the pooled table."""
    regression = BUILD()
    session = InProcessSession(dataset, FixedPoint())
    tables = regression.release(session, regression.plan(session, epsilon=1e6))
    frame = dataset.to_frame()
    groups = np.array([0, 1, 3, 6, 10, 16])
    grouped = np.searchsorted(groups, frame["visits"].to_numpy(), side="right") - 1
    combined = 2 * frame["smoker"].astype(int) + (frame["state"] == "poor")
    expected = {
        frozenset({"features_of_clinic", "visits"}): pd.crosstab(combined, grouped),
        frozenset({"state", "visits"}): pd.crosstab(frame["state"] == "poor", grouped),
        frozenset({"features_of_clinic", "claim"}): pd.crosstab(combined, frame["claim"]),
    }
    seen = {frozenset(m.columns): m for m in tables.measurements}
    for names, table in expected.items():
        found = seen[names]
        values = found.values if found.columns[0] != "visits" else found.values.T
        np.testing.assert_allclose(values, table.to_numpy(), atol=1.5)


def at_organisation(seat, task, plan):
    """One organisation's own program."""
    with OrganisationSession(seat, task) as session:
        found = task.build().release(session, plan)
        seat.reply({"columns": [list(m.columns) for m in found.measurements]},
                   **{str(i): m.values for i, m in enumerate(found.measurements)})  # fmt: skip


@needs_crypten
def test_organisations_end_with_the_same_tables(dataset, files, tmp_path):
    plan, tasks = BUILD().plan(dataset, epsilon=2.0), tasks_of(files, tmp_path)
    members = [Member(name=task.party, run=at_organisation, arguments=(task, plan)) for task in tasks]
    group = ProcessGroup([*members, *Crypten().helpers(2)], 2, 60.0)
    try:
        (words, first), (others, second) = group.replies(range(2), within_s=300.0).values()
    finally:
        group.close()
    assert words == others
    assert len(first) == len(words["columns"]) == 5
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_who_has_no_part_in_it_and_other_plans_are_refused(dataset):
    wider = Schema({**SCHEMA.parties, "shop": PartySchema({"bill": BinaryColumn()})})
    regression = BUILD(schema=wider, features=["smoker"])
    records = VerticalDataset.example(wider, 50, np.random.default_rng(0))
    with pytest.raises(ArgumentError, match="party 'shop' holds neither a feature nor the label"):
        regression.release(InProcessSession(records, FixedPoint()), regression.plan(records, epsilon=1.0))
    assert regression.release(records, regression.plan(records, epsilon=1.0)).measurements
    plan = BUILD(features=["smoker"]).plan(dataset, epsilon=1.0)
    with pytest.raises(ArgumentError, match="plan was made for another"):
        BUILD().check(dataset, plan)
