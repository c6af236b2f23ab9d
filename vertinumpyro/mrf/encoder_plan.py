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
    num_keys: int = 2000,
) -> MRFPlan:
    """The plan with an encoder instead of secure marginals: its local part stays, the rest of ε is the encoder's.

    Args:
        plan: calibrated for secure marginals, and for whom.
        encoder: which.
        columns: all columns.
        epsilon: what they get at most.
        num_keys: hash keys of each pair of columns.

    Raises:
        ArgumentError: the encoder holds nothing against one of them, or ε is out of reach.
    """
    if encoder == SECURE_MARGINALS or not plan.cross_releases:
        return plan
    kind = ENCODERS[encoder]
    if not kind.holds_against_parties and any(target.colluders for target in plan.targets()):
        others = [SECURE_MARGINALS, *(name for name, other in ENCODERS.items() if other.holds_against_parties)]
        choices = " or ".join(f'encoder="{name}"' for name in others)
        raise ArgumentError(
            f"parties know hash keys, and encoder={encoder!r} holds nothing against them: choose {choices}, or on "
            f'purpose adversary="{OUTSIDE_ANALYST}" (which the server is, too)'
        )

    def holds(encoding: Encoding) -> bool:
        return dataclasses.replace(plan, encoding=encoding).delta_at(epsilon) <= plan.delta

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
