"""Score functions: how the parties' contributions to a record become the weights of their scores.

The parties' z_nk = sum_p z^p_nk is the same sum for every model; what is done with it is the link's. A record adds
g_n = sum_k (e_nk / den_n) s_nk with s_nk the derivatives of z_nk, so that g_n is the gradient of the link's
`log_density`. A mixture's e are the components' responsibilities before they are divided by their sum; a generalised
linear model has one component, and e is the residual at its predictor, the sum z_n1; several outcomes are as many
components (`JointLink`). What an outcome adds to that, as the y of y - sigmoid(z), its party alone knows: such numbers
stand behind the sums, `own_inputs` of them, and as the other parties contribute none, they are additive shares of
themselves.

Each secure arithmetic computes e from z in its own number format: a score function is one formula over an `Arithmetic`.

A residual has a sign, and there is one component for each outcome; `model.outcomes` has the same distributions as the
models write them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.core.types import MOST_OUTCOMES
from vertinumpyro.secure.input_bounds import renormalised
from vertinumpyro.secure.score_contract import MILLS_REACH, MOST_MILLS, Arithmetic, ScoreFunction, mills

ScoreLink = ScoreFunction
"""The name it had."""


@final
@dataclasses.dataclass(frozen=True)
class SoftmaxLink(ScoreFunction):
    """A mixture: z are log densities, e = exp(z - max_k z), and e / den the responsibilities."""

    name: ClassVar[str] = "softmax"
    normalised: ClassVar[bool] = True
    signed: ClassVar[bool] = False

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """Below the party's best component, which cancels."""
        return renormalised(contribution)

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        return arithmetic.exp_below_max(z)

    def log_density(self, z: jax.Array) -> jax.Array:
        return jax.scipy.special.logsumexp(z, axis=-1)


SOFTMAX = SoftmaxLink()
"""A mixture's link."""


@final
@dataclasses.dataclass(frozen=True)
class BernoulliLogitLink(ScoreFunction):
    """Logistic regression: e = y - sigmoid(z), of which y in [0, 1] is the outcome's party's own.

    |e| <= 1 in every arithmetic, as y and the computed sigmoid both lie in [0, 1]; sigmoid moves by a quarter of what
    z does.
    """

    name: ClassVar[str] = "bernoulli_logit"
    num_sums: ClassVar[int | None] = 1
    own_inputs: ClassVar[int] = 1

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        return z[..., 1:] - arithmetic.sigmoid_sum(z[..., :1])

    def log_density(self, z: jax.Array) -> jax.Array:
        """Of a Bernoulli outcome with z as its log odds."""
        return z[..., 1] * z[..., 0] - jax.nn.softplus(z[..., 0])


@final
@dataclasses.dataclass(frozen=True)
class OrderedLogitLink(ScoreFunction):
    """Ordered categories: e = 1 - sigmoid(z_1) - sigmoid(z_2).

    The sums are the predictor less the cut points above and below the outcome's category, of which the last has none
    above and the first none below: there the bound stands for infinity. -1 <= e <= 1, as each sigmoid is from 0 to 1.
    """

    name: ClassVar[str] = "ordered_logit"
    num_sums: ClassVar[int | None] = 2
    error_factor: ClassVar[float] = 2.0

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        return arithmetic.plus(-arithmetic.sigmoid_sum(z), 1)

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant of the outcome's category: log(1 - sigmoid(z_1)) + log sigmoid(z_2)."""
        return -jax.nn.softplus(z[..., 0]) - jax.nn.softplus(-z[..., 1])


@final
@dataclasses.dataclass(frozen=True)
class NormalLink(ScoreFunction):
    """Linear regression of a public scale: e = clip(-z, -1, 1), z = (eta - y) / (width scale).

    The outcome is part of the sum. Beyond `width` scales the residual is cut off, as in Huber's regression; the clip
    cuts a record off where its gradient is that long anyway.

    :param width: in scales.
    """

    name: ClassVar[str] = "normal"
    num_sums: ClassVar[int | None] = 1

    width: float

    @property
    def computed_as(self) -> str:
        """The width is in z."""
        return self.name

    @property
    def unit(self) -> float:
        """The scores are those of eta, times width / scale, and z is eta over as much."""
        return self.width**2

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        return arithmetic.clip(-z)

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant: Huber's, in units of the scale."""
        far = jnp.abs(z[..., 0])
        return -self.unit * jnp.where(far < 1, far**2 / 2, far - 0.5)


