"""What a label may be given its linear predictor: one family for each outcome that a `party_sum` may have.

| family | label | distribution, given eta |
|---|---|---|
| "bernoulli" | two values | log odds eta |
| "probit" | two values | probability Phi(eta) of the second |
| "ordinal" | three or more values, in the schema's order | proportional odds with public cut points |
| "normal" | a real | around eta, with a public scale |
| "poisson" | a count | rate exp(eta) |
| "negative_binomial" | a count | the same rate, and a variance of mean + mean² / a public concentration |
| "gamma" | a positive real | mean exp(eta), and a variance of mean² / a public concentration |
| "survival" | two values, whether an event was seen | hazard exp(eta) times a baseline that changes at public times |
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar, final

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import ndtr as jax_ndtr
from scipy.special import expit, ndtr

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import require_collection, shown
from vertinumpyro.data import Column
from vertinumpyro.data.schema_checks import Place
from vertinumpyro.model.hazards import PiecewiseHazard, table_numbers
from vertinumpyro.model.outcomes import BernoulliLogit, BernoulliProbit, OrderedLogit, Outcome, elsewhere
from vertinumpyro.model.outcomes import Gamma as GammaOutcome
from vertinumpyro.model.outcomes import NegativeBinomial as NegativeBinomialOutcome
from vertinumpyro.model.outcomes import Normal as NormalOutcome
from vertinumpyro.model.outcomes import Poisson as PoissonOutcome


class Family(abc.ABC):
    """A label's distribution given the linear predictor, with public numbers alone.

    :ivar outcome: what a `party_sum`'s site with this distribution is.
    :ivar classes: whether the label is one of several values, so that a fit is a classifier.
    :ivar unit: the size of a usual coefficient of a feature in [-1, 1], by which steps are scaled.
    """

    outcome: ClassVar[type[Outcome]]
    classes: ClassVar[bool]
    unit: ClassVar[float] = 1.0

    @abc.abstractmethod
    def distribution(self, eta: Any) -> Any:
        """NumPyro's distribution of the label in model units."""

    @abc.abstractmethod
    def mean(self, eta: np.ndarray) -> np.ndarray:
        """The mean `[N]` in model units; of classes their probabilities `[N, K]`."""

    @abc.abstractmethod
    def check(self, place: Place, column: Column) -> None:
        """Refuses a label of another kind.

        :raises ArgumentError: names party, column and fix.
        """

    def residual(self, column: Column) -> float:
        """The size of a usual derivative of the log density by eta, by which the clip is scaled."""
        return 1.0

    def centre(self, column: Column) -> float:
        """Where the intercept's prior has its mean."""
        return 0.0


class _TwoValues(Family):
    """A label of two values. Abstract."""

    classes: ClassVar[bool] = True

    def check(self, place: Place, column: Column) -> None:
        """See `Family.check`."""
        if column.kind not in ("binary", "categorical") or column.num_categories != 2:
            _refuse(place, "has no two values", "take a column with two, or another family")


@final
@dataclasses.dataclass(frozen=True)
class Bernoulli(_TwoValues):
    """Logistic regression."""

    outcome: ClassVar[type[Outcome]] = BernoulliLogit

    def distribution(self, eta: Any) -> Any:
        """By log odds."""
        return dist.Bernoulli(logits=eta)

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Probabilities of both."""
        return np.column_stack([expit(-eta), expit(eta)])


@final
@dataclasses.dataclass(frozen=True)
class Probit(_TwoValues):
    """Probit regression."""

    outcome: ClassVar[type[Outcome]] = BernoulliProbit
    unit: ClassVar[float] = 0.6

    def distribution(self, eta: Any) -> Any:
        """By the normal distribution's function."""
        return dist.Bernoulli(probs=jax_ndtr(eta))

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Probabilities of both."""
        return np.column_stack([ndtr(-eta), ndtr(eta)])

    def residual(self, column: Column) -> float:
        """That of log odds, by as much more as its coefficients are less."""
        return 1.6


@final
@dataclasses.dataclass(frozen=True)
class Ordinal(Family):
    """Ordered classes, by proportional odds.

    :ivar cutpoints: public and rising; the log odds of the first k classes at eta = 0 are the k-th.
    """

    outcome: ClassVar[type[Outcome]] = OrderedLogit
    classes: ClassVar[bool] = True

    cutpoints: tuple[float, ...]

    def distribution(self, eta: Any) -> Any:
        """NumPyro's."""
        return dist.OrderedLogistic(eta, jnp.array(self.cutpoints))

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Probabilities of all."""
        below = expit(np.array(self.cutpoints) - eta[:, None])
        return np.diff(np.pad(below, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1))), axis=1)

    def check(self, place: Place, column: Column) -> None:
        """See `Family.check`."""
        if column.kind != "categorical" or column.num_categories < 3:
            _refuse(place, "has no three values in an order", 'take a column with more, or family="bernoulli"')
        if column.num_categories != len(self.cutpoints) + 1:
            raise ArgumentError(
                f"cutpoints: there are {len(self.cutpoints)}, and {place} has {column.num_categories} values; give "
                f"{column.num_categories - 1}"
            )


@final
@dataclasses.dataclass(frozen=True)
class Normal(Family):
    """Linear regression.

    :ivar scale: of the label around its mean, in model units: of the label's range.
    """

    outcome: ClassVar[type[Outcome]] = NormalOutcome
    classes: ClassVar[bool] = False
    unit: ClassVar[float] = 0.25

    scale: float

    def distribution(self, eta: Any) -> Any:
        """Around eta."""
        return dist.Normal(eta, self.scale)

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Eta."""
        return eta

    def check(self, place: Place, column: Column) -> None:
        """See `Family.check`."""
        if column.kind != "real":
            fix = 'take family="poisson"' if column.kind == "count" else 'set type = "real", or take another family'
            _refuse(place, "is no real", fix)

    def residual(self, column: Column) -> float:
        """One scale away."""
        return 1 / self.scale

    def centre(self, column: Column) -> float:
        """The middle of the label's range."""
        return 0.5


