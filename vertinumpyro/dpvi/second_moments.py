"""Second moments of the parties' scores, released once: their plan, each party's part, the matrix that all get.

A party's scores are the derivatives of its part of a `party_sum` by its latents. Where the part is linear in them, they
do not depend on where the latents are, so one release says how steep the likelihood can be for all steps
(`dpvi.accelerated_newton`).

A record's scores are x = (x^1, ..., x^P), a block at each party, which scales it down and rounds it so that |x^p|^2 <=
R^2 part_p, with parts that add up to 1: so |x| <= R. Released is the sum of xx' / R^2: each party's own block by that
party, with its own noise, and every block of two parties by a secure product, with a share of noise from each.

**Sensitivity.** Squares get noise of twice the variance, so they count half, and norms are half-norms of xx':
½|xx' - ww'|^2 = ½|x|^4 + ½|w|^4 - (x·w)^2 <= R^4 where one record replaces another, and ½|x|^4 <= ½ R^4 where its
contribution is zeroed. So Δ^2 = 1 and 1/2, in units of R^2.

**Offsets.** A part may add something to the predictor without a coefficient: a column's offset, or the logarithm of an
exposure. How much a record says depends on it: of counts over a time t the curvature by the predictor is t exp(x'beta).
So the party has it as one score more: o, moved and scaled to u = (o - middle) / half and cut to [-1, 1]. Its length is
within the party's part of R^2 as that of all others is, so all of the above holds of it. What is released says then
where offsets lie, how far they are spread and how they go with the columns of all parties, and the posterior has the
sum of middles and half u in its predictor, with coefficients that are known (`dpvi.noise_aware`).

Middle and half are public: what offsets stand-in records have, but for the outermost hundredth on each side. A count
over a hundredth of the longest time says almost nothing, so of counts what is below counts as that. What is cut is u
alone; the steps have every record's own offset as it is.

**When events were, or how large counts are** (`dpvi.outcome_tables`): the outcome's party may publish a table beside
its own block, in each cell c for every record, c <= `CELL`, 2 CELL^2 <= 2^(4 SCORE_BITS), with the own blocks' noise.
One record replaced by another moves it by at most sqrt(2) c <= c / CELL in units of R^2, zeroed by c <= sqrt(1/2) c /
CELL. So Δ^2 is (c / CELL)^2 and half of that more for each table. Of events c is CELL, of counts a quarter of it.

**Whitened scores** (`dpvi.whitening`). Each party then publishes its own moments first, with noise of twice the
standard deviation, and from them follows W: what x is from there on is W'x, scaled down like scores, of which all of
the above is released and holds. The first moments of one record, squared, are at most the sum of all (R^2 part_p)^2,
which counts a fourth: so Δ^2 is larger by a fourth of the sum of part_p^2, or half of that.

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
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, final

import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat, row_blocks
from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import RowBlocks
from vertinumpyro.data.table import model_units
from vertinumpyro.dpvi.outcome_tables import CountCells, EventTimes
from vertinumpyro.model import SplitModel
from vertinumpyro.model.split import Offset, offsets_at, scores_of, stand_in_scores
from vertinumpyro.privacy import (
    Adversary,
    AdversaryRow,
    GaussianEvent,
    GradientPlan,
    NeighbouringRelation,
    NoiseSource,
    Release,
    sample_discrete_gaussian,
)
from vertinumpyro.privacy.accounting import rounded_up_multiplier
from vertinumpyro.privacy.adversary import gaussian_parameter, smallest_share_variance
from vertinumpyro.privacy.discrete_gaussian import require_drawable
from vertinumpyro.privacy.plan import PartOfPlan, Plan, check_delta, check_party_names, check_target
from vertinumpyro.secure.input_form import Columns, InputForm
from vertinumpyro.session import Multiply, PartyComputation, Payload, Publish, ReleaseRequest, Run, Session, Sum
from vertinumpyro.session.run import published

MOST_COEFFICIENTS = 1500
"""Up to which H is inverted and kept in the steps' state."""

NUM_STEPS = 20


