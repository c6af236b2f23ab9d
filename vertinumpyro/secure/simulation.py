"""Rehearsals: one process holds everybody's numbers and hands them out to processes that run the protocol for real."""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat, ring
from vertinumpyro.core.errors import BackendError
from vertinumpyro.core.row_blocks import Factor, RowBlocks
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.backend import AnyArray, BackendInfo, Contributions, InProcess, check_shape, total
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost
from vertinumpyro.secure.computation import (
    ClippedSum,
    Computation,
    CrossProducts,
    VectorSum,
    computation_of,
    described,
)
from vertinumpyro.secure.input_bounds import SCORE_BOUND
from vertinumpyro.secure.input_encoding import Layout
from vertinumpyro.secure.input_form import InputForm
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.transport import GroupCommunicator, Member, ProcessGroup, Traffic

_START_S = 120.0

Arrays = Mapping[str, Any]
Opened = list[tuple[str, np.ndarray]]


@final
class InsecureSimulation(InProcess):
    """A backend between processes, as one that takes every party's numbers: for tests, benchmarks and rehearsals.

    Whoever calls it knows all the numbers, so it protects nobody; the processes run the protocol for real. They start
    at the first call and stay until `close`, or the end of a `with`. The settings that no real run may have, as a
    dealer that is a party, are allowed here and only here.

    :param backend: what is rehearsed.
    :param num_parties: how many processes hold the vectors of `noisy_sum`; the other protocols' numbers say.
    :param timeout_s: how long a process waits for another before the run ends with an error.
    :param watched: record what party 0 saw opened, for `opened`.
    """

    def __init__(
        self, backend: BetweenProcesses, *, num_parties: int = 2, timeout_s: float = 120.0, watched: bool = False
    ) -> None:
        self.backend, self.num_parties, self._timeout_s, self._watched = backend, num_parties, timeout_s, watched
        self._running: dict[int, Processes] = {}

    def info(self) -> BackendInfo:
        """The backend's own, and that it is none of it here."""
        own = self.backend.info()
        return dataclasses.replace(
            own,
            name=f"insecure rehearsal of {own.name}",
            security_model=f"{own.security_model}, simulated: the calling process knows everything",
        )

    def grid_bits(self, shape: BatchShape) -> int:
        return self.backend.grid_bits(shape)

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
        return self.backend.error_bound(shape, score_norm=score_norm)

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        contributions: Contributions,
        prior: ComponentPrior,
        mask: jax.Array,
        noise_shares: AnyArray,
    ) -> jax.Array:
        """See `InProcess.clipped_noisy_sum`. Every party's noise is its part of the shares.

        The parties' processes take a batch's blocks one by one; here they are all held at once.
        """
        bits, backend = self.grid_bits(shape), self.backend
        numbers = jnp.arange(shape.num_blocks)
        first = jax.eval_shape(contributions, numbers[0]) if callable(contributions) else contributions
        check_shape(shape, first, prior, mask.reshape(shape.num_blocks, -1)[0])
        computation = ClippedSum(shape=shape, layout=Layout.of(first, prior))
        with compat.x64():
            _ = total(noise_shares)  # refuses narrow noise
            public = backend.encode_prior(shape, prior)._asdict()
            common = {f"prior_{name}": leaf for name, leaf in public.items()}
            if callable(contributions):
                of_block = contributions
                parties = jax.lax.map(lambda i: _encoded_parties(backend, shape, of_block(i)), numbers)
            else:
                parties = _encoded_parties(backend, shape, contributions)
            run = partial(self.processes(shape.num_parties).run, computation)
            summed = handed_out(run, shape.num_values, parties, {**common, "mask": mask}, noise_shares)
            return ring.decode(summed, bits)

    def noisy_cross_products(self, matrices: Sequence[Factor], noise_shares: AnyArray) -> jax.Array:
        own = [np.asarray(matrix).astype(np.int64) for matrix in matrices]
        widths = tuple(matrix.shape[1] for matrix in own)
        hot = [matrix.one_hot for matrix in matrices if isinstance(matrix, RowBlocks) and matrix.one_hot is not None]
        bits = {matrix.bits for matrix in matrices if isinstance(matrix, RowBlocks)}
        of_tables = len(hot) == len(own) and len(bits) == 1
        form = InputForm.of_tables([of.sizes for of in hot], *bits) if of_tables else None
        computation = CrossProducts(num_records=own[0].shape[0], widths=widths, form=form)
        return self._integers(computation, "matrix", own, noise_shares)

    def noisy_sum(self, vectors: AnyArray, noise_shares: AnyArray) -> jax.Array:
        """See `InProcess.noisy_sum`; `num_parties` processes hold the vectors in turn."""
        held = by_party(np.asarray(vectors).astype(np.int64), self.num_parties)
        computation = VectorSum(num_parties=self.num_parties, num_values=held[0].size)
        return self._integers(computation, "vector", held, noise_shares)

    def measured(self, computation: Computation, *, rank: int = 0) -> Cost:
        """What a computation costs a party, on zeros between processes of this machine, once all is warm."""
        processes = self.processes(computation.num_parties)
        inputs = [computation.zeros(number) for number in range(computation.num_parties)]
        processes.run(computation, inputs)
        before, dealt, started = processes.traffic[rank], processes.dealer_traffic[rank], processes.seconds
        processes.run(computation, inputs)
        return Cost(
            traffic=processes.traffic[rank].since(before),
            dealer_traffic=processes.dealer_traffic[rank].since(dealt),
            seconds=processes.seconds - started,
        )

    @property
    def traffic(self) -> Traffic:
        """Of party 0 with the other parties so far."""
        return sum((running.traffic[0] for running in self._running.values()), start=Traffic())

    @property
    def dealer_traffic(self) -> Traffic:
        """Of party 0 with the dealer so far."""
        return sum((running.dealer_traffic[0] for running in self._running.values()), start=Traffic())

    @property
    def seconds(self) -> float:
        """Of all computations so far, as this process sees them."""
        return sum(running.seconds for running in self._running.values())

    def opened(self, num_parties: int) -> Opened:
        """What party 0 saw opened in the last computation of so many parties, if `watched`: why, and the words."""
        return self.processes(num_parties).opened

    def processes(self, num_parties: int) -> Processes:
        """Those of a rehearsal with so many parties; started when there are none.

        :raises BackendError: what the backend needs is not installed.
        """
        if num_parties not in self._running:
            self._running[num_parties] = Processes(self.backend, num_parties, self._timeout_s, self._watched)
        return self._running[num_parties]

    def close(self) -> None:
        """End all processes; the next call starts new ones."""
        while self._running:
            self._running.popitem()[1].close()

    def _integers(
        self, computation: Computation, name: str, held: Sequence[np.ndarray], noise_shares: AnyArray
    ) -> jax.Array:
        with compat.x64():
            _ = total(noise_shares)  # refuses narrow noise
            noise = by_party(noise_shares, computation.num_parties)
            inputs = [{name: own, "noise": share} for own, share in zip(held, noise, strict=True)]
            return jnp.asarray(self.processes(computation.num_parties).run(computation, inputs))

    def __enter__(self) -> InsecureSimulation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"InsecureSimulation({self.backend!r})"


