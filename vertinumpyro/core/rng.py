"""The randomness behind privacy noise and batch selection.

The library has three sources of randomness and never mixes them: NumPyro's `rng_key` (initial values,
the guide's draws; it may be shared), batch selection, and privacy noise. The last two come from here,
because an adversary who guesses them undoes the guarantee: a `jax.random` key is a small seed that lives
in notebooks and logs, and is meant to be shared.
"""

import abc
import math
import os
import warnings
from fractions import Fraction
from typing import final

import numpy as np

from vertinumpyro.core.errors import ArgumentError


class InsecureRandomnessWarning(UserWarning):
    """Privacy randomness comes from a seed, so the run has no privacy guarantee."""


class RandomSource(abc.ABC):
    """A stream of independent, uniform random bits. Abstract; the classes below are final.

    Nothing that would let a reader reproduce the stream (seed, state, bits) appears in a repr.
    """

    secure: bool
    """Whether the stream is fit for a release: unpredictable to every adversary."""

    @abc.abstractmethod
    def random_bytes(self, num_bytes: int) -> bytes:
        """Returns `num_bytes` uniform bytes."""

    @abc.abstractmethod
    def uint64(self, size: int) -> np.ndarray:
        """Returns `size` uniform unsigned 64-bit integers; the array may be read-only."""

    @abc.abstractmethod
    def spawn(self, num_sources: int) -> "tuple[RandomSource, ...]":
        """Returns independent sources of the same kind, for instance one per party."""


@final
class SystemRandomSource(RandomSource):
    """The operating system's cryptographic generator (`os.urandom`). Safe to share across threads."""

    secure = True

    def random_bytes(self, num_bytes: int) -> bytes:
        _check_count("num_bytes", num_bytes)
        return os.urandom(num_bytes)

    def uint64(self, size: int) -> np.ndarray:
        _check_count("size", size)
        return np.frombuffer(os.urandom(8 * size), dtype="<u8")

    def spawn(self, num_sources: int) -> "tuple[SystemRandomSource, ...]":
        """Returns new handles on the same generator; their streams are independent anyway."""
        _check_count("num_sources", num_sources)
        return tuple(SystemRandomSource() for _ in range(num_sources))

    def __repr__(self) -> str:
        return "SystemRandomSource()"


@final
class InsecureSeededSource(RandomSource):
    """A reproducible stream (Philox), for tests and paired benchmarks only.

    **No privacy guarantee holds for anything drawn from it**: whoever knows or guesses the seed can
    subtract the noise. Building one warns with `InsecureRandomnessWarning`; its spawned children do not
    warn again.

    :param insecure_seed: the seed, a non-negative integer. It is not kept as an attribute nor shown.
    """

    secure = False

    def __init__(self, insecure_seed: int) -> None:
        if isinstance(insecure_seed, bool) or not isinstance(insecure_seed, int | np.integer):
            raise ArgumentError("insecure_seed must be a non-negative integer")
        if insecure_seed < 0:
            raise ArgumentError("insecure_seed must be a non-negative integer")
        warnings.warn(
            "insecure_seed= makes privacy noise and batches predictable: this run has no privacy guarantee. "
            "Use SystemRandomSource() for anything that leaves this machine.",
            InsecureRandomnessWarning,
            stacklevel=2,
        )
        self._set_sequence(np.random.SeedSequence(int(insecure_seed)))

    def _set_sequence(self, sequence: np.random.SeedSequence) -> None:
        self._sequence = sequence
        self._philox = np.random.Philox(sequence)

    def random_bytes(self, num_bytes: int) -> bytes:
        """Returns the next `num_bytes` bytes; what is left of the last 64-bit word is thrown away."""
        _check_count("num_bytes", num_bytes)
        return self.uint64(-(-num_bytes // 8)).tobytes()[:num_bytes]

    def uint64(self, size: int) -> np.ndarray:
        _check_count("size", size)
        # random_raw is the bit generator's own output: unlike Generator methods, it is the same in every
        # NumPy version, so paired benchmarks stay paired across environments.
        return np.asarray(self._philox.random_raw(size)).astype("<u8", copy=False)

    def spawn(self, num_sources: int) -> "tuple[InsecureSeededSource, ...]":
        """Returns sources seeded independently; repeated calls return new ones."""
        _check_count("num_sources", num_sources)
        return tuple(self._child(sequence) for sequence in self._sequence.spawn(num_sources))

    @classmethod
    def _child(cls, sequence: np.random.SeedSequence) -> "InsecureSeededSource":
        child = cls.__new__(cls)
        child._set_sequence(sequence)
        return child

    def __repr__(self) -> str:
        return "InsecureSeededSource(insecure_seed=<hidden>)"


def _check_count(name: str, value: int) -> None:
    if value < 0:
        raise ArgumentError(f"{name} must not be negative, got {value}")


def random_permutation(size: int, source: RandomSource) -> np.ndarray:
    """Returns an exactly uniform permutation of `0..size-1`, int64 `[size]`.

    Sorts independent 64-bit keys. Given that all keys differ, every order is equally likely, so a draw
    with a repeated key (probability below size²/2^65) is thrown away whole: sorting it would favour the
    order in which the sort happens to leave ties.
    """
    _check_count("size", size)
    while True:
        keys = source.uint64(size)
        order = np.argsort(keys)
        if not np.any(np.diff(keys[order]) == 0):
            return order


def bernoulli_successes(prob: Fraction, size: int, source: RandomSource) -> np.ndarray:
    """The successes among `size` exact Bernoulli draws: their numbers, int64, increasing.

    `prob` is rounded down to the grid of 2^-64. Compares a uniform's binary digits with those of `prob`, a
    byte at a time: the first byte decides but for one draw in 256, which alone needs the next.
    """
    if not 0 <= prob <= 1:
        raise ArgumentError("prob must lie in [0, 1]")
    if prob == 1:
        return np.arange(size)
    digits = math.floor(prob * 2**64).to_bytes(8, "big")
    drawn = np.frombuffer(source.random_bytes(size), np.uint8)
    candidates = np.flatnonzero(drawn <= digits[0])
    below = drawn[candidates] < digits[0]
    tied = np.flatnonzero(~below)
    for digit in digits[1:]:
        drawn = np.frombuffer(source.random_bytes(tied.size), np.uint8)
        below[tied[drawn < digit]] = True
        tied = tied[drawn == digit]
    return candidates[below]  # a tie of all 64 digits means that the uniform is at or above prob