class _Counts(Family):
    """A count, by the log of its mean. Abstract."""

    classes: ClassVar[bool] = False

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """The rate."""
        return np.exp(eta)

    def check(self, place: Place, column: Column) -> None:
        """See `Family.check`."""
        if column.kind != "count":
            _refuse(place, "is no count", 'set type = "count" with an upper bound, or take another family')

    def residual(self, column: Column) -> float:
        """So that the clip, 0.4 of it, is half of the standard deviation of counts around the upper bound.

        Counts often vary more than their rate says, and a tighter cut takes their mean for less than it is.
        """
        return max(1.0, 1.25 * math.sqrt(column.encoded_range[1]))

    def centre(self, column: Column) -> float:
        """The logarithmic middle of the rates from 1 to the upper bound."""
        return math.log(max(1.0, column.encoded_range[1])) / 2


@final
@dataclasses.dataclass(frozen=True)
class NegativeBinomial(_Counts):
    """Counts that vary more than a Poisson's.

    :ivar concentration: public; the variance is mean + mean² / concentration.
    """

    outcome: ClassVar[type[Outcome]] = NegativeBinomialOutcome

    concentration: float

    def distribution(self, eta: Any) -> Any:
        """By the log of its mean."""
        return dist.NegativeBinomial2(jnp.exp(eta), self.concentration)

    def residual(self, column: Column) -> float:
        """As much as a count's, or the largest one below the mean where that is less."""
        return max(1.0, 2.5 * min(super().residual(column), self.concentration))


@final
@dataclasses.dataclass(frozen=True)
class Gamma(Family):
    """Positive amounts, by the log of their mean, which in model units are parts of the upper bound.

    :ivar concentration: public; the variance is mean² / concentration.
    """

    outcome: ClassVar[type[Outcome]] = GammaOutcome
    classes: ClassVar[bool] = False

    concentration: float

    def distribution(self, eta: Any) -> Any:
        """By the log of its mean."""
        return dist.Gamma(self.concentration, self.concentration * jnp.exp(-eta))

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Of the upper bound."""
        return np.exp(eta)

    def check(self, place: Place, column: Column) -> None:
        """See `Family.check`."""
        if column.kind != "real" or column.limits is None:
            _refuse(place, "is no real", 'set type = "real" with bounds from 0 on, or take another family')
        elif column.limits[0] != 0 or getattr(column, "transform", "identity") != "identity":
            _refuse(place, "is no real from 0 on as it is", "give it bounds from 0 on and no transform")

    def residual(self, column: Column) -> float:
        """So that the clip, 0.4 of it, cuts amounts two standard deviations above their mean."""
        return 5.0 * math.sqrt(self.concentration)

    def centre(self, column: Column) -> float:
        """The logarithmic middle of means from a hundredth of the upper bound on."""
        return -math.log(100.0) / 2


@final
@dataclasses.dataclass(frozen=True)
class Survival(_TwoValues):
    """Proportional hazards: eta is the log of the cumulative hazard until the time, of which the mean has no baseline.

    :ivar cutpoints: public, positive and rising times, between which the baseline hazard is constant.
    """

    outcome: ClassVar[type[Outcome]] = PoissonOutcome
    classes: ClassVar[bool] = False

    cutpoints: tuple[float, ...]

    @property
    def hazard(self) -> PiecewiseHazard:
        """The baseline."""
        return PiecewiseHazard(self.cutpoints)

    def distribution(self, eta: Any) -> Any:
        """Of events, with that many expected."""
        return dist.Poisson(jnp.exp(eta))

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """The hazard."""
        return np.exp(eta)

    def residual(self, column: Column) -> float:
        """So that the clip, 0.4 of it, cuts who lives through three times the hazard that an event takes on average.

        A tighter cut takes the hazard for more than it is: it bounds the long lives alone, as an event counts 1.
        """
        return 5.0

    def centre(self, column: Column) -> float:
        """Of the time's column: the log of the hazard with which an event is expected until its upper bound."""
        return -math.log(float(table_numbers(column, column.encoded_range[1])))


