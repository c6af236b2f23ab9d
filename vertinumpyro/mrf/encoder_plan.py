"""A plan whose cross-party tables come from an encoder's reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.encoders import ENCODERS, SECURE_MARGINALS
from vertinumpyro.mrf.encoding import Budget, Encoding
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.privacy import OUTSIDE_ANALYST

__all__ = ["with_encoder"]


def with_encoder(
    plan: MRFPlan,
    encoder: str,
    columns: Sequence[CellColumn],
    *,
    epsilon: float,
    adversary: str = OUTSIDE_ANALYST,
    num_keys: int = 2000,
) -> MRFPlan:
    """The plan with an encoder instead of secure marginals: its local part stays, the rest of ε is the encoder's.

    Args:
        plan: calibrated for secure marginals.
        encoder: which.
        columns: all columns.
        epsilon: what `adversary` gets at most.
        adversary: the name of a row of the privacy table.
        num_keys: hash keys of each pair of columns.

    Raises:
        ArgumentError: the encoder holds nothing against this adversary, or ε is out of reach.
    """
    if encoder == SECURE_MARGINALS or not plan.cross_releases:
        return plan
    kind = ENCODERS[encoder]
    if adversary != OUTSIDE_ANALYST and not kind.holds_against_parties:
        others = [SECURE_MARGINALS, *(name for name, other in ENCODERS.items() if other.holds_against_parties)]
        choices = " or ".join(f'encoder="{name}"' for name in others)
        raise ArgumentError(
            f"adversary={adversary!r} knows hash keys, and encoder={encoder!r} holds nothing against it: choose "
            f'"{OUTSIDE_ANALYST}" (which the server is, too), {choices}'
        )

    def holds(encoding: Encoding) -> bool:
        return dataclasses.replace(plan, encoding=encoding).delta_at(epsilon, adversary) <= plan.delta

    budget = Budget(
        columns=columns,
        parties=plan.parties,
        num_records=plan.num_records,
        num_pairs=plan.num_cross_pairs,
        relation=plan.relation,
        delta=plan.delta,
        mu_squared=sum(release.mu**2 for release in plan.cross_releases),
        epsilon=epsilon - plan.local_epsilon(),
        num_keys=num_keys,
        holds=holds,
    )
    return dataclasses.replace(plan, encoding=kind.calibrated(budget))
