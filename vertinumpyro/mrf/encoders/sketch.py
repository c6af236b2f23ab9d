"""Flajolet-Martin sketches of a pair of columns at two parties, with hash keys that no other pair shares.

Record i has, under hash key k, a geometric hash: P(h > s) = 2^-s, cut to [lower, upper]. The sketch of a value is
the largest hash of the records that have it, or of `phantoms` records that never existed, which are what hides the
real ones. Two parties hash the same record alike, so the records that two values share show as ties. The server,
which holds the sketches, holds no key.

In the VertiMRF paper all columns share each key. Then one record's hash enters every sketch, and ties across all
columns spell out its whole row (`shared_key`). Here a key belongs to one pair of columns at two parties, so a hash
enters exactly two sketches, and the upper cut bounds what a large hash tells; `sketch_loss` has the exact accounting.

The hash is a pseudo-random function of (key, record): both parties expand a 32-byte key that they share and that the
server never sees into a stream of AES-256 in counter mode, one word for every hash.

The exact privacy loss of sketches that two columns share a key for, composed over keys and pairs by FFT.

**One key, one record.** Its hash h enters the sketches of its two values. Let X, X' be the levels that everything
else in two sketches reaches. With the record the server sees (max(X, h), max(X', h)), without it (X, X'). Whatever
other records do is a maximum with something independent of h, taken after phantoms have been drawn: post-processing.
So the pair with phantoms alone dominates every pair of tables:

    J(s, t) = Σ_j P(h = j) K_j(s) K_j(t)   against   B(s, t) = π(s) π(t),   K_j the law of max(phantoms, j).

- add/remove: J against B, and B against J.
- replace, both values change: J(s, t) B(u, v) against B(s, t) J(u, v), since the old and the new values have
  sketches of their own.
- replace, one value changes: Σ_j P(h = j) K_j(r) K_j(s) π(u) against Σ_j P(h = j) K_j(r) π(s) K_j(u).

A record that is replaced may change both values of some pairs and one value of others. So a key is charged with the
larger of the two privacy profiles at every ε, which is again the profile of some pair of distributions.

**All keys.** Hashes under different keys are independent, so losses add up. dp-accounting's connect-the-dots makes
the profile a distribution on a grid that dominates it, and its FFT composes that; both err upwards.

Maximum-likelihood estimates of counts from sketches. Post-processing of what the server sees.

A sketch of c records and k_p phantoms stays at or below level s with probability F(s)^(c + k_p). Two sketches of
values with counts n_a and n_b, of which x records have both, stay below (s, t) with probability

    F(s)^(n_a − x + k_p) · F(t)^(n_b − x + k_p) · F(min(s, t))^x,

and m keys give m independent pairs of levels. x maximises the likelihood of all of them. n_a and n_b come from the
parties' own tables, which are far more precise than sketches, or, where there are none, from the sketches themselves.

The encoder `sketch`: sketches whose hash keys belong to one pair of columns, as a plan sees them.

A party knows the hash keys of its own sketches, with which nothing but the phantoms hides the others' values: no ε is
claimed against it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import ClassVar, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.encoders.base import (
    Budget,
    Encoding,
    Estimator,
    Observed,
    Reporting,
    composed_delta,
    on_grid,
    smallest,
)
from vertinumpyro.mrf.measurements import one_way
from vertinumpyro.privacy import NeighbouringRelation

KEY_BYTES = 32
_WORD_BITS = 32
_CHUNK_WORDS = 2**22
_LEAST_MASS = 1e-9


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SketchDesign:
    """The public parameters of one pair's sketches.

    :ivar num_keys: m, how many hash keys each pair of columns has.
    :ivar phantoms: k_p, how many records that never existed enter each sketch.
    :ivar lower: the smallest level that a sketch shows.
    :ivar upper: the largest.
    """

    num_keys: int
    phantoms: int
    lower: int
    upper: int

    def __post_init__(self) -> None:
        """Refuses values outside the documented ranges."""
        if self.num_keys < 1 or self.phantoms < 1:
            raise ArgumentError(f"num_keys and phantoms must be at least 1, got {self.num_keys} and {self.phantoms}")
        if not 1 <= self.lower < self.upper <= _WORD_BITS:
            raise ArgumentError(f"levels must satisfy 1 <= lower < upper <= 32, got {self.lower} and {self.upper}")

    @property
    def bounded(self) -> bool:
        """Whether phantoms reach every level often enough for the accounting to be of any use."""
        return bool(self.phantom_law().min() >= _LEAST_MASS)

    def log_cdf(self) -> np.ndarray:
        """ln P(h ≤ s) of one hash for every level s in [lower, upper]; 0 at the last."""
        levels = np.arange(self.lower, self.upper + 1, dtype=np.float64)
        with np.errstate(divide="ignore"):
            out = np.log1p(-np.exp2(-levels))
        out[-1] = 0.0
        return out

    def phantom_law(self) -> np.ndarray:
        """P(level) of a sketch without any record, as `draw_phantoms` draws it."""
        return np.diff(self._thresholds(), prepend=0.0)

    def _thresholds(self) -> np.ndarray:
        return np.exp(self.phantoms * self.log_cdf())

    def draw_phantoms(self, shape: tuple[int, ...], source: RandomSource) -> np.ndarray:
        """Levels of sketches without any record, int8. Secret until real records have joined."""
        # floats are dyadic: the law of these draws is `phantom_law` up to 2^-64
        steps = np.array([min(int(math.ldexp(t, 64)), 2**64 - 1) for t in self._thresholds()[:-1]], np.uint64)
        words = source.uint64(math.prod(shape))
        return (self.lower + np.searchsorted(steps, words, side="right")).astype(np.int8).reshape(shape)


def sketch_column_pair(
    codes: tuple[np.ndarray, np.ndarray],
    sizes: tuple[int, int],
    design: SketchDesign,
    key: bytes,
    sources: tuple[RandomSource, RandomSource],
) -> tuple[np.ndarray, np.ndarray]:
    """Both parties' sketches of one pair of columns: int8 `[num_keys, cells]` each, which the server sees.

    :param codes: the cell of every record in either column. Secret.
    :param sizes: cells of either column.
    :param design: levels, keys and phantoms.
    :param key: 32 bytes that the two parties share. Secret.
    :param sources: each party's own randomness, for its phantoms.
    """
    first, second = sketch_columns(list(codes), list(sizes), design, key, list(sources))
    return first, second


def sketch_columns(
    codes: list[np.ndarray],
    sizes: list[int],
    design: SketchDesign,
    key: bytes,
    sources: list[RandomSource],
) -> list[np.ndarray]:
    """Sketches of columns that share one key set; with more than two columns nothing is proved (`shared_key`)."""
    shapes = [(design.num_keys, size) for size in sizes]
    out = [design.draw_phantoms(shape, source) for shape, source in zip(shapes, sources, strict=True)]
    for keys, records, levels in _large_hashes(design, len(codes[0]), key):
        for sketch, code in zip(out, codes, strict=True):
            np.maximum.at(sketch, (keys, code[records]), levels)
    return out


def _large_hashes(
    design: SketchDesign, num_records: int, key: bytes
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Every hash above the lower cut, as (key's number, record, level), a few keys at a time."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    at_once = max(1, _CHUNK_WORDS // num_records)
    for start in range(0, design.num_keys, at_once):
        count = min(at_once, design.num_keys - start)
        words = np.frombuffer(stream.update(bytes(4 * count * num_records)), "<u4")
        found = np.flatnonzero(words < np.uint32(2 ** (_WORD_BITS - design.lower)))
        bits = np.frexp(words[found].astype(np.float64))[1]  # 32 less the number of leading zeros, exactly
        levels = np.minimum(_WORD_BITS - bits + 1, design.upper).astype(np.int8)
        yield start + found // num_records, found % num_records, levels


Pair = tuple[np.ndarray, np.ndarray]

_GRID_PER_STDDEV = 16


def joint_law(design: SketchDesign) -> Pair:
    """(J, B): the law `[L, L]` of two sketches with a record in both, and without."""
    phantoms, hashes, reached = _laws(design)
    return np.einsum("j,js,jt->st", hashes, reached, reached), np.multiply.outer(phantoms, phantoms)


def dominating_pairs(design: SketchDesign, relation: NeighbouringRelation) -> list[list[Pair]]:
    """For each direction of the relation the pairs of laws of which the worse counts, as flat arrays."""
    phantoms, hashes, reached = _laws(design)
    with_it, without = joint_law(design)
    if relation is NeighbouringRelation.ADD_REMOVE:
        present, absent = with_it.ravel(), without.ravel()
        return [[(present, absent)], [(absent, present)]]
    both = np.multiply.outer(with_it, without)
    one = np.einsum("j,jr,js,u->rsu", hashes, reached, reached, phantoms)
    swapped = [both.transpose(2, 3, 0, 1), one.transpose(0, 2, 1)]
    return [[(p.ravel(), q.ravel()) for p, q in zip([both, one], swapped, strict=True)]]


def _laws(design: SketchDesign) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a sketch without records `[L]`, of one hash `[L]`, and of their maximum, given the hash, `[L, L]`."""
    phantoms = design.phantom_law()
    hashes = np.diff(np.exp(design.log_cdf()), prepend=0.0)
    above = np.triu(np.broadcast_to(phantoms, (phantoms.size, phantoms.size)), 1)
    return phantoms, hashes, above + np.diag(np.cumsum(phantoms))


