"""What `MarginalGLM` counts at each party: combinations of its own features, made of its own columns, at home."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from vertinumpyro.data import Schema
from vertinumpyro.glm.cells import Design
from vertinumpyro.privacy import Plan
from vertinumpyro.session import Method, Run, Session, SessionWrapper

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
class CountedSession(SessionWrapper):
    """A session seen as one of the columns that are counted: what parties hold of these, they make themselves.

    Args:
        session: the parties, with the columns that they hold.
        schema: of what is counted.
        method: makes each party's part from its own columns.
    """

    def __init__(self, session: Session, schema: Schema, method: Method) -> None:
        self._session, self._schema, self._method = session, schema, method

    @property
    def inner(self) -> Session:
        """The parties, with the columns that they hold."""
        return self._session

    @property
    def schema(self) -> Schema:
        """Of what is counted."""
        return self._schema

    @property
    def parties(self) -> tuple[str, ...]:
        """Of what is counted."""
        return tuple(self._schema.parties)

    def open(self, method: Method, plan: Plan, **settings: Any) -> Run:
        """See `Session.open`, with the method that counts."""
        return self._session.open(self._method, plan, **settings)
