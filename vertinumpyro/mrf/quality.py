"""How near a twin is to the records, told by noisy tables that it was not learned from.

For a pair of columns let c be the shares of the records in the table's cells, T the twin's and I those of the twin with
its columns shuffled, the outer product of its two histograms. What a twin keeps of the dependence is

    kept = 1 - sum over pairs ||c - T||^2 / sum over pairs ||c - I||^2,

1 where every table is the records', 0 where the twin is no nearer than independent columns. With noise of standard
deviation s in each of the k released shares x, ||x - T||^2 - k s^2 is an unbiased estimate of ||c - T||^2, of variance
2 k s^4 + 4 s^2 ||c - T||^2; the covariance of two such estimates is 2 k s^4 + 4 s^2 <c - T, c - I>.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

import numpy as np
import pandas as pd
from scipy.stats import chi2

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.table import as_frame
from vertinumpyro.mrf.marginals import Marginals
from vertinumpyro.mrf.measurements import Measurement, count_table
from vertinumpyro.mrf.table_selection import merged

_QUANTILE = 1.959963984540054
_CLEARLY = 3.0  # standard deviations
_LEVEL = 0.01


@final
class Kept(NamedTuple):
    """What a twin keeps of the dependence in some tables.

    :ivar num_tables: of pairs of columns.
    :ivar share: the estimate; NaN where the tables' dependence does not stand above their noise.
    :ivar low: the lower end of its 95% interval, which knows the noise.
    :ivar high: its upper end.
    """

    num_tables: int
    share: float
    low: float
    high: float


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TwinQuality:
    """What noisy tables tell of a twin. Post-processing of the tables and the twin, so released where both are.

    :ivar all: of all released tables of two columns.
    :ivar across: of those of columns of different parties.
    :ivar differing: the pairs whose tables differ from the twin's by more than noise would (a chi-squared test of
        each, at 1% for all of them together), with their squared distances ||c - T||^2, the largest first.
    """

    all: Kept
    across: Kept
    differing: dict[tuple[str, ...], float]


def twin_quality(released: Marginals, twin: pd.DataFrame) -> TwinQuality:
    """How near a twin is to the records behind some noisy tables.

    Claim: the squared distances are unbiased, and the ratio's interval (delta method) has its coverage for many cells,
    where the tables' noise is independent of the twin. Those that the twin was learned from flatter it: release others.

    :param released: tables of pairs of columns, of the same records.
    :param twin: a synthetic table of these columns, or some of them, in the schema's units; any library's.
    :raises ArgumentError: no released table is of two of the twin's columns, or its values are outside the schema.
    """
    frame = as_frame(twin, "twin")
    names = [name for name in released.schema.columns if name in frame.columns]
    owner = {column.name: column.party for column in released.columns}
    tables = [m for m in merged(released.measurements) if len(m.columns) == 2 and set(m.columns) <= set(names)]
    if not tables:
        raise ArgumentError("released has no table of two of the twin's columns; release all pairs of these")
    arrays = VerticalDataset.from_pooled(released.schema.select(names), frame[names]).pooled()
    cells = {column.name: column.codes(arrays) for column in released.columns if column.name in names}
    sizes = {column.name: column.num_cells for column in released.columns}
    found = {m.columns: _Distances.of(m, cells, sizes, released.num_records) for m in tables}
    across = [d for columns, d in found.items() if len({owner[name] for name in columns}) == 2]
    clear = {columns: d.of_twin for columns, d in found.items() if d.chance * len(found) < _LEVEL}
    return TwinQuality(
        all=_kept(list(found.values())),
        across=_kept(across),
        differing=dict(sorted(clear.items(), key=lambda item: -item[1])),
    )


class _Distances(NamedTuple):
    """Of one table: unbiased squared distances, their variances and covariance.

    :ivar chance: of as much noise, were the records' table the twin's.
    """

    of_twin: float
    of_shuffled: float
    var_twin: float
    var_shuffled: float
    covariance: float
    chance: float

    @classmethod
    def of(cls, m: Measurement, cells: dict, sizes: dict, num_records: int) -> _Distances:
        counts = count_table([cells[name] for name in m.columns], [sizes[name] for name in m.columns])
        joint = counts / counts.sum()
        shuffled = np.outer(joint.sum(axis=1), joint.sum(axis=0))
        shares, variance = m.values / num_records, (m.stddev / num_records) ** 2
        floor, by_noise = joint.size * variance, 2 * joint.size * variance**2
        of_twin = float(((shares - joint) ** 2).sum()) - floor
        of_shuffled = float(((shares - shuffled) ** 2).sum()) - floor
        product = float(((shares - joint) * (shares - shuffled)).sum()) - floor
        return cls(
            of_twin=of_twin,
            of_shuffled=of_shuffled,
            var_twin=by_noise + 4 * variance * max(of_twin, 0.0),
            var_shuffled=by_noise + 4 * variance * max(of_shuffled, 0.0),
            covariance=by_noise + 4 * variance * product,
            chance=float(chi2.sf((of_twin + floor) / variance, joint.size)),
        )


def _kept(tables: Sequence[_Distances]) -> Kept:
    """The ratio of sums, with the interval of the delta method."""
    twin, shuffled, var_twin, var_shuffled, covariance, _ = _sums(tables)
    if not tables or shuffled <= _CLEARLY * math.sqrt(var_shuffled):
        return Kept(len(tables), math.nan, -math.inf, math.inf)
    ratio = twin / shuffled
    variance = max(var_twin - 2 * ratio * covariance + ratio**2 * var_shuffled, 0.0) / shuffled**2
    half = _QUANTILE * math.sqrt(variance)
    return Kept(len(tables), 1 - ratio, 1 - ratio - half, 1 - ratio + half)


def _sums(tables: Iterable[_Distances]) -> _Distances:
    return _Distances(*(sum(values) for values in zip(*tables, strict=True))) if tables else _Distances(*[0.0] * 6)
