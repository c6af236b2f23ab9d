"""Cross-party tables from what parties send to a server: an encoder's reports, then its estimates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.encoding import Encoding, Reporting
from vertinumpyro.mrf.release import Measurement

__all__ = ["encoded_pairs", "encoded_tables"]


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
    return encoded_pairs(encoding, Reporting(columns, codes, own, dataset.num_records, source))


def encoded_pairs(encoding: Encoding, reporting: Reporting) -> list[Measurement]:
    """The same from every column's cells."""
    columns, estimate = reporting.columns, encoding.estimator(reporting)
    found = []
    for a, b in itertools.combinations(columns, 2):
        if a.party != b.party:
            values, stddev = estimate(a, b)
            found.append(Measurement(columns=(a.name, b.name), values=values, stddev=stddev))
    return found
