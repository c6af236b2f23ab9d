"""What `MarginalGLM` counts at each party: combinations of its own features, made of its own columns, at home."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from vertinumpyro.data import Schema
from vertinumpyro.glm.cells import Design
from vertinumpyro.privacy import Plan
from vertinumpyro.session import Method, Payload, Run, Session

__all__ = ["CountedSession", "counted"]

Words = Mapping[str, Any]


def counted(
    schema: Schema, design: Design, label: str, groups: np.ndarray | None, party: str, columns: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """A party's columns as the tables have them: its features, a column for all of them together, its label. Secret.

    Args:
        schema: of the parties' own columns.
        design: names what is counted of the features.
        label: the column to predict.
        groups: the first counts of the label's groups; None where it is no count.
        party: whose columns they are.
        columns: encoded, `[N]` each.
    """
    parts = design.parts.get(party, {})
    own = [name for name in parts if name in schema.columns]
    codes = {name: columns[name].astype(np.int32) for name in own}
    found = dict(codes)
    for name in parts.keys() - codes.keys():
        sizes = [schema.columns[feature].num_categories for feature in own]
        found[name] = np.ravel_multi_index(list(codes.values()), sizes).astype(np.int32)
    if schema.party_of(label) == party:
        values = columns[label]
        grouped = groups is not None
        found[label] = (np.searchsorted(groups, values, side="right") - 1).astype(np.int32) if grouped else values
    return found


@final
class CountedSession(Session):
    """A session seen as one of the columns that are counted: what parties hold of these, they make themselves.

    Args:
        session: the parties, with the columns that they hold.
        schema: of what is counted.
        method: makes each party's part from its own columns.
    """

    def __init__(self, session: Session, schema: Schema, method: Method) -> None:
        self._session, self._schema, self._method = session, schema, method

    @property
    def schema(self) -> Schema:
        """Of what is counted."""
        return self._schema

    @property
    def num_records(self) -> int:
        """N, public."""
        return self._session.num_records

    def open(
        self, method: Method, plan: Plan, *, run_dir: str | Path | None, results: str, resume: bool = False,
        facts: Words | None = None, insecure_seed: int | None = None,
    ) -> Run:  # fmt: skip
        """See `Session.open`, with the method that counts."""
        return self._session.open(
            self._method, plan, run_dir=run_dir, results=results, resume=resume, facts=facts,
            insecure_seed=insecure_seed,
        )  # fmt: skip

    def catch_up(self, run: Run) -> None:
        """See `Session.catch_up`."""
        self._session.catch_up(run)

    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        """See `Session.step`."""
        return self._session.step(run, index, compute)

    def publish(self, index: int, what: str, words: Words) -> list[Payload]:
        """See `Session.publish`."""
        return self._session.publish(index, what, words)

    def cross_products(self, index: int | None, what: str, words: Words) -> dict[tuple[int, int], np.ndarray]:
        """See `Session.cross_products`."""
        return self._session.cross_products(index, what, words)

    def sum(self, index: int, what: str, words: Words) -> np.ndarray:
        """See `Session.sum`."""
        return self._session.sum(index, what, words)
