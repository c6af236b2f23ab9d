"""Margins of a field from its junction tree alone: for a field that was loaded, where no engine holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError

__all__ = ["JunctionTree"]

_MOST_COLUMNS = 52  # letters that einsum has


@final
class Table(NamedTuple):
    """A distribution over some columns, in the words of the engine."""

    values: np.ndarray

    def datavector(self, flatten: bool = True) -> np.ndarray:
        """The values, one axis for each column unless flat."""
        return self.values.ravel() if flatten else self.values


@final
class JunctionTree(NamedTuple):
    """A field as maximal cliques in an order in which what one shares with all earlier ones lies within one of them.

    So the joint distribution is the product of each clique's table given those columns.
    """

    cliques: tuple[tuple[str, ...], ...]
    tables: tuple[np.ndarray, ...]

    def project(self, columns: Sequence[str]) -> Table:
        """The distribution of some columns, one axis for each; they need no clique in common.

        Raises:
            ArgumentError: the cliques between them have more columns than can be summed at once.
        """
        factors, known = self._factors(columns)
        if len(known) > _MOST_COLUMNS:
            raise ArgumentError(f"a margin of {list(columns)} sums over more than {_MOST_COLUMNS} columns; take fewer")
        letter = {name: i for i, name in enumerate(known)}
        operands: list = []
        for clique, table in factors:
            operands += [table, [letter[name] for name in clique]]
        return Table(np.einsum(*operands, [letter[name] for name in columns], optimize="greedy"))

    def _factors(self, columns: Sequence[str]) -> tuple[list[tuple[tuple[str, ...], np.ndarray]], list[str]]:
        """Conditional tables whose product has the margin, and their columns; what sums to one is left out."""
        drawn = [set().union(*self.cliques[:i]) for i in range(len(self.cliques))]
        needed, factors = dict.fromkeys(columns), []
        for clique, table, before in reversed(list(zip(self.cliques, self.tables, drawn, strict=True))):
            if any(name in needed and name not in before for name in clique):
                factors.append((clique, _given(clique, table, before)))
                needed |= dict.fromkeys(clique)
        return factors, list(needed)


def _given(clique: Sequence[str], table: np.ndarray, before: set[str]) -> np.ndarray:
    """P(fresh columns | those drawn before); zero where these have no mass."""
    mass = table.sum(axis=tuple(i for i, name in enumerate(clique) if name not in before), keepdims=True)
    return np.divide(table, mass, out=np.zeros_like(table), where=mass > 0)
