"""The privacy plan of a Bayesian linear regression: one noisy sum, or two with projection."""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, final

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import check_fields
from vertinumpyro.privacy import Adversary, AdversaryRow, GaussianEvent, NeighbouringRelation
from vertinumpyro.privacy.accounting import gaussian_noise_multiplier
from vertinumpyro.privacy.adversary import list_adversaries
from vertinumpyro.privacy.plan import Plan, check_delta, check_target
from vertinumpyro.regression.statistics_release import (
    Mechanism,
    StatisticsRelease,
    entrywise_sensitivity,
    moment_sensitivity,
    num_statistics,
    statistic_sensitivity,
)

Calibration = Literal["tight", "classic"]
"""tight: the Gaussian mechanism's exact δ(ε), composition exact, joint sensitivity. classic: the paper's Eq. 1 and
entrywise sensitivity, (ε, δ) divided between the releases; Eq. 1 is not proved for ε > 1, so see `adversaries`."""

LEAST_RECORDS = 3
_ROUNDING = 1 + 1e-6  # covers the grid's and the discrete noise's part of the effective noise multiplier
_RELATION = NeighbouringRelation.REPLACE


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class BayesianLinearPlan(Plan, kind="bayesian_linear", own_field="num_features"):
    """Everything public about one fit's privacy, fixed before any data is touched.

    Formal guarantee: what a fit releases satisfies every row of `adversaries`: (ε, δ)-DP when one record is
    replaced, N public. With projection the two releases compose exactly: Gaussian mechanisms with μ_1 and μ_2 are
    together one with √(μ_1² + μ_2²), also where the second depends on the first.

    :ivar num_records: N, public; one client each where distributed.
    :ivar num_features: d.
    :ivar target_epsilon: the target; `epsilon(adversary)` says what is true.
    :ivar delta: δ.
    :ivar mechanism: see `Mechanism`.
    :ivar max_unreliable: T, how many clients may drop out or collude.
    :ivar calibration: see `Calibration`; only "tight" promises the target.
    :ivar std_share: the share of the budget for the columns' standard deviations; 0 without projection. Of μ² where
        tight, of ε and δ where classic.
    :ivar holders: the organisations that hold the records and add the noise, by name; each is an adversary then, and so
        are coalitions. Empty where every record is a client.
    :ivar plan_id: a random name, made here.
    """

    num_records: int
    num_features: int
    target_epsilon: float
    delta: float
    mechanism: Mechanism = "distributed"
    max_unreliable: int = 0
    calibration: Calibration = "tight"
    std_share: float = 0.0
    holders: tuple[str, ...] = ()
    plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    json_names: ClassVar[Mapping[str, str]] = {"target_epsilon": "epsilon"}
    earlier: ClassVar[Mapping[str, Any]] = {**Plan.earlier, "holders": ()}

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "holders", tuple(self.holders))
        if self.holders and self.mechanism != "distributed":
            raise ArgumentError('mechanism must be "distributed" where organisations hold the records')
        check_target(self.target_epsilon)
        check_delta(self.delta, self.num_records)
        if not 0 <= self.std_share < 1:
            raise ArgumentError(f"std_share must lie in [0, 1), got {self.std_share}")
        if self.num_records < LEAST_RECORDS or self.num_features < 1:
            raise ArgumentError(f"num_records must be at least {LEAST_RECORDS} and num_features at least 1")
        _ = self.statistics

    @functools.cached_property
    def moments(self) -> StatisticsRelease | None:
        """The first release: sums of squares of the scaled columns; None without projection."""
        if not self.std_share:
            return None
        return self._release(moment_sensitivity(self.num_features), self.num_features + 1, self.std_share)

    @functools.cached_property
    def statistics(self) -> StatisticsRelease:
        """The second, or only, release: the sufficient statistics."""
        sensitivity = statistic_sensitivity(self.num_features)
        stated = entrywise_sensitivity(self.num_features) if self.calibration == "classic" else sensitivity
        return self._release(sensitivity, num_statistics(self.num_features), 1 - self.std_share, stated)

    def _release(
        self, sensitivity: float, num_values: int, share: float, stated: float | None = None
    ) -> StatisticsRelease:
        return StatisticsRelease(
            sensitivity=sensitivity,
            noise_stddev=self._noise_multiplier(share) * (stated or sensitivity),
            num_values=num_values,
            num_records=self.num_records,
            mechanism=self.mechanism,
            max_unreliable=self.max_unreliable,
            num_clients=len(self.holders) or None,
        )

    def _noise_multiplier(self, share: float) -> float:
        """Standard deviation of the noise over the sensitivity, for a share of the budget."""
        if self.calibration == "classic":
            return math.sqrt(2 * math.log(1.25 / (share * self.delta))) / (share * self.target_epsilon)
        return gaussian_noise_multiplier(self.target_epsilon, self.delta, _RELATION) * _ROUNDING / math.sqrt(share)

    @property
    def releases(self) -> tuple[StatisticsRelease, ...]:
        """All releases in their order."""
        return (self.statistics,) if self.moments is None else (self.moments, self.statistics)

    @property
    def relation(self) -> NeighbouringRelation:
        """Replace: N is public."""
        return _RELATION

    @property
    def observers(self) -> tuple[Adversary, ...]:
        """The outside analyst; distributed, also a client with all compute nodes but one, or each holder by name."""
        if self.holders:
            return list_adversaries(self.holders, batch_indices="hidden")
        return self.statistics.observers

    @property
    def parties(self) -> tuple[str, ...]:
        """The holders."""
        return self.holders

    @property
    def covered(self) -> tuple[Adversary, ...]:
        """See `Plan.covered`."""
        if self.holders:
            return tuple(o for o in self.observers if o.colluders <= 1 + self.max_unreliable)
        return self.observers

    def event(self, observer: Adversary) -> GaussianEvent:
        """See `Plan.event`."""
        shift = math.sqrt(sum(release.shift(observer) ** 2 for release in self.releases))
        return GaussianEvent(noise_multiplier=_RELATION.sensitivity / shift, count=1)

    def row(self, observer: Adversary) -> AdversaryRow:
        """The ε that is true at `delta`, whatever the calibration promised."""
        event = self.event(observer)
        if self.holders:
            knows = ("its own records", "its own noise") if observer.colluders else ()
        elif observer.colluders > self.max_unreliable:
            knows = ("its own record", "its own noise", "all shares but one node's")
        else:
            knows = ()
        return AdversaryRow(
            adversary=observer.name,
            relation=_RELATION.value,
            guarantee="DP",
            epsilon=event.epsilon(self.delta, _RELATION),
            delta=self.delta,
            noise_multiplier=event.noise_multiplier,
            knows=knows,
            proof="proved",
        )


RegressionPlan = BayesianLinearPlan  # its name in 0.2
