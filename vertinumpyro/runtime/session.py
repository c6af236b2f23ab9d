"""A run with one process per party, from the side of the process that starts it and holds no table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
from tqdm.auto import tqdm

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import DPVI, Diagnostics, DPVIState, Posterior
from vertinumpyro.dpvi.guide import Params
from vertinumpyro.dpvi.run import Run
from vertinumpyro.privacy import PrivacyPlan
from vertinumpyro.privacy.ledger import Spending
from vertinumpyro.runtime.party import between_processes, run_party
from vertinumpyro.runtime.task import PartyTask
from vertinumpyro.secure import BackendStats
from vertinumpyro.secure.processes.backend import pairs
from vertinumpyro.secure.processes.group import Group, Member

__all__ = ["Session"]

_START_S = 300.0
_CHUNK_S = 3.0
_MAX_CHUNK = 200


@final
class Session:
    """The parties' processes and the backend's helpers, on this machine. Use as a context manager.

    Starting reads and checks every party's table in its own process, and matches the records by a keyed digest of
    their ids. This process learns the number of records, and later what is released.

    :param tasks: one for each party of the schema, in its order.
    :param timeout_s: how long a process waits for another before the run ends with an error.
    :raises DataError: a table breaks the schema; the message names the party and the column.
    :raises AlignmentError: the parties' records differ.
    :raises BackendError: the backend is not installed, or a process failed; the message names it.
    """

    def __init__(self, tasks: Sequence[PartyTask], *, timeout_s: float = 120.0) -> None:
        backend = between_processes(tasks[0].build())
        if missing := backend.missing():
            raise BackendError(missing)
        self._schema = tasks[0].read_schema()
        if [task.party for task in tasks] != list(self._schema.parties):
            raise ArgumentError(f"tasks must be one for each party, in the order {tuple(self._schema.parties)}")
        if len(tasks) < 2:
            raise ArgumentError("tasks: a secure run needs at least two parties; use the backend fixed_point for one")
        self._ranks = range(len(tasks))
        members = [Member(name=f"party {t.party!r}", run=run_party, arguments=(t,)) for t in tasks]
        members += backend.helpers(len(tasks))
        self._group = Group(members, pairs(members), timeout_s)
        self._stats = BackendStats()
        try:
            found = self._group.replies(self._ranks, within_s=_START_S)
            self.num_records: int = found[0][0]["num_records"]
        except BaseException:
            self._group.close()
            raise

    @property
    def stand_in(self) -> VerticalDataset:
        """As many records as there are, drawn from the public domains: what a plan is made for."""
        return VerticalDataset.example(self._schema, self.num_records, np.random.default_rng(0))

    @property
    def pids(self) -> list[int]:
        """The processes: the parties in order, then the helpers."""
        return self._group.pids

    def stats(self) -> BackendStats:
        """Bytes that a party sent to other parties, rounds, and seconds of the steps so far."""
        return self._stats

    def fit(
        self,
        dpvi: DPVI,
        plan: PrivacyPlan,
        rng_key: jax.Array,
        *,
        run_dir: str | Path,
        resume: bool = False,
        progress_bar: bool = True,
        after_chunk: Callable[[int, Params], None] | None = None,
    ) -> Posterior:
        """Spend the plan, as `DPVI.fit` does, with the parties in their processes.

        :param after_chunk: called every few steps with the number of steps so far and the guide's parameters, which
            follow from what was released.
        :raises ArgumentError: the plan wants what these processes cannot keep: hidden batch indices, trusted noise.
        :raises BackendError: a process failed; the record in `run_dir` counts all that may have been released, and
            `resume=True` continues.
        """
        _check_plan(plan)
        kernel, state = dpvi.kernel(self.stand_in, plan, rng_key)
        run = Run(kernel, plan, Path(run_dir))
        with run.open_ledger(resume) as spending:
            state = run.restored(state) if resume else state
            first = run.first_step(spending)
            self._begin(plan, rng_key, state, first)
            state, diagnostics = self._steps(run, state, spending, first, progress_bar, after_chunk)
        return Posterior(
            guide=kernel.guide, params=state.params, plan=plan, diagnostics=diagnostics, secure_noise=run.secure_noise
        )

    def close(self) -> None:
        """End all processes."""
        self._group.close()

    def _begin(self, plan: PrivacyPlan, rng_key: jax.Array, state: DPVIState, first_step: int) -> None:
        leaves = {f"state_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree_util.tree_leaves(state))}
        words = {"begin": True, "plan": plan.to_dict(), "first_step": first_step}
        for rank in self._ranks:
            self._group.command(rank, words, rng_key=np.asarray(rng_key), **leaves)
        replies = self._group.replies(self._ranks, within_s=_START_S)
        if any(words["fingerprint"] != plan.fingerprint() for words, _ in replies.values()):
            raise BackendError("a party works on another plan; start the run again")

    def _steps(
        self,
        run: Run,
        state: DPVIState,
        spending: Spending,
        first: int,
        progress_bar: bool,
        after_chunk: Callable[[int, Params], None] | None,
    ) -> tuple[DPVIState, Diagnostics]:
        """All remaining steps, a few seconds' worth at a time; each is counted as released before it is computed."""
        started, count, norms = time.perf_counter(), 1, [np.zeros(0)]
        with tqdm(total=run.plan.num_steps, initial=first, disable=not progress_bar, unit="step") as bar:
            while spending.steps_left:
                count = min(count, spending.steps_left)
                spending.reserve(count)
                chunk_started = time.perf_counter()
                state, released = self._chunk(state, count)
                run.save(state)
                if after_chunk is not None:
                    after_chunk(spending.steps_spent, state.params)
                norms.append(released)
                bar.update(count)
                a_step = (time.perf_counter() - chunk_started) / count
                count = max(1, min(_MAX_CHUNK, 2 * count, int(_CHUNK_S / a_step)))
        return state, Diagnostics(np.concatenate(norms), None, time.perf_counter() - started)

    def _chunk(self, state: DPVIState, num_steps: int) -> tuple[DPVIState, np.ndarray]:
        started = time.perf_counter()
        for rank in self._ranks:
            self._group.command(rank, {"steps": num_steps})
        replies = self._group.replies(self._ranks, within_s=_START_S)
        if len({words["digest"] for words, _ in replies.values()}) > 1:
            raise BackendError("the parties' states differ after the same releases; run one version everywhere")
        words, arrays = replies[0]
        leaves = [arrays[f"state_{i}"] for i in range(len(jax.tree_util.tree_leaves(state)))]
        self._count(words, time.perf_counter() - started)
        return _restored(state, leaves), arrays["released_norm"]

    def _count(self, words: dict[str, Any], seconds: float) -> None:
        self._stats = BackendStats(
            bytes_per_party=words["bytes"], rounds=words["rounds"], seconds=self._stats.seconds + seconds
        )

    def __enter__(self) -> Session:
        """Returns itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends all processes."""
        self.close()


def _restored(like: DPVIState, leaves: list[np.ndarray]) -> DPVIState:
    structure = jax.tree_util.tree_structure(like)
    return jax.tree_util.tree_unflatten(structure, [jax.numpy.asarray(leaf) for leaf in leaves])


def _check_plan(plan: PrivacyPlan) -> None:
    if plan.batch_indices == "hidden":
        raise ArgumentError(
            'batch_indices="hidden": the parties look up the records of a batch themselves, so they know them; '
            'choose "known"'
        )
    if plan.noise.kind != "collaborative":
        raise ArgumentError(
            'noise="trusted": every party draws its own share in its own process; choose "collaborative"'
        )
