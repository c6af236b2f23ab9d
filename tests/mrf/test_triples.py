"""Tables of three columns across parties: chosen from a first look, paid for by the plan, and kept by what follows."""

from __future__ import annotations

import dataclasses
import itertools
import json

import jax
import numpy as np
import pandas as pd
import pytest

from tests.mrf.conftest import NUM_RECORDS, SCHEMA
from tests.mrf.test_cross_tables import assert_pads_hide, engaged, like_the_noise, split, uniform  # noqa: F401
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, Schema, TableFacts, VerticalDataset
from vertinumpyro.evaluation import k_way_tvd
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.cells import cell_columns
from vertinumpyro.mrf.contingency import product_widths
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.mrf.measurements import GRID_BITS, count_table
from vertinumpyro.mrf.releases import TRIPLES
from vertinumpyro.mrf.triples import choose_triples, compound_slices, compounds
from vertinumpyro.privacy import OUTSIDE_ANALYST, Plan
from vertinumpyro.secure import FixedPoint, Plaintext
from vertinumpyro.session import Multiply, Run

needs_engine = pytest.mark.skipif(not has_engine(), reason="the engine mbi 2 needs jax 0.9: extra `mrf`")


def binaries(clinic, insurer):
    made = [PartySchema({name: BinaryColumn() for name in names.split()}) for names in (clinic, insurer)]
    return Schema(dict(zip(("clinic", "insurer"), made, strict=True)))


def parity(num_records=20_000, seed=0):
    """b is a1 xor a2 in nine of ten records: no pair shows anything of it."""
    rng = np.random.default_rng(seed)
    a1, a2, c = rng.integers(2, size=(3, num_records))
    b = a1 ^ a2 ^ (rng.random(num_records) < 0.1)
    frame = pd.DataFrame({"a1": a1, "a2": a2, "b": b.astype(int), "c": c})
    return VerticalDataset.from_pooled(binaries("a1 a2", "b c"), frame)


@needs_engine
@pytest.mark.promise
def test_what_no_pair_shows_is_kept_where_all_triples_can_be_had():
    data, found = parity(), {}
    for triples in ("auto", False):
        system = VertiMRF(triples=triples)
        plan = system.plan(data, epsilon=1.0)
        assert plan.worst.epsilon <= 1.0
        twin = system.fit(data, plan, insecure_seed=1).sample_synthetic(rng_key=jax.random.key(0))
        found[triples] = k_way_tvd(data.to_frame(), twin, data.schema, 3, rng=0).mean
        assert (plan.num_triples > 0) == (triples == "auto")
    assert found["auto"] < 0.02
    assert found[False] > 0.09  # (.4 + 0 + 0 + 0) / 4


# -- which, and how many ------------------------------------------------------------------------------


def and_of_two(num_records=30_000, seed=0):
    """Of the insurer's columns b3 alone follows from the clinic's: it is a1 and a4, which pairs show in part."""
    rng = np.random.default_rng(seed)
    clinic = {f"a{i}": rng.integers(2, size=num_records) for i in range(6)}
    insurer = {f"b{i}": rng.integers(2, size=num_records) for i in range(5)}
    insurer["b3"] = np.where(rng.random(num_records) < 0.1, insurer["b3"], clinic["a1"] & clinic["a4"])
    schema = binaries(" ".join(clinic), " ".join(insurer))
    return VerticalDataset.from_pooled(schema, pd.DataFrame({**clinic, **insurer}))


def test_the_triple_whose_pairs_depend_is_chosen_first():
    data = and_of_two()
    system = VertiMRF(triples=1)
    released = system.release(data, system.plan(data, epsilon=1.0), insecure_seed=0)
    assert released.triples == (("a1", "a4", "b3"),)
    (table,) = (m for m in released.measurements if m.columns == released.triples[0])
    arrays = data.pooled()
    exact = count_table([arrays[name].astype(int) for name in table.columns], (2, 2, 2))
    assert np.abs(table.values - exact).max() < 5 * table.stddev
    assert table.stddev < exact.max() / 20


