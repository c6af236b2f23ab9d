"""An organisation's own policy: what it approves at most, whatever others propose."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.privacy.account import TotalLimit
from vertinumpyro.study.agreement import LINKAGE, Agreement

__all__ = ["Policy"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits of one party.

    :ivar party: whose they are, as the study knows it.
    :ivar largest_epsilon: of any row of a plan's privacy table; None sets no limit.
    :ivar largest_epsilon_against: of single rows, by their names: tighter or wider than `largest_epsilon`.
    :ivar largest_delta: of a plan.
    :ivar largest_total_epsilon: of all plans on one data set together, this one included, against the outside analyst
        and every other party.
    :ivar total_delta: the δ of that total; None takes the largest of the plans'.
    :ivar models: SHA-256 of the sources of models that may run here; None allows all.
    :ivar link_with: the parties with whom records may be linked, which tells them who is here; None allows all.
    :ivar padded_linkages: whether a linkage must hide how many records this party has.
    """

    party: str = ""
    largest_epsilon: float | None = None
    largest_epsilon_against: Mapping[str, float] = dataclasses.field(default_factory=dict)
    largest_delta: float | None = None
    largest_total_epsilon: float | None = None
    total_delta: float | None = None
    models: Sequence[str] | None = None
    link_with: Sequence[str] | None = None
    padded_linkages: bool = False

    def __post_init__(self) -> None:
        """Refuses what is no limit."""
        names = ("largest_epsilon", "largest_delta", "largest_total_epsilon", "total_delta")
        limits = {name: getattr(self, name) for name in names}
        limits |= {f"largest_epsilon_against {name!r}": value for name, value in self.largest_epsilon_against.items()}
        for name, value in limits.items():
            if value is not None and not value > 0:
                raise ArgumentError(f"policy: {name} = {value}; give a number above 0, or leave it out")

    @property
    def total(self) -> TotalLimit | None:
        """What all plans on a data set may cost together; None sets no limit."""
        if self.largest_total_epsilon is None:
            return None
        return TotalLimit(epsilon=self.largest_total_epsilon, delta=self.total_delta)

    def check(self, agreement: Agreement) -> None:
        """Refuses an agreement beyond the limits of one plan, or a linkage; `Account.check` is for the total.

        :raises PrivacyError: names every limit that it passes, with both numbers.
        """
        beyond = self._of_linkage(agreement) if agreement.plan is None else self._of_plan(agreement)
        if beyond:
            raise PrivacyError("not approved: " + "; ".join(beyond))

    def _of_linkage(self, agreement: Agreement) -> list[str]:
        beyond = []
        if self.link_with is not None:
            allowed = [*self.link_with, self.party]
            others = [name for name in agreement.members if name not in allowed]
            beyond += [f"the policy links no records with {name}" for name in others]
        if self.padded_linkages and "pad_to" not in agreement.settings[LINKAGE]:
            beyond.append("the policy wants lists that are padded: study draft-linkage --pad-to")
        return beyond

    def _of_plan(self, agreement: Agreement) -> list[str]:
        plan, beyond = agreement.spent, []
        rows = {row.adversary for row in plan.adversaries}
        if unknown := sorted(set(self.largest_epsilon_against) - rows):
            beyond.append(f"the policy limits ε against {unknown[0]!r}, whom the plan says nothing of")
        for row in plan.adversaries:
            limit = self.largest_epsilon_against.get(row.adversary, self.largest_epsilon)
            if limit is not None and not row.epsilon <= limit:
                beyond.append(f"ε against {row.adversary} is {row.epsilon:.3g}, and the policy allows {limit:g}")
        if self.largest_delta is not None and plan.delta > self.largest_delta:
            beyond.append(f"δ is {plan.delta:g}, and the policy allows {self.largest_delta:g}")
        if self.models is not None and agreement.model_digest not in (None, *self.models):
            beyond.append(f"the model {str(agreement.model_digest)[:16]} is not among those that may run here")
        return beyond