@final
@dataclasses.dataclass(frozen=True)
class PoissonLink(ScoreFunction):
    """Counts: e = y / most - exp(min(z, 0)), z = eta - log(most), of which y / most is the outcome's party's own.

    A rate above `most` counts as `most`, and so does a count: their residuals are bounded by it.

    :param most: the largest rate.
    """

    name: ClassVar[str] = "poisson"
    num_sums: ClassVar[int | None] = 1
    own_inputs: ClassVar[int] = 1

    most: float

    @property
    def computed_as(self) -> str:
        """The largest rate is in z."""
        return self.name

    @property
    def unit(self) -> float:
        """The residual is y - exp(eta)."""
        return self.most

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        return z[..., 1:] - arithmetic.capped_exp(z[..., :1])

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant of the outcome: y z - exp(z), or what goes on straight above 0, in units of `most`."""
        below, count = jnp.minimum(z[..., 0], 0), z[..., 1]
        return self.most * (count * z[..., 0] - jnp.exp(below) - jnp.maximum(z[..., 0], 0))


@final
@dataclasses.dataclass(frozen=True)
class NegativeBinomialLink(ScoreFunction):
    """Counts that vary more than a Poisson's: e = y' - (y' + r') sigmoid(z), z = eta - log(r), r the concentration.

    The residual is y - (y + r) sigmoid(z), from -r to y; y' and r' are y and r over the `unit`, or over any number that
    is larger than both, and the outcome's party's own: y' is from 0 to 1, r' to 1 - 2^-16. So e is from -r' to 1, but
    for roundings of less than three units of e's format below: 16 of the coarsest, 2^-20, are between -r' and -1. e
    moves by half of what z does at most.

    :param most: the largest count.
    :param concentration: r.
    """

    name: ClassVar[str] = "negative_binomial"
    num_sums: ClassVar[int | None] = 1
    own_inputs: ClassVar[int] = 2
    error_factor: ClassVar[float] = 2.5  # twice a sigmoid's, and two roundings

    most: float
    concentration: float

    @property
    def unit(self) -> float:
        return max(self.most, self.concentration) * (1 + 2.0**-16)

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """See `ScoreFunction.bounded`; r' below 1, or roundings could take e below -1."""
        numbers = super().bounded(contribution)
        return numbers.at[..., 2].set(jnp.minimum(numbers[..., 2], 1 - 2.0**-16))

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        return z[..., 1:2] - arithmetic.portion(z[..., 1:2] + z[..., 2:], arithmetic.sigmoid_sum(z[..., :1]))

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant of the outcome."""
        both = z[..., 1] + z[..., 2]
        return self.unit * (z[..., 1] * z[..., 0] - both * jax.nn.softplus(z[..., 0]))


@final
@dataclasses.dataclass(frozen=True)
class GammaLink(ScoreFunction):
    """Positive amounts: e = exp(min(-z, 0)) - 1 / most, z = eta - log(y) + log(most), of which y is in the sum.

    The residual is r (y exp(-eta) - 1), r the concentration. An amount of more than `most` times its mean counts as
    that, so e is from -1 / most to 1 - 1 / most, and moves by no more than z does.

    :param most: more than 1.
    :param concentration: r.
    """

    name: ClassVar[str] = "gamma"
    num_sums: ClassVar[int | None] = 1
    error_factor: ClassVar[float] = 2.0  # an exponential's, and the rounding of a number

    most: float
    concentration: float

    @property
    def unit(self) -> float:
        return self.concentration * self.most

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        return arithmetic.plus(arithmetic.capped_exp(-z), -1 / self.most)

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant of the outcome; straight where the amount counts as the largest."""
        predictor = z[..., 0]
        far = -jnp.exp(-jnp.maximum(predictor, 0)) + jnp.minimum(predictor, 0)
        return self.unit * (far - predictor / self.most)


