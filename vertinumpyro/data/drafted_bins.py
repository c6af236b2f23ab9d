"""Bins that a draft proposes for amounts: uniform draws from them have the records' median, mean and share of zeros.

Equal bins tell least of the records, and are proposed where they do. Amounts with many zeros and a tail would be noise
in one of them; theirs are cut near quantiles, at short numbers, with a bin for each value that many records share.
Numbers that look like codes for a missing value stand apart from the rest, and are named instead.
"""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["AmountBins", "amount_bins", "codes_for_missing", "common_decimals", "is_code"]

_CODE = re.compile(r"-[1-9]|-?(9*[789]|8{2,}|9+\.9+)")  # -1, 9, 98, -999, 8888, 99.9
_NO_VALUE = -70  # below it, the only negative numbers of a column are codes, however few
_MOST_CODES = 4
_LUMP = 3  # times the records of a usual value
_LEVELS = (0.01, 0.02, 0.05, *(tenth / 10 for tenth in range(1, 10)), 0.95, 0.98, 0.99)
_LEAST_SHARE = 0.0075  # of a bin; a smaller one would be noise
_ATOM_SHARE = 0.03
_MOST_ATOMS = 8
_MOST_DECIMALS = 4
_LARGEST_SHARE = 0.2  # of equal bins
_ASTRAY = 0.03  # of the size of a usual value
_NOISE_SHARE = 0.002  # what noise may put into an empty bin
_HEAVY, _TAIL_ASTRAY = 4.0, 0.06


class AmountBins(NamedTuple):
    """A proposal. Private, as are the records.

    edges: as a schema has them; none where equal bins do.
    atoms: the values that have a bin of their own.
    clipped: whether records lie beyond the outer edges.
    """

    edges: tuple[float, ...]
    atoms: tuple[float, ...]
    clipped: bool


def codes_for_missing(values: np.ndarray, rare: int) -> tuple[float, ...]:
    """Numbers at an end of a column that look like codes for a missing value, and stand apart from the rest."""
    different, counts = np.unique(values, return_counts=True)
    found: list[float] = []
    for end in (-1, 1):
        from_the_end = different[::-end].tolist()
        known = list(itertools.takewhile(lambda value, sign=end: value * sign > 0 and is_code(value), from_the_end))
        rest = np.isin(different, known, invert=True)
        if 0 < len(known) <= _MOST_CODES and rest.sum() > 1:
            is_apart = _negatives_apart if end < 0 and different[rest].min() >= 0 else _apart
            if is_apart(np.asarray(known), counts[~rest], different[rest], counts[rest], rare):
                found += sorted(known)
    return tuple(found)


def is_code(value: float) -> bool:
    """Whether a number is one that often stands for a missing value."""
    return _CODE.fullmatch(f"{value:.10g}") is not None


def _apart(known: np.ndarray, known_counts: np.ndarray, rest: np.ndarray, _: np.ndarray, rare: int) -> bool:
    spread = rest.max() - rest.min()
    gap = max(rest.min() - known.max(), known.min() - rest.max())
    return bool(gap > spread or (gap >= max(2, 0.05 * spread) and known_counts.min() >= rare))


def _negatives_apart(
    known: np.ndarray, known_counts: np.ndarray, rest: np.ndarray, counts: np.ndarray, rare: int
) -> bool:
    """Of the only negative numbers of a column."""
    if _apart(known, known_counts, rest, counts, rare) or known.max() < _NO_VALUE:
        return True
    return bool(known_counts.min() >= max(rare, _LUMP * np.median(counts)))


def common_decimals(values: np.ndarray) -> int | None:
    """How many decimals all numbers have at most; None where that are many."""
    return next((d for d in range(_MOST_DECIMALS + 1) if (np.round(values, d) == values).all()), None)