def facts_of(num_records, clinic=6, insurer=5, size=2):
    column = BinaryColumn() if size == 2 else CategoricalColumn(categories=tuple(range(size)))
    held = {"clinic": range(clinic), "insurer": range(clinic, clinic + insurer)}
    schema = Schema({party: PartySchema({f"c{i}": column for i in own}) for party, own in held.items()})
    return TableFacts(schema, num_records)


def test_a_plan_takes_triples_where_records_and_budget_pay_for_their_cells_and_says_why():
    many = VertiMRF(triples="auto").plan(facts_of(50_000), epsilon=1.0)
    assert many.num_triples > 5
    assert many.triples_why == "their cells hold clearly more than noise"
    assert [release.num_tables for release in many.cross_releases] == [30, many.num_triples]
    assert many.step_names == (
        "the parties' own tables", "the first look across parties", "the tables of three columns",
    )  # fmt: skip
    few = VertiMRF(triples="auto").plan(facts_of(300), epsilon=1.0)
    assert (few.num_triples, few.num_steps) == (0, 2)
    assert "a first look would hide in noise what pairs show" in few.triples_why
    assert VertiMRF(triples="auto").plan(facts_of(50_000), epsilon=0.01).num_triples == 0
    wide = VertiMRF(triples="auto").plan(facts_of(50_000, size=30), epsilon=1.0)
    assert wide.num_triples == 0
    assert VertiMRF(triples=7).plan(facts_of(50_000), epsilon=1.0).num_triples == 7
    assert VertiMRF(triples=7).plan(facts_of(300), epsilon=0.3).triples_why == "noise would hide what is in their cells"


@pytest.mark.parametrize(
    ("settings", "facts", "why"),
    [
        ({"workload": "star:c0"}, facts_of(50_000), "a workload names pairs"),
        ({"selection": "adaptive"}, facts_of(50_000), "rounds measure pairs again"),
        ({"encoder": "randomized_response"}, facts_of(50_000), "an encoder reports pairs alone"),
        ({}, facts_of(50_000, 1, 1), "no party has two columns"),
    ],
)
def test_where_there_are_none_the_plan_says_why(settings, facts, why):
    plan = VertiMRF(triples="auto", **settings).plan(facts, epsilon=1.0)
    assert plan.num_triples == 0
    assert why in plan.triples_why


def two_outcomes(num_records=20_000, seed=0):
    """y is 1 where exactly one of a0 and a1 is, mostly; b goes with a2 and a3 far more than that."""
    rng = np.random.default_rng(seed)

    def mostly(values, share):
        return np.where(rng.random(num_records) < share, values, rng.random(num_records) < 0.5)

    a0, a1, a2 = rng.random((3, num_records)) < 0.3
    columns = {"a0": a0, "a1": a1, "a2": a2, "a3": mostly(a2, 0.9), "b": mostly(a2, 0.9), "y": mostly(a0 ^ a1, 0.9)}
    return VerticalDataset.from_pooled(binaries("a0 a1 a2 a3", "b y"), pd.DataFrame(columns).astype(int))


def test_all_triples_are_of_the_target_those_that_say_most_of_it_first():
    data = two_outcomes()
    system = VertiMRF(triples=1, target="y")
    plan = system.plan(data, epsilon=1.0)
    assert (plan.num_triples, plan.target) == (1, "y")
    released = system.release(data, plan, insecure_seed=0)
    assert released.triples == (("a0", "a1", "y"),)
    for other in (VertiMRF(triples=1), VertiMRF(triples=1, target="b")):
        again = other.release(data, other.plan(data, epsilon=1.0), insecure_seed=0)
        assert released.triples[0] not in again.triples
        with pytest.raises(ArgumentError, match="target"):
            other.check(data, plan)
    (chosen,) = again.triples
    assert "b" in chosen


