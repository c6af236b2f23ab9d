"""Named tables: they get the whole budget, the others are never opened, and what follows works with what there is."""

from __future__ import annotations

import itertools
import json

import jax
import numpy as np
import pytest

from tests.mrf.conftest import NUM_RECORDS, SCHEMA
from tests.mrf.test_cross_tables import assert_pads_hide, engaged, exact_tables, like_the_noise, split, uniform  # noqa: F401
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema, TableFacts
from vertinumpyro.marginals import MarginalInference, release_marginals
from vertinumpyro.mrf import Marginals, VertiMRF
from vertinumpyro.mrf.cells import cell_columns
from vertinumpyro.mrf.contingency import table_slices
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.mrf.releases import ACROSS
from vertinumpyro.mrf.table_selection import crossing, named_tables
from vertinumpyro.privacy import OUTSIDE_ANALYST, Plan
from vertinumpyro.secure import FixedPoint, Plaintext
from vertinumpyro.session import Multiply

WORKLOAD = (("ill", "visits"), ("plan", "smoker"), ("age", "ill"), ("income", "ill"), ("children", "visits"))
ACROSS_PAIRS = [("smoker", "plan"), ("ill", "visits"), ("ill", "income")]
FACTS = TableFacts(SCHEMA, NUM_RECORDS)


def plan_of(facts=FACTS, **settings):
    return VertiMRF(workload=WORKLOAD).plan(facts, epsilon=1.0, **settings)


def test_the_plan_names_its_tables_and_pays_for_no_others():
    plan, whole = plan_of(), VertiMRF().plan(FACTS, epsilon=1.0)
    assert plan.workload[1] == ("clinic", "age", "clinic", "ill")
    assert (plan.num_cross_pairs, whole.num_cross_pairs) == (3, 12)
    assert plan.cross_releases[0].stddev < 0.55 * whole.cross_releases[0].stddev
    assert plan.worst.epsilon <= 1.0
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.fingerprint() == plan.fingerprint()
    assert "workload" not in whole.to_dict()  # as plans from before were written


def test_what_is_charged_is_what_the_tables_and_histograms_move_by(dataset):
    """mu squared of every release, from the standard deviations of what came out, against the plan's event."""
    plan = plan_of()
    released = VertiMRF(workload=WORKLOAD).release(dataset, plan)
    sensitivity = np.sqrt(2)  # of one table under replace: two cells by one
    spent = sum((sensitivity / m.stddev) ** 2 for m in released.measurements)
    spent += sum((sensitivity / stddev) ** 2 for stddev in released.fine_stddevs.values())
    event = plan.event(next(o for o in plan.observers if o.name == OUTSIDE_ANALYST))
    assert (plan.relation.sensitivity / event.noise_multiplier) ** 2 == pytest.approx(spent, rel=0.02)


@pytest.mark.parametrize("backend", [FixedPoint(), Plaintext()], ids=["fixed_point", "plaintext"])
def test_the_named_tables_come_with_their_noise_and_the_others_not_at_all(backend, dataset):
    """Cells of the other tables are opened as uniform elements of the ring."""
    opened, columns = [], crossing(cell_columns(SCHEMA), plan_of().workload)
    assert [c.name for c in columns] == ["smoker", "ill", "visits", "plan", "income"]  # the others cross no parties
    places = table_slices(columns, SCHEMA.parties)
    for _ in range(4):
        session = engaged(dataset, plan := plan_of(), backend)
        ((_, product),) = session.cross_products(Multiply(1, ACROSS, {"release": 0})).items()
        opened.append(product.ravel())
    exact = exact_tables(dataset)
    (made,) = plan.cross_releases
    errors = [
        np.asarray(made.measured(pair, each[places[pair]]).values) - exact[pair]
        for each, pair in itertools.product(opened, ACROSS_PAIRS)
    ]
    assert like_the_noise(np.concatenate([error.ravel() for error in errors]) / made.stddev)
    hidden = np.concatenate([place.ravel() for pair, place in places.items() if pair not in ACROSS_PAIRS])
    assert uniform(np.concatenate([each[hidden] for each in opened]))


def test_the_pads_of_all_parties_but_one_do_not_open_a_cell(split):  # noqa: F811
    names = list(SCHEMA.columns)
    pairs = [(names[i], names[i + 1]) for i in range(len(names) - 1)]
    plans = [VertiMRF(workload=pairs).plan(split, epsilon=1.0) for _ in range(4)]
    places = table_slices(crossing(cell_columns(split.schema), plans[0].workload), split.parties)
    named = {(a, b) for _, a, _, b in plans[0].workload}
    hidden = np.concatenate([place.ravel() for pair, place in places.items() if pair not in named])
    assert len(split.parties) == 4
    assert_pads_hide(split, plans, Multiply(1, ACROSS, {"release": 0}), hidden)


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ([("ill", "vists")], "the schema has no column 'vists'"),
        ([("ill", "ill")], "no pair; give the names of two different"),
        (["ill"], "'ill' is neither a pair of columns nor one of"),
        (["star:vists"], "the schema has no column 'vists'"),
        (["star:"], "'star:' is neither"),
        ("blocks:1", "'blocks:1' is neither"),
        ([7], "no pair"),
        ([(1, 2)], "the schema has no column 1"),
        ([("ill", "visits", "plan")], "no pair"),
        ([*WORKLOAD, ("visits", "ill")], "there twice"),
        (WORKLOAD[:-1], "no table holds children; name a pair"),
    ],
)
def test_what_is_no_workload_says_why(workload, why):
    with pytest.raises(ArgumentError, match=f"workload: .*{why}"):
        VertiMRF(workload=workload).plan(FACTS, epsilon=1.0)


