"""Who may be watching what a plan pays for, what each of them knows, and what the noise still hides from them."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, final

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.privacy.accounting import (
    GaussianEvent,
    NeighbouringRelation,
    PoissonEvent,
    PoissonKnownEvent,
    PrivacyEvent,
)
from vertinumpyro.privacy.discrete_gaussian import require_drawable
from vertinumpyro.privacy.sampling import DisjointBatches, PoissonSampling, Sampling


class Release(abc.ABC):
    """Something noisy that leaves the parties. Public facts alone; data passes through methods of subclasses.

    What it costs is an event of its own kind for each adversary: a Gaussian, a sampled Gaussian, a pure-epsilon
    mechanism, an encoder. How the events of several releases compose is the plan's business.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What is released, in words, as messages about lost or spent steps call it."""

    @property
    def num_steps(self) -> int:
        """How many steps of a ledger it takes."""
        return 1

    @abc.abstractmethod
    def event(self, adversary: Adversary) -> PrivacyEvent:
        """What the adversary observes of this release alone."""


OUTSIDE_ANALYST = "outside analyst"
_SMOOTHING = 9  # r², in grid units²
_SMALLEST_SHARE = 18  # so that r² = s₁s₂/(s₁ + s₂) ≥ s/2 ≥ 9 in every sum of shares


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseSource:
    """Who adds the noise, with total variance σ²C².

    :ivar kind: "collaborative": every party adds a share of variance σ²C²/(P − c), so that the parties outside any
        coalition of c or fewer still add σ²C² or more; c = 0 is the DPVI paper's /P. "trusted": one source that
        colludes with nobody adds it all.
    :ivar num_parties: P.
    :ivar collusion_threshold: c, 0 ≤ c ≤ P − 1; 0 when trusted.
    """

    kind: Literal["collaborative", "trusted"] = "collaborative"
    num_parties: int
    collusion_threshold: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("collaborative", "trusted"):
            raise ArgumentError(f'kind must be "collaborative" or "trusted", got {self.kind!r}')
        if self.num_parties < 1:
            raise ArgumentError(f"num_parties must be at least 1, got {self.num_parties}")
        if not 0 <= self.collusion_threshold < self.num_parties:
            raise ArgumentError(
                f"collusion_threshold must lie between 0 and num_parties - 1 = {self.num_parties - 1}, "
                f"got {self.collusion_threshold}: if all collude, nothing is left to protect"
            )
        if self.kind == "trusted" and self.collusion_threshold:
            raise ArgumentError("collusion_threshold must be 0 when kind='trusted': no party knows any noise")

    @property
    def num_shares(self) -> int:
        """How many independent noise vectors are added to a sum."""
        return self.num_parties if self.kind == "collaborative" else 1

    @property
    def num_covering(self) -> int:
        """The number of shares whose variances add up to σ²C²."""
        return self.num_parties - self.collusion_threshold if self.kind == "collaborative" else 1

    def covered(self, observers: Sequence[Adversary]) -> tuple[Adversary, ...]:
        """Those whom a budget for everyone counts: an outsider, each party, coalitions of up to c."""
        return tuple(o for o in observers if o.colluders <= max(1, self.collusion_threshold))

    def num_unknown(self, colluders: int) -> int:
        """How many shares stay unknown to an adversary who holds `colluders` parties."""
        return self.num_parties - colluders if self.kind == "collaborative" else 1


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Adversary:
    """One observer of everything that is released.

    :ivar name: how the table calls it.
    :ivar colluders: how many parties it holds; 0 for an outside analyst.
    :ivar knows_indices: whether it knows which records entered which step.
    """

    name: str
    colluders: int = 0
    knows_indices: bool = False

    def __post_init__(self) -> None:
        if self.colluders < 0:
            raise ArgumentError(f"colluders must not be negative, got {self.colluders}")

    @property
    def owner(self) -> str:
        """Whose the columns are that it holds, in words."""
        return "their own" if self.colluders > 1 else "its own"

    @property
    def own_knowledge(self) -> tuple[str, ...]:
        """What it knows as the parties that it holds do: their columns and their noise."""
        return (f"{self.owner} columns", f"{self.owner} noise") if self.colluders else ()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class AdversaryRow:
    """One line of the privacy table.

    :ivar adversary: its name.
    :ivar relation: "replace" or "add_remove".
    :ivar guarantee: "DP" against an outside analyst; "VPDP" against parties, where neighbouring tables agree on the
        columns that the adversary holds, since it knows those anyway.
    :ivar epsilon: ε; infinite when there is no guarantee at this δ.
    :ivar delta: δ.
    :ivar noise_multiplier: σ_eff, the standard deviation of the noise unknown to it, over the clip norm.
    :ivar knows: what it knows besides the released sums.
    :ivar proof: "proved", or "unproven" when the run's formulation carries an unproven step.
    :ivar unproven: those steps.
    """

    adversary: str
    relation: str
    guarantee: Literal["DP", "VPDP"]
    epsilon: float
    delta: float
    noise_multiplier: float
    knows: tuple[str, ...]
    proof: Literal["proved", "unproven"]
    unproven: tuple[str, ...] = ()

    def to_dict(self) -> dict:
        """Plain data for JSON; an infinite ε becomes the string "inf", which JSON lacks."""
        record = dataclasses.asdict(self)
        record["epsilon"] = self.epsilon if math.isfinite(self.epsilon) else "inf"
        return {key: list(value) if isinstance(value, tuple) else value for key, value in record.items()}


