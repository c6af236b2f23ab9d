r"""The privacy plan of noisy second moments of scores, which steps begin with.

A record's scores are x = (x^1, ..., x^P), a block at each party, which scales it down and rounds it so that |x^p|^2 <=
R^2 part_p, with parts that add up to 1: so |x| <= R. Released is the sum of xx' / R^2: each party's own block by that
party, with its own noise, and every block of two parties by a secure product, with a share of noise from each.

**Sensitivity.** Squares get noise of twice the variance, so they count half, and norms are half-norms of xx':
½|xx' - ww'|^2 = ½|x|^4 + ½|w|^4 - (x·w)^2 <= R^4 where one record replaces another, and ½|x|^4 <= ½ R^4 where its
contribution is zeroed. So Δ^2 = 1 and 1/2, in units of R^2.

**Who knows what.** Of a product of two parties P - s shares are unknown to s colluding parties; of another party's own
block all the noise, which has the variance of P - max(c, 1) shares, c the collusion threshold. Blocks of the colluders
alone are fixed, as VPDP's neighbours agree on their columns. So all that may change has noise of P - max(s, c, 1)
shares or more.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from fractions import Fraction
from typing import Any, final

from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.privacy import Adversary, AdversaryRow, GaussianEvent, NeighbouringRelation, NoiseSource, Release
from vertinumpyro.privacy.adversary import gaussian_parameter, list_adversaries, smallest_share_variance
from vertinumpyro.privacy.calibration import rounded_up_multiplier
from vertinumpyro.privacy.discrete_gaussian import require_drawable
from vertinumpyro.privacy.plan import Plan, check_delta, check_party_names, check_target

__all__ = ["SCORE_BITS", "MomentsPlan"]

SCORE_BITS = 14
"""A score is a whole number of 2^-14 R."""

_GRID_BITS = 2 * SCORE_BITS


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentsPlan(Plan, kind="second_moments", own_field="radius"):
    """Everything public about one release of second moments, fixed before any data is touched.

    Formal guarantee: a release of sums of the products of scores under the bounds of `longest`, with `own_variance` and
    `share_variance` of discrete Gaussian noise, satisfies every row of `adversaries` for `relation`, N public, once:
    (ε, δ)-DP towards the outside analyst, (ε, δ)-VPDP towards parties. The proof is the module's.

    Attributes:
        noise_multiplier: σ > 0; towards all that are covered the release is Gaussian with μ = s/σ, s = 2 under replace
            and 1 under add/remove.
        num_records: N, public.
        parties: their names.
        widths: how many scores each party has.
        clip_parts: the parties' parts of R^2, in proportion to these whole numbers.
        radius: R.
        delta: δ.
        relation: the neighbouring relation.
        noise: who adds noise to products of two parties.
        adversary: whom alone a target ε was for; None for everyone (`covered`).
        plan_id: a random name, made here.
    """

    noise_multiplier: float
    num_records: int
    parties: tuple[str, ...]
    widths: tuple[int, ...]
    clip_parts: tuple[int, ...]
    radius: float
    delta: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    noise: NoiseSource
    adversary: str | None = None
    plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        check_party_names(self.parties, self.noise)
        check_delta(self.delta, self.num_records, warn=False)
        if not isinstance(self.relation, NeighbouringRelation):
            raise ArgumentError("relation must be a NeighbouringRelation")
        if not len(self.widths) == len(self.clip_parts) == len(self.parties):
            raise ArgumentError("widths and clip_parts must have one number for each party")
        if min(self.widths) < 0 or min(self.clip_parts) < 0 or not sum(self.widths) or not sum(self.clip_parts):
            raise ArgumentError("widths and clip_parts must not be negative, and not all 0")
        for name in ("noise_multiplier", "radius"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ArgumentError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.num_records > 2 ** (61 - _GRID_BITS):
            raise RangeError("num_records: the moments could wrap around the 64-bit ring; leave SecondMoments() out")
        require_drawable(2 * self.noise.num_shares * self.own_variance)
        _ = self.targets()  # validates the adversary's name

    @classmethod
    def calibrated(cls, *, epsilon: float, **settings: Any) -> MomentsPlan:
        """The plan with the smallest σ, rounded up to 4 decimals, that gives everyone at most `epsilon`.

        Args:
            epsilon: the target, > 0.
            **settings: all other fields; `adversary` narrows the target to one row of the table.
        """
        check_target(epsilon)

        def enough(sigma: float) -> bool:
            plan = cls(noise_multiplier=sigma, **settings)
            return all(plan.event(o).delta(epsilon, plan.relation) <= plan.delta for o in plan.targets())

        return cls(noise_multiplier=rounded_up_multiplier(enough), **settings)

    # -- the bound and the noise -------------------------------------------------------------------

    def longest(self, party: str) -> int:
        """The largest squared norm of a party's scores of one record, in units of 4^-SCORE_BITS R^2."""
        part = Fraction(self.clip_parts[self.parties.index(party)], sum(self.clip_parts))
        return math.floor(part * 4**SCORE_BITS)

    @property
    def _squared_sensitivity(self) -> Fraction:
        return Fraction(1) if self.relation is NeighbouringRelation.REPLACE else Fraction(1, 2)

    @property
    def _least_unknown(self) -> int:
        """How many parties' noise everybody who is covered may know."""
        return max(self.noise.collusion_threshold, int(len(self.parties) > 1))

    @functools.cached_property
    def share_variance(self) -> int:
        """Variance of a party's share of the noise on a product of two parties, in grid units²."""
        unknown = NoiseSource(kind="trusted", num_parties=1)
        whole = smallest_share_variance(
            mu=self.relation.sensitivity / self.noise_multiplier,
            squared_sensitivity=self._squared_sensitivity,
            grid_bits=_GRID_BITS,
            noise=unknown,
        )
        return max(18, -(-whole // self.noise.num_unknown(self._least_unknown)))

    @property
    def own_variance(self) -> int:
        """Variance of a party's noise on products of its own scores, in grid units²; squares have twice of it."""
        return self.share_variance * self.noise.num_unknown(self._least_unknown)

    @property
    def stddev(self) -> float:
        """Root mean square of the noise of the moments' entries, in units of the scores."""
        shared = self.share_variance * self.noise.num_shares
        own = sum(width**2 for width in self.widths) / sum(self.widths) ** 2
        return self.radius**2 * math.sqrt(own * self.own_variance + (1 - own) * shared) / 2**_GRID_BITS

    # -- the guarantees ----------------------------------------------------------------------------

    @property
    def crosses(self) -> bool:
        """Whether there are products of two parties."""
        return sum(width > 0 for width in self.widths) > 1

    @property
    def releases(self) -> tuple[Release, ...]:
        """The parties' own products as one step, then those of two parties."""
        own, across = (_Products(self, what) for what in ("the parties' own moments", "the moments across parties"))
        return (own, across) if self.crosses else (own,)

    @property
    def observers(self) -> tuple[Adversary, ...]:
        """The outside analyst, each party, coalitions of 2 to P − 1."""
        return list_adversaries(self.parties, batch_indices="hidden")

    @property
    def covered(self) -> tuple[Adversary, ...]:
        """See `Plan.covered`."""
        return self.noise.covered(self.observers)

    def event(self, observer: Adversary) -> GaussianEvent:
        """See `Plan.event`: one Gaussian release."""
        known = max(observer.colluders, self._least_unknown)
        mu = gaussian_parameter(
            share_variance=self.share_variance,
            num_unknown=self.noise.num_unknown(known),
            squared_sensitivity=self._squared_sensitivity,
            grid_bits=_GRID_BITS,
        )
        return GaussianEvent(noise_multiplier=self.relation.sensitivity / mu * (1 - 2.0**-50), count=1)

    def row(self, observer: Adversary) -> AdversaryRow:
        """See `Plan.row`."""
        event, owner = self.event(observer), "their own" if observer.colluders > 1 else "its own"
        return AdversaryRow(
            adversary=observer.name,
            relation=self.relation.value,
            guarantee="VPDP" if observer.colluders else "DP",
            epsilon=event.epsilon(self.delta, self.relation),
            delta=self.delta,
            noise_multiplier=event.noise_multiplier,
            knows=(f"{owner} columns", f"{owner} noise") if observer.colluders else (),
            proof="proved",
        )

    @classmethod
    def _decoded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        lists = {name: tuple(fields[name]) for name in ("parties", "widths", "clip_parts")}
        return super()._decoded({**fields, **lists})


@final
@dataclasses.dataclass(frozen=True)
class _Products(Release):
    """A part of the moments."""

    plan: MomentsPlan
    what: str

    @property
    def name(self) -> str:
        """See `Release.name`."""
        return self.what

    def event(self, adversary: Adversary) -> GaussianEvent:
        """At most what the adversary observes of all parts together."""
        return self.plan.event(adversary)
