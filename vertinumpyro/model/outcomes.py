"""What an observed site says about a `party_sum`: distributions whose derivative by their predictor is one residual.

A record's gradient is the residual d log p(y | eta) / d eta times the scores d eta / d theta, which stand side by side,
each at its own party. `secure.score_functions` computes the same residuals on shares.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaincinv

_NODES = 21  # of an integral over a normal outcome
_SHARES = 128  # of an amount's distribution, in the place of nodes


class Outcome(abc.ABC):
    """A distribution of the outcome y at the predictor eta, with public numbers alone.

    The residual d log p / d eta is `unit` times the weight e of the link, |e| <= 1. The sum enters the link as `scale`
    times eta, once or several times, each less a number that the outcome's party takes off (`offsets`); besides, this
    party gives `own` numbers in [-1, 1].

    :cvar kind: the link's name.
    :cvar instead: how the site is written, for errors.
    :cvar num_sums: S, how many sums enter the link.
    :cvar is_loose: whether `curvature` is far above what most records have, so that few steps by it may not arrive.
    :cvar doubted_tails: of what a cut takes off on both sides, which part may be otherwise in a table: nothing of two
        values, whose chances follow from their mean, much of an amount, whose tails may be any.
    """

    kind: ClassVar[str]
    instead: ClassVar[str]
    num_sums: ClassVar[int] = 1
    is_loose: ClassVar[bool] = True
    doubted_tails: ClassVar[float] = 0.0

    @property
    def unit(self) -> float:
        """What scores are multiplied by, so that |e| <= 1."""
        return 1.0

    @property
    def scale(self) -> float:
        """What eta is multiplied by, so that the link's numbers are of magnitude 1."""
        return 1.0

    def offsets(self, value: jax.Array) -> jax.Array:
        """[..., S]: what is taken off each of the link's sums, from the outcome alone; by default nothing."""
        return jnp.zeros((*value.shape, self.num_sums))

    def own(self, value: jax.Array) -> jax.Array:
        """[..., O]: the outcome's own numbers in the link, in [-1, 1]; by default none, it is in the offsets."""
        return jnp.zeros((*value.shape, 0))

    @abc.abstractmethod
    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        """D log p(value | eta) / d eta: what the model's own density must have."""

    def linked_residual(self, eta: jax.Array, value: jax.Array, reach: Any = 1.0) -> jax.Array:
        """The residual as the link has it, of that reach (`reaching`), of predictors or values beyond it as well."""
        return self.residual(eta, value)

    @property
    def least_reach(self) -> float | None:
        """The least `reaching` takes; None where the link's numbers leave no choice."""
        return None

    def reaching(self, numbers: jax.Array, reach: Any) -> jax.Array:
        """The outcome's party's numbers in the link `[..., S + O]`, so that its e is the residual over reach `unit`s.

        The link is the same, so whatever is proved of it is. What is beyond its reach is cut off.
        """
        raise NotImplementedError

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array] | None:
        """Values of the outcome at the predictor [...] and their probabilities, both [..., S]; None where unknown.

        Of outcomes without end, or of very many values, enough of them for means of what changes slowly; the mean of
        `linked_residual` at eta itself is 0. What knows the steps' noise needs them: bounds that are forecast, and
        posteriors with intervals.
        """
        return None

    @property
    def usual(self) -> tuple[float, float]:
        """Mean and standard deviation of usual predictors, each of which a bound is forecast for."""
        return 0.0, 1.0

    def curvature(self, cut: float) -> float:
        """How fast the residual falls with eta at most, by which steps are scaled.

        Where no such bound is known, 2 cuts over a unit of the scale: a residual that rises nowhere and is cut falls by
        no more in all, however far eta goes, so steps of that size or more do not overshoot.

        :param cut: to which residuals are cut, at most `unit`.
        """
        return 2 * cut * self.scale

    @classmethod
    @abc.abstractmethod
    def of(cls, fn: Any, largest: float | None) -> Outcome | None:
        """The outcome of a site's distribution, whose public parameters it reads; None for another kind.

        :param largest: the largest number that the observed column can hold, where the schema bounds it.
        """

    @final
    def described(self) -> dict[str, Any]:
        """As plain data: what `secure.score_functions.link_of` reads."""
        return {"name": self.kind, **self.link_numbers()}

    def link_numbers(self) -> dict[str, float]:
        """The link's own parameters."""
        return {}