def list_adversaries(parties: Sequence[str], *, batch_indices: str) -> tuple[Adversary, ...]:
    """The outside analyst, each party by name, and coalitions of every size from 2 to P − 1.

    All P parties together are no adversary: they hold the whole table. So a single party gets no row.
    """
    known = batch_indices == "known"
    rows = [Adversary(name=OUTSIDE_ANALYST)]
    if len(parties) > 1:
        rows += [Adversary(name=name, colluders=1, knows_indices=known) for name in parties]
    for size in range(2, len(parties)):
        rows.append(Adversary(name=f"any {size} colluding parties", colluders=size, knows_indices=known))
    return tuple(rows)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisySum(Release):
    """T noisy sums of clipped vectors: the public facts that fix every adversary's (ε, δ).

    :ivar sampling: which records enter which sum.
    :ivar num_records: N.
    :ivar clip_norm: C, the largest L2 norm of one record's vector.
    :ivar noise_multiplier: σ, so the noise has standard deviation σ·C per coordinate.
    :ivar grid_bits: f; the sum and its noise are integers in units of 2^-f.
    :ivar noise: who adds the noise.
    """

    sampling: Sampling
    num_records: int
    clip_norm: float
    noise_multiplier: float
    grid_bits: int
    noise: NoiseSource

    def __post_init__(self) -> None:
        for name in ("clip_norm", "noise_multiplier"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ArgumentError(f"{name} must be positive and finite, got {value}")
        if not 0 <= self.grid_bits <= 64:
            raise ArgumentError(f"grid_bits must lie between 0 and 64, got {self.grid_bits}")
        self.sampling.check(self.num_records)
        if self.share_variance < _SMALLEST_SHARE:
            raise ArgumentError(
                f"a noise share has a variance below {_SMALLEST_SHARE} grid units², where the accounting of "
                "discrete noise is not proved: raise grid_bits, clip_norm or noise_multiplier"
            )
        require_drawable(self.share_variance * self.noise.num_shares)

    @property
    def name(self) -> str:
        return "a noisy sum"

    @property
    def num_steps(self) -> int:
        """T."""
        return self.sampling.total_steps(self.num_records)

    @property
    def share_variance(self) -> int:
        """⌈C²σ²4^f/(P − c)⌉ grid units², in exact arithmetic: rounding up only adds noise."""
        total = (Fraction(self.clip_norm) * Fraction(self.noise_multiplier)) ** 2 * 4**self.grid_bits
        return math.ceil(total / self.noise.num_covering)

    def effective_noise_multiplier(self, colluders: int = 0) -> float:
        """σ_eff = √(s·(unknown shares) − 9)/(C·2^f), rounded down."""
        unknown = self.share_variance * self.noise.num_unknown(colluders) - _SMOOTHING
        exact = Fraction(unknown) / (Fraction(self.clip_norm) ** 2 * 4**self.grid_bits)
        return math.nextafter(math.sqrt(exact), 0.0) * (1 - 2.0**-50)

    def event(self, adversary: Adversary) -> PrivacyEvent:
        """What this adversary observes.

        Disjoint batches give E participations, whether or not the indices are known. A full batch gives T.
        """
        sigma = self.effective_noise_multiplier(adversary.colluders)
        if isinstance(self.sampling, DisjointBatches):
            return GaussianEvent(noise_multiplier=sigma, count=self.sampling.num_epochs)
        if not isinstance(self.sampling, PoissonSampling):
            raise ArgumentError(f"sampling: no accounting for {type(self.sampling).__name__}")
        q, steps = self.sampling.sampling_prob, self.sampling.num_steps
        if self.sampling.full_batch:
            return GaussianEvent(noise_multiplier=sigma, count=steps)
        if adversary.knows_indices:
            return PoissonKnownEvent(noise_multiplier=sigma, sampling_prob=q, num_steps=steps)
        tail = self.sampling.truncation_delta(self.num_records)
        return PoissonEvent(noise_multiplier=sigma, sampling_prob=q, num_steps=steps, truncation_delta=tail)

    def epsilon(self, adversary: Adversary, delta: float, relation: NeighbouringRelation) -> float:
        """ε against one adversary."""
        return self.event(adversary).epsilon(delta, relation)

    def row(
        self,
        adversary: Adversary,
        delta: float,
        relation: NeighbouringRelation,
        unproven: tuple[str, ...] = (),
    ) -> AdversaryRow:
        """The adversary's line of the privacy table."""
        return AdversaryRow(
            adversary=adversary.name,
            relation=relation.value,
            guarantee="VPDP" if adversary.colluders else "DP",
            epsilon=self.epsilon(adversary, delta, relation),
            delta=delta,
            noise_multiplier=self.effective_noise_multiplier(adversary.colluders),
            knows=self._knowledge(adversary),
            proof="unproven" if unproven else "proved",
            unproven=unproven,
        )

    def _knowledge(self, adversary: Adversary) -> tuple[str, ...]:
        shares = 2 if self.noise.kind == "collaborative" else 1  # of trusted noise they know nothing
        return (*adversary.own_knowledge[:shares], *(["the batch indices"] if adversary.knows_indices else []))


def smallest_share_variance(
    *, mu: float, squared_sensitivity: int | float | Fraction, grid_bits: int, noise: NoiseSource
) -> int:
    r"""The least variance of a noise share, in grid units², that makes one noisy sum μ-Gaussian private.

    Formal guarantee: with shares of this variance, or more, the sum is Gaussian differentially private with parameter
    at most `mu` towards whoever knows at most `noise.collusion_threshold` of the shares. Proof: the record moves the
    sum by Δ2^f grid units at most, and m shares of variance s stay unknown, m = P − c or more. By this module's
    argument the sum is as private as Gaussian noise of variance ms − 9, s ≥ 18, so its parameter is
    Δ2^f/√(ms − 9), which is at most μ exactly when s ≥ (Δ²4^f/μ² + 9)/m. That is solved in integers: no rounding of a
    float enters, and the nine grid units are paid for whatever μ is.

    :param mu: the parameter, > 0.
    :param squared_sensitivity: Δ², Δ the largest L2 distance that one record can move the sum: (2C)² under replace and
        C² under add/remove for a clip norm C. Exact where it is an integer or a `Fraction`.
    :param grid_bits: f.
    :param noise: who adds the noise.
    :raises ArgumentError: `mu` or `squared_sensitivity` is not positive and finite.
    """
    for name, value in {"mu": mu, "squared_sensitivity": squared_sensitivity}.items():
        if not 0 < value < math.inf:
            raise ArgumentError(f"{name} must be positive and finite, got {value}")
    needed = Fraction(squared_sensitivity) * 4**grid_bits / Fraction(mu) ** 2 + _SMOOTHING
    return max(_SMALLEST_SHARE, math.ceil(needed / noise.num_covering))


def gaussian_parameter(
    *, share_variance: int, num_unknown: int, squared_sensitivity: int | float | Fraction, grid_bits: int
) -> float:
    r"""μ = Δ2^f/√(ms − 9), rounded up to a float: what m unknown shares of variance s leave of a record.

    At most `mu` for the s of `smallest_share_variance` and m = P − c or more, with no tolerance: the exact value is
    at most that float, so the smallest float that is not below it is, too.

    :param share_variance: s ≥ 18, in grid units².
    :param num_unknown: m ≥ 1, the shares that the adversary does not know (`NoiseSource.num_unknown`).
    :param squared_sensitivity: Δ².
    :param grid_bits: f.
    """
    if share_variance < _SMALLEST_SHARE or num_unknown < 1:
        raise ArgumentError(f"share_variance must be at least {_SMALLEST_SHARE}, and num_unknown at least 1")
    square = Fraction(squared_sensitivity) * 4**grid_bits / (share_variance * num_unknown - _SMOOTHING)
    mu = math.sqrt(square)
    while mu > 0 and Fraction(below := math.nextafter(mu, 0.0)) ** 2 >= square:
        mu = below
    while Fraction(mu) ** 2 < square:
        mu = math.nextafter(mu, math.inf)
    return mu
