"""Cross-party tables from what parties send to a server: sketches or randomised responses, then estimates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.consistency import one_way
from vertinumpyro.mrf.encoding import Encoding
from vertinumpyro.mrf.randomized_response import ResponseDesign, estimate_pair
from vertinumpyro.mrf.release import Measurement
from vertinumpyro.mrf.shared_key import SharedKeyDesign, harmonic_pair
from vertinumpyro.mrf.sketch import KEY_BYTES, SketchDesign, sketch_column_pair, sketch_columns
from vertinumpyro.mrf.sketch_estimate import count_pair, count_single

__all__ = ["encoded_tables", "reported_bytes"]

Estimate = tuple[np.ndarray, float]


def encoded_tables(
    dataset: VerticalDataset,
    columns: Sequence[CellColumn],
    encoding: Encoding,
    own: Sequence[Measurement],
    source: RandomSource,
) -> list[Measurement]:
    """Every pair of columns at different parties, estimated from the parties' reports.

    Args:
        dataset: all parties' columns, in a simulation.
        columns: the columns in cells.
        encoding: the encoder's parameters.
        own: the parties' released tables, for counts of single columns.
        source: noise, responses and hash keys.
    """
    codes = {c.name: c.codes(dataset.arrays(c.party)) for c in columns}
    if isinstance(encoding, SketchDesign):
        estimate = _sketched(codes, encoding, own, dataset.num_records, source)
    elif isinstance(encoding, ResponseDesign):
        estimate = _responded(codes, columns, encoding, source)
    else:
        estimate = _sketched_with_one_key(codes, columns, encoding, dataset.num_records, source)
    found = []
    for a, b in itertools.combinations(columns, 2):
        if a.party != b.party:
            values, stddev = estimate(a, b)
            found.append(Measurement(columns=(a.name, b.name), values=values, stddev=stddev))
    return found


def _sketched(
    codes: dict[str, np.ndarray],
    design: SketchDesign,
    own: Sequence[Measurement],
    num_records: int,
    source: RandomSource,
) -> Callable[[CellColumn, CellColumn], Estimate]:
    """Sketches with a key set for each pair, then maximum likelihood."""
    known = {name: one_way(name, own, num_records).values for name in {n for m in own for n in m.columns}}

    def estimate(a: CellColumn, b: CellColumn) -> Estimate:
        first, second, shared = source.spawn(3)
        sizes, pair = (a.num_cells, b.num_cells), (codes[a.name], codes[b.name])
        sketches = sketch_column_pair(pair, sizes, design, shared.random_bytes(KEY_BYTES), (first, second))
        counts = [
            known[c.name] if c.name in known else count_single(sketch, num_records, design)
            for c, sketch in zip((a, b), sketches, strict=True)
        ]
        return count_pair(sketches, (counts[0], counts[1]), num_records, design)

    return estimate


def _responded(
    codes: dict[str, np.ndarray], columns: Sequence[CellColumn], design: ResponseDesign, source: RandomSource
) -> Callable[[CellColumn, CellColumn], Estimate]:
    """One report of every column, then its inverse on each axis."""
    sources = source.spawn(len(columns))
    reports = {
        c.name: design.respond(codes[c.name], c.num_cells, each) for c, each in zip(columns, sources, strict=True)
    }
    return lambda a, b: estimate_pair((reports[a.name], reports[b.name]), (a.num_cells, b.num_cells), design)


def _sketched_with_one_key(
    codes: dict[str, np.ndarray],
    columns: Sequence[CellColumn],
    encoding: SharedKeyDesign,
    num_records: int,
    source: RandomSource,
) -> Callable[[CellColumn, CellColumn], Estimate]:
    """The paper's: all columns under the same keys. Rows can be reconstructed."""
    shared, *sources = source.spawn(1 + len(columns))
    design = encoding.sketch
    sizes = [c.num_cells for c in columns]
    sketches = sketch_columns([codes[c.name] for c in columns], sizes, design, shared.random_bytes(KEY_BYTES), sources)
    by_name = {c.name: sketch for c, sketch in zip(columns, sketches, strict=True)}
    return lambda a, b: harmonic_pair((by_name[a.name], by_name[b.name]), num_records, design)


def reported_bytes(columns: Sequence[CellColumn], encoding: Encoding, num_records: int) -> dict[str, int]:
    """What each party sends to the server for cross-party tables, counted: a byte for a level, two for a response."""
    parties = list(dict.fromkeys(c.party for c in columns))
    own = {party: [c for c in columns if c.party == party] for party in parties}
    if isinstance(encoding, ResponseDesign):
        return {party: 2 * num_records * len(held) for party, held in own.items()}
    cells = {party: sum(c.num_cells for c in held) for party, held in own.items()}
    if isinstance(encoding, SharedKeyDesign):
        return {party: encoding.num_keys * cells[party] for party in parties}
    return {party: encoding.num_keys * cells[party] * (len(columns) - len(own[party])) for party in parties}
