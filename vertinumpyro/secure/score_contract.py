"""What every score function is: from the sums of the parties' contributions to the weights of their scores.

The contract that the range proofs, the clip and the stated error bounds rest on; `score_functions` has those there are.

A score function is one formula over an `Arithmetic`, which every backend fills in for its own numbers. z, the sums of
the parties' contributions, has one number format of its own, and the weights e have another; a party's own numbers
behind the sums are in that of e.

**The Mills ratio.** L(t) = phi(t) / Phi(t), the derivative of log Phi, falls from about -t to 0. t below -6 counts as
-6, and above 6 as 6, so that L is bounded by `MOST_MILLS` = L(-6). L / `MOST_MILLS` is a Chebyshev sum in t / 6 where
there is one process or SPU, of 40 or of 30 terms: within 6e-10 or 7e-8. Clenshaw's recurrence multiplies a rounding by
at most the square of that many; ring: 1700 2^-40 and 40 2^-41 for the coefficients, with the last cut 3.2e-9 in all,
below 4 2^-30; SPU: 1000 2^-34, and 2^-20: 1.2e-6. On CrypTen's shares it is a series of the waves of `crypten.sigmoid`,
within 1.4e-8 and 1.2e-7 for their roundings. The coefficients are fitted, so their error is looked at and not derived:
the waves' on a grid whose gaps a second derivative bounds, the ring's on one of 2^-13, SPU's at 300 points. Accuracy
alone rests on that, no bound of the clip.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float, Int

from vertinumpyro.core import ring
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.secure.input_bounds import LARGEST_CONTRIBUTION

MILLS_REACH = 6
MOST_MILLS = 6.158482604544618

MILLS_COEFFICIENT_BITS = 40
MILLS_COEFFICIENTS = (
    *(372971733328, -558314736221, 198127025003, 13397084233, -26108676968, -7318456576, 5743512541, 3600982849),
    *(-1018957027, -1549820414, -74903062, 557064908, 202691114, -148976732, -127604255, 15240849, 55074570, 13005807),
    *(-17075603, -11088971, 2788483, 5336909, 805102, -1803033, -959348, 361684, 504370, 39583, -182580, -80909, 42134),
    *(46622, 309, -18036, -6583, 4659, 4229, -298, -1751, -512, 498),
)
"""Of L(6 x) / `MOST_MILLS` on [-1, 1], times 2^40."""


@runtime_checkable
class Arithmetic(Protocol):
    """Operations on a batch's numbers [n, ...]. Beside them there are +, - and products with public whole numbers.

    What gives e is off by no more than the stated error of the arithmetic: `ring.EXP_MAX_ERROR_ULP` units of 2^-30 on
    integers, `crypten.number_formats.EXP_ERROR` on CrypTen's shares, 4e-6 with SPU. Its bounds are exact everywhere,
    but for one unit with CrypTen where it says so. Nothing that is not uniformly masked is opened.
    """

    def exp_below_max(self, z: Any, halvings: int = 0) -> Any:
        """exp((z - max z) 2^-halvings) over the last axis, in the format of e: from 0 to 1, and 1 where z is largest.

        With CrypTen the largest may be a unit more.
        """
        ...

    def capped_exp(self, z: Any) -> Any:
        """exp(min(z, 0)) in the format of e, from 0 to 1; with CrypTen it may be a unit more."""
        ...

    def sigmoid_sum(self, z: Any) -> Any:
        """The sum of sigmoid(z) over the last axis, kept, in the format of e: from 0 to the axis's length."""
        ...

    def clip(self, z: Any) -> Any:
        """clip(z, -1, 1) in the format of e."""
        ...

    def mills_ratio(self, t: Any) -> Any:
        """phi(t) / Phi(t) over `MOST_MILLS`, t in the format of z, in that of e; with CrypTen it may be a unit off."""
        ...

    def sign(self, own: Any) -> Any:
        """2 y - 1 as a whole number, of y in {0, 1} that one party alone has, in the format of e."""
        ...

    def times(self, sign: Any, x: Any) -> Any:
        """Such a sign times a number of any format, exactly."""
        ...

    def portion(self, x: Any, e: Any) -> Any:
        """A number of [0, 2] times e of [0, 1], both in the format of e: off by less than a unit, and not below 0."""
        ...

    def plus(self, e: Any, number: float | int) -> Any:
        """A public number added, rounded to the format of e."""
        ...

    @staticmethod
    def stack(arrays: Sequence[Any], axis: int, /) -> Any:
        """As NumPy's."""
        ...

    @staticmethod
    def concatenate(arrays: Sequence[Any], axis: int, /) -> Any:
        """As NumPy's."""
        ...