def _binary(chance: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.broadcast_to(jnp.arange(2.0), (*chance.shape, 2)), jnp.stack([1 - chance, chance], axis=-1)


def _counts(most: float) -> np.ndarray:
    """All counts up to 64, and above them as many, further and further apart."""
    further = np.unique(np.rint(np.geomspace(64, max(64.0, most), 64)))[1:]
    return np.concatenate([np.arange(min(64.0, most) + 1), further])


def _at_most(value: jax.Array, most: float, reach: Any) -> jax.Array:
    """Counts as a link has them that reaches less far than the largest; else as they are, and as `_weighted` has."""
    return jnp.where(reach < 1, jnp.minimum(value, most * reach), value)


def _usual_rates(most: float) -> tuple[float, float]:
    """Of their logarithm: about a quarter of the largest count's root, as of claims and of visits, and nobody knows."""
    return 0.5 * float(np.log(most)) - float(np.log(4.0)), max(0.5, 0.25 * float(np.log(most)))


def _weighted(counts: Any, log_prob: Any, mean: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The counts for each predictor, and their probabilities, each for those until the next.

    All are moved to where their mean is the law's own, as there are none beyond the largest: a score that has another
    mean than 0 where nothing is cut would be put back for a cut.
    """
    weights, counts = jax.nn.softmax(log_prob + np.log(np.gradient(counts)), axis=-1), jnp.asarray(counts, mean.dtype)
    return counts + (mean - weights @ counts)[..., None], weights


@final
@dataclasses.dataclass(frozen=True)
class BernoulliLogit(Outcome):
    """Logistic regression: y - sigmoid(eta)."""

    kind: ClassVar[str] = "bernoulli_logit"
    is_loose: ClassVar[bool] = False
    instead: ClassVar[str] = "Bernoulli(logits=eta)"

    def own(self, value: jax.Array) -> jax.Array:
        return jnp.asarray(value, float)[..., None]

    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        return value - jax.nn.sigmoid(eta)

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _binary(jax.nn.sigmoid(eta))

    def curvature(self, cut: float) -> float:
        """Of a sigmoid, at 0."""
        return 0.25

    @classmethod
    def of(cls, fn: Any, largest: float | None) -> BernoulliLogit | None:
        """Of a Bernoulli distribution, by logits or by probabilities."""
        return cls() if type(fn).__name__ in ("BernoulliLogits", "BernoulliProbs") else None


@final
@dataclasses.dataclass(frozen=True)
class BernoulliProbit(Outcome):
    """Probit regression: s phi(s eta) / Phi(s eta), s = 2 y - 1, where s eta below -6 counts as -6."""

    kind: ClassVar[str] = "bernoulli_probit"
    is_loose: ClassVar[bool] = False
    instead: ClassVar[str] = "Bernoulli(probs=ndtr(eta))"
    MOST: ClassVar[float] = 6.158482604544618

    @property
    def unit(self) -> float:
        """The residual at -6."""
        return self.MOST

    def own(self, value: jax.Array) -> jax.Array:
        return jnp.asarray(value, float)[..., None]

    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        sign = 2.0 * value - 1
        return sign * jnp.exp(-(eta**2) / 2 - jnp.log(2 * jnp.pi) / 2 - jax.scipy.special.log_ndtr(sign * eta))

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _binary(jax.scipy.special.ndtr(eta))

    def curvature(self, cut: float) -> float:
        """L' = L (t + L) of L = phi / Phi rises to 1 far below 0."""
        return 1.0

    @classmethod
    def of(cls, fn: Any, largest: float | None) -> BernoulliProbit | None:
        """Of a Bernoulli distribution, by probabilities or by logits."""
        return cls() if type(fn).__name__ in ("BernoulliLogits", "BernoulliProbs") else None


@final
@dataclasses.dataclass(frozen=True)
class OrderedLogit(Outcome):
    """Ordered categories: sigmoid(c_y - eta) + sigmoid(c_(y-1) - eta) - 1, with public cut points c.

    :ivar cutpoints: rising, one fewer than there are categories.
    """

    kind: ClassVar[str] = "ordered_logit"
    is_loose: ClassVar[bool] = False
    instead: ClassVar[str] = "OrderedLogistic(eta, cutpoints)"
    num_sums: ClassVar[int] = 2

    cutpoints: tuple[float, ...]

    def offsets(self, value: jax.Array) -> jax.Array:
        ends = jnp.array([-jnp.inf, *self.cutpoints, jnp.inf])
        codes = jnp.asarray(value, int)
        return jnp.stack([ends[codes + 1], ends[codes]], axis=-1)

    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        return 1 - jax.nn.sigmoid(eta[..., None] - self.offsets(value)).sum(axis=-1)

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        ends = jax.nn.sigmoid(eta[..., None] - jnp.array([-jnp.inf, *self.cutpoints, jnp.inf]))
        return jnp.broadcast_to(jnp.arange(ends.shape[-1] - 1), (*eta.shape, ends.shape[-1] - 1)), -jnp.diff(ends)

    @property
    def usual(self) -> tuple[float, float]:
        return float(np.median(self.cutpoints)), 1.0

    def curvature(self, cut: float) -> float:
        """Of two sigmoids."""
        return 0.5

    @classmethod
    def of(cls, fn: Any, largest: float | None) -> OrderedLogit | None:
        """Of NumPyro's `OrderedLogistic`, where its cut points are the same for all records."""
        if type(fn).__name__ != "OrderedLogistic":
            return None
        rows = np.asarray(fn.cutpoints, float)
        rows = rows.reshape(-1, rows.shape[-1])
        return cls(tuple(rows[0].tolist())) if np.ptp(rows, axis=0).max() == 0 else None


@final
@dataclasses.dataclass(frozen=True)
class Normal(Outcome):
    """Linear regression with a public scale: (y - eta) / scale^2, cut off beyond `WIDTH` scales.

    :ivar deviation: the scale.
    """

    kind: ClassVar[str] = "normal"
    is_loose: ClassVar[bool] = False
    doubted_tails: ClassVar[float] = 0.5
    instead: ClassVar[str] = "Normal(eta, scale) with a public scale"
    WIDTH: ClassVar[float] = 8.0

    deviation: float

    @property
    def unit(self) -> float:
        return self.WIDTH / self.deviation

    @property
    def scale(self) -> float:
        return 1 / (self.WIDTH * self.deviation)

    def offsets(self, value: jax.Array) -> jax.Array:
        return self.scale * jnp.asarray(value, float)[..., None]

    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        return (value - eta) / self.deviation**2

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        values = eta[..., None] + self.deviation * nodes
        return values, jnp.broadcast_to(weights / weights.sum(), values.shape)

    def curvature(self, cut: float) -> float:
        return self.deviation**-2

    @classmethod
    def of(cls, fn: Any, largest: float | None) -> Normal | None:
        """Of NumPyro's `Normal`, where the scale is one number."""
        if type(fn).__name__ != "Normal":
            return None
        scales = np.asarray(fn.scale, float)
        return cls(float(scales.flat[0])) if np.ptp(scales) == 0 else None

    def link_numbers(self) -> dict[str, float]:
        return {"width": self.WIDTH}


@final
@dataclasses.dataclass(frozen=True)
class Poisson(Outcome):
    """Counts: y - exp(eta), where a rate above `most` counts as `most`.

    Whether an event was seen, 0 or 1, has the likelihood of a count whose rate is the cumulative hazard until then,
    which is no probability: where nothing is censored it is exponential, and above 1 for more than a third.

    :ivar most: the largest count of the column; of events `MOST_OF_EVENTS`, which 3 people in 10,000 outlive.
    :ivar events: whether the column's values are 0 and 1.
    """

    kind: ClassVar[str] = "poisson"
    doubted_tails: ClassVar[float] = 0.25
    instead: ClassVar[str] = "Poisson(jnp.exp(eta)) of a column with an upper bound"
    MOST_OF_EVENTS: ClassVar[float] = 8.0

    most: float
    events: bool = False

    @property
    def unit(self) -> float:
        return self.most

    def curvature(self, cut: float) -> float:
        """A rate whose residual is not cut is at most the count and the cut: of events 1 and the cut."""
        return 1 + cut if self.events else super().curvature(cut)

    def offsets(self, value: jax.Array) -> jax.Array:
        return jnp.full((*value.shape, 1), jnp.log(self.most))

    def own(self, value: jax.Array) -> jax.Array:
        return jnp.asarray(value, float)[..., None] / self.most

    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        return value - jnp.exp(eta)

    def linked_residual(self, eta: jax.Array, value: jax.Array, reach: Any = 1.0) -> jax.Array:
        return self.residual(self._log_rate(eta, reach), _at_most(value, self.most, reach))

    @property
    def least_reach(self) -> float | None:
        """Of what is no count there is none."""
        return None if self.events else 2.0**-10

    def reaching(self, numbers: jax.Array, reach: Any) -> jax.Array:
        """A largest rate, and count, of `reach` times as much."""
        return jnp.concatenate([numbers[..., :1] - jnp.log(reach), jnp.minimum(numbers[..., 1:] / reach, 1.0)], axis=-1)

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        counts, log_rate = _counts(self.most), self._log_rate(eta)
        log_prob = counts * log_rate[..., None] - jax.scipy.special.gammaln(counts + 1)
        return _weighted(counts, log_prob, jnp.exp(log_rate))

    def _log_rate(self, eta: jax.Array, reach: Any = 1.0) -> jax.Array:
        return jnp.minimum(eta, jnp.log(self.most * reach))

    @property
    def usual(self) -> tuple[float, float]:
        """Rates far below the largest count; of events somewhat below one for each."""
        return (-0.7, 0.7) if self.events else _usual_rates(self.most)

    @classmethod
    def of(cls, fn: Any, largest: float | None) -> Poisson | None:
        """Of NumPyro's `Poisson`, where the schema bounds the count."""
        if type(fn).__name__ != "Poisson" or largest is None:
            return None
        return cls(largest) if largest > 1 else cls(cls.MOST_OF_EVENTS, events=True)

    def link_numbers(self) -> dict[str, float]:
        return {"most": self.most}


@final
@dataclasses.dataclass(frozen=True)
class NegativeBinomial(Outcome):
    """Counts that vary more than a Poisson's, with a public concentration r: y - (y + r) sigmoid(eta - log r).

    :ivar most: the largest count of the column.
    :ivar concentration: r; the variance is mean + mean^2 / r.
    """

    kind: ClassVar[str] = "negative_binomial"
    doubted_tails: ClassVar[float] = 0.25
    instead: ClassVar[str] = "NegativeBinomial2(jnp.exp(eta), r) with a public r, of a column with an upper bound"

    most: float
    concentration: float

    @property
    def unit(self) -> float:
        """A little more than the largest residual, so that roundings leave |e| <= 1."""
        return max(self.most, self.concentration) * (1 + 2.0**-16)

    def offsets(self, value: jax.Array) -> jax.Array:
        return jnp.full((*value.shape, 1), jnp.log(self.concentration))

    def own(self, value: jax.Array) -> jax.Array:
        value = jnp.asarray(value, float)
        return jnp.stack([value, jnp.full_like(value, self.concentration)], axis=-1) / self.unit

    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        return value - (value + self.concentration) * jax.nn.sigmoid(eta - jnp.log(self.concentration))

    def linked_residual(self, eta: jax.Array, value: jax.Array, reach: Any = 1.0) -> jax.Array:
        return self.residual(eta, _at_most(value, self.unit, reach))

    @property
    def least_reach(self) -> float | None:
        """Of which r is a part that the link takes."""
        return max(2.0**-10, self.concentration / self.unit * (1 + 2.0**-15))

    def reaching(self, numbers: jax.Array, reach: Any) -> jax.Array:
        """A largest count of `reach` times as much, and r in these units."""
        return jnp.concatenate([numbers[..., :1], jnp.minimum(numbers[..., 1:] / reach, 1.0)], axis=-1)

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        counts, size = _counts(self.most), self.concentration
        log_odds = (eta - jnp.log(size))[..., None]
        log_prob = jax.scipy.special.gammaln(counts + size) - jax.scipy.special.gammaln(counts + 1)
        log_prob = log_prob - counts * jax.nn.softplus(-log_odds) - size * jax.nn.softplus(log_odds)
        return _weighted(counts, log_prob, jnp.exp(eta))

    @property
    def usual(self) -> tuple[float, float]:
        return _usual_rates(self.most)

    def curvature(self, cut: float) -> float:
        """Of a sigmoid, of the largest count: at 0, or where its residual is no longer cut, if that is above 0."""
        most, size = self.most, self.concentration
        uncut = (most - cut) * (cut + size) / (most + size) if most > 2 * cut + size else (most + size) / 4
        return min(2 * cut, uncut)

    @classmethod
    def of(cls, fn: Any, largest: float | None) -> NegativeBinomial | None:
        """Of NumPyro's `NegativeBinomial2` and its like, where the concentration is one number."""
        if type(fn).__name__ not in ("NegativeBinomial2", "GammaPoisson") or largest is None:
            return None
        found = np.asarray(fn.concentration, float)
        return cls(max(1.0, largest), float(found.flat[0])) if np.ptp(found) == 0 else None

    def link_numbers(self) -> dict[str, float]:
        return {"most": self.most, "concentration": self.concentration}


@final
@dataclasses.dataclass(frozen=True)
class Gamma(Outcome):
    """Positive amounts with a public concentration r, by the log of their mean: r (y exp(-eta) - 1).

    An amount of more than `most` times its mean counts as that; three in 10,000 are.

    :ivar concentration: r; the variance is mean^2 / r, so 1 is an exponential distribution.
    """

    kind: ClassVar[str] = "gamma"
    doubted_tails: ClassVar[float] = 0.15
    instead: ClassVar[str] = "Gamma(r, r * jnp.exp(-eta)) with a public r"
    LEAST: ClassVar[float] = 1e-30

    concentration: float

    def _amounts(self, shares: np.ndarray) -> Any:
        """Quantiles of the amount over its mean."""
        return gammaincinv(self.concentration, shares) / self.concentration

    @property
    def most(self) -> float:
        """The largest amount that counts as it is, over its mean."""
        return float(self._amounts(np.array(1 - 3e-4)))

    @property
    def unit(self) -> float:
        """The largest residual, and r."""
        return self.concentration * self.most

    def offsets(self, value: jax.Array) -> jax.Array:
        return jnp.log(jnp.maximum(jnp.asarray(value, float), self.LEAST) / self.most)[..., None]

    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        return self.concentration * (value * jnp.exp(-eta) - 1)

    def linked_residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        return self.concentration * (jnp.minimum(value * jnp.exp(-eta), self.most) - 1)

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        amounts = self._amounts((np.arange(_SHARES) + 0.5) / _SHARES)
        values = jnp.exp(eta)[..., None] * jnp.asarray(amounts / amounts.mean())
        return values, jnp.full(values.shape, 1 / _SHARES)

    @property
    def usual(self) -> tuple[float, float]:
        """Means of about a third of the column's range."""
        return -1.0, 0.7

    def curvature(self, cut: float) -> float:
        """Where the residual is not cut: r times the amount over its mean."""
        return min(self.unit, cut + self.concentration)

    @classmethod
    def of(cls, fn: Any, largest: float | None) -> Gamma | None:
        """Of NumPyro's `Gamma`, where the concentration is one number, and `Exponential`."""
        if type(fn).__name__ not in ("Gamma", "Exponential"):
            return None
        found = np.asarray(getattr(fn, "concentration", 1.0), float)
        return cls(float(found.flat[0])) if np.ptp(found) == 0 else None

    def link_numbers(self) -> dict[str, float]:
        return {"most": self.most, "concentration": self.concentration}


@final
@dataclasses.dataclass(frozen=True)
class OwnFactor(Outcome):
    """A factor exp(y eta) that one party's columns and latents make up: y, which it knows without the others."""

    kind: ClassVar[str] = "own_factor"
    instead: ClassVar[str] = "OwnFactor(eta)"

    def own(self, value: jax.Array) -> jax.Array:
        return jnp.asarray(value, float)[..., None]

    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(value, float), eta.shape)

    def curvature(self, cut: float) -> float:
        return 0.0

    @classmethod
    def of(cls, fn: Any, largest: float | None) -> OwnFactor | None:
        """Of `model.hazards.OwnFactor`, at a column from 0 to 1."""
        return cls() if type(fn).__name__ == "OwnFactor" and largest is not None and largest <= 1 else None


OUTCOMES: tuple[type[Outcome], ...] = (
    BernoulliLogit,
    BernoulliProbit,
    OrderedLogit,
    Normal,
    Poisson,
    NegativeBinomial,
    Gamma,
    OwnFactor,
)
"""All of them."""


def outcomes_of(fn: Any, largest: float | None) -> list[Outcome]:
    """What a site's distribution may be; which one it is, its derivative says."""
    while type(fn).__name__ in ("ExpandedDistribution", "MaskedDistribution"):
        fn = fn.base_dist
    return [outcome for kind in OUTCOMES if (outcome := kind.of(fn, largest)) is not None]


_TIMES = "of a time until an event observe whether it was seen, with the time in the sum: see PiecewiseHazard"
_WEIBULL = f"{_TIMES}; of a Weibull's shape k the sum has k * jnp.log(time), and an OwnFactor jnp.log(k)"
_ZEROS = (
    "a count with many zeros is NegativeBinomial2(jnp.exp(eta), r); "
    'MarginalGLM(family="zero_inflated_poisson") learns the zeros\' share'
)
_POSITIVE = (
    'a positive real is VerticalGLM(family="gamma"), or in a NumPyro model Gamma(r, r * jnp.exp(-eta)), with a public '
    'r, or Normal(eta, scale) of a RealColumn with transform="log1p"; MarginalGLM(family="gamma") learns r'
)
_ZERO_OR_MORE = (
    "of an amount that may be 0 observe in one model whether it is, Bernoulli(logits=eta), and in another one, of the "
    "records that have some, Gamma(r, r * jnp.exp(-eta))"
)
_CLOGLOG = (
    "an event with the complementary log-log is Poisson(jnp.exp(eta)) of the column, by its expected number, or "
    'MarginalGLM(family="cloglog")'
)
_ELSEWHERE = {
    **dict.fromkeys(("exponential", "cox", "rightcensored", "leftcensored", "intervalcensored"), _TIMES),
    "weibull": _WEIBULL,
    **dict.fromkeys(("zeroinflated", "hurdle"), _ZEROS),
    **dict.fromkeys(("gamma", "inversegaussian", "lognormal"), _POSITIVE),
    "tweedie": _ZERO_OR_MORE,
    **dict.fromkeys(("cloglog", "complementaryloglog", "bernoulliprobs"), _CLOGLOG),
    **dict.fromkeys(
        ("studentt", "laplace", "cauchy"), "Normal(eta, scale) cuts its residual, as Huber's regression does"
    ),
}


def elsewhere(name: str) -> str | None:
    """What to write in the place of a distribution or a family that is none of these; None where nothing is known."""
    plain = name.replace("_", "").lower()
    return next((fix for start, fix in _ELSEWHERE.items() if plain.startswith(start)), None)
