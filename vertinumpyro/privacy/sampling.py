"""Batch selection: which records enter which step.

A sampling is a frozen object of public facts; records and randomness pass only through its methods. It is
started once per run and then yields batches of one static shape, so that nothing under jit depends on how
many records a step happened to draw:

    stream = sampling.start(num_records, source)
    batches = stream.next(num_steps)      # indices [num_steps, max_batch_size], mask likewise

Who may see the indices is the plan's business (`vertinumpyro.privacy.adversary`): an adversary who does not
know them gains less, which only Poisson sampling can claim here.
"""

import abc
import bisect
import dataclasses
from fractions import Fraction
from typing import ClassVar, NamedTuple, final

import numpy as np
from scipy import stats

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.rng import RandomSource, bernoulli_successes, random_permutation

_BYTES_AT_A_TIME = 2**22
#: The accounting's memory grows with the steps: more than a gigabyte at this many.
_MOST_STEPS = 1_000_000


class Batches(NamedTuple):
    """Record numbers per step, padded to one static shape. Secret where the plan hides the indices."""

    indices: np.ndarray
    """int32 `[num_steps, max_batch_size]`, increasing where valid; padding is 0."""
    mask: np.ndarray
    """bool `[num_steps, max_batch_size]`: False marks padding."""

    def check(self, num_records: int, max_batch_size: int) -> "Batches":
        """These batches, if another party may have drawn them: every record at most once a step, and exists.

        A record that came twice, or a mask entry that is no bool, would weigh more than the clip allows.

        :param num_records: N.
        :param max_batch_size: the static size of every batch.
        :raises ArgumentError: another type or shape, a number out of range, not increasing, or not 0 where padded.
        """
        indices, mask = self
        shape = (len(mask), max_batch_size)
        if mask.dtype != bool or indices.dtype != np.int32 or not mask.shape == indices.shape == shape:
            raise ArgumentError(f"a batch must have int32 indices and a bool mask of {max_batch_size} records a step")
        increasing = indices[:, 1:] > indices[:, :-1]
        if (
            np.any(mask[:, 1:] & ~mask[:, :-1])
            or np.any(mask[:, 1:] & ~increasing)
            or np.any(indices[~mask] != 0)
            or np.any((indices < 0) | (indices >= num_records))
        ):
            raise ArgumentError(
                f"a batch must name increasing record numbers below {num_records}, each once, and then padding of 0; "
                "the party that drew it runs another version, or does not follow the protocol"
            )
        return self

    def __repr__(self) -> str:
        return f"Batches(num_steps={self.mask.shape[0]}, max_batch_size={self.mask.shape[1]})"


class BatchStream(abc.ABC):
    """The batches of one run, in order. Abstract; made by `Sampling.start`."""

    def __init__(self, first_step: int, last_step: int) -> None:
        self._step, self._last_step = first_step, last_step

    @property
    def step(self) -> int:
        """The step that the next batch belongs to."""
        return self._step

    @final
    def next(self, num_steps: int) -> Batches:
        """Draws the batches of the next `num_steps` steps.

        :raises PlanSpentError: fewer steps are left; the accounting covers no further one.
        """
        if num_steps < 1:
            raise ArgumentError(f"num_steps must be at least 1, got {num_steps}")
        if self._step + num_steps > self._last_step:
            raise PlanSpentError(
                f"the sampling has {self._last_step - self._step} steps left, not {num_steps}: "
                "make a new plan for more steps"
            )
        self._step += num_steps
        return self._draw(num_steps)

    @abc.abstractmethod
    def _draw(self, num_steps: int) -> Batches: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step={self._step})"