def privacy_profile(pair: Pair, epsilons: np.ndarray) -> np.ndarray:
    """sup_S P(S) − e^ε Q(S) of two laws on the same finite set, at each ε."""
    p, q = (law[pair[0] > 0] for law in pair)
    with np.errstate(divide="ignore"):
        losses = np.log(p) - np.log(q)
    order = np.argsort(-losses)
    sum_p, sum_q = (np.concatenate([[0.0], np.cumsum(law[order])]) for law in (p, q))
    above = np.searchsorted(-losses[order], -epsilons, side="left")
    return np.maximum(sum_p[above] - np.exp(epsilons) * sum_q[above], -np.expm1(np.minimum(epsilons, 0.0)))


def squared_loss(design: SketchDesign, relation: NeighbouringRelation) -> float:
    """μ² of the Gaussian that many keys together come close to, for each key: a guide for designs, no bound."""
    with_it, without = joint_law(design)
    chi_square = float((((with_it - without) ** 2) / without).sum())
    return chi_square * (2 if relation is NeighbouringRelation.REPLACE else 1)


@functools.lru_cache(maxsize=64)
def sketch_pld(
    design: SketchDesign, num_pairs: int, relation: NeighbouringRelation, interval: float | None = None
) -> pld_lib.PrivacyLossDistribution:
    """The privacy loss of all keys of `num_pairs` pairs of columns; an upper bound at every ε.

    :param design: of every pair.
    :param num_pairs: pairs of columns whose keys the adversary does not know.
    :param relation: the neighbouring relation.
    :param interval: the grid of losses; None takes a sixteenth of one key's standard deviation.
    """
    interval = interval or grid_interval(design, relation)
    one_key = [_on_grid(pairs, interval) for pairs in dominating_pairs(design, relation)]
    return pld_lib.PrivacyLossDistribution(*one_key).self_compose(design.num_keys * num_pairs)


