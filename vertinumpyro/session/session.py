"""What a method asks of the parties, wherever they are: releases of their own columns, cross products, sums.

All parties in this process: for research, planning and tests; whoever runs it sees every column.

A session that passes on to another one whatever it does not do itself.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from vertinumpyro.core import compat
from vertinumpyro.core.compat import evict_compiled
from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.rng import RandomSource, SystemRandomSource
from vertinumpyro.core.validation import shown
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.data.schema_checks import NO_DATASET
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.files_account import FilesAccount
from vertinumpyro.secure import Backend, in_process
from vertinumpyro.session.party_computation import Method, Multiply, PartyComputation, Publish, Sum, party_sources
from vertinumpyro.session.reveal_to_one import PrivateOutput, reveal_in_process
from vertinumpyro.session.run import Payload, Run


class Session(abc.ABC):
    """Parties that hold different columns of the same records. A method's code is the same for every kind of session.

    Where the parties are processes, they may also hold whole records, each other ones (`PartyTask.holders`): for the
    methods that are a `HorizontalMethod`, and for no other.

    `open` begins or continues a plan, at every ledger there is. Then, inside `step`, `publish`, `cross_products` and
    `sum` release what the plan says; every one of them returns what everybody may know.
    """

    @property
    @abc.abstractmethod
    def schema(self) -> Schema:
        """The public schema."""

    @property
    @abc.abstractmethod
    def num_records(self) -> int:
        """N, public."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in the schema's order; where they hold whole records, the holders'."""
        return tuple(self.schema.parties)

    @abc.abstractmethod
    def open(
        self,
        method: Method,
        plan: Plan,
        *,
        run_dir: str | Path | None,
        results: str,
        resume: bool = False,
        facts: Mapping[str, Any] | None = None,
        insecure_seed: int | None = None,
    ) -> Run:
        """Begins to spend a plan, or continues it; see `Run.opened`. The run is a context manager.

        :param insecure_seed: noise from a seeded generator, for tests and paired benchmarks: no privacy at all.
        """

    def catch_up(self, run: Run) -> None:  # noqa: B027 (in one process there is one ledger)
        """Counts in the run what any party has on record."""

    @abc.abstractmethod
    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        """What a step releases: as stored; None where a crash lost it; otherwise released now, once."""

    def arrays_of(self, run: Run, index: int, compute: Callable[[], dict[str, np.ndarray]]) -> Mapping[str, np.ndarray]:
        """The arrays that a step releases, for a method that cannot do without.

        :raises PlanSpentError: the step was counted as released by a run that stopped, and is not stored.
        """
        released = self.step(run, index, lambda: Payload({}, compute()))
        if released is None:
            raise PlanSpentError(
                f"{run.plan.step_names[index]} were released by a run that stopped, and are not stored: make a new "
                "plan, whose cost adds to this one's"
            )
        return released.arrays

    @abc.abstractmethod
    def publish(self, request: Publish) -> list[Payload]:
        """Every party's `PartyComputation.publish`, in the parties' order."""

    @abc.abstractmethod
    def cross_products(self, request: Multiply) -> dict[tuple[int, int], np.ndarray]:
        """A_i^T A_j + noise, int64 modulo 2^64, for every two parties i < j and their `PartyComputation.factor`.

        Without a step the noise is a one-time pad, so that nothing is revealed.
        """

    def broadcast(self, count: int) -> int:
        """How many steps come next, where every party runs the method and their clocks differ: party 0's number."""
        return count

    def iterate(self, step: int, count: int, arrays: Mapping[str, np.ndarray]) -> Payload:
        """`count` steps of an iterative method at all parties, from `step` on, and the public state that they reach.

        :param arrays: the state to begin from; empty where the parties have it.
        :raises ArgumentError: in one process an iterative method has a loop of its own.
        """
        raise ArgumentError(f"{type(self).__name__} does not run steps at parties")

    @abc.abstractmethod
    def sum(self, request: Sum) -> np.ndarray:
        """The sum of all parties' `PartyComputation.summand` and noise, int64 modulo 2^64."""

    def reveal_to(self, method: PrivateOutput) -> pd.DataFrame | None:
        """Lets the parties tell one of them what `method` says, which every party's task must say too. NOT DP.

        :return: the answers, with the records' ids where there are any, if this process is that party's; otherwise
            None. A party's process that another one started writes them to a file of its own (`PartyTask.told`).
        :raises ArgumentError: a party agreed to something else, or holds other columns; nothing was sent.
        """
        raise ArgumentError(f"{type(self).__name__} tells nobody anything of single records")

    @final
    def tell(self, method: PrivateOutput) -> pd.DataFrame | None:
        """`reveal_to`, as it was called before."""
        return self.reveal_to(method)


def session_of(data: VerticalDataset | Session, backend: Any) -> Session:
    """A session as it is, or the parties of a dataset in this process; every fit begins here, before anything is spent.

    :raises ArgumentError: it is neither, or the backend refuses to compute with all columns in one process.
    """

    evict_compiled()
    return data if isinstance(data, Session) else InProcessSession(data, backend)


def account_of(dataset: VerticalDataset) -> FilesAccount | None:
    """What a run of one process on a dataset is charged to; None where nobody knows where it came from."""
    source = dataset.source
    return None if source is None else FilesAccount.of(source.files, source.account, source.total_epsilon)


