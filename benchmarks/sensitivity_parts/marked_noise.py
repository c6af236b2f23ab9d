"""Noise that says which party drew how much of it for every released number, and the distances in units of it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

from vertinumpyro.mrf import releases as tables_work
from vertinumpyro.privacy import GaussianEvent
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan

_BASE = 64  # more draws of one size than ever add up in a number


class Draws:
    """Stands in the samplers' place: zeros; or, of each size of noise, a power of 64 that marks it."""

    def __init__(self) -> None:
        self.sizes: list[float] = []
        self.marking = False

    def __call__(self, size: Any, count: int) -> np.ndarray:
        if not self.marking:
            return np.zeros(count, np.int64)
        if float(size) not in self.sizes:
            self.sizes.append(float(size))
        return np.full(count, _BASE ** self.sizes.index(float(size)), np.int64)

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        self.sizes, self.marking = [], True
        try:
            yield
        finally:
            self.marking = False

    def noise(self, marks: np.ndarray) -> np.ndarray:
        """What drew the marks: their sizes, added up."""
        marks, out = np.rint(marks).astype(np.int64), np.zeros(marks.shape)
        for size in self.sizes:
            out = out + np.where(marks % _BASE > 0, marks % _BASE * size, 0.0)
            marks = marks // _BASE
        return out


@contextlib.contextmanager
def drawing() -> Iterator[Draws]:
    """Draws in the place of every sampler of noise, and of one-time pads, which are infinite noise."""
    draws = Draws()

    def pads(size: int, source: Any, *, verified: bool = False) -> np.ndarray:
        return draws(math.inf, size)

    samplers = {
        "sample_discrete_gaussian": lambda variance, count, source: draws(variance, count),
        "draw_noise_share": lambda variance, count, source: draws(variance, count),
        "sample_laplace_shares": lambda scale, parts, count, source: draws(scale, count),
    }
    with contextlib.ExitStack() as stack:
        for module in [m for name, m in sys.modules.items() if name.startswith("vertinumpyro.")]:
            for name in samplers.keys() & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, samplers[name]))
        stack.enter_context(mock.patch.object(tables_work, "pads", pads))
        yield draws


@dataclasses.dataclass(frozen=True)
class Sums:
    """A release: exact sums [V, D] with the record of each value, and each party's noise on them [D]; who owns it."""

    values: np.ndarray
    noise: Mapping[str, np.ndarray]
    owner: str | None = None

    def moved(self, value: int, colluders: Sequence[str], *, pure: bool) -> np.ndarray:
        """From one value to each other [V]: (difference)² / variance, or |difference| / scale, added up."""
        moved = np.abs((self.values - self.values[value]).astype(np.float64))
        if self.owner in colluders:
            return np.zeros(len(moved))  # its own columns, which it knows
        unknown = [noise for party, noise in self.noise.items() if party not in colluders]
        size = (np.max if pure else np.sum)([np.zeros(moved.shape[1]), *unknown], axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(moved > 0, (moved if pure else moved**2) / size, 0.0)
        return shares.sum(axis=1)


@dataclasses.dataclass(frozen=True)
class Audit:
    """One method: its plan, all its releases at every place and state, and what parties know of the records.

    :ivar held: party -> for each value what the party holds of it; empty where records are whole.
    :ivar absent: number of the value that stands for no record; None under replace.
    """

    plan: Any
    releases: Sequence[Sequence[Sums]]
    held: Mapping[str, Sequence[Any]]
    noisy: Sequence[str]
    absent: int | None = None

    def rows(self) -> dict[str, tuple[float, float]]:
        """Adversary -> stated and found."""
        return {
            observer.name: (self._stated(observer), max(self._found(c) for c in self._coalitions(observer)))
            for observer in self.plan.observers
        }

    def _stated(self, observer: Any) -> float:
        event: Any = self.plan.event(observer)
        if isinstance(event, GaussianEvent):
            return self.plan.relation.sensitivity * math.sqrt(event.count) / event.noise_multiplier
        return event.pure_epsilon

    def _coalitions(self, observer: Any) -> list[tuple[str, ...]]:
        if observer.name in self.noisy:
            return [(observer.name,)]
        return list(itertools.combinations(self.noisy, observer.colluders))

    def _found(self, colluders: Sequence[str]) -> float:
        pure = isinstance(self.plan, FunctionalMechanismPlan) and self.plan.pure
        most = 0.0
        for together in self.releases:
            for value in range(len(together[0].values)) if self.absent is None else [self.absent]:
                moved = sum(sums.moved(value, colluders, pure=pure) for sums in together)
                most = max(most, float(np.max(np.where(self._alike(value, colluders), moved, 0.0))))
        return most if pure else math.sqrt(most)

    def _alike(self, value: int, colluders: Sequence[str]) -> np.ndarray:
        """Which values agree with this one on what the colluders hold; VPDP's neighbours do."""
        others = len(self.releases[0][0].values)
        if self.absent is not None:
            return np.ones(others, bool)
        held = [self.held[party] for party in colluders if party in self.held]
        return np.array([all(own[i] == own[value] for own in held) for i in range(others)])