def test_of_a_target_are_fewer_triples_and_wider_ones():
    facts = facts_of(50_000, size=5)
    all_, own = (VertiMRF(triples="auto", target=target).plan(facts, epsilon=2.0) for target in (None, "c0"))
    assert 0 < own.num_triples < all_.num_triples
    assert own.cross_releases[-1].stddev < all_.cross_releases[-1].stddev


def test_a_target_is_a_column_and_stands_beside_triples():
    with pytest.raises(ArgumentError, match='give triples="auto"'):
        VertiMRF(target="y")
    with pytest.raises(ArgumentError, match="target: the schema has no column 'z'; it has a1, a2, b, c"):
        VertiMRF(triples="auto", target="z").plan(parity(100), epsilon=1.0)


def test_who_does_not_ask_gets_none_and_hears_nothing_of_them():
    plan = VertiMRF().plan(facts_of(50_000), epsilon=1.0)
    assert (plan.num_triples, plan.triples_why, len(plan.cross_releases)) == (0, "", 1)


@pytest.mark.parametrize("triples", [True, -1, "all", 1.5])
def test_what_is_no_number_of_triples_is_refused(triples):
    with pytest.raises(ArgumentError, match="triples"):
        VertiMRF(triples=triples)


def test_a_plan_with_triples_is_for_who_takes_them():
    facts = facts_of(50_000)
    plan = VertiMRF(triples=3).plan(facts, epsilon=1.0)
    VertiMRF(triples="auto").check(facts, plan)
    for other in (False, 2):  # the default takes none
        with pytest.raises(ArgumentError, match="made for another triples"):
            VertiMRF(triples=other).check(facts, plan)


# -- what they cost -----------------------------------------------------------------------------------


def test_what_is_charged_is_what_all_tables_move_by():
    """mu squared of every release, from the standard deviations of what came out, against the plan's event."""
    data = and_of_two(3000)
    plan = VertiMRF(triples=4).plan(data, epsilon=3.0)
    assert plan.num_triples == 4
    released = VertiMRF(triples=4).release(data, plan, insecure_seed=0)
    assert len(released.triples) == 4
    spent = sum(2 / m.stddev**2 for m in released.measurements)  # of one table under replace: two cells by one
    event = plan.event(next(o for o in plan.observers if o.name == OUTSIDE_ANALYST))
    assert (plan.relation.sensitivity / event.noise_multiplier) ** 2 == pytest.approx(spent, rel=0.02)
    assert plan.worst.epsilon <= 3.0


def test_a_coalition_meets_the_triples_that_it_does_not_hold_whole():
    columns = [(party, i) for party, n in zip("abc", (2, 3, 4), strict=True) for i in range(n)]
    triples = [t for t in itertools.combinations(columns, 3) if len({party for party, _ in t}) == 2]
    plan = VertiMRF(triples=5).plan(three_parties((2, 3, 4)), epsilon=2.0, collusion_threshold=1)
    for coalition in itertools.chain.from_iterable(itertools.combinations(range(3), k) for k in range(4)):
        inside = {"abc"[i] for i in coalition}
        outside = [t for t in triples if not {party for party, _ in t} <= inside]
        assert plan._triples_outside(coalition) == len(outside)
    assert plan.worst.epsilon <= 2.0
    second = plan.cross_releases[1]
    alone = dataclasses.replace(plan, num_triples=0, first_share=1.0)
    assert second.num_tables == 5
    for observer in plan.covered:
        # a part of the budget moved from pairs, of which a coalition holds some, to triples, of which it may hold none
        assert plan._mu_against(observer) >= alone._mu_against(observer) * (1 - 1e-6)


def three_parties(num_columns, num_records=40_000):
    names = iter(range(sum(num_columns)))
    held = {p: {f"c{next(names)}": BinaryColumn() for _ in range(n)} for p, n in zip("abc", num_columns, strict=True)}
    return TableFacts(Schema({party: PartySchema(own) for party, own in held.items()}), num_records)