@final
class Processes:
    """The parties' processes and the backend's helpers, and what their computations cost so far.

    :ivar traffic: of each party, with the others.
    :ivar dealer_traffic: of each party.
    :ivar opened: what party 0 saw opened in the last computation, if watched: (why, words).
    """

    def __init__(self, backend: BetweenProcesses, num_parties: int, timeout_s: float, watched: bool) -> None:
        if missing := backend.missing():
            raise BackendError(missing)
        self._ranks = range(num_parties)
        arguments = (backend, watched)
        members = [
            Member(name=f"party {rank}", run=run_worker, arguments=arguments, libraries=backend.libraries)
            for rank in self._ranks
        ]
        self._group = ProcessGroup([*members, *backend.helpers(num_parties)], num_parties, timeout_s)
        self.close = weakref.finalize(self, self._group.close)
        self.traffic: list[Traffic] = []
        self.dealer_traffic: list[Traffic] = []
        self._answers(_START_S)
        self.seconds = 0.0
        self.opened: Opened = []

    @property
    def pids(self) -> list[int]:
        """The processes, by number."""
        return self._group.pids

    def run(self, computation: Computation, inputs: Sequence[Arrays]) -> np.ndarray:
        """The result of one computation, as party 0 learns it.

        :param inputs: of each party, by name.
        """
        started = time.perf_counter()
        for rank in self._ranks:
            arrays = {name: np.asarray(array) for name, array in inputs[rank].items()}
            self._group.command(rank, described(computation), **arrays)
        arrays = self._answers()
        self.seconds += time.perf_counter() - started
        result = arrays.pop("result")
        self.opened = [(name.split("_", 2)[2], value) for name, value in arrays.items()]
        return result

    def _answers(self, within_s: float | None = None) -> dict[str, np.ndarray]:
        """What party 0 answers, after all parties did and said what they counted."""
        replies = self._group.replies(self._ranks, within_s=within_s)
        self.traffic = [Traffic(**replies[rank][0]["traffic"]) for rank in self._ranks]
        self.dealer_traffic = [Traffic(**replies[rank][0]["dealer_traffic"]) for rank in self._ranks]
        return replies[0][1]


def run_worker(communicator: GroupCommunicator, backend: BetweenProcesses, watched: bool) -> None:
    """A rehearsed party: gets its numbers from the process that started it, which therefore knows everything."""
    seen: Opened = []

    def watch(why: str, value: np.ndarray) -> None:
        if watched:
            seen.append((why, np.array(value).reshape(-1)))

    end = backend.end(communicator, communicator.num_parties, watch)
    arrays: dict[str, np.ndarray] = {}
    while True:
        counts = {"traffic": vars(end.traffic), "dealer_traffic": vars(end.dealer_traffic)}
        communicator.reply(counts, **arrays)
        words, arrays = communicator.command()
        if "run" not in words:
            return
        seen.clear()
        result = computation_of(words).at(end, arrays)
        arrays = {f"opened_{index}_{why}": value for index, (why, value) in enumerate(seen)} | {"result": result}


def _encoded_parties(
    backend: BetweenProcesses, shape: BatchShape, contributions: Sequence[Contribution]
) -> list[dict[str, Any]]:
    """What each party puts in, by name."""
    return [backend.encode_party(shape, c, party)._asdict() for party, c in enumerate(contributions)]


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