class Sampling(abc.ABC):
    """How batches are selected. Abstract; the frozen dataclasses below are final."""

    max_batch_size: int

    @abc.abstractmethod
    def total_steps(self, num_records: int) -> int:
        """The number of steps of a whole run."""

    @abc.abstractmethod
    def expected_batch_size(self, num_records: int) -> float:
        """Mean number of records per step: the public divisor of a noisy sum."""

    @abc.abstractmethod
    def resume_step(self, num_records: int, step: int) -> int:
        """The first step, `step` or later, at which a run may be resumed with fresh randomness."""

    @abc.abstractmethod
    def _stream(self, num_records: int, source: RandomSource, first_step: int) -> BatchStream: ...

    @final
    def start(self, num_records: int, source: RandomSource, *, first_step: int = 0) -> BatchStream:
        """Starts the run's only stream of batches, or its continuation from `first_step`.

        Nothing about earlier batches is needed to resume, so nothing secret has to be stored: that is why
        `first_step` must be a step that `resume_step` returns.

        :param num_records: N, the public number of records.
        :param source: random bits; `SystemRandomSource()` in a release.
        :param first_step: 0, or a value of `resume_step`.
        """
        self.check(num_records)
        total = self.total_steps(num_records)
        if not 0 <= first_step <= total:
            raise ArgumentError(f"first_step must lie between 0 and {total}, got {first_step}")
        if self.resume_step(num_records, first_step) != first_step:
            raise ArgumentError(
                f"first_step={first_step} is inside an epoch, whose order is not stored: start at "
                "resume_step(num_records, step), and count the steps between as spent"
            )
        return self._stream(num_records, source, first_step)

    def check(self, num_records: int) -> None:
        """Raises `ArgumentError` when this sampling cannot serve `num_records` records."""
        if not 1 <= num_records < 2**31:
            raise ArgumentError(f"num_records must lie between 1 and 2^31 - 1, got {num_records}")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonSampling(Sampling):
    """Every record enters every step independently with one probability; large batches are truncated.

    Formal guarantee: each record's inclusion is an exact Bernoulli(⌊q·2^64⌋/2^64) draw, independent of the
    data, of the other records and of the other steps. A step that drew more than `max_batch_size` records
    keeps a uniformly random subset of that size; `truncation_delta` bounds the probability that this ever
    happens, and the accounting adds it to δ.

    :ivar sampling_prob: q in (0, 1]. At q = 1 every batch is the whole table.
    :ivar num_steps: T, the number of steps of the run, at most a million.
    :ivar max_batch_size: the static batch size.
    """

    sampling_prob: float
    num_steps: int
    max_batch_size: int

    def __post_init__(self) -> None:
        if not 0 < self.sampling_prob <= 1:
            raise ArgumentError(f"sampling_prob must lie in (0, 1], got {self.sampling_prob}")
        _check_steps("num_steps", self.num_steps)
        _check_positive("max_batch_size", self.max_batch_size)

    @classmethod
    def for_batch_size(
        cls, batch_size: int, num_records: int, num_steps: int, *, tail: float = 1e-10
    ) -> "PoissonSampling":
        """Chooses q = batch_size/num_records and the smallest static size that truncates rarely enough.

        :param batch_size: the expected batch size.
        :param num_records: N.
        :param num_steps: T.
        :param tail: the largest allowed `truncation_delta`. It costs about (1 + e^ε)·tail of δ against an adversary who
            does not know the indices, so keep it far below δ·e^{−ε}.
        :return: A sampling whose `max_batch_size` is a multiple of 8, or `num_records`.
        """
        if not 1 <= batch_size <= num_records:
            raise ArgumentError(f"batch_size must lie between 1 and {num_records=}, got {batch_size}")
        if not 0 < tail < 1:
            raise ArgumentError(f"tail must lie in (0, 1), got {tail}")
        _check_steps("num_steps", num_steps)
        q = batch_size / num_records

        def truncates_rarely(max_batch_size: int) -> bool:
            return _truncation_bound(num_records, q, num_steps, max_batch_size) <= tail

        sizes = range(8, num_records, 8)
        first = bisect.bisect_left(sizes, True, key=truncates_rarely)
        size = num_records if first == len(sizes) else sizes[first]
        return cls(sampling_prob=q, num_steps=num_steps, max_batch_size=size)

    @property
    def full_batch(self) -> bool:
        """Whether every step takes every record, without any randomness."""
        return self.sampling_prob == 1

    def check(self, num_records: int) -> None:
        """Also refuses a full batch that does not fit."""
        super().check(num_records)
        if self.full_batch and self.max_batch_size < num_records:
            raise ArgumentError("at sampling_prob=1, max_batch_size must be at least num_records")

    def total_steps(self, num_records: int) -> int:
        return self.num_steps

    def expected_batch_size(self, num_records: int) -> float:
        """q·N."""
        return self.sampling_prob * num_records

    def resume_step(self, num_records: int, step: int) -> int:
        """Any step: they are independent."""
        return step

    def truncation_delta(self, num_records: int) -> float:
        """T·P[Bin(N, q) > max_batch_size], at least the probability that any step is truncated."""
        return _truncation_bound(num_records, self.sampling_prob, self.num_steps, self.max_batch_size)

    def of_a_part(self, num_records: int) -> "PoissonSampling":
        """The same for the records of one of several holders, each of whom draws its own.

        A holder's batch is truncated only where all together drew more than `max_batch_size`, which `truncation_delta`
        bounds; so several holders' batches together may be larger than that, by as many times as there are holders.
        """
        return dataclasses.replace(self, max_batch_size=min(self.max_batch_size, num_records))

    def draw(self, num_records: int, first_step: int, num_steps: int, source: RandomSource) -> Batches:
        """Draws `num_steps` batches from `first_step` on. Each call draws afresh."""
        return self.start(num_records, source, first_step=first_step).next(num_steps)

    def _stream(self, num_records: int, source: RandomSource, first_step: int) -> BatchStream:
        return _PoissonStream(self, num_records, source, first_step)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoSteps(Sampling):
    """No step at all: what comes before the steps has all of the budget, and no record enters anything else."""

    max_batch_size: ClassVar[int] = 1

    def total_steps(self, num_records: int) -> int:
        return 0

    def expected_batch_size(self, num_records: int) -> float:
        """All records, as of the steps that there are none of."""
        return num_records

    def resume_step(self, num_records: int, step: int) -> int:
        """Where it is."""
        return step

    def _stream(self, num_records: int, source: RandomSource, first_step: int) -> BatchStream:
        raise PlanSpentError("the plan has no steps; ask for some (num_steps) when you make one")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DisjointBatches(Sampling):
    """Each epoch cuts a fresh random order of the records into ⌈N/batch_size⌉ batches.

    Formal guarantee: every record enters at most `num_epochs` steps, whatever the order, so the guarantee
    does not need the indices to be secret. The order is an exactly uniform permutation.

    :ivar batch_size: records per step; the last batch of an epoch holds what is left.
    :ivar num_epochs: E, at most a million.
    """

    batch_size: int
    num_epochs: int

    def __post_init__(self) -> None:
        _check_positive("batch_size", self.batch_size)
        _check_steps("num_epochs", self.num_epochs)

    @property
    def max_batch_size(self) -> int:  # type: ignore[override]
        """The static batch size."""
        return self.batch_size

    def steps_per_epoch(self, num_records: int) -> int:
        """⌈N/batch_size⌉."""
        return -(-num_records // self.batch_size)

    def total_steps(self, num_records: int) -> int:
        """E·⌈N/batch_size⌉."""
        return self.num_epochs * self.steps_per_epoch(num_records)

    def expected_batch_size(self, num_records: int) -> float:
        """N/⌈N/batch_size⌉, the mean over the steps of an epoch."""
        return num_records / self.steps_per_epoch(num_records)

    def resume_step(self, num_records: int, step: int) -> int:
        """The next start of an epoch.

        The order of the current epoch is not stored: it is secret towards some adversaries. A fresh order in
        mid-epoch could draw a record twice in one epoch, which the accounting excludes; leaving the rest of
        an epoch out only lowers the number of participations.
        """
        length = self.steps_per_epoch(num_records)
        return -(-step // length) * length

    def check(self, num_records: int) -> None:
        """Also refuses a batch larger than the table, which would only add padding."""
        super().check(num_records)
        if self.batch_size > num_records:
            raise ArgumentError(f"batch_size must be at most {num_records=}, got {self.batch_size}")

    def _stream(self, num_records: int, source: RandomSource, first_step: int) -> BatchStream:
        return _DisjointStream(self, num_records, source, first_step)


@final
class _PoissonStream(BatchStream):
    def __init__(self, sampling: PoissonSampling, num_records: int, source: RandomSource, first_step: int) -> None:
        super().__init__(first_step, sampling.num_steps)
        self._num_records, self._source = num_records, source
        self._size, self._prob = sampling.max_batch_size, Fraction(sampling.sampling_prob)

    def _draw(self, num_steps: int) -> Batches:
        per_call = max(1, _BYTES_AT_A_TIME // self._num_records)
        pieces = [range(i, min(i + per_call, num_steps)) for i in range(0, num_steps, per_call)]
        return _concatenate([self._draw_piece(len(piece)) for piece in pieces])

    def _draw_piece(self, num_steps: int) -> Batches:
        included = bernoulli_successes(self._prob, num_steps * self._num_records, self._source)
        steps, records = np.divmod(included, self._num_records)
        counts = np.bincount(steps, minlength=num_steps)
        if np.any(counts > self._size):
            keep = self._truncation(counts)
            records, counts = records[keep], np.minimum(counts, self._size)
        mask = np.arange(self._size) < counts[:, None]
        indices = np.zeros(mask.shape, np.int32)
        indices[mask] = records  # both run through the steps in order, and through a step in order
        return Batches(indices, mask)

    def _truncation(self, counts: np.ndarray) -> np.ndarray:
        """Which of the concatenated draws to keep: per too large step a uniformly random subset."""
        keep = np.ones(counts.sum(), bool)
        ends = np.cumsum(counts)
        for step in np.flatnonzero(counts > self._size):
            order = random_permutation(int(counts[step]), self._source)
            keep[ends[step] - counts[step] + order[self._size :]] = False
        return keep


@final
class _DisjointStream(BatchStream):
    def __init__(self, sampling: DisjointBatches, num_records: int, source: RandomSource, first_step: int) -> None:
        super().__init__(first_step, sampling.total_steps(num_records))
        self._sampling, self._num_records, self._source = sampling, num_records, source
        self._waiting = Batches(*(np.empty((0, sampling.batch_size), dtype) for dtype in (np.int32, bool)))

    def _draw(self, num_steps: int) -> Batches:
        pieces, missing = [self._waiting], num_steps - len(self._waiting.mask)
        while missing > 0:
            pieces.append(self._draw_epoch())
            missing -= len(pieces[-1].mask)
        indices, mask = _concatenate(pieces)
        self._waiting = Batches(indices[num_steps:], mask[num_steps:])
        return Batches(indices[:num_steps], mask[:num_steps])

    def _draw_epoch(self) -> Batches:
        length = self._sampling.steps_per_epoch(self._num_records)
        flat = np.zeros(length * self._sampling.batch_size, np.int32)
        flat[: self._num_records] = random_permutation(self._num_records, self._source)
        mask = np.arange(flat.size) < self._num_records
        shape = (length, self._sampling.batch_size)
        return Batches(_sorted_rows(flat.reshape(shape), mask.reshape(shape)), mask.reshape(shape))


def _concatenate(pieces: list[Batches]) -> Batches:
    return Batches(np.concatenate([p.indices for p in pieces]), np.concatenate([p.mask for p in pieces]))


def _sorted_rows(indices: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Sorts the valid part of each row; padding stays behind, as 0."""
    ordered = np.sort(np.where(mask, indices, np.iinfo(np.int32).max), axis=1)
    return np.where(mask, ordered, 0).astype(np.int32)


def _truncation_bound(num_records: int, prob: float, num_steps: int, max_batch_size: int) -> float:
    # The factor covers the relative error of SciPy's incomplete beta function, far below 1e-6.
    tail = float(stats.binom.sf(max_batch_size, num_records, prob)) * (1 + 1e-6)
    return min(1.0, num_steps * tail)


def _check_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ArgumentError(f"{name} must be a positive integer, got {value}")


def _check_steps(name: str, value: int) -> None:
    _check_positive(name, value)
    if value > _MOST_STEPS:
        raise ArgumentError(f"{name} must be at most {_MOST_STEPS:,}, got {value}: each step is a release")
