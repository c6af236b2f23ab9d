"""A session that passes on to another one whatever it does not do itself."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vertinumpyro.data import Schema
from vertinumpyro.privacy import Plan
from vertinumpyro.session.party_computation import Method
from vertinumpyro.session.run import Payload, Run
from vertinumpyro.session.session import Session

__all__ = ["SessionWrapper"]


class SessionWrapper(Session):
    """The parties of another session, seen otherwise: subclasses say what is different, and everything else is its."""

    @property
    @abc.abstractmethod
    def inner(self) -> Session:
        """The session that it passes on to."""

    @property
    def schema(self) -> Schema:
        """See `Session.schema`."""
        return self.inner.schema

    @property
    def num_records(self) -> int:
        """See `Session.num_records`."""
        return self.inner.num_records

    @property
    def parties(self) -> tuple[str, ...]:
        """See `Session.parties`."""
        return self.inner.parties

    def open(self, method: Method, plan: Plan, **settings: Any) -> Run:
        """See `Session.open`."""
        return self.inner.open(method, plan, **settings)

    def catch_up(self, run: Run) -> None:
        """See `Session.catch_up`."""
        self.inner.catch_up(run)

    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        """See `Session.step`."""
        return self.inner.step(run, index, compute)

    def publish(self, index: int, what: str, words: Mapping[str, Any]) -> list[Payload]:
        """See `Session.publish`."""
        return self.inner.publish(index, what, words)

    def cross_products(
        self, index: int | None, what: str, words: Mapping[str, Any]
    ) -> dict[tuple[int, int], np.ndarray]:
        """See `Session.cross_products`."""
        return self.inner.cross_products(index, what, words)

    def broadcast(self, count: int) -> int:
        """See `Session.broadcast`."""
        return self.inner.broadcast(count)

    def iterate(self, step: int, count: int, arrays: Mapping[str, np.ndarray]) -> Payload:
        """See `Session.iterate`."""
        return self.inner.iterate(step, count, arrays)

    def sum(self, index: int, what: str, words: Mapping[str, Any]) -> np.ndarray:
        """See `Session.sum`."""
        return self.inner.sum(index, what, words)
