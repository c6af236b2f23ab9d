"""Rehearsals in which one process holds all numbers and hands them out: how they leave a JAX program and come back."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.secure.backend import AnyArray, BackendStats
from vertinumpyro.secure.processes.backend import pairs
from vertinumpyro.secure.processes.group import Group, Member

__all__ = ["Simulation", "Simulations", "by_party", "handed_out"]

_START_S = 120.0

Arrays = Mapping[str, Any]


@final
class Simulation:
    """Processes that run a backend's protocols on numbers that this process hands them.

    :param members: the parties' processes, who answer a command with counts, an array `result` and arrays
        `opened_<number>_<why>`, and then the helpers.
    :ivar counts: what party 0 counted so far: `bytes`, `rounds`, and what else the backend counts.
    :ivar opened: what party 0 saw opened in the last computation, where the backend records it: (why, words).
    """

    def __init__(self, members: Sequence[Member], num_parties: int, timeout_s: float) -> None:
        self._ranks = range(num_parties)
        self._group = Group(members, pairs(members), timeout_s)
        self.close = weakref.finalize(self, self._group.close)
        self._group.replies(self._ranks, within_s=_START_S)
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self.opened: list[tuple[str, np.ndarray]] = []

    @property
    def pids(self) -> list[int]:
        """The processes, by member."""
        return self._group.pids

    def run(self, words: dict[str, Any], inputs: Sequence[Arrays]) -> np.ndarray:
        """The result of one computation, as party 0 learns it. A party without inputs takes part with none."""
        started = time.perf_counter()
        for rank in self._ranks:
            arrays = inputs[rank] if rank < len(inputs) else {}
            self._group.command(rank, words, **{name: np.asarray(array) for name, array in arrays.items()})
        replies = self._group.replies(self._ranks)
        self.seconds += time.perf_counter() - started
        counts, arrays = replies[0]
        self.counts = Counter(counts)
        result = arrays.pop("result")
        self.opened = [(name.split("_", 2)[2], value) for name, value in arrays.items()]
        return result


@final
class Simulations:
    """A backend's simulations, one for each number of parties."""

    def __init__(self) -> None:
        self._running: dict[int, Simulation] = {}

    def of(self, num_parties: int, start: Callable[[], Simulation]) -> Simulation:
        """The simulation that is running, or a new one."""
        if num_parties not in self._running:
            self._running[num_parties] = start()
        return self._running[num_parties]

    def stats(self) -> BackendStats:
        """Of all of them."""
        counts = sum((run.counts for run in self._running.values()), start=Counter())
        seconds = sum(run.seconds for run in self._running.values())
        return BackendStats(bytes_per_party=counts["bytes"], rounds=counts["rounds"], seconds=seconds)

    def close(self) -> None:
        """End all processes; the next call starts new ones."""
        while self._running:
            self._running.popitem()[1].close()


def handed_out(
    run: Callable[[list[dict[str, np.ndarray]]], np.ndarray],
    num_values: int,
    parties: Sequence[Arrays],
    common: Arrays,
    noise_shares: AnyArray,
) -> jax.Array:
    """What `run` computes from the parties' inputs, int64 `[num_values]`, inside a JAX program in 64-bit mode.

    :param run: takes a mapping for each party: its own arrays, the common ones, and `noise`, its part of the shares.
    """

    def outside(*halves: Any) -> np.ndarray:
        parties, common, noise = jax.tree_util.tree_map(_joined, halves)
        shares = by_party(noise, len(parties))
        inputs = [{**common, **own, "noise": share} for own, share in zip(parties, shares, strict=True)]
        return run(inputs).view(np.uint32).reshape(-1, 2)

    out = jax.ShapeDtypeStruct((num_values, 2), jnp.uint32)
    arguments = list(parties), dict(common), jnp.asarray(noise_shares, jnp.int64)
    result = jax.pure_callback(outside, out, *jax.tree_util.tree_map(_halves, arguments))
    return jax.lax.bitcast_convert_type(result, jnp.int64)


def _halves(array: jax.Array) -> jax.Array:
    """Integers as pairs of 32 bits: a callback may run in a thread without 64-bit mode, which would cut them in two."""
    array = jnp.asarray(array)
    return array if array.dtype == bool else jax.lax.bitcast_convert_type(array.astype(jnp.int64), jnp.uint32)


def _joined(halves: Any) -> np.ndarray:
    """What `_halves` was given."""
    halves = np.ascontiguousarray(halves)
    return halves if halves.dtype == bool else halves.view(np.int64)[..., 0]


def by_party(rows: AnyArray, num_parties: int) -> list[np.ndarray]:
    """Rows dealt out in turn and added up, modulo 2^64: one vector for each party."""
    rows = np.asarray(rows)
    return [rows[rank::num_parties].sum(axis=0, dtype=np.int64) for rank in range(num_parties)]
