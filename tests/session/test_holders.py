"""Organisations that hold whole records of one table, each other ones: sums, their noise, and who is refused."""

import dataclasses
import json
from functools import partial

import jax
import numpy as np
import pandas as pd
import pytest

from tests.secure.liar import LyingHolder
from vertinumpyro.core.errors import ArgumentError, CheckFailedError, DataError, PlanSpentError
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    RealColumn,
    Rows,
    Schema,
    TableFacts,
    Take,
    VerticalDataset,
)
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.horizontal import HorizontalDPVI
from vertinumpyro.privacy import DisjointBatches, draw_noise_share
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.regression import BayesianLinearRegression, VerticalLinearRegression
from vertinumpyro.regression.bayesian_linear_plan import encode, scaled, statistic_vectors
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.session import PRIVACY_RECORD, OrganisationSession, PartyTask, ProcessSession, party_sources
from vertinumpyro.session.party import SENT, _records_of_all
from vertinumpyro.transport import Communicator, Member, ProcessGroup

HOLDERS = ("north", "south", "west")
SIZES = (150, 90, 60)
SEED = 11
SCHEMA = Schema(
    {
        "patients": PartySchema(
            {
                "dose": RealColumn(bounds=(-2.0, 2.0)),
                "visits": CountColumn(upper=8),
                "ill": BinaryColumn(categories=("no", "yes")),
                "pressure": RealColumn(bounds=(-10.0, 10.0)),
            }
        )
    }
)
REGRESSION = partial(BayesianLinearRegression, target="pressure", backend=SecureAggregation(), noise_variance=1.0)


def MIXTURE():  # noqa: N802 (beside the other)
    return HorizontalDPVI(DPVI(num_components=2), backend=SecureAggregation())


@dataclasses.dataclass(frozen=True)
class Held:
    """Every holder's file, and all records as one table."""

    files: dict
    whole: pd.DataFrame

    def tasks(self, build, folder, **settings):
        return [
            PartyTask(
                **{
                    "party": name,
                    "schema": SCHEMA.to_dict(),
                    "table": self.files[name],
                    "build": build,
                    "ledger": folder / f"{name}.ledger",
                    "holders": HOLDERS,
                    **settings,
                }
            )
            for name in HOLDERS
        ]

    def numbers(self):
        table = self.whole[["dose", "visits", "ill", "pressure"]].replace({"no": 0, "yes": 1})
        return table.astype(float).to_numpy()


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("held"), np.random.default_rng(0)
    count = sum(SIZES)
    dose, visits, ill = rng.uniform(-2, 2, count), rng.integers(0, 9, count), rng.random(count) < 0.3
    frame = pd.DataFrame({"dose": dose, "visits": visits, "ill": np.where(ill, "yes", "no")})
    frame["pressure"] = np.clip(2 * dose - 0.5 * visits + 3 * ill + rng.normal(0, 1, count), -10, 10)
    frame.insert(0, SCHEMA.id_column, [str(i) for i in range(count)])
    files = {}
    for name, rows in zip(HOLDERS, np.split(np.arange(count), np.cumsum(SIZES)[:-1]), strict=True):
        files[name] = folder / f"{name}.csv"
        frame.iloc[rows].to_csv(files[name], index=False)
    return Held(files, frame)


def at_holder(seat, task, use, plan):
    """One holder's own program, in a process of its own."""
    with OrganisationSession(seat, task) as session:
        seat.reply({"num_records": session.num_records, "parties": list(session.parties)}, **use(session, plan))


def joined(tasks, use, plan):
    """(words, arrays) of every holder: `use(session, plan)` runs at each, and nobody asks them anything."""
    members = [Member(name=task.party, run=at_holder, arguments=(task, use, plan)) for task in tasks]
    group = ProcessGroup(members, len(tasks), 60.0)
    try:
        return list(group.replies(range(len(tasks)), within_s=300.0).values())
    finally:
        group.close()


def linear(session, plan):
    return {"coef": REGRESSION().fit(session, plan=plan).coef_}


def mixture(session, plan):
    posterior = MIXTURE().fit(session, plan, jax.random.key(0), progress_bar=False)
    twin = posterior.sample_synthetic(20, rng_key=jax.random.key(1))
    return {"num_rows": np.array(len(twin)), **{str(i): leaf for i, leaf in enumerate(posterior.params.values())}}


# -- linear regression -----------------------------------------------------------------------------


