"""The one release of the functional mechanism: the noisy matrix of all products of a record's coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from vertinumpyro.core import row_blocks
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import RowBlocks
from vertinumpyro.data import Schema
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.session import PartyComputation, Payload, Run, Session

__all__ = ["MOMENTS", "MomentsWork", "NoisyMoments", "noisy_moments", "widths"]

MOMENTS = "moments.npz"
OWN, ACROSS = "own products", "products across parties"
_OWN, _ACROSS = 0, 1  # steps of the plan


class NoisyMoments(NamedTuple):
    """What is released, and the variance of its noise; public.

    matrix: Σ v v' + noise `[D, D]`, symmetric, in units where features and label lie in [-1, 1]; the coordinates are
        the plan's layout's. Entries that are public stand as they are.
    variance: of the noise of each entry `[D, D]`. A one-hot coordinate's square is a copy of its product with the
        intercept, with the same noise; its variance here is 0.
    """

    matrix: np.ndarray
    variance: np.ndarray


@final
class MomentsWork(PartyComputation):
    """One party's part: its own products with its noise, its columns in the products across, its noise on them.

    A party of the schema that holds no column of the regression takes part with nothing, and adds no noise.

    Args:
        plan: the plan.
        schema: the public schema, of all parties.
        party: whose part this is.
        columns: its encoded columns. Secret.
        source: its own randomness.
    """

    def __init__(
        self,
        plan: FunctionalMechanismPlan,
        schema: Schema,
        party: str,
        columns: Mapping[str, np.ndarray],
        source: RandomSource,
    ) -> None:
        self._plan, self._parties, self._party, self._source = plan, tuple(schema.parties), party, source
        self._features = plan.layout.in_blocks(schema, columns, party)

    def check(self, step: int | None, do: str, what: str, words: Mapping[str, Any]) -> None:
        """See `PartyComputation.check`: own products, then products across parties where there are several."""
        releases = [(_OWN, "publish", OWN), (_ACROSS, "cross_products", ACROSS)]
        if (step, do, what) not in releases or words:
            raise self.refused(step, do, what)

    def publish(self, what: str, words: Mapping[str, Any]) -> Payload:
        """Noisy column sums and products, in grid units; float64 holds the exact ones, as the plan checked.

        A product without noise is public, or stands beside it with noise: 0 is sent in its place, never the exact one.
        """
        plan, party, features = self._plan, self._party, self._features
        if party not in plan.parties:
            return Payload({}, {})
        span = plan.layout.span(party)
        ones = RowBlocks((len(features), 1), 1, features.columns, _ones)
        products, summed = row_blocks.products([features, ones], [(0, 0), (1, 0)])
        sums = summed[0] * plan.layout.scale
        noised = plan.multipliers[span, span]
        noise = plan.draw_noise((party, party), np.triu(noised), self._source)
        products = np.where(noised > 0, products + noise + np.triu(noise, 1).T, 0)
        sums += plan.draw_noise((party, party), plan.multipliers[0, span], self._source)
        return Payload({}, {"sums": sums, "products": products})

    def factor(self, what: str, words: Mapping[str, Any]) -> RowBlocks:
        """The party's features."""
        return self._features

    def widths(self, what: str, words: Mapping[str, Any]) -> tuple[int, ...]:
        """Every party's features."""
        return widths(self._plan, self._parties)

    def noise(self, what: str, words: Mapping[str, Any], size: int) -> np.ndarray:
        """The party's share for every pair of parties, flat."""
        plan, out = self._plan, [np.zeros(0, np.int64)]
        if self._party not in plan.parties:
            return np.zeros(size, np.int64)
        for a, b in plan.blocks:
            if a != b:
                times = plan.multipliers[plan.layout.span(a), plan.layout.span(b)]
                out.append(plan.draw_noise((a, b), times, self._source).ravel())
        return np.concatenate(out)

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"MomentsWork({self._party!r})"


def _ones(block: Mapping[str, np.ndarray]) -> np.ndarray:
    """A column of ones, whose products with others are their sums."""
    return np.ones((len(next(iter(block.values()))), 1), np.int8)


def noisy_moments(session: Session, run: Run, plan: FunctionalMechanismPlan) -> NoisyMoments:
    """Release the matrix: own products from their owners, cross products from the session, noise in all of them.

    What it returns satisfies the plan's privacy table; nothing else leaves the parties.

    Raises:
        PlanSpentError: a part was counted as released by a run that stopped, and is not stored.
    """

    own = session.arrays_of(run, _OWN, lambda: own_products(session, plan))
    across = session.arrays_of(run, _ACROSS, lambda: cross_products(session, plan)) if len(plan.parties) > 1 else {}
    return in_units(assembled(plan, own, across), plan)


def own_products(session: Session, plan: FunctionalMechanismPlan) -> dict[str, np.ndarray]:
    """Every party's noisy sums and products, in grid units."""
    released = session.publish(_OWN, OWN, {})
    by_party = zip(session.parties, released, strict=True)
    return {f"{what}/{party}": array for party, one in by_party for what, array in one.arrays.items()}


def cross_products(session: Session, plan: FunctionalMechanismPlan) -> dict[str, np.ndarray]:
    """The noisy products of every two parties of the plan, in grid units."""
    numbers = {party: number for number, party in enumerate(session.parties)}
    products = session.cross_products(_ACROSS, ACROSS, {})
    return {f"{a}/{b}": products[numbers[a], numbers[b]] for a, b in plan.blocks if a != b}


def assembled(
    plan: FunctionalMechanismPlan, own: Mapping[str, np.ndarray], across: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The revealed matrix in grid units, int64 `[D, D]`."""
    layout = plan.layout
    out = np.zeros((layout.size, layout.size), np.int64)
    out[0, 0] = plan.num_records * layout.scale**2
    for party in plan.parties:
        span = layout.span(party)
        out[0, span] = out[span, 0] = own[f"sums/{party}"]
        out[span, span] = own[f"products/{party}"]
    for a, b in plan.blocks:
        if a != b:
            rows, columns = layout.span(a), layout.span(b)
            out[rows, columns], out[columns, rows] = across[f"{a}/{b}"], across[f"{a}/{b}"].T
    return out


def in_units(matrix: np.ndarray, plan: FunctionalMechanismPlan) -> NoisyMoments:
    """A revealed matrix in grid units as moments."""
    complete = _with_public_entries(matrix.copy(), plan)
    return NoisyMoments(complete / float(plan.layout.scale) ** 2, plan.noise_variance)


def widths(plan: FunctionalMechanismPlan, parties: Sequence[str]) -> tuple[int, ...]:
    """How many features each party of the schema puts in."""
    held = {party: plan.layout.span(party) for party in plan.parties}
    return tuple(held[party].stop - held[party].start if party in held else 0 for party in parties)


def _with_public_entries(matrix: np.ndarray, plan: FunctionalMechanismPlan) -> np.ndarray:
    """Entries that were not released, from what is public or released beside them; they came as zeros."""
    layout = plan.layout
    if plan.sensitivity == "paper":
        return matrix
    for group in layout.groups:
        own = slice(layout.starts[group.column], layout.starts[group.column] + group.size)
        if group.shape == "sign":
            matrix[own, own] = plan.num_records * layout.scale**2
        elif group.shape == "one_hot":
            matrix[own, own] = np.diag(matrix[0, own])
    return matrix
