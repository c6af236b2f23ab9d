"""The secret inputs of the steps: batches and noise shares, drawn ahead in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, final

import numpy as np

from vertinumpyro.core.rng import RandomSource, SystemRandomSource
from vertinumpyro.dpvi.kernel import StepInput
from vertinumpyro.privacy import GradientPlan
from vertinumpyro.privacy.sampling import BatchStream

_BYTES = 2**24
_BYTES_OF_AN_INDEX = 5  # and its place in the mask
_MAX_CHUNK = 200
_CHUNK_S = 3.0


class Chunk(NamedTuple):
    """Inputs of several steps, padded to one static number of steps."""

    inputs: StepInput
    active: np.ndarray
    """bool [num_steps]: False marks steps that only pad the chunk; nothing is released for them."""

    @property
    def num_active(self) -> int:
        """Steps that release something."""
        return int(self.active.sum())

    def __repr__(self) -> str:
        return f"Chunk(num_active={self.num_active})"


@final
class Pace:
    """How many steps the next chunk takes: one at first, then as many as a few seconds hold.

    What dies with a chunk is lost, and what follows the first step may fail for reasons that no rehearsal shows.

    :param longest: most steps in a chunk.
    """

    def __init__(self, longest: int) -> None:
        self._longest, self.count, self._chunks = longest, 1, 0

    def took(self, num_steps: int, seconds: float) -> None:
        """Told how long a chunk took; the first one includes compilation and says nothing."""
        self._chunks += 1
        if self._chunks > 1:
            fits = int(_CHUNK_S * num_steps / max(seconds, 1e-9))
            self.count = max(1, min(self._longest, _MAX_CHUNK, 2 * self.count, fits))


def chunk_length(num_steps: int, num_values: int, num_shares: int, batch_size: int) -> int:
    """Steps in a chunk at most: noise and batches take 16 MiB each, and progress shows at least every 200 steps."""
    room = min(_BYTES // (8 * num_values * num_shares), _BYTES // (_BYTES_OF_AN_INDEX * batch_size))
    longest = max(1, min(room, _MAX_CHUNK, num_steps))
    return -(-num_steps // -(-num_steps // longest))


def chunk_length_of(plan: GradientPlan, num_values: int) -> int:
    """A plan's."""
    return chunk_length(plan.num_gradients, num_values, plan.num_shares, plan.sampling.max_batch_size)


def chunks(
    plan: GradientPlan, num_values: int, source: RandomSource, first_step: int, pace: Pace | None = None
) -> Iterator[Chunk]:
    """All remaining chunks of a plan, as long as `pace` says; while one is used, the next is drawn in another thread.

    NumPy's generators and the operating system's CSPRNG release the interpreter lock, so the noise costs
    little wall time on a second core.
    """
    batch_source, *share_sources = source.spawn(1 + plan.num_shares)
    batches = plan.sampling.start(plan.num_records, batch_source, first_step=first_step)
    length, num_steps, noise = chunk_length_of(plan, num_values), plan.num_gradients, plan.noise_sampler()

    def draw(wanted: int) -> Chunk | None:
        count = min(wanted, length, num_steps - batches.step)
        return None if count <= 0 else _padded(draw_inputs(noise, num_values, batches, share_sources, count), length)

    with ThreadPoolExecutor(max_workers=1) as background:
        pending = background.submit(draw, length if pace is None else pace.count)
        while (chunk := pending.result()) is not None:
            pending = background.submit(draw, length if pace is None else pace.count)
            yield chunk


def draw_inputs(
    noise: Callable[[int, RandomSource], np.ndarray],
    num_values: int,
    batches: BatchStream,
    share_sources: list[RandomSource],
    num_steps: int,
) -> StepInput:
    """Batches and noise of `num_steps` steps; every party's noise comes from its own source.

    :param noise: the plan's `noise_sampler`.
    """
    indices, mask = batches.next(num_steps)
    shares = [noise(num_steps * num_values, source).reshape(num_steps, num_values) for source in share_sources]
    return StepInput(indices, mask, np.stack(shares, axis=1))


def chunk_over_nobody(plan: GradientPlan, num_values: int, noise: np.ndarray) -> Chunk:
    """A chunk of one step, in the form of every other, whose batch is empty: its sum is `noise` [D], on the grid."""
    shares = np.zeros((1, plan.num_shares, num_values), np.int64)
    shares[0, 0] = noise
    drawn = plan.sampling.start(plan.num_records, SystemRandomSource()).next(1)
    nobody = StepInput(np.zeros_like(drawn.indices), np.zeros_like(drawn.mask), shares)
    return _padded(nobody, chunk_length_of(plan, num_values))


def _padded(inputs: StepInput, length: int) -> Chunk:
    """Every chunk is as long as the others, so that the loop compiles once."""
    count = len(inputs.mask)
    active = np.arange(length) < count
    pad = [(0, length - count)]
    padded = (np.pad(leaf, pad + [(0, 0)] * (leaf.ndim - 1)) for leaf in inputs)
    return Chunk(StepInput(*padded), active)
