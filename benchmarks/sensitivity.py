"""The most that one record moves what each method releases, by brute force, beside what its plan states.

    python benchmarks/sensitivity.py --quick
    python benchmarks/sensitivity.py --json results/sensitivity.json

A table of four records, two columns at each of two parties. One record, the first or the last, takes every value of a
small domain with the extremes of all columns. The library's own parts of the parties add up the exact sums, with
samplers that return zeros, and then with samplers that return a mark for each size of noise: so every released number
has the noise that each party really draws for it. For each adversary, over all pairs of values on which its own columns
agree: the root of the sum of (difference of the sums)² / (variance of the noise that it does not know), over everything
that is released; for Laplace noise the sum of |difference| / scale. Steps: one, of all records, at several states of
the model. Under "add_remove" one of the two has the record's contribution left out.

A release of which the adversary knows all the noise, or that has none, counts as infinitely far as soon as it differs.

Keys: sensitivity.<method>.stated       mu of the plan's event, or epsilon where the noise is Laplace
      sensitivity.<method>.found        the largest found
      sensitivity.<method>.adversary    whose: the one with the largest share found / stated
      largest_share, least_share        of found / stated over methods, each with that adversary
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from common import environment, finish, parser
from sensitivity_parts.marked_noise import Audit, Draws, Sums, drawing
from sensitivity_parts.reports import randomised_response
from sensitivity_parts.small_tables import (
    ADD_REMOVE,
    DELTA,
    NUM_RECORDS,
    NUMBERS,
    PARTIES,
    PLACES,
    REPLACE,
    SCHEMA,
    Record,
    beside,
    domain,
    held_of,
    replaced,
    table_of,
)
from sensitivity_parts.steps import dpvi, dpvi_of_clients, dpvi_of_holders, mixture, regression
from tqdm.auto import tqdm

from vertinumpyro.core import row_blocks
from vertinumpyro.core.rng import InsecureSeededSource, RandomSource
from vertinumpyro.data import TableFacts
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi import second_moments as moments
from vertinumpyro.dpvi.outcome_tables import CountCells, EventTimes
from vertinumpyro.dpvi.second_moments import MomentsPlan
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf import releases as tables_work
from vertinumpyro.mrf.measurements import GRID_BITS
from vertinumpyro.privacy import NeighbouringRelation, NoiseSource
from vertinumpyro.regression import BayesianLinearRegression, VerticalLogisticRegression
from vertinumpyro.regression import noisy_moments as objective
from vertinumpyro.regression.bayesian_linear_plan import GRID_BITS as STATISTICS_BITS
from vertinumpyro.regression.bayesian_linear_plan import scaled, statistic_vectors
from vertinumpyro.regression.features import FeatureLayout
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.session import Multiply, PartyComputation, Publish, ReleaseRequest, Sum

# -- methods that release once ---------------------------------------------------------------------------

Asked = Sequence[ReleaseRequest]
Works = Callable[[Any], Mapping[str, PartyComputation]]


def released(
    works: Mapping[str, PartyComputation], request: ReleaseRequest, units: float
) -> list[tuple[str | None, Any]]:
    """The owner of each array that is released, and its integers [D]; of what is symmetric a half."""
    if isinstance(request, Publish):
        arrays = [(p, a) for p, work in works.items() for a in work.publish(request).arrays.items()]
        return [(p, (array[np.triu_indices(len(array))] if n == "products" else array.ravel()) * units)
                for p, (n, array) in arrays]  # fmt: skip
    if isinstance(request, Sum):
        return [(None, np.sum([work.summand(request) for work in works.values()], axis=0))]
    assert isinstance(request, Multiply)
    products = row_blocks.products([work.factor(request) for work in works.values()])
    return [(None, np.concatenate([block.ravel() for block in products]))]


def once(draws: Draws, works: Works, tables: Sequence[Any], asked: Asked, units: float = 1.0) -> list[Sums]:
    """What is asked of the works on each table."""
    out: list[Sums] = []
    for request in asked:
        exact = [released(works(table), request, units) for table in tables]
        with draws.marked():
            first = works(tables[0])
            if isinstance(request, Publish):
                marks = [m - e for (_, m), (_, e) in zip(released(first, request, units), exact[0], strict=True)]
                noise = [{str(p): draws.noise(m)} for (p, _), m in zip(exact[0], marks, strict=True)]
            else:
                assert isinstance(request, Multiply | Sum)
                size = len(exact[0][0][1])
                noise = [{p: draws.noise(work.noise(request, size)) for p, work in first.items()}]
        out += [
            Sums(np.stack([one[i][1] for one in exact]).astype(np.int64), noise[i], owner)
            for i, (owner, _) in enumerate(exact[0])
        ]
    return out


def audit_once(
    draws: Draws, method: Any, plan: Any, asked: Asked, values: Sequence[Record], units: float = 1.0,
    before: Callable[[Mapping[str, PartyComputation]], None] = lambda works: None,
) -> Audit:  # fmt: skip
    """Both places; `before` is done with works that were just made."""
    facts = TableFacts(SCHEMA, NUM_RECORDS)

    def works(records: Sequence[Record]) -> dict[str, PartyComputation]:
        table = table_of(SCHEMA, records)
        made = {p: method(facts, p, own, plan, InsecureSeededSource(0)) for p, own in table.items()}
        before(made)
        return made

    absent = plan.relation is ADD_REMOVE
    places = [replaced(values, place, absent=absent) for place in PLACES]
    releases = [once(draws, works, tables, asked, units) for tables in places]
    return Audit(plan, releases, held_of(values), PARTIES, len(values) if absent else None)


def vertimrf(
    draws: Draws, values: Sequence[Record], relation: NeighbouringRelation = REPLACE, **settings: Any
) -> Audit:
    mrf = VertiMRF(max_cells=2, **settings)
    plan = mrf.plan(TableFacts(SCHEMA, NUM_RECORDS), epsilon=1.0, delta=DELTA, relation=relation)
    asked = [Publish(0, tables_work.OWN), Multiply(1, tables_work.ACROSS, {"release": 0})]
    return audit_once(draws, mrf.work, plan, asked, values, 2.0**GRID_BITS)  # own tables come as counts


def vertimrf_adaptive(draws: Draws, values: Sequence[Record]) -> Audit:
    """A first look at all tables, then two rounds, of two tables each, from products that stay shared."""
    mrf = VertiMRF(max_cells=2, selection="adaptive", num_rounds=2, tables_per_round=2)
    plan = mrf.plan(TableFacts(SCHEMA, NUM_RECORDS), epsilon=1.0, delta=DELTA)
    pairs = list(itertools.product(*(part.columns for part in SCHEMA.parties.values())))
    chosen = [pairs, pairs[:2], pairs[1:3]]
    rounds = [Sum(i + 1, tables_work.ROUND, {"release": i, "pairs": some}) for i, some in enumerate(chosen)]
    asked = [Publish(0, tables_work.OWN), *rounds]

    def opened(works: Mapping[str, PartyComputation]) -> None:
        padded = Multiply(None, tables_work.PADS)
        (products,) = row_blocks.products([work.factor(padded) for work in works.values()])
        for work in works.values():
            work.noise(padded, products.size)[:] = 0
            work.opened(padded, products.ravel())

    return audit_once(draws, mrf.work, plan, asked, values, 2.0**GRID_BITS, opened)


def vertimrf_triples(draws: Draws, values: Sequence[Record]) -> Audit:
    """A look at all pairs, then two tables of two columns of a party with one of the other."""
    mrf = VertiMRF(max_cells=2, triples=False)
    one, other = (list(part.columns) for part in SCHEMA.parties.values())
    chosen = [[*one[:2], other[0]], [one[0], *other[:2]]]
    plan = mrf.plan(TableFacts(SCHEMA, NUM_RECORDS), epsilon=1.0, delta=DELTA)
    plan = dataclasses.replace(plan, num_triples=len(chosen), first_share=0.65)
    looked = Multiply(1, tables_work.ACROSS, {"release": 0})
    asked = [Publish(0, tables_work.OWN), looked]
    asked.append(Multiply(2, tables_work.TRIPLES, {"release": 1, "triples": chosen}))
    return audit_once(draws, mrf.work, plan, asked, values, 2.0**GRID_BITS)


def functional(draws: Draws, values: Sequence[Record], **settings: Any) -> Audit:
    plan = FunctionalMechanismPlan.of(
        SCHEMA, "smoker", num_records=NUM_RECORDS, model="logistic", epsilon=1.0, **settings
    )
    return _functional(draws, values, plan)


def functional_bottom_up(draws: Draws, values: Sequence[Record]) -> Audit:
    """An epsilon for each party's own products, and one for those of both."""
    budgets: Any = {"party_epsilon": {"clinic": 0.3, "insurer": 0.5}, "pair_epsilon": {PARTIES: 0.4}}
    layout = FeatureLayout.of(SCHEMA, "smoker")
    plan = FunctionalMechanismPlan.bottom_up(layout, num_records=NUM_RECORDS, model="logistic", **budgets)
    return _functional(draws, values, plan)


