"""The recipes' mechanism, one number with Laplace noise, and a plan that releases it."""

import dataclasses
import math
import secrets
from typing import final

import dp_accounting

from vertinumpyro.privacy import AdversaryRow, NeighbouringRelation, Plan, PrivacyEvent, Release
from vertinumpyro.privacy.adversary import list_adversaries


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LaplaceEvent(PrivacyEvent):
    """One number with Laplace noise, which a record moves by the relation's sensitivity over `scale`, exactly."""

    scale: float

    def delta(self, epsilon, relation):
        return max(0.0, -math.expm1((epsilon - relation.sensitivity / self.scale) / 2))

    def dp_event(self):
        return dp_accounting.LaplaceDpEvent(self.scale)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyCount(Release):
    scale: float
    name = "a noisy count"

    def event(self, adversary):
        return LaplaceEvent(scale=self.scale)


def declare():
    """Makes the plan's class, which registers its kind."""

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class CountPlan(Plan, kind="count", own_field="laplace_scale"):
        """A noisy count of the records that one party counts; ε against everybody else."""

        laplace_scale: float
        num_records: int
        delta: float = 1e-6
        relation: NeighbouringRelation = NeighbouringRelation.REPLACE
        plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

        @property
        def releases(self):
            return (NoisyCount(scale=self.laplace_scale),)

        @property
        def observers(self):
            return list_adversaries(("clinic",), batch_indices="hidden")

        def event(self, observer):
            return self.releases[0].event(observer)

        def row(self, observer):
            return AdversaryRow(
                adversary=observer.name,
                relation=self.relation.value,
                guarantee="DP",
                epsilon=self.event(observer).epsilon(self.delta, self.relation),
                delta=self.delta,
                noise_multiplier=self.laplace_scale,
                knows=(),
                proof="proved",
            )

    return CountPlan
