"""What a step will cost, before anything is computed on data: the protocol itself, run with nobody at the other end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.crypten.correlations import Request, correction_size, draw
from vertinumpyro.secure.crypten.keystream import KeyStream, fresh_key
from vertinumpyro.secure.processes.backend import StepCost
from vertinumpyro.secure.processes.inputs import Layout, PartyInputs, PriorInputs

__all__ = ["estimate"]


def estimate(shape: BatchShape, layout: Layout) -> StepCost:
    """Count messages and bytes of one step and time it, on zeros.

    :raises BackendError: CrypTen is not installed.
    """
    from vertinumpyro.secure.crypten import protocol
    from vertinumpyro.secure.crypten.engine import Engine

    nobody = _Nobody(shape.num_parties)
    engine = Engine(0, {}, nobody, exchange=nobody.exchange, num_parties=shape.num_parties)
    seconds = []
    for _ in range(2):  # the first one warms up
        nobody.reset()
        started = time.perf_counter()
        protocol.clipped_noisy_sum(engine, shape, layout, *_zeros(shape, layout))
        seconds.append(time.perf_counter() - started)
    return StepCost(
        rounds=nobody.rounds, bytes_per_party=nobody.bytes_sent, dealer_bytes=nobody.dealer_bytes, seconds=seconds[1]
    )


@final
class _Nobody:
    """Stands in for the other parties and the dealer: counts, and answers with zeros and with random words."""

    def __init__(self, num_parties: int) -> None:
        self._others = num_parties - 1
        self._stream = KeyStream(fresh_key())
        self.reset()

    def reset(self) -> None:
        self.rounds = self.bytes_sent = self.dealer_bytes = 0

    def exchange(self, outgoing: Mapping[int, bytes], expected: Mapping[int, int]) -> dict[int, bytes]:
        self.rounds += bool(outgoing)
        self.bytes_sent += sum(len(data) for data in outgoing.values())
        return {rank: bytes(8 * words) for rank, words in expected.items()}

    def begin(self, program: str) -> None:
        pass

    def draw(self, request: Request) -> tuple[np.ndarray, ...]:
        self.dealer_bytes += 8 * correction_size(request)
        return draw(request, self._stream, 0, None)


def _zeros(shape: BatchShape, layout: Layout) -> tuple[Any, ...]:
    n, K = shape.batch_size, shape.num_components

    def zeros(*dims: int) -> np.ndarray:
        return np.zeros(dims, np.int64)

    own = PartyInputs(
        zeros(n, K), zeros(K, n, layout.plated[0]), zeros(n * K, layout.shared[0]), zeros(n, K), zeros(n, K, K)
    )
    prior = PriorInputs(zeros(K), zeros(K, layout.prior), zeros(K, K))
    return own, prior, np.ones(n, bool), zeros(shape.num_values)
