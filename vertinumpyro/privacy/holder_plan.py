"""The plan of noisy sums over clients that hold records: who adds how much noise, and what ε each adversary gets."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.privacy.accounting import NeighbouringRelation, rounded_up_multiplier
from vertinumpyro.privacy.adversary import (
    OUTSIDE_ANALYST,
    Adversary,
    AdversaryRow,
    NoiseSource,
    list_adversaries,
)
from vertinumpyro.privacy.gradient_plan import NoisySumPlan
from vertinumpyro.privacy.noise_shares import draw_noise_share
from vertinumpyro.privacy.plan import LARGEST_ACCOUNTED, Plan, check_delta, check_target
from vertinumpyro.privacy.sampling import Sampling


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientPlan(NoisySumPlan, kind="horizontal", own_field="num_clients"):
    """Everything public about the privacy of sums over clients, fixed before any data is touched.

    The noise of one sum comes from `num_clients` clients. Each adds a discrete Gaussian of variance C²σ²4^f/(N -
    T - 1): with up to T clients dropped out or colluding, and the observing client knowing its own share, the
    others still add σ²C² (Theorem 1 of the DCA paper).

    Formal guarantee: a run that draws its batches by `sampling`, adds at most `clip_norm` in L2 norm for each
    record (in the units of the revealed sum, rounding included), lets every client add `draw_noise_share` and
    reveals no sum with more than T of the shares missing satisfies every row of `adversaries` for `relation`,
    when it runs once. Towards compute nodes it holds while at least one of them does not collude.

    :ivar sampling: which records enter which sum.
    :ivar clip_norm: C > 0. For one release of sensitivity Δ under replace, C = Δ/2.
    :ivar noise_multiplier: σ > 0.
    :ivar num_clients: N, the clients that add noise to every sum.
    :ivar max_unreliable: T, 0 <= T <= N - 2.
    :ivar grid_bits: f, the fractional bits of the revealed sum.
    :ivar num_records: records over all clients, public.
    :ivar delta: δ in (0, 1).
    :ivar relation: the neighbouring relation of the union of the clients' records.
    :ivar participation: "known" when the compute nodes see who takes part in which sum; "hidden" when every client
        sends something in every round, or draws from many records of its own. The outside analyst never sees it.
    :ivar adversary: whom alone a target ε was for; None for every row of the table.
    :ivar holders: the clients by name, where they are few and hold many records each; each is an adversary of its own
        name then, and so are coalitions. Empty where clients are many and nameless.
    :ivar plan_id: a random name, made here; a plan with another id is another budget.
    """

    sampling: Sampling
    clip_norm: float
    noise_multiplier: float
    num_clients: int
    max_unreliable: int = 0
    grid_bits: int
    num_records: int
    delta: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    participation: Literal["hidden", "known"] = "known"
    adversary: str | None = None
    holders: tuple[str, ...] = ()
    plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    earlier: ClassVar[Mapping[str, Any]] = {**Plan.earlier, "holders": ()}

    def __post_init__(self) -> None:
        check_delta(self.delta, self.num_records)
        if not isinstance(self.relation, NeighbouringRelation):
            raise ArgumentError("relation must be a NeighbouringRelation")
        object.__setattr__(self, "holders", tuple(self.holders))
        if self.holders and (len(self.holders) != self.num_clients or self.participation != "hidden"):
            raise ArgumentError("holders must name all num_clients clients, who draw from their own records unseen")
        if self.participation not in ("hidden", "known"):
            raise ArgumentError(f'participation must be "hidden" or "known", got {self.participation!r}')
        _ = self.noisy_sum, self.targets()  # validates clip, noise, grid and sampling; the adversary's name

    @classmethod
    def calibrated(cls, *, epsilon: float, **settings: Any) -> ClientPlan:
        """The plan with the smallest σ, rounded up to 4 decimals, that gives at most this ε.

        :param epsilon: the target, > 0.
        :param settings: all other fields; `adversary` narrows the target to one row of the table.
        """
        check_target(epsilon, LARGEST_ACCOUNTED)
        if "noise_multiplier" in settings:
            raise ArgumentError("noise_multiplier is what calibration chooses: leave it out")

        def likely(sigma: float) -> bool:
            plan = cls(noise_multiplier=sigma, **settings)
            events = (plan.noisy_sum.event(observer) for observer in plan.targets())
            return all(event.delta(epsilon, plan.relation) <= plan.delta for event in events)

        def enough(sigma: float) -> bool:
            plan = cls(noise_multiplier=sigma, **settings)
            return all(plan.row(observer).epsilon <= epsilon for observer in plan.targets())

        return cls(noise_multiplier=rounded_up_multiplier(enough, likely=likely), **settings)

    @functools.cached_property
    def noise(self) -> NoiseSource:
        """All clients, of which T + 1 do not count."""
        if not 0 <= self.max_unreliable <= self.num_clients - 2:
            raise ArgumentError(
                f"max_unreliable must lie between 0 and num_clients - 2 = {self.num_clients - 2}, got "
                f"{self.max_unreliable}: the observing client knows its own noise, and another's must remain"
            )
        return NoiseSource(num_parties=self.num_clients, collusion_threshold=self.max_unreliable + 1)

    @property
    def observers(self) -> tuple[Adversary, ...]:
        """Who is watching; colluders are noise shares that are missing or known to the adversary."""
        if self.holders:
            return list_adversaries(self.holders, batch_indices="hidden")
        lost, known = self.max_unreliable, self.participation == "known"
        unreliable = f" and {lost} unreliable clients" if lost else ""
        return (
            Adversary(name=OUTSIDE_ANALYST, colluders=lost),
            Adversary(name=f"one client{unreliable}", colluders=lost + 1),
            Adversary(name=f"all nodes but one, one client{unreliable}", colluders=lost + 1, knows_indices=known),
        )

    def row(self, observer: Adversary) -> AdversaryRow:
        """The guarantee is DP for every record that the adversary does not hold."""
        row = self.noisy_sum.row(observer, self.delta, self.relation)
        return dataclasses.replace(row, guarantee="DP", knows=self._knowledge(observer))

    @property
    def parties(self) -> tuple[str, ...]:
        """The holders."""
        return self.holders

    def _knowledge(self, observer: Adversary) -> tuple[str, ...]:
        if self.holders:
            return ("its own records", "its own noise") if observer.colluders else ()
        knows = []
        if self.max_unreliable:
            knows.append(f"the noise of up to {self.max_unreliable} clients that collude, or dropped out")
        if observer.colluders > self.max_unreliable:
            knows += ["its own records", "its own noise"]
        if observer.name.startswith("all nodes"):
            knows.append("all shares but one node's")
        if observer.knows_indices:
            knows.append("who took part in which sum")
        return tuple(knows)

    def draw_noise_shares(self, num_values: int, source: RandomSource) -> np.ndarray:
        """All clients' noise for one sum, for simulations: int64 `[num_shares, num_values]`. Secret.

        From `privacy.noise_shares`, whose law is within a factor e^{±1e-75} of `draw_noise_share`'s.
        """
        size = self.num_shares * num_values
        return draw_noise_share(self.noise_variance_per_share(), size, source).reshape(self.num_shares, num_values)