def test_plans_of_before_have_none_and_new_ones_are_read_back():
    plan = VertiMRF(triples=3).plan(facts_of(50_000), epsilon=1.0)
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.fingerprint() == plan.fingerprint()
    before = dataclasses.replace(plan, num_triples=0, triples_why="", first_share=1.0)
    assert not {"num_triples", "triples_why"} & before.to_dict().keys()
    with pytest.raises(ArgumentError, match="num_triples must lie between"):
        dataclasses.replace(plan, num_triples=10_000)
    with pytest.raises(ArgumentError, match="num_triples: tables of three columns follow a look at all pairs"):
        dataclasses.replace(plan, num_rounds=1, tables_per_round=1)


# -- what is opened -----------------------------------------------------------------------------------

CHOSEN = [("smoker", "ill", "visits"), ("ill", "plan", "income"), ("smoker", "visits", "children")]


def table_plan(dataset, num=3):
    plan = VertiMRF(triples=False).plan(TableFacts(dataset.schema, NUM_RECORDS), epsilon=3.0)
    return dataclasses.replace(plan, num_triples=num, first_share=0.65, triples_why="of a test")


def multiply(chosen):
    return Multiply(2, TRIPLES, {"release": 1, "triples": [list(triple) for triple in chosen]})


def exact_triple(dataset, names):
    held = {c.name: c for c in cell_columns(dataset.schema)}
    codes = [held[name].codes(dataset.arrays(held[name].party)) for name in names]
    return count_table(codes, [held[name].num_cells for name in names])


@pytest.mark.parametrize("backend", [FixedPoint(), Plaintext()], ids=["fixed_point", "plaintext"])
def test_chosen_tables_come_with_their_noise_and_the_rest_of_the_product_not_at_all(backend, dataset):
    """Of two, two and one columns; the other cells are opened as uniform elements of the ring."""
    plan, columns, opened = table_plan(dataset), cell_columns(SCHEMA), []
    places = compound_slices(columns, plan.parties, CHOSEN)
    for _ in range(4):
        session = engaged(dataset, plan, backend)
        opened.append(np.concatenate([p.ravel() for p in session.cross_products(multiply(CHOSEN)).values()]))
    errors = [
        (each[places[triple]] / 2**GRID_BITS - exact_triple(dataset, triple)).ravel() / plan.cross_releases[1].stddev
        for each, triple in itertools.product(opened, CHOSEN)
    ]
    assert like_the_noise(np.concatenate(errors))
    shown = np.concatenate([place.ravel() for place in places.values()])
    assert len(set(shown.tolist())) == len(shown)
    hidden = np.setdiff1d(np.arange(opened[0].size), shown)
    assert hidden.size > shown.size
    assert uniform(np.concatenate([each[hidden] for each in opened]))


def test_the_pads_of_all_parties_but_one_do_not_open_a_cell(split):  # noqa: F811
    names = [list(part.columns) for part in split.schema.parties.values()]
    chosen = [(*names[0], names[1][0]), (names[0][0], *names[2])]
    plan, columns = table_plan(split, 2), cell_columns(split.schema)
    shown = np.concatenate([p.ravel() for p in compound_slices(columns, plan.parties, chosen).values()])
    request, widths = multiply(chosen), product_widths(compounds(columns, chosen), plan.parties)
    hidden = np.setdiff1d(np.arange(sum(a * b for a, b in itertools.combinations(widths, 2))), shown)
    assert len(split.parties) == 4
    assert_pads_hide(split, [plan] * 8, request, hidden)


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ([CHOSEN[0], CHOSEN[0]], "there twice, and would move twice as far"),
        ([("smoker", "age", "ill")], "two of one party and one of another"),
        ([("ill", "smoker", "visits")], "in their order"),
        ([("smoker", "visits")], "two of one party"),
        ([("smoker", "ill", "vists")], "two of one party"),
        ([("smoker", "ill", 7)], "two of one party"),
        (["smoker"], "two of one party"),
        ([], "no table of three columns was asked for"),
        ([*CHOSEN, ("age", "ill", "visits")], "pays for 3 tables, got 4"),
        (
            [("age", "visits", "income"), ("smoker", "visits", "children"), ("ill", "income", "children")],
            "cells together",
        ),
    ],
)
def test_a_party_computes_no_other_tables(dataset, chosen, why):
    work = engaged(dataset, table_plan(dataset))._works[0]
    work.check(multiply(CHOSEN))
    with pytest.raises(ArgumentError, match=why):
        work.check(
            Multiply(2, TRIPLES, {"release": 1, "triples": [c if isinstance(c, str) else list(c) for c in chosen]})
        )