def amount_bins(values: np.ndarray, bounds: tuple[float, float], bins: int, rare: int, *, whole: bool) -> AmountBins:
    """Propose bins for numbers.

    :param values: [n], more than one.
    :param bounds: rounded, around all of them.
    :param bins: how many equal ones there would be.
    :param rare: a bin has so many records at least.
    :param whole: whether values are integers, and bins theirs.
    """
    atoms = _atoms(values, rare)
    if not atoms and _equal_do(values, bounds, bins):
        return AmountBins((), (), clipped=False)
    rest = np.sort(values[np.isin(values, atoms, invert=True)])
    inner = _cuts(rest, max(rare, min(_LEAST_SHARE * len(values), len(rest) / 4)), whole=whole)
    ends = [_end(rest, cut, bound, values) for cut, bound in zip((inner[:1], inner[-1:]), bounds, strict=True)]
    low, high = (float(round(end)) for end in ends) if whole else ends
    low, high = min([low, *atoms]), max([high, *atoms])
    edges = _joined(low, [cut for cut in inner if low < cut < high], high, atoms, whole=whole)
    if len(edges) < 3:  # few records
        return AmountBins((), (), clipped=False)
    return AmountBins(tuple(edges), atoms, clipped=bool(values.min() < low or values.max() > high))


def _atoms(values: np.ndarray, rare: int) -> tuple[float, ...]:
    """Single values that many records share, the zero before all others."""
    different, counts = np.unique(values, return_counts=True)
    lumps = (counts >= _LUMP * np.median(counts)) | (different == 0)
    many = np.flatnonzero(lumps & (counts >= max(rare, _ATOM_SHARE * len(values))))
    by_records = np.lexsort((counts[many], different[many] == 0))
    return tuple(np.sort(different[many[by_records[-_MOST_ATOMS:]]]).tolist())


def _equal_do(values: np.ndarray, bounds: tuple[float, float], bins: int) -> bool:
    """Whether equal bins keep the records apart, and the mean even when noise fills the empty ones."""
    edges = np.linspace(*bounds, bins + 1)
    shares = np.histogram(values, edges)[0] / len(values)
    middles = (edges[1:] + edges[:-1]) / 2
    usual = np.abs(values).mean()
    drift = _NOISE_SHARE * (middles - values.mean())[shares < _LEAST_SHARE].sum()
    astray = max(abs(shares @ middles - values.mean()), abs(drift))
    return bool(shares.max() <= _LARGEST_SHARE and astray <= _ASTRAY * usual)


def _cuts(rest: np.ndarray, least: float, *, whole: bool) -> list[float]:
    """Short numbers near the levels' quantiles, with enough records between them."""
    if len(rest) < 2 * least:
        return []
    quantiles = np.unique(np.quantile(rest, _LEVELS))
    around = [rest[0], *quantiles, rest[-1]]
    cuts: list[float] = []
    for before, value, after in zip(around, quantiles, around[2:], strict=False):
        cut = _short(value, 0.25 * max(min(value - before, after - value), 0.0))
        cut = float(round(cut)) if whole else cut
        below = np.searchsorted(rest, cuts[-1]) if cuts else 0
        here = np.searchsorted(rest, cut)
        if here - below >= least and len(rest) - here >= least:
            cuts.append(cut)
    return cuts


def _short(value: float, room: float) -> float:
    """The number of fewest digits within `room` of a value."""
    if abs(value) <= room:
        return 0.0
    return next((n for d in range(1, 17) if abs((n := float(f"{value:.{d}g}")) - value) <= room), float(value))


def _end(rest: np.ndarray, cut: Sequence[float], bound: float, values: np.ndarray) -> float:
    """An outer edge: the bound, or of a heavy tail one so near that uniform draws have the mean of its records."""
    if not cut:
        return bound
    tail = rest[rest >= cut[0]] if bound > cut[0] else rest[rest < cut[0]]
    excess = tail.mean() - cut[0]
    error = abs((bound - cut[0]) / 2 - excess) * len(tail) / len(values)
    if abs(bound - cut[0]) <= _HEAVY * abs(excess) or error <= _TAIL_ASTRAY * np.abs(values).mean():
        return bound
    return _short(cut[0] + 2 * excess, 0.1 * abs(excess))


def _joined(low: float, inner: Sequence[float], high: float, atoms: Sequence[float], *, whole: bool) -> list[float]:
    """All edges in ascending order; an atom's twice, or of integers its own and the next."""
    if whole:
        beside = [atom + 1 for atom in atoms if atom + 1 < high]
        return [*sorted({low, *inner, *atoms, *beside, high}), *([high] if high in atoms else [])]
    return sorted([*({low, *inner, high} - set(atoms)), *atoms, *atoms])
