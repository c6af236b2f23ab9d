"""In which of public bands a sum of the parties' numbers lies, as shares: by comparisons, so that the sum stays hidden.

Every threshold's [x < t] comes from one opening of x under a uniform mask (`comparison`), and the number of thresholds
that x has reached is a sum of the bits as integers. Both are exact. What is opened is uniform; each party ends with a
share of the band, uniform without all others'.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vertinumpyro.secure.crypten.comparison import as_integers, below
from vertinumpyro.secure.crypten.engine import Engine

__all__ = ["bands"]

_AT_A_TIME = 2**16
"""Comparisons of one block, so that memory holds some hundred megabytes of the dealer's words at most."""


def bands(engine: Engine, vector: np.ndarray, thresholds: Sequence[int], bits: int) -> np.ndarray:
    """This party's share, int64 [n], of how many thresholds t the sum x of all vectors has reached: x >= t.

    Four rounds for each block of 2^16 comparisons, where `bits` are more than 36, and one less up to that.

    :param vector: this party's numbers, int64 [n]. Secret.
    :param thresholds: public.
    :param bits: so that |x - t| < 2^bits for every x and t that there may be.
    """
    size = max(1, _AT_A_TIME // len(thresholds))
    shares = [np.zeros(0, np.int64)]
    for start in range(0, len(vector), size):
        block = vector[start : start + size]
        engine.dealer.begin(f"bands of {len(block)} in {bits} bits by {len(thresholds)}")
        less = as_integers(engine, below(engine, block, bits, thresholds)).sum(axis=-1)
        shares.append((len(thresholds) if engine.rank == 0 else 0) - less)
    return np.concatenate(shares)
