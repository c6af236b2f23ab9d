"""A party's process: reads its own table, draws its own noise, and computes with the others on shares."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat, ring
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import Schema, VerticalDataset, read_table
from vertinumpyro.data.alignment import alignment_digest, check_digests, record_ids
from vertinumpyro.dpvi import DPVI, DPVIState, Kernel
from vertinumpyro.dpvi.loop import device_columns
from vertinumpyro.privacy import PrivacyPlan
from vertinumpyro.runtime.task import PartyTask
from vertinumpyro.secure.crypten.keystream import fresh_key
from vertinumpyro.secure.processes.backend import BetweenProcesses, Computer
from vertinumpyro.secure.processes.group import Seat
from vertinumpyro.secure.processes.inputs import Layout, encode_party, encode_prior
from vertinumpyro.secure.processes.messages import pack, unpack

__all__ = ["between_processes", "release_layout", "run_party"]


def run_party(seat: Seat, task: PartyTask) -> None:
    """The life of a party's process: join, match records, then steps on command until told to stop."""
    schema = task.read_schema()
    dpvi = task.build()
    computer = between_processes(dpvi).party(seat, len(schema.parties))
    own = _own_records(seat, task, schema)
    seat.reply({"num_records": own.num_records})
    while True:
        words, arrays = seat.command()
        if "begin" in words:
            steps = _Steps(seat, task.party, dpvi, own, schema, computer, words, arrays)
            seat.reply({"fingerprint": steps.plan.fingerprint()})
        elif "steps" in words:
            steps.run(words["steps"])
        else:
            return


def _own_records(seat: Seat, task: PartyTask, schema: Schema) -> VerticalDataset:
    """This party's encoded columns, in the ids' order, once all parties have found the same ids.

    :raises DataError: the table breaks the schema.
    :raises AlignmentError: the parties' ids differ.
    """
    frame = read_table(task.table, schema, task.party)
    own = VerticalDataset.from_frames(schema.restrict(task.party), {task.party: frame})
    parties = list(schema.parties)
    key = _from_first(seat, len(parties), fresh_key())
    digest = alignment_digest(sorted(record_ids(frame, schema, task.party)), key)
    check_digests({parties[rank]: text.decode() for rank, text in _everyones(seat, len(parties), digest.encode())})
    return own


def _peers(seat: Seat, num_parties: int) -> list[int]:
    return [rank for rank in range(num_parties) if rank != seat.rank]


def _from_first(seat: Seat, num_parties: int, message: bytes) -> bytes:
    """Party 0's message, at every party."""
    if seat.rank > 0:
        return seat.links[0].receive()
    for rank in _peers(seat, num_parties):
        seat.links[rank].send(message)
    return message


def _everyones(seat: Seat, num_parties: int, message: bytes) -> list[tuple[int, bytes]]:
    """(number, message) of every party; short messages only."""
    for rank in _peers(seat, num_parties):
        seat.links[rank].send(message)
    received = {rank: seat.links[rank].receive() for rank in _peers(seat, num_parties)}
    return sorted({**received, seat.rank: message}.items())


@final
class _Steps:
    """The steps of one plan at one party."""

    def __init__(
        self,
        seat: Seat,
        party: str,
        dpvi: DPVI,
        own: VerticalDataset,
        schema: Schema,
        computer: Computer,
        words: dict[str, Any],
        arrays: dict[str, np.ndarray],
    ) -> None:
        self.plan = PrivacyPlan.from_dict(words["plan"])
        self._seat, self._computer = seat, computer
        self._source = SystemRandomSource()
        stand_in = VerticalDataset.example(schema, own.num_records, np.random.default_rng(0))
        self._kernel, first = dpvi.kernel(stand_in, self.plan, jnp.asarray(arrays["rng_key"]))
        structure = jax.tree_util.tree_structure(first)
        leaves = [jnp.asarray(arrays[f"state_{i}"]) for i in range(structure.num_leaves)]
        self._state: DPVIState = jax.tree_util.tree_unflatten(structure, leaves)
        self._columns = device_columns(own)[party]
        self._layout = release_layout(self._kernel, first, stand_in)
        self._local = jax.jit(partial(self._kernel.local_of, party))
        self._update = jax.jit(self._kernel.update)
        self._batches = None
        if seat.rank == 0:
            self._batches = self.plan.sampling.start(own.num_records, self._source, first_step=words["first_step"])

    def run(self, num_steps: int) -> None:
        """That many steps; then the reply: what they cost, and what was released."""
        kernel, plan = self._kernel, self.plan
        num_values = kernel.guide.split.num_values
        indices, masks = self._batch(num_steps)
        noise = plan.draw_noise_share(num_values, num_steps, self._source)
        norms = [self._step(indices[i], masks[i], noise[i]) for i in range(num_steps)]
        leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(self._state)]
        digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()
        states = {f"state_{i}": leaf for i, leaf in enumerate(leaves)} if self._seat.rank == 0 else {}
        cost = {"bytes": self._computer.bytes_sent, "rounds": self._computer.rounds, "digest": digest}
        self._seat.reply(cost, released_norm=np.asarray(norms), **states)

    def _batch(self, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Record numbers and masks, drawn by party 0 and known to the parties alone."""
        message = b""
        if self._batches is not None:
            indices, mask = self._batches.next(num_steps)
            message = pack({}, indices=indices, mask=mask)
        _, arrays = unpack(_from_first(self._seat, len(self.plan.parties), message))
        return arrays["indices"], arrays["mask"]

    def _step(self, indices: np.ndarray, mask: np.ndarray, noise_share: np.ndarray) -> float:
        """One release."""
        contribution, prior = self._local(self._state, self._columns, indices)
        shape = self._kernel.shape
        own, common = encode_party(shape, contribution), encode_prior(shape, prior)
        summed = self._computer.clipped_noisy_sum(shape, self._layout, own, common, mask, noise_share)
        with compat.x64():
            released = np.asarray(ring.decode(jnp.asarray(summed), self.plan.grid_bits))
        self._state, info = self._update(self._state, released.astype(prior.log_weights.dtype))
        return float(info.released_norm)


def between_processes(dpvi: DPVI) -> BetweenProcesses:
    """An inference's backend.

    :raises ArgumentError: it has no processes for the parties.
    """
    if not isinstance(dpvi.backend, BetweenProcesses):
        raise ArgumentError(
            f"backend {dpvi.backend.info().name} runs in one process; take one with a process for each party, "
            "Crypten() or Spu()"
        )
    return dpvi.backend


def release_layout(kernel: Kernel, state: DPVIState, stand_in: VerticalDataset) -> Layout:
    """The released vector's make-up, from stand-in records of every party."""
    indices = jax.ShapeDtypeStruct((kernel.shape.batch_size,), jnp.int32)
    contributions, prior = jax.eval_shape(kernel.local, state, device_columns(stand_in), indices)
    return Layout.of(contributions, prior)
