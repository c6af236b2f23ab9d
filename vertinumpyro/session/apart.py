"""What sessions with parties in their own processes share, whoever asks them: one run here, a ledger at each party."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.data import Schema
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.ledger import Book
from vertinumpyro.session.in_process import by_pair
from vertinumpyro.session.party import check_apart
from vertinumpyro.session.run import Payload, Run
from vertinumpyro.session.session import Session
from vertinumpyro.session.work import Method
from vertinumpyro.transport import Traffic

__all__ = ["ApartSession"]

Words = Mapping[str, Any]
_Self = TypeVar("_Self", bound="ApartSession")


class ApartSession(Session):
    """Parties that keep their own records, and release each step once. Use as a context manager.

    :param parties: their names, in their order.
    :param seeds: of the parties' noise; None where it is the operating system's.
    :param book: where the run's own ledger is noted; None is this process's.
    """

    def __init__(
        self, schema: Schema, parties: tuple[str, ...], seeds: set[int | None], book: Book | None = None
    ) -> None:
        self._schema, self._parties, self._seeds, self._book, self._reached = schema, parties, seeds, book, 0
        self.traffic, self.dealer_traffic, self.seconds = Traffic(), Traffic(), 0.0

    @property
    def schema(self) -> Schema:
        """The public schema."""
        return self._schema

    @property
    def parties(self) -> tuple[str, ...]:
        """See `Session.parties`."""
        return self._parties

    @abc.abstractmethod
    def begin(self, plan: Plan, *, resume: bool) -> int:
        """Begins the plan at every ledger; the most steps that any of them has on record."""

    @abc.abstractmethod
    def all_have(self, stored: bool) -> bool:
        """Whether a step's release is stored wherever this method runs, as it is here."""

    @abc.abstractmethod
    def values(self, do: str, index: int | None, what: str, words: Words) -> tuple[np.ndarray, tuple[int, ...]]:
        """What the parties open together, and the widths of a product's factors."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what was opened."""

    def open(
        self,
        method: Method,
        plan: Plan,
        *,
        run_dir: str | Path | None,
        results: str,
        resume: bool = False,
        facts: Words | None = None,
        insecure_seed: int | None = None,
    ) -> Run:
        """See `Session.open`; every party begins the plan at its own ledger.

        :raises ArgumentError: the plan wants what parties apart cannot keep: hidden batch indices, trusted noise.
        :raises PlanSpentError: a party agreed to another plan, or has begun this one before.
        """
        check_apart(plan)
        if self._seeds != {insecure_seed}:
            raise ArgumentError(
                "insecure_seed: every party draws its own noise; give it to the parties' tasks, and here"
            )
        run = Run.opened(
            plan,
            run_dir,
            results=results,
            resume=resume,
            secure_noise=insecure_seed is None,
            facts=facts,
            book=self._book,
        )
        try:
            self._reached = self.begin(plan, resume=resume)
        except BaseException:
            run.ledger.pause()
            raise
        return run

    def catch_up(self, run: Run) -> None:
        """Counts here what any party has on record: an iterative method goes on behind all of it."""
        run.ledger.reserve_up_to(self._reached)

    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        """See `Session.step`. The parties see to it that it is released once, so it is counted here and asked for."""
        stored = run.stored(index)
        if self.all_have(stored is not None):
            return stored
        run.ledger.reserve_up_to(index + 1)
        released = compute()
        run.keep(index, released)
        return released

    def cross_products(self, index: int | None, what: str, words: Words) -> dict[tuple[int, int], np.ndarray]:
        """See `Session.cross_products`."""
        return by_pair(*self.values("cross_products", index, what, words))

    def sum(self, index: int, what: str, words: Words) -> np.ndarray:
        """See `Session.sum`."""
        return self.values("sum", index, what, words)[0]

    @staticmethod
    def check_states(digests: set[str]) -> None:
        """Refuses parties that reached different states.

        :raises BackendError: they did.
        """
        if len(digests) > 1:
            raise BackendError("the parties' states differ after the same releases; run one version everywhere")

    def __enter__(self: _Self) -> _Self:
        """Returns itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """See `close`."""
        self.close()
