"""Groups of a party's sites that share no latent, and which of them are functions of one finite column.

A group that reads a single categorical or binary column takes few values: it is evaluated once for every
value in the column's public domain, and records look their row up (`core.types.ScoreTable`). That is the same
arithmetic on the same inputs, a few dozen times instead of once for every record of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from vertinumpyro.data import Schema

__all__ = ["SiteGroup", "site_groups"]

_LARGEST_TABLE = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteGroup:
    """Observed sites of one party that no other group shares a latent with.

    sites:      their names.
    latents:    the latents that they read.
    column:     the one finite column that they read, or None.
    num_values: size of that column's domain.
    """

    sites: tuple[str, ...]
    latents: tuple[str, ...]
    column: str | None
    num_values: int

    @property
    def is_table(self) -> bool:
        """Whether the group is a function of one finite column."""
        return self.column is not None

    def rows(self, columns: Mapping[str, Any]) -> tuple[Mapping[str, Any], Int[Array, " n"]]:
        """Columns to evaluate the group on, and each record's row among them.

        The domain's values where they are fewer than the batch, else the records themselves.
        """
        num_records = len(next(iter(columns.values())))
        if self.column is None or num_records <= self.num_values:
            return columns, jnp.arange(num_records)
        codes = columns[self.column]
        return {self.column: jnp.arange(self.num_values, dtype=codes.dtype)}, codes


def site_groups(
    sites: Sequence[str],
    latent_reads: Mapping[str, Sequence[str]],
    data_reads: Mapping[str, Sequence[str]],
    schema: Schema,
) -> tuple[SiteGroup, ...]:
    """Connected components of sites under "reads a common latent", in the order of their first site, tables last."""
    groups: list[tuple[list[str], set[str]]] = []
    for site in sites:
        latents = set(latent_reads[site])
        joined = [group for group in groups if group[1] & latents]
        groups = [group for group in groups if not group[1] & latents]
        members = [name for group in joined for name in group[0]]
        groups.append(([*members, site], latents.union(*(group[1] for group in joined))))
    groups.sort(key=lambda group: min(sites.index(name) for name in group[0]))
    found = [_group(members, latents, data_reads, schema) for members, latents in groups]
    return tuple(sorted(found, key=lambda group: group.is_table))


def _group(members: list[str], latents: set[str], data_reads: Mapping[str, Sequence[str]], schema: Schema) -> SiteGroup:
    read = sorted({column for site in members for column in data_reads[site]})
    column = schema.columns.get(read[0]) if len(read) == 1 else None
    finite = column is not None and column.kind in ("categorical", "binary")
    num_values = column.num_categories if column is not None and finite else 0
    is_table = 0 < num_values <= _LARGEST_TABLE
    return SiteGroup(
        sites=tuple(members),
        latents=tuple(sorted(latents)),
        column=read[0] if is_table else None,
        num_values=num_values,
    )