def test_holders_release_the_sum_over_all_records_and_each_of_them_adds_noise(held, tmp_path):
    build = partial(REGRESSION, epsilon=1.0, projection=False, insecure_seed=SEED)
    with ProcessSession(held.tasks(build, tmp_path, insecure_seed=SEED)) as session:
        assert session.num_records == sum(SIZES)
        assert session.parties == HOLDERS
        model, plan = build(), build().plan(session)
        model.fit(session, plan=plan, run_dir=tmp_path / "run")
    bounds = np.array([2.0, 8.0, 1.0, 10.0])  # the schema's
    total = encode(statistic_vectors(scaled(held.numbers(), bounds))).sum(axis=0)
    for source in party_sources(1 + len(HOLDERS), SEED)[: len(HOLDERS)]:
        total = total + draw_noise_share(plan.statistics.share_variance, total.size, source)
    d = 3
    first, second = np.triu_indices(d + 1)
    expected = np.zeros((d + 1, d + 1))
    expected[first[:-1], second[:-1]] = total * 2.0**-24
    # what is read from a file is float32 in model units
    assert model.statistics_.second_moments[np.triu_indices(d)] == pytest.approx(
        expected[:d, :d][np.triu_indices(d)], abs=1e-3
    )
    assert model.statistics_.cross_moments == pytest.approx(expected[:d, d], abs=1e-3)


SEEDED = partial(REGRESSION, epsilon=1.0, projection=False, insecure_seed=SEED)


def moments(session, plan):
    return {"moments": SEEDED().fit(session, plan=plan).statistics_.second_moments}


def test_organisations_with_several_rows_of_a_person_release_what_its_records_do(held, tmp_path):
    """Each row twice, in another order: the rules make the same records again."""
    rules = {"dose": "max", "visits": "max", "ill": "any", "pressure": "max"}
    rows = Rows(per=SCHEMA.id_column, take={name: Take(rule=rule) for name, rule in rules.items()})
    schema = Schema({"patients": PartySchema(dict(SCHEMA.columns), rows)})
    plan, found = SEEDED().plan(TableFacts(SCHEMA, sum(SIZES), HOLDERS)), []
    for name, own in (("records", SCHEMA), ("rows", schema)):
        (tmp_path / name).mkdir()
        tasks = []
        for task in held.tasks(SEEDED, tmp_path / name, insecure_seed=SEED, schema=own.to_dict()):
            table = pd.read_csv(task.table, dtype=str)
            twice = pd.concat([table, table.sample(frac=1, random_state=0)]) if name == "rows" else table
            twice.to_csv(tmp_path / name / f"{task.party}.csv", index=False)
            tasks.append(dataclasses.replace(task, table=tmp_path / name / f"{task.party}.csv"))
        found.append(joined(tasks, moments, plan))
    (of_records, first), (of_rows, second) = (replies[0] for replies in found)
    assert of_rows["num_records"] == of_records["num_records"] == sum(SIZES)
    np.testing.assert_array_equal(second["moments"], first["moments"])


def test_holders_learn_what_all_records_together_say(held, tmp_path):
    build = partial(REGRESSION, epsilon=200.0, delta=1e-3)
    with ProcessSession(held.tasks(build, tmp_path)) as session:
        model = build().fit(session, run_dir=tmp_path / "run")
    numbers = held.numbers()
    exact = np.linalg.lstsq(numbers[:, :3], numbers[:, 3], rcond=None)[0]
    assert model.coef_ == pytest.approx(exact, abs=0.4)
    assert list(model.feature_names_in_) == ["dose", "visits", "ill"]
    assert model.predict(numbers[:5, :3]).shape == (5,)
    assert [row.adversary for row in model.plan_.adversaries] == [
        "outside analyst",
        *HOLDERS,
        "any 2 colluding parties",
    ]
    assert max(model.plan_.epsilon(name) for name in ("outside analyst", *HOLDERS)) <= 200.0
    for name in HOLDERS:  # everybody has a record of its own
        record = json.loads((tmp_path / f"{name}.ledger" / model.plan_.plan_id / PRIVACY_RECORD).read_text())
        assert (record["status"], record["steps_spent"]) == ("finished", 2)


def test_every_holder_ends_with_the_same_on_its_own_machine(held, tmp_path):
    tasks = held.tasks(REGRESSION, tmp_path)
    plan = REGRESSION(epsilon=5.0).plan(TableFacts(SCHEMA, sum(SIZES), HOLDERS))
    found = joined(tasks, linear, plan)
    assert [words for words, _ in found] == [{"num_records": sum(SIZES), "parties": list(HOLDERS)}] * 3
    assert all(np.array_equal(arrays["coef"], found[0][1]["coef"]) for _, arrays in found)
    with pytest.raises(PlanSpentError, match="on record"):
        joined(tasks, linear, plan)