@final
@dataclasses.dataclass(frozen=True)
class SecondMoments:
    """`DPVI(model, warm_start=SecondMoments())`: a `party_sum` learned in 20 steps, where each takes all records.

    For models whose parts of the sum are linear in the latents: splines, products of a party's own columns and terms of
    its own are, `scale * coefficients` of two latents is not. What is learned is a point (`AutoDelta`), the mode under
    the model's priors; where a prior's density has no Hessian that holds everywhere, that of the start is taken.

    :param share: part of mu^2 for the moments: directions that their noise hides are stepped along with care. None
        takes a tenth where N is large against that noise, and up to three tenths where it is not: there intervals are
        as wide as the moments leave them. With `events` it takes a quarter at least.
    :param events: of a survival's outcome, what a table of when events were is of; without it, a model of whether an
        event was seen whose part has an offset, as the time at risk, has no intervals.
    :param counts: whether the party of an outcome that is a count publishes a small table of it first, from which
        follows to what residuals are cut: a sixteenth more of the moments' sensitivity, squared, for steps whose noise
        hides less. None does so where neither clip_norm nor residual_bound was given.
    :param whiten: whether each party's scores are whitened by its released moments before they are clipped: the noise
        then hides less where columns repeat each other, or fill a small part of their public bounds (`dpvi.whitening`).
        None does so where it can be: without `events`, in up to 300 parameters, each read by one party.
    :raises ArgumentError: the share is not between 0 and 1, or scores cannot be whitened.
    """

    share: float | None = None
    events: EventTimes | None = None
    counts: bool | None = None
    whiten: bool | None = None

    def __post_init__(self) -> None:
        if self.whiten and self.events is not None:
            raise ArgumentError("whiten=True is for models without a table of events; leave whiten or events out")
        if not (self.share is None or (isinstance(self.share, float) and 0 < self.share < 1)):
            raise ArgumentError(f"share must lie between 0 and 1, got {self.share!r}")


_LEAST_SHARE, _LEAST_WITH_EVENTS, _MOST_SHARE = 0.1, 0.25, 0.3
_SEEN = 0.033  # of N: noise of eigenvalues up to which they are seen well; twice of it doubles intervals


def least_share(cells: Sequence[int], cell: int) -> float:
    """Of mu^2, what moments take at least, and a table of events with them."""
    return _LEAST_WITH_EVENTS if any(cells) and cell != COUNT_CELL else _LEAST_SHARE


def chosen_share(plan: MomentsPlan) -> float:
    """Of mu^2, by the noise that `least_share` of it leaves: noise falls with the root of the share."""
    edge = plan.stddev * math.sqrt(sum(plan.widths)) / (_SEEN * plan.num_records)
    return min(_MOST_SHARE, least_share(plan.cells, plan.cell) * max(1.0, edge) ** 2)


SCORE_BITS = 14
"""A score is a whole number of 2^-14 R."""

_GRID_BITS = 2 * SCORE_BITS

CELL = math.isqrt(2 ** (2 * _GRID_BITS - 1))
"""What a record adds to its cell of a table of events, in grid units."""

