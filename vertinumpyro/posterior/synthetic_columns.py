"""Which columns of the schema a synthetic table of a model holds, and in which order the model draws them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vertinumpyro.data import OBSERVED_SUFFIX
from vertinumpyro.model import ModelStructure


class TwinWarning(UserWarning):
    """A model gives less than a synthetic table of all columns by itself; its posterior is not affected."""


class Round(NamedTuple):
    """Observed sites to draw together, and the columns that are then known."""

    sites: tuple[str, ...]
    columns: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwinColumns:
    """What a synthetic table of a model holds. Every column of the schema is in one of the first three.

    given:    covariates: the model reads them and does not draw them, so they must be passed to it.
    drawn:    columns that the model draws.
    masks:    of these, those for which it draws where they are missing, and the site that does.
    complete: of these, those whose missing values the schema wants to see again, and whose mask it does not draw.
    left_out: columns that no synthetic table has, and why.
    rounds:   what to draw, round by round: a site comes after the columns that its distribution reads.
    """

    given: tuple[str, ...]
    drawn: tuple[str, ...]
    left_out: Mapping[str, str]
    rounds: tuple[Round, ...]
    masks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    complete: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the model draws every column by itself, with its missing values where the schema wants them."""
        return not (self.given or self.left_out or self.complete)

    @property
    def needs_nothing(self) -> bool:
        """Whether the model draws a synthetic table by itself, of some columns at least."""
        return not self.given and bool(self.drawn)

    def describe(self) -> str:
        """What is missing from a whole table, and what to do; empty where nothing is."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(name)
        missing = "; ".join(f"{_listed(names)}: {reason}" for reason, names in by_reason.items())
        if not self.drawn:
            return f"this model can give no synthetic table ({missing}); fit it for the posterior alone"
        parts = []
        if self.given:
            parts.append(
                f"this model reads {_listed(self.given)} and does not draw {_it(self.given)}, so it gives no synthetic "
                "table by itself: fit it for the posterior, or pass covariates to sample_synthetic(covariates=...)"
            )
        if self.left_out:
            parts.append(f"synthetic tables of this model will lack {_listed(self.left_out)} ({missing})")
        if self.complete:
            mask = repr(self.complete[0] + OBSERVED_SUFFIX)
            parts.append(
                f"{_listed(self.complete)} will have no missing values in synthetic tables, as the model does not draw "
                f"where they are: observe the mask, too, numpyro.sample({mask}, dist.Bernoulli(p), obs=data[{mask}])"
            )
        return "; ".join(parts)

    def warn(self, stacklevel: int) -> None:
        """Emit a `TwinWarning` unless the table is whole, with its missing values."""
        if not self.is_whole:
            warnings.warn(self.describe(), TwinWarning, stacklevel=stacklevel + 1)


def twin_columns(structure: ModelStructure) -> TwinColumns:
    """What the provenance of a model's sites says about its synthetic tables.

    A site can be drawn once every column that its distribution reads is given or drawn.
    """
    reads, sources = _together(structure), _sources(structure)
    known: set[str] = set(structure.covariates)
    rounds: list[Round] = []
    waiting = [site for site, columns in _observes(structure).items() if columns]
    while ready := tuple(site for site in waiting if known.issuperset(reads[site])):
        waiting = [site for site in waiting if site not in ready]
        done = {*ready, *(site for earlier in rounds for site in earlier.sites)}
        new = (column for column, sites in sources.items() if sites and done.issuperset(sites))
        rounds.append(Round(ready, tuple(column for column in new if column not in known)))
        known |= set(rounds[-1].columns)
    drawn = tuple(column for column in structure.modelled_columns if column in known)
    reasons = _reasons(structure, known)
    if not drawn:
        return TwinColumns(given=(), drawn=(), left_out=reasons, rounds=())
    needed = {column for drawn_round in rounds for site in drawn_round.sites for column in reads[site]}
    given = tuple(column for column in structure.covariates if column in needed)
    left_out = {column: why for column, why in reasons.items() if column not in (*given, *drawn)}
    return TwinColumns(
        given=given,
        drawn=drawn,
        left_out=left_out,
        rounds=tuple(rounds),
        masks={column: site for column, site in structure.modelled_masks.items() if column in drawn},
        complete=tuple(column for column in structure.complete_columns if column in drawn),
    )


def _observes(structure: ModelStructure) -> dict[str, set[str]]:
    """The columns from which each site's observation is made; none for a factor, which is only a density."""
    return {
        site: {column.removesuffix(OBSERVED_SUFFIX) for column in structure.site_columns[site]} - set(covariates)
        for site, covariates in structure.site_covariates.items()
    }


def _together(structure: ModelStructure) -> dict[str, tuple[str, ...]]:
    """The columns that must be known before each site; a column's site and its mask's are drawn in one round."""
    reads = dict(structure.site_covariates)
    for column, mask in structure.modelled_masks.items():
        site = structure.modelled_columns[column].site
        if site in reads:  # a deterministic one is drawn with those that it is made of
            reads[site] = reads[mask] = tuple(sorted({*reads[site], *reads[mask]}))
    return reads


def _sources(structure: ModelStructure) -> dict[str, set[str]]:
    """The observed sites to draw for each modelled column: its own, or those that a deterministic one is made of."""
    observes = _observes(structure)
    found = {
        column: {at.site} if at.site in observes else {site for site, columns in observes.items() if column in columns}
        for column, at in structure.modelled_columns.items()
    }
    masks = structure.modelled_masks
    return {column: sites | {masks[column]} if column in masks else sites for column, sites in found.items()}


def _reasons(structure: ModelStructure, known: set[str]) -> dict[str, str]:
    """Why each column is left out, if it is."""
    reasons = dict.fromkeys(structure.unused_columns, "no site reads it")
    reasons |= dict.fromkeys(structure.covariates, "it is only read")
    for column, site in structure.undrawable_columns.items():
        reasons[column] = (
            f"site {site!r} draws something else; observe the column as it is, or turn the draw back into it with "
            f"numpyro.deterministic({column!r}, ...)"
        )
    for column, sites in _sources(structure).items():
        unknown = {read for site in sites for read in structure.site_covariates[site] if read not in known}
        reasons[column] = f"its site reads {_listed(sorted(unknown))}, which cannot be drawn before it"
    return reasons


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _it(names: tuple[str, ...]) -> str:
    return "it" if len(names) == 1 else "them"
