"""The privacy plan of a Bayesian linear regression: its sufficient statistics as one vector for each record, how far a
record moves them, and their release in one noisy sum, or two with projection.

With every column divided by its bound c_j, u_j = clip(x_j, ±c_j) / c_j and w = clip(y, ±c_y) / c_y, record n sends

    t(u, w) = (u_j u_k for j <= k,  u_j w for all j),      D = d (d + 1) / 2 + d values in [-1, 1].

**Sensitivity.** Replacing a record moves the sum of t by at most d + 1 in L2 norm. Proof: let v = (u, w) and v' be
two records in [-1, 1]^p, p = d + 1, a = v², a' = v'² entrywise. The squared distance of all p (p + 1) / 2 products
v_j v_k is ½ |vv' - v'v''|_F² + ½ Σ_j (a_j - a'_j)², and |.|_F² <= |v|⁴ + |v'|⁴ = (Σ a)² + (Σ a')²; leaving w² out
only takes a term away. So it is at most ½ (Σ a)² + ½ (Σ a')² + ½ Σ_j (a_j - a'_j)², which is convex in (a, a') and
so largest at a vertex of [0, 1]^2p. With s ones in a, s' in a' and m places where they differ that is ½ (s² + s'² +
m), m <= (p - s) + (p - s'); for integers s <= p, s² + (p - s) <= p². So it is at most p². Equality where v and v'
are orthogonal corners. The entrywise bound (1 for squares, 2 for the others) gives √(2d² + 3d) instead, 1.4 times
as much; `calibration="classic"` uses that one, as the DCA paper does.

All values get the same noise, so in the original units the noise of x_j x_k is proportional to c_j c_k.

A sum of such vectors is released in each of the three settings that the DCA paper compares.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.validation import check_fields
from vertinumpyro.privacy import (
    OUTSIDE_ANALYST,
    Adversary,
    AdversaryRow,
    GaussianEvent,
    NeighbouringRelation,
    NoiseSource,
    NoisySum,
    PoissonSampling,
    Release,
    draw_noise_share,
    sample_discrete_gaussian,
)
from vertinumpyro.privacy.accounting import gaussian_noise_multiplier
from vertinumpyro.privacy.adversary import list_adversaries
from vertinumpyro.privacy.plan import Plan, check_delta, check_target
from vertinumpyro.regression.posteriors import NoisyStatistics
from vertinumpyro.secure.dca.backend import NodeSums


def num_statistics(num_features: int) -> int:
    """D = d (d + 1) / 2 + d."""
    return num_features * (num_features + 1) // 2 + num_features


def statistic_sensitivity(num_features: int) -> float:
    """Largest L2 distance of two records' t: d + 1."""
    return num_features + 1.0


def entrywise_sensitivity(num_features: int) -> float:
    """The same from a bound on each entry: 1 for the d squares, 2 for the d (d + 1) / 2 other products."""
    return math.sqrt(2 * num_features**2 + 3 * num_features)


def moment_sensitivity(num_features: int) -> float:
    """Largest L2 distance of two records' (u², w²), which lie in [0, 1]^(d + 1)."""
    return math.sqrt(num_features + 1)