COUNT_CELL = CELL // 4
"""The same of a table of counts."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentsPlan(Plan, kind="second_moments", own_field="radius"):
    """Everything public about one release of second moments, fixed before any data is touched.

    Formal guarantee: a release of sums of the products of scores under the bounds of `longest`, with `own_variance` and
    `share_variance` of discrete Gaussian noise, satisfies every row of `adversaries` for `relation`, N public, once:
    (ε, δ)-DP towards the outside analyst, (ε, δ)-VPDP towards parties. The proof is the module's.

    :ivar noise_multiplier: σ > 0; towards all that are covered the release is Gaussian with μ = s/σ, s = 2 under
        replace and 1 under add/remove.
    :ivar num_records: N, public.
    :ivar parties: their names.
    :ivar widths: how many scores each party has, its offset among them.
    :ivar clip_parts: the parties' parts of R^2, in proportion to these whole numbers.
    :ivar radius: R.
    :ivar delta: δ.
    :ivar cells: how many cells each party's table of events or counts has; () where there is no table.
    :ivar cell: what a record adds to its cell, in grid units.
    :ivar offsets: each party's, `half` above 0 where its last score is one; () where there are none.
    :ivar whitened: whether the parties' own moments are released before, and all that follows is of whitened scores.
    :ivar relation: the neighbouring relation.
    :ivar noise: who adds noise to products of two parties.
    :ivar adversary: whom alone a target ε was for; None for everyone (`covered`).
    :ivar plan_id: a random name, made here.
    """

    noise_multiplier: float
    num_records: int
    parties: tuple[str, ...]
    widths: tuple[int, ...]
    clip_parts: tuple[int, ...]
    radius: float
    delta: float
    cells: tuple[int, ...] = ()
    cell: int = CELL
    offsets: tuple[Offset, ...] = ()
    whitened: bool = False
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    noise: NoiseSource
    adversary: str | None = None
    plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    earlier: ClassVar[Mapping[str, Any]] = {**Plan.earlier, "cells": (), "cell": CELL, "offsets": (), "whitened": False}

    def __post_init__(self) -> None:
        check_party_names(self.parties, self.noise)
        check_delta(self.delta, self.num_records, warn=False)
        if not isinstance(self.relation, NeighbouringRelation):
            raise ArgumentError("relation must be a NeighbouringRelation")
        if not len(self.widths) == len(self.clip_parts) == len(self.parties):
            raise ArgumentError("widths and clip_parts must have one number for each party")
        if min(self.widths) < 0 or min(self.clip_parts) < 0 or not sum(self.widths) or not sum(self.clip_parts):
            raise ArgumentError("widths and clip_parts must not be negative, and not all 0")
        if self.cells and (len(self.cells) != len(self.parties) or min(self.cells) < 0):
            raise ArgumentError("cells must have one number for each party, and none below 0")
        if not 0 < self.cell <= CELL:
            raise ArgumentError(f"cell must lie between 1 and {CELL}, got {self.cell}")
        self._check_offsets()
        for name in ("noise_multiplier", "radius"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ArgumentError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.num_records > 2 ** (59 - _GRID_BITS):
            raise RangeError("num_records: the moments could wrap around the ring; leave SecondMoments() out")
        require_drawable(2 * self.noise.num_shares * self.own_variance)
        _ = self.targets()  # validates the adversary's name

    def _check_offsets(self) -> None:
        if self.offsets and len(self.offsets) != len(self.parties):
            raise ArgumentError("offsets must have one for each party")
        for width, offset in zip(self.widths, self.offsets, strict=False):
            if not (math.isfinite(offset.middle) and 0 <= offset.half < math.inf):
                raise ArgumentError(f"offsets must be finite, and half not negative, got {offset}")
            if offset.half and not width:
                raise ArgumentError("widths must have a score for each offset whose half is above 0")

    @classmethod
    def calibrated(cls, *, epsilon: float, **settings: Any) -> MomentsPlan:
        """The plan with the smallest σ, rounded up to 4 decimals, that gives everyone at most `epsilon`.

        :param epsilon: the target, > 0.
        :param settings: all other fields; `adversary` narrows the target to one row of the table.
        """
        check_target(epsilon)

        def enough(sigma: float) -> bool:
            plan = cls(noise_multiplier=sigma, **settings)
            return all(plan.event(o).delta(epsilon, plan.relation) <= plan.delta for o in plan.targets())

        return cls(noise_multiplier=rounded_up_multiplier(enough), **settings)

    @property
    def is_of_counts(self) -> bool:
        """Whether there is a table of counts."""
        return any(self.cells) and self.cell == COUNT_CELL

    # -- the bound and the noise -------------------------------------------------------------------

    def longest(self, party: str) -> int:
        """The largest squared norm of a party's scores of one record, in units of 4^-SCORE_BITS R^2."""
        part = Fraction(self.clip_parts[self.parties.index(party)], sum(self.clip_parts))
        return math.floor(part * 4**SCORE_BITS)

    @property
    def _squared_sensitivity(self) -> Fraction:
        of_moments = Fraction(1) if self.relation is NeighbouringRelation.REPLACE else Fraction(1, 2)
        parts = [Fraction(part, sum(self.clip_parts)) for part in self.clip_parts] if self.whitened else []
        before = sum((part**2 for part in parts), Fraction(0)) / _VARIANCE_BEFORE
        tables = sum(num_cells > 0 for num_cells in self.cells) * Fraction(self.cell, CELL) ** 2
        return of_moments * (1 + tables + before)

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

    @property
    def stddev_before(self) -> float:
        """The same of what scores are whitened by, of two different scores of a party."""
        return self.radius**2 * math.sqrt(_VARIANCE_BEFORE * self.own_variance) / 2**_GRID_BITS

    @property
    def cell_stddev(self) -> float:
        """Of the noise in a cell of a table, in records."""
        return math.sqrt(self.own_variance) / self.cell

    # -- the guarantees ----------------------------------------------------------------------------

    @property
    def crosses(self) -> bool:
        """Whether there are products of two parties."""
        return sum(width > 0 for width in self.widths) > 1

    @property
    def releases(self) -> tuple[Release, ...]:
        """The parties' own products as one step, then those of two parties; before both those that whiten scores."""
        names = ["the parties' own moments before whitening"] if self.whitened else []
        names += ["the parties' own moments"]
        if any(self.cells):
            names[0] += ", and how large counts are" if self.is_of_counts else ", and when events were"
        names += ["the moments across parties"] if self.crosses else []
        return tuple(PartOfPlan(self, what) for what in names)

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
        event = self.event(observer)
        return AdversaryRow(
            adversary=observer.name,
            relation=self.relation.value,
            guarantee="VPDP" if observer.colluders else "DP",
            epsilon=event.epsilon(self.delta, self.relation),
            delta=self.delta,
            noise_multiplier=event.noise_multiplier,
            knows=observer.own_knowledge,
            proof="proved",
        )

    @classmethod
    def _decoded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        lists = {name: tuple(fields[name]) for name in ("parties", "widths", "clip_parts", "cells")}
        offsets = tuple(Offset(*map(float, offset)) for offset in fields["offsets"])
        return super()._decoded({**fields, **lists, "offsets": offsets})