def test_a_holder_tells_nobody_how_many_records_it_has(held, tmp_path):
    """Its name, the plan and the sum are all that the others and the starter get."""
    with ProcessSession(held.tasks(REGRESSION, tmp_path)) as session:
        seen = repr(vars(session)) + repr(session)
    assert str(sum(SIZES)) in seen
    assert not any(f" {size}" in seen or f"={size}" in seen for size in SIZES)


# -- DPVI ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [sum(SIZES), 40])
def test_dpvi_runs_at_every_holder(held, batch_size, tmp_path):
    facts = TableFacts(SCHEMA, sum(SIZES), HOLDERS)
    plan = MIXTURE().plan(facts, epsilon=3.0, batch_size=batch_size, num_steps=4)
    assert plan.epsilon() <= 3.0
    assert {"outside analyst", *HOLDERS} <= {row.adversary for row in plan.adversaries}
    assert plan.sampling.full_batch == (batch_size == sum(SIZES))

    found = [arrays for _, arrays in joined(held.tasks(MIXTURE, tmp_path), mixture, plan)]
    assert all(np.array_equal(other[name], found[0][name]) for other in found for name in found[0])
    assert found[0]["num_rows"] == 20
    record = json.loads((tmp_path / "south.ledger" / plan.plan_id / PRIVACY_RECORD).read_text())
    assert (record["status"], record["steps_spent"]) == ("finished", 4)


# -- who cheats ------------------------------------------------------------------------------------


def lying_regression(name):
    return REGRESSION(backend=LyingHolder(name=name), projection=False)


def lying_mixture():
    return HorizontalDPVI(DPVI(num_components=2), backend=LyingHolder(number=2))


def spend(build, tasks, plan, **run):
    with ProcessSession(tasks, timeout_s=60.0) as session:
        if plan.kind == "horizontal":
            build().fit(session, plan, jax.random.key(0), progress_bar=False)
        else:
            build().fit(session, plan=plan, **run)


def record_of(plan, folder, name):
    return read_record(folder / f"{name}.ledger" / plan.plan_id / PRIVACY_RECORD)


@pytest.mark.promise
@pytest.mark.parametrize("kind", ["bayesian_linear", "horizontal"])
def test_a_failed_check_names_the_holder_and_ends_the_plan(held, tmp_path, kind):
    build = lying_mixture if kind == "horizontal" else partial(lying_regression, "agreed")
    facts = TableFacts(SCHEMA, sum(SIZES), HOLDERS)
    plan = MIXTURE().plan(facts, epsilon=3.0, num_steps=4) if kind == "horizontal" else build().plan(facts)
    said = "'south' failed a check, or was cheated itself: commitments; nothing was opened"
    with pytest.raises(CheckFailedError, match=f"{said}. The attempt counts as spent"):
        spend(build, held.tasks(build, tmp_path), plan)
    record = record_of(plan, tmp_path, "north")
    assert (record.status, record.failed) == ("finished", said)
    assert record.steps_spent == plan.num_steps // (2 if kind == "horizontal" else 1)  # two steps at a time
    with pytest.raises(PlanSpentError, match="was closed when a check failed"):
        held.tasks(build, tmp_path)[0].has_begun(plan.plan_id)


@pytest.mark.promise
def test_an_opening_that_was_refused_counts_and_is_never_another(held, tmp_path):
    build = partial(lying_regression, "opening")
    plan = build().plan(TableFacts(SCHEMA, sum(SIZES), HOLDERS))
    with pytest.raises(CheckFailedError, match="'south' opened another share than it had committed to"):
        spend(build, held.tasks(build, tmp_path), plan, run_dir=tmp_path / "run")
    record = record_of(plan, tmp_path, "north")
    assert (record.steps_spent, record.failed) == (1, "")
    sent = tmp_path / "north.ledger" / plan.plan_id / SENT
    first = np.load(sent)["0/message"]
    honest = partial(REGRESSION, projection=False)
    spend(honest, held.tasks(honest, tmp_path), plan, run_dir=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(np.load(sent)["0/message"], first)


def test_a_holder_that_says_it_has_fewer_records_than_none_is_refused(held, tmp_path):
    """Fewer than one of the others has: how often a batch is cut would be bounded by a number that is none."""

    class End:
        def noisy_sum(self, vector, noise):
            return vector - 1

    with pytest.raises(CheckFailedError, match="add up to fewer than 'north' has"):
        _records_of_all(End(), held.tasks(REGRESSION, tmp_path)[0], 150)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e30, 1e30])