def _functional(draws: Draws, values: Sequence[Record], plan: FunctionalMechanismPlan) -> Audit:
    asked = [Publish(0, objective.OWN), Multiply(1, objective.ACROSS)]
    return audit_once(draws, VerticalLogisticRegression().work, plan, asked, values)


def second_moments(
    draws: Draws, values: Sequence[Record], relation: NeighbouringRelation = REPLACE,
    table: EventTimes | CountCells | None = None, *, whitened: bool = False,
) -> Audit:  # fmt: skip
    """:param table: what a table of the outcome's is of.
    :param whitened: of scores that are whitened by a matrix which makes most of them too long.
    """
    split = DPVI(regression("logistic")).split(SCHEMA)
    plan = MomentsPlan(
        noise_multiplier=1.0, num_records=NUM_RECORDS, parties=PARTIES, widths=moments.widths_of(split),
        clip_parts=(1, 1), radius=0.3, delta=DELTA, noise=NoiseSource(num_parties=2), relation=relation,
        cells=() if table is None else table.cells(SCHEMA), whitened=whitened,
        cell=moments.COUNT_CELL if isinstance(table, CountCells) else moments.CELL,
    )  # fmt: skip
    rng, first, fields = np.random.default_rng(0), int(whitened), {}
    if whitened:
        numbers = {party: (len(split.numeric(party)), len(split.constant(party))) for party in PARTIES}
        fields = {"whitening": {party: (9 * rng.normal(size=(a + b, a))).tolist() for party, (a, b) in numbers.items()}}
    asked = [Publish(0, moments.BEFORE)] if whitened else []
    asked += [Publish(first, moments.OWN, fields), Multiply(first + 1, moments.ACROSS, fields)]

    def work(facts: Any, party: str, own: Any, plan: Any, source: RandomSource) -> PartyComputation:
        return moments.MomentsWork(split, plan, party, own, source, table)

    return audit_once(draws, work, plan, asked, values)