@final
@dataclasses.dataclass(frozen=True)
class OwnFactorLink(ScoreFunction):
    """A factor exp(y z): e = y in [0, 1], the outcome's party's own, which nothing is computed for."""

    name: ClassVar[str] = "own_factor"
    num_sums: ClassVar[int | None] = 1
    own_inputs: ClassVar[int] = 1

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        return z[..., 1:]

    def log_density(self, z: jax.Array) -> jax.Array:
        return z[..., 1] * z[..., 0]


@final
@dataclasses.dataclass(frozen=True)
class BernoulliProbitLink(ScoreFunction):
    """Probit regression: e = s L(s z) / `MOST_MILLS`, s = 2 y - 1, of which y is the outcome's party's own.

    The residual is s L(s z), L the Mills ratio (`arithmetic`). The sign s is one party's own, so that t = s z is one
    product of integers, exact.
    """

    name: ClassVar[str] = "bernoulli_probit"
    num_sums: ClassVar[int | None] = 1
    own_inputs: ClassVar[int] = 1

    @property
    def unit(self) -> float:
        return MOST_MILLS

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """See `ScoreFunction.bounded`; y is one or the other."""
        numbers = super().bounded(contribution)
        return jnp.concatenate([numbers[..., :1], jnp.where(numbers[..., 1:] < 0.5, 0.0, 1.0)], axis=-1)

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        sign = arithmetic.sign(z[..., 1:])
        return arithmetic.times(sign, arithmetic.mills_ratio(arithmetic.times(sign, z[..., :1])))

    def log_density(self, z: jax.Array) -> jax.Array:
        """Of a Bernoulli outcome of probability Phi(z); straight beyond `MILLS_REACH`."""
        t = z[..., 0] * (2 * z[..., 1] - 1)
        within = jnp.clip(t, -MILLS_REACH, MILLS_REACH)
        return log_ndtr(within) + mills(within) * (t - within)


def joint_link(links: Sequence[ScoreFunction], owners: Sequence[int]) -> ScoreFunction:
    """The link of outcomes, of one its own.

    :param owners: each outcome's party, by number.
    """
    return links[0] if len(links) == 1 else JointLink(tuple(links), tuple(owners))