def test_whatever_state_a_holder_begins_with_a_records_vector_is_within_the_clip(held, value):
    """Party 0 says where an iterative method begins."""
    inference, facts = MIXTURE(), TableFacts(SCHEMA, sum(SIZES), HOLDERS)
    plan = inference.plan(facts, epsilon=3.0, num_steps=4, clip_norm=2.0)
    columns = VerticalDataset.from_records(SCHEMA, {"patients": held.whole.iloc[:8]}).arrays("patients")
    work = inference.work(facts, "north", columns, plan, party_sources(1, SEED)[0])
    state = jax.tree_util.tree_map(
        lambda leaf: np.full_like(leaf, value) if np.issubdtype(leaf.dtype, np.floating) else leaf, work._state
    )
    for record in range(8):
        vector = work._steps.sum_of(state, np.array([record]), np.array([True]))
        assert np.linalg.norm(vector.astype(float)) <= 2.0 * 2.0**plan.grid_bits


# -- who is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"holders": ("north", "south")}, "'west' among them"),
        ({"holders": ("north", "south", "west", "west")}, "each once"),
        ({"holders": ("west",)}, "two or more names|two names or more"),
        ({"build": partial(VerticalLinearRegression, backend=SecureAggregation())}, "these hold whole records"),
        ({"holders": (), "party": "patients"}, "is for holders of whole records"),
    ],
)
def test_parties_that_hold_something_else_are_refused(held, change, says, tmp_path):
    task = dataclasses.replace(held.tasks(REGRESSION, tmp_path)[2], **change)
    with pytest.raises(ArgumentError, match=says):
        OrganisationSession(Communicator(0, 3, {}, 1.0), task)


def test_columns_divided_among_parties_are_no_holders(held, tmp_path):
    two = Schema({"a": PartySchema({"x": BinaryColumn()}), "b": PartySchema({"y": BinaryColumn()})})
    task = dataclasses.replace(held.tasks(REGRESSION, tmp_path)[0], schema=two.to_dict())
    with pytest.raises(ArgumentError, match="put all columns under one party"):
        task.read_schema()
    with pytest.raises(ArgumentError, match="columns of the same records"):
        HorizontalDPVI().plan(TableFacts(two, 50), epsilon=1.0)


@pytest.mark.parametrize(
    ("columns", "target", "says"),
    [
        ({"y": BinaryColumn()}, None, "name the column"),
        ({"y": BinaryColumn()}, "z", "no column 'z'"),
        ({"y": BinaryColumn()}, "y", "no column besides"),
        ({"y": BinaryColumn(), "kind": CategoricalColumn(categories=("a", "b", "c"))}, "y", "labels and no numbers"),
        ({"y": BinaryColumn(), "x": RealColumn(bounds=(0, 1), missing="mask")}, "y", "may be missing"),
    ],
)
def test_columns_that_are_no_numbers_are_refused_before_anything_is_spent(columns, target, says):
    facts = TableFacts(Schema({"people": PartySchema(columns)}), 100, HOLDERS)
    with pytest.raises((ArgumentError, DataError), match=says):
        BayesianLinearRegression(target=target).plan(facts)


def test_plans_for_others_are_refused(held, tmp_path):
    facts = TableFacts(SCHEMA, sum(SIZES), HOLDERS)
    others = TableFacts(SCHEMA, sum(SIZES), ("east", "south", "west"))
    regression, inference = REGRESSION(), MIXTURE()
    with pytest.raises(ArgumentError, match="east"):
        regression.check(facts, regression.plan(others))
    with pytest.raises(ArgumentError, match="clients each"):
        regression.check(facts, regression.plan(sum(SIZES), 3))
    with pytest.raises(ArgumentError, match="BayesianLinearPlan"):
        regression.check(facts, inference.plan(facts, epsilon=1.0))
    with pytest.raises(ArgumentError, match="east"):
        inference.check(facts, inference.plan(others, epsilon=1.0))
    plan = dataclasses.replace(
        inference.plan(facts, epsilon=1.0), sampling=DisjointBatches(batch_size=50, num_epochs=1)
    )
    with pytest.raises(ArgumentError, match="Poisson"):
        inference.check(facts, plan)


def test_a_plan_and_its_record_name_the_holders():
    facts = TableFacts(SCHEMA, sum(SIZES), HOLDERS)
    for plan in (REGRESSION().plan(facts), MIXTURE().plan(facts, epsilon=1.0)):
        again = type(plan).from_dict(json.loads(json.dumps(plan.to_dict())))
        assert (again, again.parties) == (plan, HOLDERS)
        assert "holders" not in dataclasses.replace(_without(plan)).to_dict()


def _without(plan):
    return (
        REGRESSION().plan(plan.num_records, 3)
        if plan.kind == "bayesian_linear"
        else dataclasses.replace(plan, holders=())
    )