def moments_of(plan: GradientPlan) -> MomentsPlan:
    """The moments' part of a plan.

    :raises ArgumentError: it has none.
    """
    if not isinstance(plan.start, MomentsPlan):
        raise ArgumentError("plan: its steps do not begin with second moments; make a new plan")
    return plan.start


BEFORE, OWN, ACROSS = "moments before whitening", "own moments", "moments across parties"
TABLE = "events"
"""What runs store a table as."""
_VARIANCE_BEFORE = 4  # of the noise of what scores are whitened by, over that of own moments
_HUGE, _LEAST_ROOM = 1e30, 0.02

Words = Mapping[str, Any]


class NoisyMoments(NamedTuple):
    """What is released; public.

    matrix: sum xx' and noise `[D, D]`, symmetric, x the scores in the order of a step's released vector.
    stddev: of the noise in an entry, root mean square.
    table: when events were, or how large counts are, in records; None where there is no such table.
    whitening: each party's A, where x are whitened scores: |A'x| of its numeric ones `[d]`, and its intercept behind
        them, is |W'(x - m)| over its bound.
    before: each party's own moments of scores, with noise, where they are whitened.
    """

    matrix: np.ndarray
    stddev: float
    table: np.ndarray | None = None
    whitening: Sequence[np.ndarray] = ()
    before: Sequence[np.ndarray] = ()


def widths_of(split: SplitModel, offsets: Sequence[Offset] = ()) -> tuple[int, ...]:
    """How many scores each party has, offsets among them."""
    own = [sum(math.prod(split.structure.latents[name]) for name in split.shared[party]) for party in split.parties]
    more = [int(offset.half > 0) for offset in offsets] or [0] * len(own)
    return tuple(width + one for width, one in zip(own, more, strict=True))


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


def numeric_bound(split: SplitModel, plan: MomentsPlan, party: str) -> float:
    """Of |W'x|: what other scores leave of a party's bound of |x|^2, by the public domains; 0 where that is nothing."""
    if (key := "longest other scores") not in split.compiled:
        tried = zip(split.parties, stand_in_scores(split, 1024, seed=16), strict=True)
        others = {name: np.delete(scores, split.numeric(name), axis=1) for name, scores in tried}
        squares = {name: np.square(np.where(np.isfinite(of), of, 0.0)) for name, of in others.items()}
        split.compiled[key] = {name: float(of.sum(1).max()) for name, of in squares.items()}
    room = plan.radius**2 * plan.longest(party) / 4.0**SCORE_BITS
    left = room - split.compiled[key][party]
    return math.sqrt(left) if left > _LEAST_ROOM * room and len(split.numeric(party)) else 0.0