@final
@dataclasses.dataclass(frozen=True)
class JointLink(ScoreFunction):
    """e_o of each outcome, by its own link; |e_o| <= 1 in every arithmetic, as it is there.

    :param links: signed links of one outcome each, two to `MOST_OUTCOMES` of them.
    :param owners: each outcome's party, by number: who alone contributes the outcome's own numbers.
    """

    name: ClassVar[str] = "joint"

    links: tuple[ScoreFunction, ...]
    owners: tuple[int, ...]

    def __post_init__(self) -> None:
        """Checks that a clip is proved for them.

        :raises ArgumentError: says what to give instead.
        """
        if not 2 <= len(self.links) <= MOST_OUTCOMES or len(self.owners) != len(self.links):
            raise ArgumentError(
                f"links: {len(self.links)} outcomes with {len(self.owners)} owners; give 2 to {MOST_OUTCOMES}, and the "
                "party of each"
            )
        for link in self.links:
            if not link.signed or link.num_sums is None or link.num_outcomes > 1:
                raise ArgumentError(f"links: {link.name!r} is not the residual of one outcome; give links that are")

    @property
    def num_outcomes(self) -> int:
        return len(self.links)

    @property
    def units(self) -> tuple[float, ...]:
        return tuple(link.unit for link in self.links)

    @property
    def num_sums(self) -> int:
        """Of all outcomes."""
        return sum(link.num_sums or 0 for link in self.links)

    @property
    def own_inputs(self) -> int:
        """Of all outcomes."""
        return sum(link.own_inputs for link in self.links)

    @property
    def error_factor(self) -> float:
        """The largest of theirs."""
        return max(link.error_factor for link in self.links)

    def padded(self, contribution: jax.Array, num_components: int, party: int | None = None) -> jax.Array:
        sums = contribution[..., : self.num_sums]
        blocks, start = [sums], self.num_sums
        for link, owner in zip(self.links, self.owners, strict=True):
            if owner == party:
                blocks.append(contribution[..., start : start + link.own_inputs])
                start += link.own_inputs
            else:
                blocks.append(jnp.zeros((*contribution.shape[:-1], link.own_inputs), contribution.dtype))
        return jnp.concatenate(blocks, axis=-1)

    def check_inputs(self, widths: Sequence[int], of_prior: int, num_components: int) -> None:
        """See `ScoreFunction.check_inputs`; every party has the own numbers of its outcomes."""
        wanted = [self.num_sums + own for own in self._own_of(len(widths))]
        if list(widths) != wanted or of_prior != self.num_sums or max(self.owners) >= len(widths):
            raise ArgumentError(
                f"the link {self.name!r} takes {wanted} numbers of the parties and {self.num_sums} of the prior; got "
                f"{list(widths)} and {of_prior}"
            )

    def _own_of(self, num_parties: int) -> list[int]:
        """How many numbers of their own the parties have."""
        held = list(zip(self.links, self.owners, strict=True))
        return [sum(link.own_inputs for link, owner in held if owner == party) for party in range(num_parties)]

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """See `ScoreFunction.bounded`; each outcome's numbers by its own link."""
        pairs = zip(self.links, self._of_links(contribution, jnp.concatenate), strict=True)
        found = [(link, link.bounded(numbers)) for link, numbers in pairs]
        sums = [numbers[..., : link.num_sums] for link, numbers in found]
        return jnp.concatenate([*sums, *(numbers[..., link.num_sums :] for link, numbers in found)], axis=-1)

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        """See `ScoreFunction.weights`; links that are computed alike are computed at once, and share their rounds."""
        numbers = self._of_links(z, arithmetic.concatenate)
        alike: dict[Any, list[int]] = {}
        for outcome, link in enumerate(self.links):
            alike.setdefault((type(link), link.computed_as), []).append(outcome)
        found: dict[int, Any] = {}
        for outcomes in alike.values():
            together = arithmetic.stack([numbers[outcome] for outcome in outcomes], -2)
            e = self.links[outcomes[0]].weights(arithmetic, together)
            found |= {outcome: e[..., place, :] for place, outcome in enumerate(outcomes)}
        return arithmetic.concatenate([found[outcome] for outcome in range(len(self.links))], -1)

    def log_density(self, z: jax.Array) -> jax.Array:
        pairs = zip(self.links, self._of_links(z, jnp.concatenate), strict=True)
        return sum((link.log_density(numbers) for link, numbers in pairs), start=jnp.zeros(z.shape[:-1], z.dtype))

    def described(self) -> dict[str, Any]:
        return {"name": self.name, "links": [link.described() for link in self.links], "owners": list(self.owners)}

    def _of_links(self, z: Any, beside: Callable[..., Any]) -> list[Any]:
        """Each link's own z."""
        sums = list(itertools.accumulate((link.num_sums or 0 for link in self.links), initial=0))
        own = list(itertools.accumulate((link.own_inputs for link in self.links), initial=self.num_sums))
        ranges = zip(itertools.pairwise(sums), itertools.pairwise(own), strict=True)
        return [beside([z[..., a:b], z[..., c:d]], -1) for (a, b), (c, d) in ranges]


_KINDS: tuple[type[ScoreFunction], ...] = (
    SoftmaxLink,
    BernoulliLogitLink,
    BernoulliProbitLink,
    OrderedLogitLink,
    NormalLink,
    PoissonLink,
    NegativeBinomialLink,
    GammaLink,
    OwnFactorLink,
    JointLink,
)

LINKS: dict[str, type[ScoreFunction]] = {kind.name: kind for kind in _KINDS}
"""All of them."""


def link_of(words: Mapping[str, Any]) -> ScoreFunction:
    """What `ScoreFunction.described` wrote.

    :raises BackendError: this version has no such link.
    """
    if words["name"] not in LINKS:
        raise BackendError(f"the link {words['name']!r} is unknown here; run the same versions everywhere")
    if words["name"] == JointLink.name:
        return JointLink(tuple(link_of(of_one) for of_one in words["links"]), tuple(words["owners"]))
    return LINKS[words["name"]](**{name: value for name, value in words.items() if name != "name"})
