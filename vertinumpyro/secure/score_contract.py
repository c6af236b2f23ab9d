"""What every score function is: from the sums of the parties' contributions to the weights of their scores.

The contract that the range proofs, the clip and the stated error bounds rest on; `score_functions` has those there are.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, final

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vertinumpyro.core import ring
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.secure.arithmetic import Arithmetic
from vertinumpyro.secure.input_bounds import LARGEST_CONTRIBUTION


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
    normalised: ClassVar[bool]
    signed: ClassVar[bool]
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
