"""What a method asks of the parties, wherever they are: releases of their own columns, cross products, sums."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.programs import make_room
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.privacy import Plan
from vertinumpyro.session.party_computation import Method
from vertinumpyro.session.reveal_to_one import PrivateOutput
from vertinumpyro.session.run import Payload, Run

__all__ = ["Session", "session_of"]


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
    def publish(self, index: int, what: str, words: Mapping[str, Any]) -> list[Payload]:
        """Every party's `PartyComputation.publish`, in the parties' order."""

    @abc.abstractmethod
    def cross_products(
        self, index: int | None, what: str, words: Mapping[str, Any]
    ) -> dict[tuple[int, int], np.ndarray]:
        """A_i^T A_j + noise, int64 modulo 2^64, for every two parties i < j and their `PartyComputation.factor`.

        :param index: the plan's step; None where the noise is a one-time pad, so that nothing is revealed.
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
    def sum(self, index: int, what: str, words: Mapping[str, Any]) -> np.ndarray:
        """The sum of all parties' `PartyComputation.summand` and noise, int64 modulo 2^64."""

    def tell(self, method: PrivateOutput) -> pd.DataFrame | None:
        """Lets the parties tell one of them what `method` says, which every party's task must say too. NOT DP.

        :return: the answers, with the records' ids where there are any, if this process is that party's; otherwise
            None. A party's process that another one started writes them to a file of its own (`PartyTask.told`).
        :raises ArgumentError: a party agreed to something else, or holds other columns; nothing was sent.
        """
        raise ArgumentError(f"{type(self).__name__} tells nobody anything of single records")


def session_of(data: VerticalDataset | Session, backend: Any) -> Session:
    """A session as it is, or the parties of a dataset in this process; every fit begins here, before anything is spent.

    :raises ArgumentError: it is neither, or the backend refuses to compute with all columns in one process.
    """
    from vertinumpyro.session.in_process import InProcessSession

    make_room()
    return data if isinstance(data, Session) else InProcessSession(data, backend)