def grid_interval(design: SketchDesign, relation: NeighbouringRelation) -> float:
    """A grid on which one key's loss is well resolved; every grid gives an upper bound."""
    return min(1e-2, math.sqrt(squared_loss(design, relation)) / _GRID_PER_STDDEV)


def _on_grid(pairs: list[Pair], interval: float) -> pld_pmf.PLDPmf:
    """The least favourable of some pairs at every ε, on a grid that dominates it."""
    losses = np.concatenate([np.log(p) - np.log(q) for p, q in pairs])

    def worst(epsilons: np.ndarray) -> np.ndarray:
        return np.max([privacy_profile(pair, epsilons) for pair in pairs], axis=0)

    return on_grid(worst, losses.min(), losses.max(), interval)


_POINTS = 33
_ZOOMS = 5
_BLOCK = 2**21  # numbers that the likelihoods of a few rows of a table take


def estimator_bytes(num_keys: int, num_levels: int, num_cells: int) -> int:
    """At most so much memory takes the estimate of one pair of columns with so many cells each."""
    return num_keys * 2 * num_cells * (8 * num_levels + 1) + 8 * 8 * (_BLOCK + _POINTS * num_levels**2 * num_cells)


def count_single(sketch: np.ndarray, num_records: int, design: SketchDesign) -> np.ndarray:
    """Maximum-likelihood counts of one column's cells, float64 `[cells]`.

    :param sketch: its levels `[num_keys, cells]`.
    :param num_records: N.
    :param design: of the sketch.
    """
    levels = np.arange(design.lower, design.upper + 1)
    seen = (sketch[:, :, None] == levels).sum(axis=0)  # [cells, L]
    log_cdf = design.log_cdf()

    def likelihood(counts: np.ndarray) -> np.ndarray:
        law = np.diff(np.exp((counts[..., None] + design.phantoms) * log_cdf), prepend=0.0, axis=-1)
        return (seen[:, None, :] * np.log(np.maximum(law, 1e-300))).sum(axis=-1)

    low = np.zeros(sketch.shape[1])
    return _maximise(likelihood, low, low + num_records)