def scaled(columns: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Columns `[n, p]` clipped to ±bounds `[p]` and divided by them."""
    return np.clip(columns, -bounds, bounds) / bounds


def statistic_vectors(units: np.ndarray) -> np.ndarray:
    """t `[n, D]` of scaled columns `[n, d + 1]`, the target last. Secret."""
    first, second = _products(units.shape[1] - 1)
    return units[:, first] * units[:, second]


def unpacked(released: np.ndarray, noise_variance: float) -> NoisyStatistics:
    """A noisy sum of t `[D]` as a symmetric matrix and a vector, still in units of the bounds."""
    # d (d + 3) / 2 = D
    num_features = (math.isqrt(9 + 8 * released.size) - 3) // 2
    first, second = _products(num_features)
    full = np.zeros((num_features + 1, num_features + 1))
    full[first, second] = released
    full[second, first] = released
    return NoisyStatistics(full[:-1, :-1], full[:-1, -1], noise_variance)


def _products(num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Which two columns each entry of t multiplies; the target is column d, and its square is left out."""
    first, second = np.triu_indices(num_features + 1)
    return first[:-1], second[:-1]


Mechanism = Literal["distributed", "trusted", "input"]
"""distributed: every client adds a share of the noise and DCA adds up. trusted: an aggregator sees the records and
adds the noise once. input: every client adds all of the noise to its own record, which anybody may then see."""

GRID_BITS = 24
_VALUES_AT_A_TIME = 2**20


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class StatisticsRelease(Release):
    """The noisy sum of one vector in [-1, 1]^D from each record.

    Formal guarantee: a run reveals N_Z noise of standard deviation `noise_stddev` or more, unknown to each of
    `adversaries`, on a sum that moves by at most `sensitivity` + √D 2^-f in L2 norm when one record is replaced:
    Gaussian differential privacy with μ = that over the effective noise.

    :ivar sensitivity: Δ, the largest L2 distance of two records' vectors, before rounding to the grid.
    :ivar noise_stddev: standard deviation of the noise, in the units of the vectors.
    :ivar num_values: D.
    :ivar num_records: N, one client each, public.
    :ivar num_clients: who each add a share of the noise; None where every record is a client. Distributed only.
    :ivar mechanism: who adds the noise.
    :ivar max_unreliable: T clients may drop out or collude; distributed only.
    """

    sensitivity: float
    noise_stddev: float
    num_values: int
    num_records: int
    mechanism: Mechanism = "distributed"
    max_unreliable: int = 0
    num_clients: int | None = None

    def __post_init__(self) -> None:
        """Refuses values outside the documented ranges."""
        if self.num_clients is not None and self.mechanism != "distributed":
            raise ArgumentError('num_clients must be None unless mechanism="distributed": nobody else adds noise')
        if self.mechanism not in ("distributed", "trusted", "input"):
            raise ArgumentError(f'mechanism must be "distributed", "trusted" or "input", got {self.mechanism!r}')
        if self.max_unreliable and self.mechanism != "distributed":
            raise ArgumentError('max_unreliable must be 0 unless mechanism="distributed": nobody else adds noise')
        if not 0 <= self.max_unreliable <= max(self._num_sources - 2, 0):
            who = "records" if self.num_clients is None else "holders"
            raise ArgumentError(f"max_unreliable must lie between 0 and the number of {who} less two, "
                                f"got {self.max_unreliable}")  # fmt: skip
        largest = self.num_records + 12 * math.sqrt(self.noise_variance)  # validates noise and grid, too
        if largest > 2.0 ** (62 - GRID_BITS):
            raise RangeError(
                "the sum and its noise could wrap around the 64-bit ring: raise epsilon or delta, or use fewer records"
            )

    @functools.cached_property
    def _noisy_sum(self) -> NoisySum:
        # Replacing a record moves the sum by 2 C: C is half of Δ and of what rounding adds to it.
        clip_norm = (self.sensitivity + math.sqrt(self.num_values) * 2.0**-GRID_BITS) / 2
        together = 1 if self.mechanism == "input" else self.num_records
        return NoisySum(
            sampling=PoissonSampling(sampling_prob=1.0, num_steps=1, max_batch_size=together),
            num_records=together,
            clip_norm=clip_norm,
            noise_multiplier=self.noise_stddev / clip_norm,
            grid_bits=GRID_BITS,
            noise=self._noise_source,
        )

    @property
    def _num_sources(self) -> int:
        return self.num_records if self.num_clients is None else self.num_clients

    @property
    def _noise_source(self) -> NoiseSource:
        if self.mechanism != "distributed":
            return NoiseSource(kind="trusted", num_parties=1)
        return NoiseSource(num_parties=self._num_sources, collusion_threshold=self.max_unreliable + 1)

    @property
    def name(self) -> str:
        """See `Release.name`."""
        return f"the sum of {self.num_values} statistics"

    def event(self, adversary: Adversary) -> GaussianEvent:
        """One Gaussian release, under replace."""
        return GaussianEvent(noise_multiplier=2 / self.shift(adversary), count=1)

    @property
    def share_variance(self) -> int:
        """Variance of each noise share, in grid units²."""
        return self._noisy_sum.share_variance

    @property
    def noise_variance(self) -> float:
        """Variance of all the noise in one coordinate of the revealed sum, in the units of the vectors."""
        shares = 1 if self.mechanism == "trusted" else self._num_sources
        return float(self.share_variance * shares) * 4.0**-GRID_BITS

    @property
    def observers(self) -> tuple[Adversary, ...]:
        """Who may be watching; colluders are noise shares that are missing or known."""
        if self.mechanism != "distributed":
            return (Adversary(name=OUTSIDE_ANALYST),)
        lost = self.max_unreliable
        unreliable = f" and {lost} unreliable clients" if lost else ""
        return (
            Adversary(name=OUTSIDE_ANALYST, colluders=lost),
            Adversary(name=f"all nodes but one, one client{unreliable}", colluders=lost + 1),
        )

    def shift(self, observer: Adversary) -> float:
        """μ: how far replacing one record moves the sum, in standard deviations of the noise unknown to it."""
        return 2 / self._noisy_sum.effective_noise_multiplier(observer.colluders)

    def run(self, vectors: np.ndarray, source: RandomSource, *, num_nodes: int = 3) -> np.ndarray:
        """The noisy sum of `vectors` `[N, D]`, float64 `[D]`. What it returns is released.

        Distributed, this simulates every client and node in this process; trusted and input need no nodes.
        """
        if self.mechanism == "trusted":
            noise = sample_discrete_gaussian(self.share_variance, self.num_values, source)
            return (encode(vectors).sum(axis=0) + noise) * 2.0**-GRID_BITS
        total = NodeSums(num_nodes, self.num_values)
        rows = max(1, _VALUES_AT_A_TIME // self.num_values)
        for start in range(0, len(vectors), rows):
            block = encode(vectors[start : start + rows])
            noise = draw_noise_share(self.share_variance, block.size, source).reshape(block.shape)
            total.add(block + noise, noise=None)
        return total.total() * 2.0**-GRID_BITS


def encode(vectors: np.ndarray) -> np.ndarray:
    """Values in [-1, 1] as integers in units of 2^-GRID_BITS."""
    return np.rint(vectors * 2.0**GRID_BITS).astype(np.int64)


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