def test_words_name_many_tables():
    columns = cell_columns(SCHEMA)
    star = [{a, b} for _, a, _, b in named_tables(columns, "star:ill")]
    assert star == [{"ill", c.name} for c in columns if c.name != "ill"]
    chains = [("smoker", "age"), ("age", "ill"), ("visits", "plan"), ("plan", "income"), ("income", "children")]
    assert [(a, b) for _, a, _, b in named_tables(columns, ["chains"])] == chains
    with pytest.raises(ArgumentError, match="no table holds ill;"):
        named_tables(columns, ["blocks:2"])
    both = named_tables(columns, ["star:ill", "chains", ("visits", "children")])
    assert len(both) == 6 + 5 - 1 + 1
    assert len(named_tables(columns, ["blocks:3", ("income", "children")])) == 3 + 3 + 1


def many(num_columns):
    held = {f"c{i}": (BinaryColumn(), RealColumn(bounds=(0, 1)))[i % 2] for i in range(num_columns)}
    names = list(held)
    return Schema({p: PartySchema({n: held[n] for n in names[k::2]}) for k, p in enumerate(("clinic", "insurer"))})


def test_a_thousand_columns_need_a_workload_and_its_memory_is_bounded():
    facts = TableFacts(many(1000), 100_000)
    with pytest.raises(ArgumentError, match=r"499,500 tables, more than 20,000.*star:COLUMN"):
        VertiMRF().plan(facts, epsilon=1.0)
    with pytest.raises(ArgumentError, match="499,500 tables"):
        VertiMRF(selection="adaptive").plan(facts, epsilon=1.0)
    settings = VertiMRF(workload=["star:c0", "chains"])
    plan = settings.plan(facts, epsilon=1.0, delta=1e-9)
    assert len(plan.workload) == 999 + 499 + 499 - 1  # c0's neighbour is in both
    ((product, count),) = settings.computations(facts, plan)
    assert (product.widths, count) == ((2, 500 * 16), 1)  # the label alone crosses to the other party
    assert settings.memory(facts.schema, plan) < settings.memory_limit == 2**31
    with pytest.raises(ArgumentError, match="memory_limit"):
        VertiMRF(workload=["star:c0", "star:c1"], memory_limit=2**28).plan(facts, epsilon=1.0, delta=1e-9)


def test_named_tables_are_measured_once():
    with pytest.raises(ArgumentError, match="workload: named tables are measured once"):
        VertiMRF(workload=WORKLOAD, selection="adaptive").plan(FACTS, epsilon=1.0)
    with pytest.raises(ArgumentError, match="made for another workload"):
        VertiMRF().check(FACTS, plan_of())
    with pytest.raises(ArgumentError, match="made for another workload"):
        VertiMRF(workload=(*WORKLOAD, ("age", "plan"))).check(FACTS, plan_of())


def test_the_release_is_the_named_tables_and_comes_back_from_a_file(dataset, tmp_path):
    settings = VertiMRF(workload=WORKLOAD)
    released = release_marginals(dataset, plan_of(), settings, run_dir=tmp_path)
    assert [m.columns for m in released.measurements] == [("age", "ill"), ("visits", "children"), *ACROSS_PAIRS]
    assert set(released.fine) == {"age", "visits", "income"}
    released.save(tmp_path)
    assert [m.columns for m in Marginals.load(tmp_path).measurements] == [m.columns for m in released.measurements]


@pytest.mark.skipif(not has_engine(), reason="the engine of Markov fields: extra `mrf`")
def test_models_and_fields_are_made_of_what_there_is(dataset):
    settings = VertiMRF(workload=WORKLOAD)
    released = release_marginals(dataset, plan_of(), settings)
    field = settings.fit(dataset, plan_of())
    model = MarginalInference(num_components=3, num_steps=300, settings=settings)
    for twin in (field, model.fit(released, jax.random.key(0), progress_bar=False)):
        table = twin.sample_synthetic(2000, rng_key=jax.random.key(1))
        assert np.corrcoef(table["ill"], table["visits"])[0, 1] > 0.3


@pytest.mark.parametrize(
    "words", ["ill:visits", "ill, visits", "visits x ill", "ill × visits", "ill*visits", "ill - visits"]
)
def test_a_pair_may_be_written_as_people_do(words):
    columns = cell_columns(Schema({"a": PartySchema({"ill": BinaryColumn(), "visits": BinaryColumn()})}))
    assert named_tables(columns, [words]) == named_tables(columns, [("ill", "visits")])


def test_a_name_with_such_a_character_is_no_pair_by_itself():
    columns = cell_columns(Schema({"a": PartySchema(dict.fromkeys(("a-b", "a", "b", "b-c", "c"), BinaryColumn()))}))
    for words in ("a-b", "a-b-c"):  # a column; a-b with c, or a with b-c
        with pytest.raises(ArgumentError, match="neither a pair of columns"):
            named_tables(columns, [words])