def linear_of_holders(draws: Draws, quick: bool, *, projection: bool) -> Audit:
    values, holders = domain(NUMBERS, quick), ("a", "b")
    system = BayesianLinearRegression(target="late", projection=projection, delta=DELTA)
    facts = TableFacts(NUMBERS, NUM_RECORDS + 2, holders=holders)
    plan = system.plan(facts)

    def works(records: Sequence[Record]) -> dict[str, PartyComputation]:
        of_holders = dict(zip(holders, (records, beside(values)[:2]), strict=True))
        return {
            h: system.work(facts, h, table_of(NUMBERS, own)["table"], plan, InsecureSeededSource(0))
            for h, own in of_holders.items()
        }

    bounds = {"bounds": [1.0, 1.0, 3.5, 0.5]}
    asked = [Sum(i, name, bounds) for i, name in enumerate(["moments"] * projection + ["statistics"])]
    releases = [once(draws, works, replaced(values, place, absent=False), asked) for place in PLACES]
    return Audit(plan, releases, {}, holders)


def linear_of_clients(draws: Draws, quick: bool) -> Audit:
    """Columns from -1 to 1, whose corners are furthest apart."""
    values = list(itertools.product((-1.0, 1.0) if quick else (-1.0, 0.2, 1.0), repeat=4))
    plan = BayesianLinearRegression(delta=DELTA).plan(num_records=NUM_RECORDS, num_features=3)
    source, clients = InsecureSeededSource(0), [f"client {i}" for i in range(NUM_RECORDS)]

    def run(release: Any, records: Sequence[Record]) -> np.ndarray:
        units = scaled(np.array(records), np.ones(4))
        vectors = units**2 if release is plan.moments else statistic_vectors(units)
        return np.rint(release.run(vectors, source) * 2.0**STATISTICS_BITS).astype(np.int64)

    releases = []
    for place in PLACES:
        together = []
        for release in plan.releases:
            sums = np.stack([run(release, records) for records in replaced(values, place, absent=False)])
            with draws.marked():
                noise = draws.noise(run(release, replaced(values, place, absent=False)[0]) - sums[0])
            together.append(Sums(sums, dict.fromkeys(clients, noise / NUM_RECORDS)))
        releases.append(together)
    return Audit(plan, releases, {}, clients)