def mills(t: jax.Array) -> jax.Array:
    """phi(t) / Phi(t) in floating point."""
    return jnp.exp(-(t**2) / 2 - math.log(2 * math.pi) / 2 - log_ndtr(t))


def chebyshev_sum(x: jax.Array, coefficients: Any, product: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """The Chebyshev sum at x by Clenshaw's recurrence, in the format of its coefficients.

    :param product: x times such a number.
    """
    after, now = jnp.zeros_like(x), jnp.full_like(x, int(coefficients[-1]))
    for coefficient in np.asarray(coefficients)[-2:0:-1].tolist():
        after, now = now, coefficient + 2 * product(x, now) - after
    return int(coefficients[0]) + product(x, now) - after


class ScoreFunction(abc.ABC):
    """From the sum of the parties' contributions z [n, Z] to the weights e [n, K] of their scores.

    Z is K, or `num_sums` where that is given, and `own_inputs` more, which one party alone contributes.

    A subclass is a frozen dataclass of public numbers, one line in `LINKS`. The range proofs, the clip and the
    stated error bounds hold for every link that keeps this contract, whatever the columns hold:

    - `bounded` gives finite numbers of magnitude at most `input_bounds.LARGEST_CONTRIBUTION`;
    - **normalised** (a mixture): 0 <= e <= 1, and den = sum_k e_k >= 1, so den >= e. den enters the clip as
      max(den^2, nn / C^2), nn = || sum_k e_k s_k ||^2;
    - **not normalised** (a residual): -1 <= e <= 1 and den = 1. A residual bounded by another B enters as r / B beside
      scores times B, which is the same sum;
    - **signed**: e may be negative. Then K is `num_outcomes` and the link is not normalised. With K above 1 each party
      clips its own scores: rounding squared norms up bounds a record's norm only where no two weights have opposite
      signs;
    - the derivative of `log_density` by z is e / den; with `num_sums`, that by all sums of an outcome at once is its
      one of `units` times its e;
    - e moves by at most as much as the largest z_k does, besides the error that the arithmetic adds;
    - numbers of one party's own are at most 1 in magnitude, and in the number format of e.

    What e is exactly never matters to the clip of a whole record: nn is computed from the very e that the scores are
    multiplied by. Where each party clips its own scores (`number_formats`), the proof rests on -1 <= e <= 1 as well.

    :cvar name: what messages between processes call it.
    :cvar num_sums: how many sums there are; None for one of each component.
    :cvar own_inputs: how many numbers one party has beside them.
    :cvar error_factor: how many times the stated error of an arithmetic's operations e may be off.
    """

    name: ClassVar[str]
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    num_sums: ClassVar[int | None] = None
    own_inputs: ClassVar[int] = 0
    error_factor: ClassVar[float] = 1.0

    @property
    def unit(self) -> float:
        """What the parties' scores were multiplied by, so that e is from -1 to 1."""
        return 1.0

    @property
    def units(self) -> tuple[float, ...]:
        """The same for each outcome."""
        return (self.unit,)

    @property
    def num_outcomes(self) -> int:
        """Of a signed link: K."""
        return 1

    @property
    def computed_as(self) -> Any:
        """Equal for links whose e is the same function of z: several outcomes of such share their rounds."""
        return self

    def bounded(self, contribution: Float[Array, "n Z"]) -> Float[Array, "n Z"]:
        """One party's contribution, or the prior's, under the public bound; computed by the party itself.

        It may take off a number that is the same for all components, where that cancels in e / den. One's own numbers
        are there at one party only. Unless a link says otherwise, sums are bounded, own numbers are from 0 to 1, and
        what is no number counts as 0.
        """
        numbers, num_sums = jnp.where(jnp.isnan(contribution), 0.0, contribution), self.num_sums or 0
        sums = jnp.clip(numbers[..., :num_sums], -LARGEST_CONTRIBUTION, LARGEST_CONTRIBUTION)
        return jnp.concatenate([sums, jnp.clip(numbers[..., num_sums:], 0.0, 1.0)], axis=-1)

    @abc.abstractmethod
    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        """E [n, K] of z [n, Z], one formula for every arithmetic; its error and bounds are its operations'.

        That error may be `error_factor` times that of one operation. den itself is at least 1, and e at most 1, and a
        unit with CrypTen, with either sign.
        """

    @abc.abstractmethod
    def log_density(self, z: Float[Array, "... Z"]) -> Float[Array, " ..."]:
        """What a record adds to the objective, log p(x_n | theta) up to a constant."""

    @final
    def sums_of(self, num_components: int) -> int:
        """How many sums the parties make together."""
        return num_components if self.num_sums is None else self.num_sums

    @final
    def num_inputs(self, num_components: int) -> int:
        """Z."""
        return self.sums_of(num_components) + self.own_inputs

    @final
    def contributed(
        self, contribution: Float[Array, "n _"], num_components: int, party: int | None = None
    ) -> Float[Array, "n Z"]:
        """What a party puts in: `bounded`, of zeros in the place of numbers that it has not.

        :param party: its number; None for the prior.
        """
        return self.bounded(self.padded(contribution, num_components, party))

    def padded(
        self, contribution: Float[Array, "... _"], num_components: int, party: int | None = None
    ) -> Float[Array, "... Z"]:
        """With zeros in the place of numbers that the party has not."""
        missing = self.num_inputs(num_components) - contribution.shape[-1]
        if not missing:
            return contribution
        return jnp.pad(contribution, [(0, 0)] * (contribution.ndim - 1) + [(0, missing)])

    @final
    def total(self, prior: Float[Array, " S"], parts: Sequence[Float[Array, "n _"]]) -> Float[Array, "n Z"]:
        """Z of the parties' contributions as they are: for the density, which nothing bounds."""
        num_components = prior.shape[0]  # of a mixture; a link with `num_sums` does not ask
        padded = (self.padded(part, num_components, party) for party, part in enumerate(parts))
        return sum(padded, start=self.padded(prior, num_components))

    @final
    def encoded(self, contributed: Float[Array, "... Z"], z_bits: int, weight_bits: int) -> Int[Array, "... Z"]:
        """As ring elements: sums with `z_bits`, and one party's own numbers as e will be, with `weight_bits`."""
        if not self.own_inputs:
            return ring.encode_short(contributed, z_bits)
        sums, own = contributed[..., : -self.own_inputs], contributed[..., -self.own_inputs :]
        return jnp.concatenate([ring.encode_short(sums, z_bits), ring.encode_short(own, weight_bits)], axis=-1)

    @final
    def check_components(self, num_components: int) -> None:
        """Checks that the proofs hold for so many components.

        :raises ArgumentError: a signed link is given another number than it has outcomes.
        """
        if self.signed and num_components != self.num_outcomes:
            raise ArgumentError(
                f"num_components is {num_components}, and the weights of the link {self.name!r} have signs, for which "
                f"the clip is proved with one component for each outcome; set num_components to {self.num_outcomes}"
            )

    def check_inputs(self, widths: Sequence[int], of_prior: int, num_components: int) -> None:
        """Checks how many numbers each party, and the prior, contribute: one party alone has its own.

        :raises ArgumentError: they are others.
        """
        sums, most = self.sums_of(num_components), self.num_inputs(num_components)
        if sorted(widths) != [sums] * (len(widths) - 1) + [most] or of_prior != sums:
            raise ArgumentError(
                f"the link {self.name!r} takes {sums} numbers of each party and of the prior, and {most - sums} more "
                f"of one party; got {list(widths)} and {of_prior}"
            )

    def described(self) -> dict[str, Any]:
        """As plain data, for a message; `link_of` reads it."""
        return {"name": self.name, **vars(self)}
