"""The link of several outcomes: each one's own, side by side, so that a record has a residual for each of them.

A component stands for an outcome, and a record adds sum_o e_o s_o, s_o the derivatives of the outcome's sums. z is all
links' sums, and behind them the numbers of their own that the outcomes' parties have. Every party clips its scores for
all residuals together (`local_clip`), whatever signs these have.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import MOST_OUTCOMES
from vertinumpyro.secure.arithmetic import Arithmetic
from vertinumpyro.secure.link import ScoreLink

__all__ = ["JointLink", "joint_link"]


def joint_link(links: Sequence[ScoreLink], owners: Sequence[int]) -> ScoreLink:
    """The link of outcomes, of one its own.

    :param owners: each outcome's party, by number.
    """
    return links[0] if len(links) == 1 else JointLink(tuple(links), tuple(owners))


@final
@dataclasses.dataclass(frozen=True)
class JointLink(ScoreLink):
    """e_o of each outcome, by its own link; |e_o| <= 1 in every arithmetic, as it is there.

    :param links: signed links of one outcome each, two to `MOST_OUTCOMES` of them.
    :param owners: each outcome's party, by number: who alone contributes the outcome's own numbers.
    """

    name: ClassVar[str] = "joint"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True

    links: tuple[ScoreLink, ...]
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
        """O."""
        return len(self.links)

    @property
    def units(self) -> tuple[float, ...]:
        """Of each outcome."""
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
        """With zeros for other parties' own numbers, among this one's."""
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
        """See `ScoreLink.check_inputs`; every party has the own numbers of its outcomes."""
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
        """See `ScoreLink.bounded`; each outcome's numbers by its own link."""
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
        """Of all outcomes."""
        pairs = zip(self.links, self._of_links(z, jnp.concatenate), strict=True)
        return sum((link.log_density(numbers) for link, numbers in pairs), start=jnp.zeros(z.shape[:-1], z.dtype))

    def described(self) -> dict[str, Any]:
        """See `ScoreLink.described`."""
        return {"name": self.name, "links": [link.described() for link in self.links], "owners": list(self.owners)}

    def _of_links(self, z: Any, beside: Callable[..., Any]) -> list[Any]:
        """Each link's own z."""
        sums = list(itertools.accumulate((link.num_sums or 0 for link in self.links), initial=0))
        own = list(itertools.accumulate((link.own_inputs for link in self.links), initial=self.num_sums))
        ranges = zip(itertools.pairwise(sums), itertools.pairwise(own), strict=True)
        return [beside([z[..., a:b], z[..., c:d]], -1) for (a, b), (c, d) in ranges]