# -- all of them -----------------------------------------------------------------------------------------


Rows = dict[str, tuple[float, float]]
"""Adversary -> stated and found."""


def methods(draws: Draws, quick: bool) -> dict[str, Callable[[], Rows]]:
    values = domain(SCHEMA, quick)
    made: dict[str, Callable[[], Audit]] = {}

    def add(name: str, do: Callable[..., Audit], *given: Any, **settings: Any) -> None:
        made[name] = functools.partial(do, draws, *given, **settings)

    add("vertimrf", vertimrf, values)
    add("vertimrf_add_remove", vertimrf, values, ADD_REMOVE)
    add("vertimrf_triples", vertimrf_triples, values)
    add("vertimrf_workload", vertimrf, values, workload=[("age", "smoker"), ("age", "cost"), ("smoker", "plan")])
    add("vertimrf_adaptive", vertimrf_adaptive, values)
    add("functional_gaussian", functional, values, delta=DELTA)
    add("functional_gaussian_add_remove", functional, values, delta=DELTA, relation=ADD_REMOVE)
    add("functional_pure", functional, values)
    add("functional_pure_add_remove", functional, values, relation=ADD_REMOVE)
    add("functional_paper", functional, values, sensitivity="paper")
    add("functional_bottom_up", functional_bottom_up, values)
    add("linear_holders", linear_of_holders, quick, projection=False)
    add("linear_holders_projection", linear_of_holders, quick, projection=True)
    add("linear_clients", linear_of_clients, quick)
    add("second_moments", second_moments, values)
    add("second_moments_add_remove", second_moments, values, ADD_REMOVE)
    add("second_moments_whitened", second_moments, values, whitened=True)
    add("second_moments_whitened_add_remove", second_moments, values, ADD_REMOVE, whitened=True)
    events, counts = EventTimes("smoker", "age", ""), CountCells("smoker", SCHEMA.party_of("smoker"), (0, 1))
    add("second_moments_events", second_moments, values, table=events)
    add("second_moments_events_add_remove", second_moments, values, ADD_REMOVE, table=events)
    add("second_moments_counts", second_moments, values, table=counts, whitened=True)
    add("second_moments_counts_add_remove", second_moments, values, ADD_REMOVE, table=counts, whitened=True)
    add("dpvi_mixture", dpvi, values, quick, mixture())
    add("dpvi_mixture_add_remove", dpvi, values, quick, mixture(), relation="add_remove")
    for outcome in ("logistic", "linear"):
        system = DPVI(regression(outcome), warm_start=False)
        add(f"dpvi_{outcome}_joint", dpvi, values, quick, system, clip="joint")
        add(f"dpvi_{outcome}_local", dpvi, values, quick, system, clip="local", residual_bound=0.1)
    add("dpvi_holders", dpvi_of_holders, values, quick)
    add("dpvi_clients", dpvi_of_clients, values, quick)
    return {
        **{name: (lambda audit=audit: audit().rows()) for name, audit in made.items()},
        "randomised_response": randomised_response,
    }


def audited(quick: bool, only: Collection[str] | None = None) -> dict[str, Rows]:
    """Every method's adversaries, or some methods'."""
    with drawing() as draws, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = {name: rows for name, rows in methods(draws, quick).items() if only is None or name in only}
        return {name: rows() for name, rows in tqdm(chosen.items(), desc="methods")}


def main() -> None:
    args = parser(__doc__).parse_args()
    found = audited(args.quick)
    worst = {name: max(rows.items(), key=lambda row: row[1][1] / row[1][0]) for name, rows in found.items()}
    print(f"{'method':<31}{'adversary':<26}{'stated':>8}{'found':>8}{'share':>6}")
    for name, rows in found.items():
        for adversary, (stated, moved) in rows.items():
            print(f"{name:<31}{adversary[:25]:<26}{stated:8.4f}{moved:8.4f}{moved / stated:6.2f}")
    shares = [moved / stated for _, (stated, moved) in worst.values()]
    results = {
        "sensitivity": {n: {"stated": s, "found": f, "adversary": a} for n, (a, (s, f)) in worst.items()},
        "largest_share": max(shares),
        "least_share": min(shares),
        "environment": environment(),
    }
    finish(results, args, {})


if __name__ == "__main__":
    main()