@final
class MomentsWork(PartyComputation):
    """One party's part: its own moments with its noise, its scores in the products across, its noise on them.

    :param split: the model.
    :param plan: the plan of the moments.
    :param party: whose part this is.
    :param columns: its encoded columns [N]. Secret.
    :param source: its own randomness.
    :param table: what a table of events or counts is of.
    """

    def __init__(
        self, split: SplitModel, plan: MomentsPlan, party: str, columns: Mapping[str, np.ndarray],
        source: RandomSource, table: EventTimes | CountCells | None = None,
    ) -> None:  # fmt: skip
        self._plan, self._party, self._source = plan, party, source
        self._width = plan.widths[plan.parties.index(party)]
        self._columns, self._scores = columns, scores_of(split, party)
        self._offset = plan.offsets[plan.parties.index(party)] if plan.offsets else Offset()
        self._offsets = offsets_at(split, party) if self._offset.half else None
        self._flat = jnp.zeros(split.num_parameters)
        self._user_x64 = compat.user_has_x64()
        self._table, self._schema = table, split.schema
        if plan.whitened:
            self._numeric, self._constant = split.numeric(party), split.constant(party)
            self._bound = numeric_bound(split, plan, party)

    def check(self, request: ReleaseRequest) -> None:
        """See `PartyComputation.check`: own moments, then those across parties where there are several."""
        first = int(self._plan.whitened)
        if first and request.name != BEFORE:
            self._whitening(request)
            request = dataclasses.replace(request, fields={})
        allowed: list[ReleaseRequest] = [Publish(0, BEFORE)] if first else []
        if request not in (*allowed, Publish(first, OWN), Multiply(first + 1, ACROSS)):
            raise request.refused()

    def _whitening(self, request: ReleaseRequest) -> np.ndarray | None:
        """Its A, which follows from what was released before; None where scores are not whitened.

        :raises ArgumentError: it is no such matrix.
        """
        if not self._plan.whitened or request.name == BEFORE:
            return None
        shape = len(self._numeric) + len(self._constant), len(self._numeric)
        try:
            found = np.asarray(request.fields.get("whitening", {}).get(self._party), np.float64).reshape(shape)
        except (AttributeError, TypeError, ValueError):
            raise request.refused() from None
        if not np.isfinite(found).all():
            raise request.refused()
        return found

    def publish(self, request: Publish) -> Payload:
        """The products of its own scores, in grid units, with noise that nobody else knows.

        With zeros behind them, so that all parties' are of one size: a rehearsal has its own in the others' place.
        """
        (products,) = row_blocks.products([self._scores_on_grid(request)], [(0, 0)])
        variance = self._plan.own_variance * (_VARIANCE_BEFORE if request.name == BEFORE else 1)
        noise = np.triu(self._drawn(variance, products.size).reshape(products.shape), 1)
        squares = self._drawn(2 * variance, self._width)
        noisy = products + noise + noise.T + np.diag(squares)
        tables = {"cells": self._cells()} if any(self._plan.cells) and request.step == 0 else {}
        return Payload({}, {"products": np.pad(noisy, (0, max(self._plan.widths) - self._width)), **tables})

    def _cells(self) -> np.ndarray:
        """Its own table with noise; zeros of one that is another's."""
        num_cells = self._plan.cells[self._plan.parties.index(self._party)]
        if not num_cells:
            return np.zeros(max(self._plan.cells), np.int64)
        assert self._table is not None  # `MomentsStart.check` compared them
        noise = self._drawn(self._plan.own_variance, num_cells)
        own = {name: model_units(np.asarray(self._columns[name])) for name in self._table.columns}
        return self._plan.cell * self._table.counts(self._schema, own) + noise

    def factor(self, request: Multiply) -> RowBlocks:
        """The party's scores on the grid, by this process: workers could not be sent anybody's model."""
        return self._scores_on_grid(request)

    def _scores_on_grid(self, request: ReleaseRequest) -> RowBlocks:
        on_grid = functools.partial(self._on_grid, self._whitening(request))
        return RowBlocks((self._plan.num_records, self._width), 2**SCORE_BITS, dict(self._columns), on_grid)

    def widths(self, request: Multiply) -> tuple[int, ...]:
        """Every party's number of scores."""
        return self._plan.widths

    def input_form(self, request: Multiply) -> InputForm:
        """Scores on the grid, whose squares add up to the party's part of R^2 at most."""
        return input_form(self._plan)

    def noise(self, request: Multiply | Sum, size: int) -> np.ndarray:
        """The party's share for every two parties, flat."""
        if self._plan.noise.num_shares == 1 and self._plan.parties[0] != self._party:
            return np.zeros(size, np.int64)  # trusted noise, of which there is one share
        return self._drawn(self._plan.share_variance, size)

    def _on_grid(self, whitening: np.ndarray | None, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        own = {name: jnp.asarray(model_units(np.asarray(column))) for name, column in columns.items()}
        with compat.precision(self._user_x64):
            scores = np.array(self._scores(self._flat, own), np.float64)
            if whitening is not None and self._bound:
                numeric = scores[:, np.concatenate([self._numeric, self._constant])]
                numeric = np.nan_to_num(numeric, posinf=0.0, neginf=0.0) @ whitening
                long = np.linalg.norm(numeric, axis=1, keepdims=True)
                scores[:, self._numeric] = numeric * (self._bound / np.maximum(long, 1.0))
            if self._offsets is not None:
                scores = np.concatenate([scores, self._offset.scaled(self._offsets(own))], axis=1)
        return on_grid(scores, self._plan.radius, self._plan.longest(self._party))

    def _drawn(self, variance: int, size: int) -> np.ndarray:
        return sample_discrete_gaussian(variance, size, self._source) if size else np.zeros(0, np.int64)

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"MomentsWork({self._party!r})"


def input_form(plan: MomentsPlan) -> InputForm:
    """What each party's scores are, in public."""
    longest = tuple(plan.longest(party) for party in plan.parties)
    columns = [
        (Columns("scalar", width, max(1, math.isqrt(most))),) if width else ()
        for width, most in zip(plan.widths, longest, strict=True)
    ]
    return InputForm(tuple(columns), longest=longest)


def noisy_moments(
    session: Session, run: Run, plan: MomentsPlan,
    whitening: Callable[[Sequence[np.ndarray], np.ndarray | None], Sequence[np.ndarray]],
) -> NoisyMoments:  # fmt: skip
    """Release the moments as the first steps of a run whose plan begins with this one. Nothing else leaves the parties.

    :param whitening: every party's A by all parties' own moments, where the plan has scores whitened, and by the table.
    :raises PlanSpentError: a part was counted as released by a run that stopped, and is not stored.
    """
    unit, first, fields, found, before = plan.radius**2 / 4.0**SCORE_BITS, int(plan.whitened), {}, [], []
    arrays: Mapping[str, np.ndarray] = {}
    if plan.whitened:
        arrays = session.arrays_of(run, 0, lambda: _own(session, plan, Publish(0, BEFORE)))
        before = [unit * arrays[f"block_{k}_{k}"] for k in range(len(plan.parties))]
        found = whitening(before, _table(plan, arrays))
        fields = {"whitening": {party: of.tolist() for party, of in zip(plan.parties, found, strict=True)}}
    own = session.arrays_of(run, first, lambda: _own(session, plan, Publish(first, OWN, fields)))
    request = Multiply(first + 1, ACROSS, fields)
    across = session.arrays_of(run, first + 1, lambda: _across(session, request)) if plan.crosses else {}
    starts = np.cumsum([0, *plan.widths])
    matrix = np.zeros((starts[-1], starts[-1]))
    blocks = {name: block for name, block in {**own, **across}.items() if name != TABLE}
    for name, block in blocks.items():
        i, j = (slice(starts[int(number)], starts[int(number) + 1]) for number in name.split("_")[1:])
        matrix[i, j], matrix[j, i] = block, block.T
    return NoisyMoments(matrix * unit, plan.stddev, _table(plan, {**arrays, **own}), found, before)


def _table(plan: MomentsPlan, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    return arrays[TABLE] / plan.cell if TABLE in arrays else None


def _own(session: Session, plan: MomentsPlan, request: Publish) -> dict[str, np.ndarray]:
    def of(party: int, name: str, *shape: int) -> np.ndarray:
        return published(released[party].arrays, name, shape, plan.parties[party])

    released, most = session.publish(request), max(plan.widths)
    found = {f"block_{k}_{k}": of(k, "products", most, most)[:w, :w] for k, w in enumerate(plan.widths)}
    cells = enumerate(plan.cells if request.step == 0 else ())
    tables = [of(k, "cells", max(plan.cells))[:number] for k, number in cells if number]
    return found | ({TABLE: tables[0]} if tables else {})


def _across(session: Session, request: Multiply) -> dict[str, np.ndarray]:
    return {f"block_{i}_{j}": block for (i, j), block in session.cross_products(request).items()}