@final
class InProcessSession(Session):
    """The parties' parts, one after the other, and the sums over them by an in-process backend.

    It is the oracle of the other kinds of session: what it reveals equals, bit for bit, what parties with the same
    noise reveal between processes.

    :ivar dataset: every party's columns.
    :ivar spare_source: randomness of nobody in particular, for what only a simulation has.
    :raises ArgumentError: the dataset is none, or the backend works between processes.
    """

    def __init__(self, dataset: VerticalDataset, backend: Backend) -> None:
        if not isinstance(dataset, VerticalDataset):
            raise ArgumentError(f"dataset={shown(dataset)} {NO_DATASET}")
        self.dataset, self.backend = dataset, in_process(backend)
        self.spare_source: RandomSource = SystemRandomSource()
        self._works: Sequence[PartyComputation] = ()

    @property
    def schema(self) -> Schema:
        return self.dataset.schema

    @property
    def num_records(self) -> int:
        return self.dataset.num_records

    def open(
        self,
        method: Method,
        plan: Plan,
        *,
        run_dir: str | Path | None,
        results: str,
        resume: bool = False,
        facts: Mapping[str, Any] | None = None,
        insecure_seed: int | None = None,
    ) -> Run:
        secure = insecure_seed is None
        account = account_of(self.dataset)
        run = Run.opened(
            plan, run_dir, results=results, resume=resume, secure_noise=secure, facts=facts, account=account
        )
        self.engage(method, plan, party_sources(1 + len(self.parties), insecure_seed, run.first_step))
        return run

    def engage(self, method: Method, plan: Plan, sources: Sequence[RandomSource]) -> None:
        """Makes every party's part, without a record: `open` does this once it has one.

        :param sources: the parties', and the spare one.
        """
        *own, self.spare_source = sources
        self._works = [
            method.work(self, party, self.dataset.arrays(party), plan, source)
            for party, source in zip(self.parties, own, strict=True)
        ]

    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        """See `Session.step`. Nobody sees anything before the step is on record, so it is computed first."""
        return run.step(index, compute)

    def publish(self, request: Publish) -> list[Payload]:
        return [work.publish(request) for work in self._works]

    def cross_products(self, request: Multiply) -> dict[tuple[int, int], np.ndarray]:
        factors = [work.factor(request) for work in self._works]
        widths = self._works[0].widths(request)
        size = sum(rows * columns for _, (rows, columns) in pair_blocks(widths).values())
        noise = np.stack([work.noise(request, size) for work in self._works])
        with compat.x64():
            flat = np.asarray(self.backend.noisy_cross_products(factors, noise), np.int64)
        for work in self._works:
            work.opened(request, flat)
        return by_pair(flat, widths)

    def sum(self, request: Sum) -> np.ndarray:
        vectors = np.stack([work.summand(request) for work in self._works])
        noise = np.stack([work.noise(request, vectors.shape[1]) for work in self._works])
        with compat.x64():
            return np.asarray(self.backend.noisy_sum(vectors, noise), np.int64)

    def reveal_to(self, method: PrivateOutput) -> pd.DataFrame:
        """See `Session.reveal_to`; whoever runs this process holds every column anyway."""
        method.check_records(self.schema)
        return method.answer(reveal_in_process(method, {party: self.dataset.arrays(party) for party in self.parties}))

    def __repr__(self) -> str:
        return f"InProcessSession({self.num_records} records at {', '.join(self.parties)})"


def pair_blocks(widths: Sequence[int]) -> dict[tuple[int, int], tuple[int, tuple[int, int]]]:
    """Where each two parties' product stands in the flat vector of all of them: (start, shape)."""
    blocks, start = {}, 0
    for i, j in itertools.combinations(range(len(widths)), 2):
        blocks[i, j] = start, (widths[i], widths[j])
        start += widths[i] * widths[j]
    return blocks


def by_pair(flat: np.ndarray, widths: Sequence[int]) -> dict[tuple[int, int], np.ndarray]:
    """All products of two parties' factors, out of one flat array.

    :param widths: columns of each party's factor.
    """
    blocks = pair_blocks(widths)
    return {pair: flat[start : start + a * b].reshape(a, b) for pair, (start, (a, b)) in blocks.items()}


class SessionWrapper(Session):
    """The parties of another session, seen otherwise: subclasses say what is different, and everything else is its."""

    @property
    @abc.abstractmethod
    def inner(self) -> Session:
        """The session that it passes on to."""

    @property
    def schema(self) -> Schema:
        return self.inner.schema

    @property
    def num_records(self) -> int:
        return self.inner.num_records

    @property
    def parties(self) -> tuple[str, ...]:
        return self.inner.parties

    def open(self, method: Method, plan: Plan, **settings: Any) -> Run:
        return self.inner.open(method, plan, **settings)

    def catch_up(self, run: Run) -> None:
        self.inner.catch_up(run)

    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        return self.inner.step(run, index, compute)

    def publish(self, request: Publish) -> list[Payload]:
        return self.inner.publish(request)

    def cross_products(self, request: Multiply) -> dict[tuple[int, int], np.ndarray]:
        return self.inner.cross_products(request)

    def broadcast(self, count: int) -> int:
        return self.inner.broadcast(count)

    def iterate(self, step: int, count: int, arrays: Mapping[str, np.ndarray]) -> Payload:
        return self.inner.iterate(step, count, arrays)

    def sum(self, request: Sum) -> np.ndarray:
        return self.inner.sum(request)