def count_pair(
    sketches: tuple[np.ndarray, np.ndarray],
    counts: tuple[np.ndarray, np.ndarray],
    num_records: int,
    design: SketchDesign,
) -> tuple[np.ndarray, float]:
    """Maximum-likelihood contingency table of two columns, and the standard deviation of a cell.

    :param sketches: of the two columns, `[num_keys, cells]` each, under the same keys.
    :param counts: of the two columns' cells.
    :param num_records: N.
    :param design: of the sketches.
    """
    n_a, n_b = (np.clip(c, 0, num_records).astype(np.float64) for c in counts)
    rows = max(1, _BLOCK // (_POINTS * (design.upper - design.lower + 1) ** 2 * n_b.size))
    starts = range(0, n_a.size, rows)
    blocks = [
        _count_block((sketches[0][:, i : i + rows], sketches[1]), (n_a[i : i + rows], n_b), num_records, design)
        for i in starts
    ]
    variances = np.concatenate([variance for _, variance in blocks])
    return np.concatenate([table for table, _ in blocks]), math.sqrt(float(variances.mean()))


def _count_block(
    sketches: tuple[np.ndarray, np.ndarray],
    counts: tuple[np.ndarray, np.ndarray],
    num_records: int,
    design: SketchDesign,
) -> tuple[np.ndarray, np.ndarray]:
    """Some rows of the table, and the variances of their cells, flat."""
    levels = np.arange(design.lower, design.upper + 1)
    first, second = ((s[:, :, None] == levels).astype(np.float64) for s in sketches)
    seen = np.einsum("kas,kbt->abst", first, second).reshape(-1, levels.size, levels.size)
    n_a, n_b = (np.ravel(c) for c in np.meshgrid(*counts, indexing="ij"))

    def likelihood(both: np.ndarray) -> np.ndarray:
        law = _pair_law(n_a[:, None], n_b[:, None], both, design)
        return (seen[:, None] * np.log(np.maximum(law, 1e-300))).sum(axis=(-2, -1))

    low, high = np.maximum(0.0, n_a + n_b - num_records), np.minimum(n_a, n_b)
    table = _maximise(likelihood, np.minimum(low, high), high).reshape(len(counts[0]), len(counts[1]))
    expected = np.clip(n_a * n_b / num_records, low, high)
    information = [joint_information(a, b, x, design) for a, b, x in zip(n_a, n_b, expected, strict=True)]
    return table, 1 / np.maximum(information, 1e-300)


def joint_information(n_a: float, n_b: float, both: float, design: SketchDesign) -> float:
    """Fisher information of x, records², from all keys."""
    law = _pair_law(np.array(n_a), np.array(n_b), np.array(both), design)
    log_cdf = design.log_cdf()
    least = np.minimum.outer(log_cdf, log_cdf)
    cdf = _pair_cdf(np.array(n_a), np.array(n_b), np.array(both), design)
    slope = _second_difference(cdf * (least - log_cdf[:, None] - log_cdf[None, :]))
    return float(design.num_keys * (slope**2 / np.maximum(law, 1e-300)).sum())


def _pair_law(n_a: np.ndarray, n_b: np.ndarray, both: np.ndarray, design: SketchDesign) -> np.ndarray:
    return np.maximum(_second_difference(_pair_cdf(n_a, n_b, both, design)), 0.0)


def _pair_cdf(n_a: np.ndarray, n_b: np.ndarray, both: np.ndarray, design: SketchDesign) -> np.ndarray:
    """P(first ≤ s, second ≤ t), `[..., L, L]`."""
    log_cdf = design.log_cdf()
    a, b, x = (v[..., None, None] for v in np.broadcast_arrays(n_a, n_b, both))
    least = np.minimum.outer(log_cdf, log_cdf)
    alone = (a - x + design.phantoms) * log_cdf[:, None] + (b - x + design.phantoms) * log_cdf[None, :]
    return np.exp(alone + x * least)


def _second_difference(cdf: np.ndarray) -> np.ndarray:
    return np.diff(np.diff(cdf, prepend=0.0, axis=-1), prepend=0.0, axis=-2)


def _maximise(likelihood: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The best of `_POINTS` between low and high, then of as many between its neighbours, and so on."""
    low, high = low.astype(np.float64), high.astype(np.float64)
    for _ in range(_ZOOMS):
        points = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, _POINTS)
        best = likelihood(points).argmax(axis=1)
        rows = np.arange(len(best))
        low, high = points[rows, np.maximum(best - 1, 0)], points[rows, np.minimum(best + 1, _POINTS - 1)]
    return (low + high) / 2


_LEVELS = range(3, 30)
_WIDTHS = (1, 2, 3)
_MOST_PHANTOMS = 1e9
_MOST_COMPOSITIONS = 2**40


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SketchEncoding(Encoding):
    """Sketches of every pair of columns at different parties, each pair under keys of its own.

    :ivar num_keys: as in `SketchDesign`, which checks them all.
    :ivar phantoms: see there.
    :ivar lower: see there.
    :ivar upper: see there.
    """

    name: ClassVar[str] = "sketch"
    holds_against_parties: ClassVar[bool] = False
    unproven: ClassVar[tuple[str, ...]] = ()

    num_keys: int
    phantoms: int
    lower: int
    upper: int

    def __post_init__(self) -> None:
        _ = self.design  # validates

    @cached_property
    def design(self) -> SketchDesign:
        """Of every pair."""
        return SketchDesign(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def calibrated(cls, budget: Budget) -> SketchEncoding:
        """The most informative levels for a typical cell, then the fewest phantoms that the accountant allows.

        The choice of levels uses the Gaussian limit and only costs precision; the phantoms are found with the exact
        loss.
        """
        found = _most_informative(budget)

        def enough(phantoms: float) -> bool:
            design = dataclasses.replace(found, phantoms=math.ceil(phantoms))
            return design.bounded and budget.holds(cls(**dataclasses.asdict(design)))

        low, high = max(1.0, found.phantoms / 4), min(4.0 * found.phantoms + 4, _MOST_PHANTOMS)
        phantoms = math.ceil(smallest(enough, low, high, 1e-3))
        return cls(**{**dataclasses.asdict(found), "phantoms": phantoms})

    def delta_at(self, epsilon: float, relation: NeighbouringRelation, observed: Observed) -> float:
        """See `Encoding.delta_at`."""
        compositions = self.num_keys * observed.num_pairs
        if compositions > _MOST_COMPOSITIONS:
            raise ArgumentError(f"num_keys={self.num_keys} for {observed.num_pairs} pairs of columns are too many")
        loss, interval = sketch_pld(self.design, observed.num_pairs, relation), grid_interval(self.design, relation)
        return composed_delta(loss, observed.mu, epsilon, interval=interval, compositions=compositions)

    def estimator(self, reporting: Reporting) -> Estimator:
        """Sketches with a key set for each pair, then maximum likelihood."""
        own, num_records = reporting.own, reporting.num_records
        known = {name: one_way(name, own, num_records).values for name in {n for m in own for n in m.columns}}

        def estimate(a: CellColumn, b: CellColumn) -> tuple[np.ndarray, float]:
            first, second, shared = reporting.source.spawn(3)
            sizes, pair = (a.num_cells, b.num_cells), (reporting.codes[a.name], reporting.codes[b.name])
            sketches = sketch_column_pair(pair, sizes, self.design, shared.random_bytes(KEY_BYTES), (first, second))
            counts = [
                known[c.name] if c.name in known else count_single(sketch, num_records, self.design)
                for c, sketch in zip((a, b), sketches, strict=True)
            ]
            return count_pair(sketches, (counts[0], counts[1]), num_records, self.design)

        return estimate

    def reported_bytes(self, columns: Sequence[CellColumn], num_records: int) -> dict[str, int]:
        """A byte for a level, once for every column of the others."""
        sent = dict.fromkeys((c.party for c in columns), 0)
        for c in columns:
            sent[c.party] += self.num_keys * c.num_cells * sum(other.party != c.party for other in columns)
        return sent

    def estimator_bytes(self, columns: Sequence[CellColumn]) -> int:
        """Of one pair's sketches and estimate."""
        return estimator_bytes(self.num_keys, self.upper - self.lower + 1, max(c.num_cells for c in columns))

    def secrets(self, owner: str) -> str:
        """See `Encoding.secrets`."""
        return f"the hash keys of {owner} sketches"


def _most_informative(budget: Budget) -> SketchDesign:
    """The levels that say most about a typical cell, each with about as many phantoms as the budget asks for."""
    each = budget.mu_squared / (budget.num_keys * budget.num_pairs)
    size = math.exp(sum(math.log(column.num_cells) for column in budget.columns) / len(budget.columns))
    count = budget.num_records / size
    best, chosen = -1.0, None
    for lower in _LEVELS:
        for width in _WIDTHS:
            design = _enough_phantoms(budget.num_keys, lower, lower + width, budget.relation, each)
            if design is None:
                continue
            information = joint_information(count, count, count**2 / budget.num_records, design)
            if information > best:
                best, chosen = information, design
    if chosen is None:
        raise ArgumentError("epsilon is out of reach for sketches of so many records; raise epsilon or cross_share")
    return chosen


def _enough_phantoms(
    num_keys: int, lower: int, upper: int, relation: NeighbouringRelation, each: float
) -> SketchDesign | None:
    """The fewest phantoms with which one key loses at most `each`, by its second moment."""

    def design(phantoms: float) -> SketchDesign:
        return SketchDesign(num_keys=num_keys, phantoms=math.ceil(phantoms), lower=lower, upper=upper)

    def enough(phantoms: float) -> bool:
        made = design(phantoms)
        return made.bounded and squared_loss(made, relation) <= each

    # more phantoms lose less until hardly any sketch is left below the upper cut
    most = math.log(2) * 2.0**lower * 8
    try:
        return design(smallest(enough, 1.0, most, 1e-2))
    except ArgumentError:
        return None