@pytest.mark.parametrize(
    "request_",
    [
        Multiply(1, TRIPLES, {"release": 1, "triples": [list(CHOSEN[0])]}),
        Multiply(2, TRIPLES, {"release": 0, "triples": [list(CHOSEN[0])]}),
        Multiply(None, TRIPLES, {"release": 1, "triples": [list(CHOSEN[0])]}),
        Multiply(2, TRIPLES, {"release": 1, "triples": [list(CHOSEN[0])], "more": 1}),
        Multiply(2, TRIPLES, {"release": 1}),
        Multiply(2, "tables across parties", {"release": 1}),
    ],
)
def test_a_party_computes_them_at_no_other_step(dataset, request_):
    work = engaged(dataset, table_plan(dataset))._works[0]
    with pytest.raises(ArgumentError):
        work.check(request_)
    without = engaged(dataset, dataclasses.replace(table_plan(dataset), num_triples=0))._works[0]
    with pytest.raises(ArgumentError, match="not what the plan releases"):
        without.check(multiply(CHOSEN))


def test_compounds_are_few_and_within_their_cells(dataset):
    plan, columns = table_plan(dataset), cell_columns(SCHEMA)
    chosen = choose_triples(columns, dataclasses.replace(plan, num_triples=30), ())
    assert sum(c.num_cells for c in compounds(columns, chosen)) <= 4 * sum(c.num_cells for c in columns)


# -- stored, lost and continued -----------------------------------------------------------------------


def stopped_after(step, plan, data, folder, monkeypatch):
    honest = Run.step

    def step_(run, index, compute):
        if index == step + 1:
            raise KeyboardInterrupt
        return honest(run, index, compute)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", step_)
        with pytest.raises(KeyboardInterrupt):
            VertiMRF(triples=4).release(data, plan, run_dir=folder, insecure_seed=0)


def test_a_run_that_stopped_after_its_first_look_chooses_by_it_when_it_goes_on(tmp_path, monkeypatch):
    data, system = and_of_two(), VertiMRF(triples=4)
    plan = system.plan(data, epsilon=1.0)
    stopped_after(1, plan, data, tmp_path / "run", monkeypatch)
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["steps_spent"] == 2
    released = system.release(data, plan, run_dir=tmp_path / "run", resume=True, insecure_seed=0)
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["status"] == "finished"
    seen = [m for m in released.measurements if m.columns not in released.triples]
    assert list(released.triples) == choose_triples(released.columns, plan, seen)
    again = system.release(data, plan, run_dir=tmp_path / "run", resume=True, insecure_seed=0)
    assert again.triples == released.triples
    for one, other in zip(again.measurements, released.measurements, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


def test_triples_are_stored_with_the_release(tmp_path):
    data, system = and_of_two(3000), VertiMRF(triples=2)
    released = system.release(data, system.plan(data, epsilon=3.0), insecure_seed=0)
    released.save(tmp_path)
    assert type(released).load(tmp_path).triples == released.triples
    assert len(released.triples) == 2