@final
@dataclasses.dataclass(frozen=True)
class Poisson(_Counts):
    """Counts, whose rate counts as the column's upper bound where it is above."""

    outcome: ClassVar[type[Outcome]] = PoissonOutcome

    def distribution(self, eta: Any) -> Any:
        """By the log of its rate."""
        return dist.Poisson(jnp.exp(eta))


FAMILIES: dict[str, type[Family]] = {
    "bernoulli": Bernoulli,
    "probit": Probit,
    "ordinal": Ordinal,
    "normal": Normal,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "gamma": Gamma,
    "survival": Survival,
}
"""By the names that `VerticalGLM(family=...)` takes."""

CLASSIFIERS = frozenset(name for name, kind in FAMILIES.items() if kind.classes)
"""Those of classes."""


def family_of(
    name: str, *, scale: float, cutpoints: Iterable[float] | None, concentration: float | None = None
) -> Family:
    """A family and its public numbers.

    :param name: one of `FAMILIES`.
    :param scale: of "normal".
    :param cutpoints: of "ordinal" and "survival".
    :param concentration: of "negative_binomial" and "gamma".
    :raises ArgumentError: names the argument and the fix.
    """
    if name not in FAMILIES:
        fix = elsewhere(str(name))
        raise ArgumentError(
            f"family={shown(name)} must be one of {', '.join(map(repr, FAMILIES))}" + (f"; {fix}" if fix else "")
        )
    kind = FAMILIES[name]
    if kind is Normal:
        if not 0 < scale < math.inf:
            raise ArgumentError(f"scale must be positive and finite, got {scale}")
        return Normal(float(scale))
    if kind in _VARIANCES:
        if concentration is None or not 0 < concentration < math.inf:
            raise ArgumentError(
                f"concentration={concentration}: family={name!r} needs a public one, positive and finite, which makes "
                f"the variance {_VARIANCES[kind]}; MarginalGLM learns it"
            )
        return (Gamma if kind is Gamma else NegativeBinomial)(float(concentration))
    if kind is Survival:
        return Survival(PiecewiseHazard(_rising(cutpoints, _TIMES)).cutpoints)
    return Ordinal(_rising(cutpoints, _LOG_ODDS)) if kind is Ordinal else kind()


_VARIANCES: dict[type[Family], str] = {
    NegativeBinomial: "mean + mean² / concentration",
    Gamma: "mean² / concentration",
}
_LOG_ODDS = (
    'family="ordinal" needs public ones, one fewer than the label has values; from public shares of the values, the '
    "log odds of their running sums"
)
_TIMES = (
    'family="survival" needs public times at which the baseline hazard may change, as (1.0, 5.0), or () for one that '
    "never does"
)


def _rising(cutpoints: Iterable[float] | None, wanted: str) -> tuple[float, ...]:
    if cutpoints is None:
        raise ArgumentError(f"cutpoints: {wanted}")
    if not isinstance(cutpoints, np.ndarray):
        require_collection("cutpoints", cutpoints, "rising numbers")
    try:
        found = tuple(float(point) for point in cutpoints)
    except (TypeError, ValueError):
        raise ArgumentError("cutpoints must be rising numbers") from None
    if not np.all(np.isfinite(found)) or not np.all(np.diff(found) > 0):
        raise ArgumentError(f"cutpoints must be finite and rising, got {found}")
    return found


def _refuse(place: Place, problem: str, fix: str) -> None:
    raise ArgumentError(f"label: {place} {problem}; {fix}")
