"""What follows the releases, on stand-ins for them: a fit that cannot end well ends before anything is spent.

Memory is proved from public facts, then every step after the releases is taken once, with uniform tables as many, as
large and as noisy as the plan's. Nothing here has seen a record.

How long a fit takes is told by the same stand-ins: the field is tried on them, what goes with the records is reckoned.
Compiling is most of a usual fit, and nothing but compiling says how long it takes; the program that is tried is that of
the fit where all tables fit the field. Mirror descent ends where Stein's estimate of the risk is least: after 300 to
1,000 steps on the public tables, so 600 are reckoned, of all paths that a fit takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.core.row_blocks import rows_at_a_time
from vertinumpyro.data import OBSERVED_SUFFIX, DatasetInfo, Schema
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.contingency import cross_pairs
from vertinumpyro.mrf.encoders.base import Reporting, encoded_pairs
from vertinumpyro.mrf.factor_engine import MATRIX_BYTES
from vertinumpyro.mrf.field import FEW_COLUMNS, fit_graphical_model, has_engine
from vertinumpyro.mrf.local_tables import MOST_TRIPLES
from vertinumpyro.mrf.marginals import Marginals, Released, pack_model, pack_released, unpack_model, unpack_released
from vertinumpyro.mrf.measurements import Measurement, useful_cells
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.releases import OWN, TablesWork
from vertinumpyro.mrf.table_selection import (
    CELLS_A_SECOND,
    FIT_SECONDS,
    Estimate,
    across,
    crossing,
    widest_pair,
    worst_fitted,
)
from vertinumpyro.mrf.triples import choose_triples, most_cells
from vertinumpyro.mrf.twin import MarkovTwin, raking_bytes
from vertinumpyro.privacy import FitTime
from vertinumpyro.session import Publish
from vertinumpyro.session.cost_estimate import COUNT_S, drawing_seconds, slowness, timed

_ENGINE = 2**28  # bytes that the engine's compiler takes, whatever it compiles
_PER_FIELD_CELL = 128  # bytes; 43 to 80 were measured, with potentials, marginals, gradients and their copies
_PER_CELL_OF_MANY = 4000  # 16 padded cells of vectors and indices at most, and indices into each of a clique's tables
_PER_TABLE_CELL = 64  # bytes; a table as released, merged, made consistent, and what this takes in between
_RECORDS = 10


def require_memory(columns: Sequence[CellColumn], plan: MRFPlan, clique_limit: int, memory_limit: int) -> None:
    """Refuses a plan whose tables, estimates and field may take more memory than the limit; N is no part of it.

    :raises ArgumentError: names what takes most, and what to change.
    """
    parts = memory_parts(columns, plan, clique_limit)
    if (needed := sum(parts.values())) > memory_limit:
        raise ArgumentError(
            f"the fit may take {needed / 2**30:.1f} GiB, beyond memory_limit={memory_limit} bytes, most of it "
            f"{max(parts, key=lambda name: parts[name])}; or raise memory_limit"
        )


def field_cells(columns: Sequence[CellColumn], plan: MRFPlan, memory_limit: int) -> int:
    """Of all maximal cliques together: what memory leaves, and a minute of a core; the widest pair in any case."""
    left = memory_limit - sum(memory_parts(columns, plan, 0).values())
    allowed = min(left // _cell_bytes(columns), FIT_SECONDS * CELLS_A_SECOND)
    return max(allowed, widest_pair({column.name: column.num_cells for column in columns}))


def _cell_bytes(columns: Sequence[CellColumn]) -> int:
    return _PER_CELL_OF_MANY if len(columns) > FEW_COLUMNS else _PER_FIELD_CELL


def memory_parts(columns: Sequence[CellColumn], plan: MRFPlan, clique_limit: int) -> dict[str, int]:
    """Bytes that each part of a fit in one process may take at most, beside the encoded columns; in words, by part."""
    field = min(clique_limit, math.prod(c.num_cells for c in columns))
    of_field = _cell_bytes(columns) * field + (0 if len(columns) > FEW_COLUMNS else MATRIX_BYTES)
    sizes = {column.name: column.num_cells for column in columns}
    return {
        "the field's cliques (lower clique_limit)": _ENGINE + of_field,
        f"the tables ({_widest(columns)}; set bins or lower max_cells)": _PER_TABLE_CELL * _table_cells(columns, plan),
        "the estimates from reports (lower num_keys or set bins)": (
            0 if plan.encoding is None else plan.encoding.estimator_bytes(columns)
        ),
        "raking the twin": raking_bytes(sizes),
        "a block of records": rows_at_a_time(len(columns)) * 8 * 4 * len(columns),
    }


def _widest(columns: Sequence[CellColumn]) -> str:
    ordered = sorted(columns, key=lambda c: -c.num_cells)[:2]
    return "the widest columns are " + " and ".join(f"{c.name!r} with {c.num_cells} cells" for c in ordered)


def _table_cells(columns: Sequence[CellColumn], plan: MRFPlan) -> int:
    """At most so many cells have all tables of the plan together: pairs, useful triples, rounds, compounds' product."""
    if plan.workload is not None:
        return _named_cells(columns, plan)
    sizes = sorted((c.num_cells for c in columns), reverse=True)
    pairs = (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
    rounds = plan.num_rounds * plan.tables_per_round * math.prod(sizes[:2])
    own = sum(_own_cells([c for c in columns if c.party == party], plan, party) for party in plan.parties)
    across = (most_cells(columns) ** 2 + plan.num_triples * math.prod(sizes[:3])) if plan.num_triples else 0
    return 2 * pairs + rounds + own + across + sum(c.num_fine for c in columns)  # a party's pairs are measured twice


def _named_cells(columns: Sequence[CellColumn], plan: MRFPlan) -> int:
    """Those of a workload, finer histograms, and the whole of the products in which its tables across parties stand."""
    sizes = {c.name: c.num_cells for c in columns}
    named = sum(sizes[a] * sizes[b] for _, a, _, b in plan.workload or ())
    crossed = crossing(columns, plan.workload)
    held = [sum(c.num_cells for c in crossed if c.party == party) for party in plan.parties]
    products = (sum(held) ** 2 - sum(cells**2 for cells in held)) // 2
    return named + products + sum(c.num_fine for c in columns)


def _own_cells(columns: Sequence[CellColumn], plan: MRFPlan, party: str) -> int:
    """A party's tables of three columns: k tables have k^-1/2 of one table's useful cells each."""
    budget = plan.local_budget(party)
    sizes = sorted((c.num_cells for c in columns), reverse=True)
    if not budget.mu or len(sizes) < 2:
        return 0
    useful = useful_cells(plan.num_records, budget.release(1, 1.0).stddev)
    count = min(math.comb(len(sizes), 3), MOST_TRIPLES)
    return math.ceil(min(count * math.prod(sizes[:3]), math.sqrt(count) * useful))


def rehearse_tables(columns: tuple[CellColumn, ...], plan: MRFPlan, estimate: Estimate) -> Released:
    """Takes every step of the releases themselves, and gives uniform tables as they would.

    :param columns: in cells.
    :param plan: the plan.
    :param estimate: fits the field between rounds, with one step of mirror descent.
    """
    own = _own_tables(columns, plan)
    across = _across(columns, plan, own.measurements)
    released = unpack_released(*pack_released(Released((*own.measurements, *across), own.fine)), columns)
    if plan.num_rounds:
        model = estimate(columns, released.measurements)
        worst_fitted(model, released.measurements, cross_pairs(columns, plan.parties), plan.num_records)
    return released


def stand_in(schema: Schema, columns: tuple[CellColumn, ...], plan: MRFPlan, estimate: Estimate) -> Marginals:
    """Uniform tables, as many, as large and as noisy as the plan's."""
    tables = rehearse_tables(columns, plan, estimate)
    return Marginals(
        schema=schema,
        columns=columns,
        plan=plan,
        measurements=tables.measurements,
        fine=tables.fine,
        secure_noise=False,
    )


def rehearse_field(schema: Schema, columns: tuple[CellColumn, ...], plan: MRFPlan, estimate: Estimate) -> None:
    """Takes every step that follows the releases, too: packing, the field, a few synthetic records."""
    tables = stand_in(schema, columns, plan, estimate)
    model = unpack_model(*pack_model(estimate(columns, tables.measurements)), columns)
    MarkovTwin.of(tables, model, {}).sample_synthetic(_RECORDS, rng_key=jax.random.key(0))


def _own_tables(columns: tuple[CellColumn, ...], plan: MRFPlan) -> Released:
    """What the parties' own code gives for records that are all alike, then uniform."""
    found: list[Measurement] = []
    fine: dict[str, np.ndarray] = {}
    for party in plan.parties:
        arrays = _records([c for c in columns if c.party == party])
        work = TablesWork(columns, party, arrays, plan, SystemRandomSource())
        released = unpack_released(*work.publish(Publish(0, OWN)), columns)
        found += released.measurements
        fine |= {name: np.full(values.shape, plan.num_records / values.size) for name, values in released.fine.items()}
    return Released(tuple(_uniform(m.columns, m.values.shape, plan, m.stddev) for m in found), fine)


def _records(columns: Sequence[CellColumn]) -> dict[str, np.ndarray]:
    """Public stand-ins for encoded columns, `[_RECORDS]` each."""
    arrays: dict[str, Any] = {c.name: np.zeros(_RECORDS, np.int64 if c.domain_size else np.float64) for c in columns}
    return arrays | {c.name + OBSERVED_SUFFIX: np.ones(_RECORDS, bool) for c in columns if c.missing == "mask"}


def _across(columns: Sequence[CellColumn], plan: MRFPlan, own: Sequence[Measurement]) -> list[Measurement]:
    """Uniform tables of the pairs that are released, chosen ones among them."""
    sizes = {c.name: c.num_cells for c in columns}
    pairs = cross_pairs(columns, plan.parties) if plan.workload is None else across(plan.workload)
    noise = [(release.num_tables, release.stddev) for release in plan.cross_releases[: 1 + plan.num_rounds]]
    if plan.encoding is not None and pairs:
        noise = [(len(pairs), _encoded_stddev(columns, plan, own, max(pairs, key=lambda p: sizes[p[0]] * sizes[p[1]])))]
    found = [
        _uniform(pair, tuple(sizes[name] for name in pair), plan, stddev)
        for count, stddev in noise
        for pair in pairs[:count]
    ]
    if not plan.num_triples:
        return found
    chosen = choose_triples(columns, plan, [*own, *found])
    stddev = plan.cross_releases[-1].stddev
    return found + [_uniform(triple, tuple(sizes[name] for name in triple), plan, stddev) for triple in chosen]


def _encoded_stddev(
    columns: Sequence[CellColumn], plan: MRFPlan, own: Sequence[Measurement], pair: tuple[str, str]
) -> float:
    """The encoder and its estimator, once, on the widest pair."""
    assert plan.encoding is not None
    widest = [c for c in columns if c.name in pair]
    codes = {c.name: np.zeros(_RECORDS, np.int64) for c in widest}
    (found,) = encoded_pairs(plan.encoding, Reporting(widest, codes, own, plan.num_records, SystemRandomSource()))
    return found.stddev


def _uniform(columns: tuple[str, ...], shape: tuple[int, ...], plan: MRFPlan, stddev: float) -> Measurement:
    return Measurement(columns=columns, values=np.full(shape, plan.num_records / math.prod(shape)), stddev=stddev)


# -- how long it takes -----------------------------------------------------------------------------------

_STEPS = 600
_TRIED = 50  # of them

Chosen = Callable[[MRFPlan, Sequence[CellColumn], Sequence[Measurement]], dict[str, Any]]
"""`VertiMRF.chosen_tables`: which of a plan's tables the field is fitted to."""


class _Tried(NamedTuple):
    """Seconds of choosing the field's tables and laying them out, of compiling, and of a step of all paths.

    keeps_program: whether the fit's program is the one that is compiled now.
    """

    choosing: float
    compiling: float
    step: float
    keeps_program: bool


def tables_seconds(facts: DatasetInfo, plan: MRFPlan) -> float:
    """Seconds of counting the parties' tables and those across them."""
    pairs = len(plan.workload) if plan.workload is not None else math.comb(sum(plan.num_columns), 2)
    return COUNT_S * slowness() * facts.num_records * (pairs + 2 * plan.num_triples)


def tables_time(facts: DatasetInfo, plan: MRFPlan, unknown: str = "") -> FitTime:
    """Of the releases alone, where no round fits fields between tables."""
    return FitTime(
        before={"the tables": tables_seconds(facts, plan)}, unknown=unknown, shorter="Name a workload of fewer tables. "
    )


def fit_time(
    facts: DatasetInfo, plan: MRFPlan, on_stand_in: Callable[[], Marginals], chosen: Chosen, iterations: int
) -> FitTime:
    """Of tables, field and a twin as large as the table; without the engine of the tables alone.

    :param on_stand_in: `stand_in` of this plan.
    :param chosen: the field's tables.
    :param iterations: steps of mirror descent at most.
    :raises ArgumentError: a field of these tables would fail.
    """
    if not has_engine():
        return tables_time(facts, plan, "the field, for want of `mbi`")
    release, trying = timed(on_stand_in)
    tried = _try_field(release, chosen)
    field = _of_field(tried, iterations)
    before = {"trying it on stand-ins": trying + tried.choosing + tried.compiling}
    before["the tables"] = tables_seconds(facts, plan) + plan.num_rounds * field
    return FitTime(
        before=before,
        after={"the field": field, "the synthetic table": drawing_seconds(facts)},
        unknown="" if plan.encoding is None else "the encoder's reports and estimates",
        shorter=fewer_cells(release),
    )


def field_seconds(release: Marginals, chosen: Chosen, iterations: int) -> float:
    """Of a field of these tables, which is tried; parameters as `fit_time`."""
    return _of_field(_try_field(release, chosen), iterations)


def _of_field(tried: _Tried, iterations: int) -> float:
    again = 0.0 if tried.keeps_program else tried.compiling
    return tried.choosing + again + min(_STEPS, iterations) * tried.step


def fewer_cells(release: Marginals) -> str:
    """What would shorten a field's fit."""
    widest = max(release.columns, key=lambda column: column.num_cells)
    return (
        f"Give the widest columns, as {widest.name!r}, fewer values in the schema or bins, lower clique_limit or "
        "iterations, or name a workload. "
    )


def _try_field(release: Marginals, chosen: Chosen) -> _Tried:
    tables, choosing = timed(partial(chosen, release.plan, release.columns, release.measurements))
    first, one, some = (timed(partial(fit_graphical_model, **tables, iterations=n))[1] for n in (1, 1, _TRIED))
    kept = len(tables["measurements"]) >= len(tables["released"]) and not release.triples  # others will be chosen
    step = max(0.0, some - one) / (_TRIED - 1)
    return _Tried(choosing + one, max(0.0, first - one), step, kept)
