"""The probabilities of randomised response's reports, read off the very function that draws them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vertinumpyro.core.rng import RandomSource
from vertinumpyro.mrf.encoders.randomized_response import ResponseDesign, response_pld


class Words(RandomSource):
    """Hands out given words."""

    secure = False

    def __init__(self, moving: int, step: int) -> None:
        self._words = np.array([moving, step], np.uint64)

    def random_bytes(self, num_bytes: int) -> bytes:
        raise NotImplementedError

    def uint64(self, size: int) -> np.ndarray:
        return np.repeat(self._words, size // 2)

    def spawn(self, num_sources: int) -> tuple[RandomSource, ...]:
        return (self,) * num_sources


def report_probabilities(design: ResponseDesign, cells: int) -> np.ndarray:
    """P(report | value) `[value, report]`: where a word's meaning changes, by halving, of `respond` itself."""

    def report(value: int, moving: int, step: int) -> int:
        return int(design.respond(np.array([value]), cells, Words(moving, step))[0])

    out = np.zeros((cells, cells))
    for value in range(cells):
        moved = _first(lambda word, value=value: report(value, word, 0) == value, 64)
        ends = [0]
        while ends[-1] < 2**32:
            here = report(value, 0, ends[-1] << 32)
            ends.append(_first(lambda high, value=value, here=here, low=ends[-1]:
                               high > low and report(value, 0, high << 32) != here, 32))  # fmt: skip
            out[value, here] += moved / 2**64 * (ends[-1] - ends[-2]) / 2**32
        out[value, value] += 1 - moved / 2**64
    return out


def _first(holds: Callable[[int], bool], bits: int) -> int:
    """The first number for which it holds, from where it holds for all; 2^bits for none."""
    low, high = 0, 2**bits
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def randomised_response() -> dict[str, tuple[float, float]]:
    """A report of each column; a party knows its own columns, so that the other's may change."""
    design = ResponseDesign(epsilon_per_column=0.7, cells=((2, 3), (3, 7)))
    ratios = []
    for own in design.cells:
        tables = [report_probabilities(design, cells) for cells in own]
        ratios.append(sum(float(np.log(table.max(axis=0) / table.min(axis=0)).max()) for table in tables))
    outside = {"outside analyst": (0, 1), "clinic": (1,), "insurer": (0,)}
    return {
        name: (response_pld(design, others).get_epsilon_for_delta(0.0), sum(ratios[i] for i in others))
        for name, others in outside.items()
    }
