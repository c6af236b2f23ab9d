"""Second moments of the parties' scores, released once: each party's part, and the noisy matrix that everybody gets.

A party's scores are the derivatives of its part of a `party_sum` by its latents. Where the part is linear in them, they
do not depend on where the latents are, so one release says how steep the likelihood can be for all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat, row_blocks
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import RowBlocks
from vertinumpyro.data.table import model_units
from vertinumpyro.dpvi.moments_plan import SCORE_BITS, MomentsPlan
from vertinumpyro.model import SplitModel
from vertinumpyro.privacy import sample_discrete_gaussian
from vertinumpyro.session import Payload, Run, Session, Work

__all__ = ["MomentsWork", "NoisyMoments", "noisy_moments", "on_grid", "scores_of", "widths_of"]

OWN, ACROSS = "own moments", "moments across parties"
_OWN, _ACROSS = 0, 1  # steps of the plan
_HUGE = 1e30

Words = Mapping[str, Any]


class NoisyMoments(NamedTuple):
    """What is released; public.

    matrix: sum xx' and noise `[D, D]`, symmetric, x the scores in the order of a step's released vector.
    stddev: of the noise in an entry, root mean square.
    """

    matrix: np.ndarray
    stddev: float


def widths_of(split: SplitModel) -> tuple[int, ...]:
    """How many scores each party has."""
    return tuple(sum(math.prod(split.structure.latents[name]) for name in split.shared[p]) for p in split.parties)


def scores_of(split: SplitModel, party: str) -> Callable[[Any, Mapping[str, Any]], jax.Array]:
    """From flat theta and the party's columns [n] to its derivatives of the predictor [n, d], compiled once."""
    (summed,) = split.structure.summed
    unit = summed.outcome.unit

    def derivatives(flat: jax.Array, columns: Mapping[str, Any]) -> jax.Array:
        return split.contribution(party, flat, columns).shared_scores[:, 0] / unit

    key = f"scores of {party}"
    if key not in split.compiled:
        split.compiled[key] = jax.jit(derivatives)
    return split.compiled[key]


def on_grid(scores: np.ndarray, radius: float, longest: int) -> np.ndarray:
    """Scores [n, d] as whole numbers of 2^-SCORE_BITS radius, int64, whose squares add up to `longest` at most.

    What is longer is scaled down; numbers are cut off towards 0, which makes none longer. float64 errs by less than
    2^-40 of a norm of a million numbers, and what is scaled is scaled to 2^-30 less.
    """
    finite = np.clip(np.nan_to_num(scores.astype(np.float64), posinf=0.0, neginf=0.0), -_HUGE, _HUGE)
    units = finite * (2.0**SCORE_BITS / radius)
    most = np.sqrt(float(longest)) * (1 - 2.0**-30)
    norms = np.sqrt(np.sum(units**2, axis=1, keepdims=True))
    return np.trunc(units * np.minimum(1.0, most / np.maximum(norms, 1.0))).astype(np.int64)


@final
class MomentsWork(Work):
    """One party's part: its own moments with its noise, its scores in the products across, its noise on them.

    :param split: the model.
    :param plan: the plan of the moments.
    :param party: whose part this is.
    :param columns: its encoded columns [N]. Secret.
    :param source: its own randomness.
    """

    def __init__(
        self, split: SplitModel, plan: MomentsPlan, party: str, columns: Mapping[str, np.ndarray], source: RandomSource
    ) -> None:
        self._plan, self._party, self._source = plan, party, source
        self._width = plan.widths[plan.parties.index(party)]
        self._columns, self._scores = columns, scores_of(split, party)
        self._flat = jnp.zeros(split.num_parameters)
        self._user_x64 = compat.user_has_x64()

    def check(self, step: int | None, do: str, what: str, words: Words) -> None:
        """See `Work.check`: own moments, then those across parties where there are several."""
        if (step, do, what) not in [(_OWN, "publish", OWN), (_ACROSS, "cross_products", ACROSS)] or words:
            raise self.refused(step, do, what)

    def publish(self, what: str, words: Words) -> Payload:
        """The products of its own scores, in grid units, with noise that nobody else knows.

        With zeros behind them, so that all parties' are of one size: a rehearsal has its own in the others' place.
        """
        (products,) = row_blocks.products([self.factor(what, words)], [(0, 0)])
        noise = np.triu(self._drawn(self._plan.own_variance, products.size).reshape(products.shape), 1)
        squares = self._drawn(2 * self._plan.own_variance, self._width)
        noisy = products + noise + noise.T + np.diag(squares)
        return Payload({}, {"products": np.pad(noisy, (0, max(self._plan.widths) - self._width))})

    def factor(self, what: str, words: Words) -> RowBlocks:
        """The party's scores on the grid, by this process: workers could not be sent anybody's model."""
        return RowBlocks((self._plan.num_records, self._width), 2**SCORE_BITS, dict(self._columns), self._on_grid)

    def widths(self, what: str, words: Words) -> tuple[int, ...]:
        """Every party's number of scores."""
        return self._plan.widths

    def noise(self, what: str, words: Words, size: int) -> np.ndarray:
        """The party's share for every two parties, flat."""
        if self._plan.noise.num_shares == 1 and self._plan.parties[0] != self._party:
            return np.zeros(size, np.int64)  # trusted noise, of which there is one share
        return self._drawn(self._plan.share_variance, size)

    def _on_grid(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        own = {name: jnp.asarray(model_units(np.asarray(column))) for name, column in columns.items()}
        with compat.precision(self._user_x64):
            scores = np.asarray(self._scores(self._flat, own))
        return on_grid(scores, self._plan.radius, self._plan.longest(self._party))

    def _drawn(self, variance: int, size: int) -> np.ndarray:
        return sample_discrete_gaussian(variance, size, self._source) if size else np.zeros(0, np.int64)

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"MomentsWork({self._party!r})"


def noisy_moments(session: Session, run: Run, plan: MomentsPlan) -> NoisyMoments:
    """Release the moments as the first steps of a run whose plan begins with this one. Nothing else leaves the parties.

    :raises PlanSpentError: a part was counted as released by a run that stopped, and is not stored.
    """

    own = session.arrays_of(run, _OWN, lambda: _own(session, plan))
    across = session.arrays_of(run, _ACROSS, lambda: _across(session)) if plan.crosses else {}
    starts = np.cumsum([0, *plan.widths])
    matrix = np.zeros((starts[-1], starts[-1]))
    for name, block in {**own, **across}.items():
        i, j = (slice(starts[int(number)], starts[int(number) + 1]) for number in name.split("_")[1:])
        matrix[i, j], matrix[j, i] = block, block.T
    return NoisyMoments(matrix * (plan.radius**2 / 4.0**SCORE_BITS), plan.stddev)


def _own(session: Session, plan: MomentsPlan) -> dict[str, np.ndarray]:
    released = zip(session.publish(_OWN, OWN, {}), plan.widths, strict=True)
    return {f"block_{k}_{k}": one.arrays["products"][:width, :width] for k, (one, width) in enumerate(released)}


def _across(session: Session) -> dict[str, np.ndarray]:
    return {f"block_{i}_{j}": block for (i, j), block in session.cross_products(_ACROSS, ACROSS, {}).items()}
