r"""What one small noisy table of the outcome's party says: when events were, or how large counts are.

The party publishes it of its own columns, with its own noise (`dpvi.second_moments` has the proof). A record is in one
cell, which costs a sensitivity of sqrt(2), whatever the number of cells, where a score in every step costs C.

**How large counts are.** To what residuals are cut decides how much the steps' noise hides, and before anything is
known of the counts it is chosen for rates far below the largest count, whatever they are. So the table has how many
records have each count, or one of several where counts are large, and a record adds a quarter of what one adds to a
table of events: that counts as a sixteenth of the moments' sensitivity, squared. With Gaussian predictors, of mean m
and standard deviation s, the outcome's law expects so many in each cell; m and s are where it fits best, by the noise,
by the records' own chance, and by a tenth of what is expected, as no law is quite the table's. s is .7 usually, and m
may be anywhere from far below 1 to the largest count. `clipping.Seen` says what follows for the steps. The table has
room for few records with large counts, too: integrals over predictors end where it has none (`CountCells.ends`).

**When events were, and the baseline hazard that it gives.** A survival's outcome is a count d of events whose rate has
the factor L(t), the baseline's cumulative hazard at the record's time. Two things of it are in no score of a
coefficient: the shape of the baseline, and how long those who had no event were watched. So the table has how many had
their event in each bin of time, and how many left it without one.

**The shape.** With predictors eta, without the baseline, that are Gaussian with standard deviation s, a record has no
event until the baseline's cumulative hazard is L with probability S(L) = E[exp(-L exp(eta))]. Of n_k at risk where bin
k begins, of whom a part q_k of those who reach its middle leaves there,

    n_k [(S(L_k) - S(L_k')) + (1 - q_k) (S(L_k') - S(L_k+1))] / S(L_k)

are expected to have their event in it, L_k' in its middle. The hazards of the intervals are those at which as many are
expected in each as there are; a few events are supposed beside them, at the usual hazard, a quarter of what the noise
has. That who has a large hazard ratio leaves early is in S. With s = 0 they are the crude hazards, from which the steps
start. In the first half of them the baseline follows the coefficients: it is what the table says at the spread that
they have, and the intercept makes up for it (`FollowedBaseline`). Then it stays, so that steps end where a residual's
mean is nearly 0 at the truth, whatever predictors are like; what is still missing the posterior puts back, as
Gaussian predictors have it. It has the hazards at its own coefficients, and what leaving early makes of them with a
standard deviation of .3 / m of itself, as predictors are not Gaussian: less so, the more parts m, alike in variance and
along principal axes of the released moments, they are a sum of.

**Assumed**: those who leave without an event do so regardless of predictors (as in Kaplan and Meier's estimate), and
within a bin halfway; hazards are constant between cut points, as the model says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.data import Schema
from vertinumpyro.model.hazards import table_numbers
from vertinumpyro.model.outcomes import Outcome
from vertinumpyro.model.party_sums import SummedOutcome

_LEAST_BINS, _SUPPOSED_CELLS = 10, 20
_SWEEPS = 60
_LARGEST = 30.0  # of a log rate, and of what is lived in a cell: so that no derivative overflows
_FARTHEST = 6.0  # of a log hazard from the usual one
_TRUST = 0.3  # of predictors of one column, binary or uniform, it is off by .1 to .5; of three or more below .08
_MOST_LEAVING = 0.95  # of those who reach a bin's middle
_APART, _NUM_SPREADS = 0.125, 25  # standard deviations of predictors: from 0 to 3
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())


class Bins(NamedTuple):
    """Of time, public: edges `[K + 1]`, and for each of the baseline's intervals 1 in its bins, else 0 `[J, K]`."""

    edges: Any
    within: Any

    @property
    def num_bins(self) -> int:
        """K."""
        return len(self.edges) - 1

    @property
    def num_cells(self) -> int:
        """Events in K bins; nobody's in K, and until the end."""
        return 2 * self.num_bins + 1


@final
@dataclasses.dataclass(frozen=True)
class EventTimes:
    """What a survival's table is of: two columns of one party, and the sites of the baseline; public.

    The model's part has `PiecewiseHazard(cutpoints).log_cumulative` of the log hazards 0 and `baseline` and of the
    time in the table's units, with `jax.lax.stop_gradient` around the baseline; it has a site `intercept` besides.

    :ivar event: whether it was seen, 0 or 1.
    :ivar time: when, or until when it was not.
    :ivar intercept: the site of the log hazard in the first interval.
    :ivar baseline: that of all others over that one; "" where there is no other.
    :ivar cutpoints: as of `PiecewiseHazard`, below the largest time.
    """

    event: str
    time: str
    intercept: str
    baseline: str = ""
    cutpoints: tuple[float, ...] = ()

    def bins(self, schema: Schema) -> Bins:
        """The intervals, the longest halved until there are enough bins."""
        column = schema.columns[self.time]
        latest = float(table_numbers(column, np.asarray(column.encoded_range[1])))
        edges = [0.0, *self.cutpoints, latest]
        while len(edges) <= _LEAST_BINS:
            longest = int(np.argmax(np.diff(edges)))
            edges.insert(longest + 1, (edges[longest] + edges[longest + 1]) / 2)
        middles = (np.array(edges)[1:] + np.array(edges)[:-1]) / 2
        interval = np.searchsorted(self.cutpoints, middles)
        return Bins(np.array(edges), (interval == np.arange(len(self.cutpoints) + 1)[:, None]).astype(float))

    def supposed_lifetimes(self, schema: Schema) -> Lifetimes:
        """Before anything is known: a hazard that is the same at all times, and half leave early without an event."""
        grid = np.linspace(0.0, self.bins(schema).edges[-1], _SUPPOSED_CELLS + 1)
        leaving = np.full(_SUPPOSED_CELLS, 1 - 0.5 ** (1 / _SUPPOSED_CELLS))
        leaving[-1] = 1.0
        return Lifetimes(jnp.asarray(grid), jnp.asarray(grid), jnp.asarray(leaving))

    def supposed_table(self, schema: Schema, predictors: np.ndarray, stddev: float, num_records: int) -> HazardTable:
        """The table to expect of people who live so, at some predictors `[n]`, before anything is known.

        :param stddev: of the noise in a cell.
        """
        bins, supposed = self.bins(schema), self.supposed_lifetimes(schema)
        chances = np.asarray(supposed.support(jnp.asarray(predictors))[1]).mean(0)
        grid, num_bins = np.asarray(supposed.lived), bins.num_bins
        seen = np.searchsorted(bins.edges[1:-1], (grid[1:] + grid[:-1]) / 2)
        left = np.append(np.searchsorted(bins.edges[1:-1], grid[1:-1]), num_bins)
        cells = np.bincount(np.concatenate([seen, num_bins + left]), chances, bins.num_cells)
        return HazardTable(num_records * cells, stddev, num_records, bins)

    def cells(self, schema: Schema) -> tuple[int, ...]:
        """How many cells each party publishes."""
        owner = schema.party_of(self.event)
        return tuple(self.bins(schema).num_cells if party == owner else 0 for party in schema.parties)

    @property
    def columns(self) -> tuple[str, ...]:
        """That it reads."""
        return self.event, self.time

    def counts(self, schema: Schema, columns: Mapping[str, Any]) -> np.ndarray:
        """Records in each cell, exact. Secret."""
        bins = self.bins(schema)
        time = np.asarray(table_numbers(schema.columns[self.time], np.asarray(columns[self.time])), np.float64)
        place = np.searchsorted(bins.edges[1:-1], time, side="left")
        left = np.where(time >= bins.edges[-1] * (1 - 1e-6), bins.num_bins, place)
        seen = np.asarray(columns[self.event]) == 1
        return np.bincount(np.where(seen, place, bins.num_bins + left), minlength=bins.num_cells)


class Shape(NamedTuple):
    """The baseline's log hazards, all intervals' but the first over that one's.

    log_ratios: `[J - 1]`.
    covariance: of the noise and of the records' own chance `[J - 1, J - 1]`.
    without_noise: of the latter alone.
    shares: of all events, those in these intervals `[J - 1]`.
    """

    log_ratios: np.ndarray
    covariance: np.ndarray
    without_noise: np.ndarray
    shares: np.ndarray


class FollowedBaseline(NamedTuple):
    """The baseline that steps have, by how far the predictors of their point are spread; in flat theta, public.

    by_spread: log hazards over the first interval's, at spreads from 0 on, and what of the intercept makes up for them,
        so that as many events are expected `[G, d]`.
    covariance: of a record's derivatives of the predictor `[d, d]`, 0 at what both are of.
    """

    by_spread: Any
    covariance: Any

    @classmethod
    def of_none(cls, flat: jax.Array) -> FollowedBaseline:
        """Until a table says more: it stays where it is."""
        return cls(jnp.zeros((_NUM_SPREADS, flat.size), flat.dtype), jnp.zeros((flat.size, flat.size), flat.dtype))

    def moved(self, before: jax.Array, after: jax.Array) -> jax.Array:
        """How it moves with the point `[d]`."""
        return self._at(after) - self._at(before)

    def _at(self, point: jax.Array) -> jax.Array:
        place = jnp.sqrt(jnp.maximum(point @ self.covariance @ point, 0.0)) / _APART
        low = jnp.clip(place.astype(int), 0, _NUM_SPREADS - 2)
        part = jnp.clip(place - low, 0.0, 1.0)
        return (1 - part) * self.by_spread[low] + part * self.by_spread[low + 1]


class HazardTable(NamedTuple):
    """What the outcome's party released of when events were; public.

    cells: with noise `[2 K + 1]`.
    stddev: of the noise.
    num_records: N.
    bins: of time.
    """

    cells: Any
    stddev: Any
    num_records: Any
    bins: Bins

    def shape(self, spreads: Any = (0.0,), num_parts: float = 1.0) -> Shape:
        """The baseline, at predictors of these standard deviations, as draws of the coefficients have them.

        :param num_parts: of how many parts, alike in variance, predictors are sums.
        """
        num_intervals = len(self.bins.within)
        contrast = np.eye(num_intervals)[1:] - np.eye(num_intervals)[0]
        rates, table = _hazard_ratios(spreads), self._in_jax()
        each, by_cells = (np.asarray(of) for of in (_ratios(table, rates), _slope(table, rates.mean(0))))
        events = np.asarray(self._known_events())
        chance, noise = contrast @ np.diag(1 / events) @ contrast.T, self.stddev * contrast @ by_cells
        apart, crude = each - each.mean(0), np.asarray(_ratios(table, jnp.ones((1, len(_NODES)))))[0]
        left_early = _TRUST / num_parts * (each.mean(0) - crude)
        doubted = apart.T @ apart / len(each) + np.outer(left_early, left_early)
        return Shape(each.mean(0), chance + noise @ noise.T + doubted, chance, events[1:] / events.sum())

    def followed(self, covariance: Any, held: np.ndarray, level: np.ndarray) -> FollowedBaseline:
        """For steps that have the baseline as their own coefficients say.

        :param covariance: of a record's derivatives of the predictor `[d, d]`, in flat theta.
        :param held: places of the baseline in it.
        :param level: and of the intercept.
        """
        by_spread, events = np.zeros((_NUM_SPREADS, len(covariance))), np.asarray(self._known_events())
        table, rates = self._in_jax(), np.asarray(_hazard_ratios(_APART * np.arange(_NUM_SPREADS)))
        by_spread[:, held] = np.concatenate([_ratios(table, rate[None]) for rate in rates])  # by what `shape` compiled
        by_spread[:, level] = -(by_spread[:, held] @ events[1:] / events.sum())[:, None]
        of_slopes = np.array(covariance)
        of_slopes[[*held, *level]], of_slopes[:, [*held, *level]] = 0.0, 0.0  # levels do not change a shape
        return FollowedBaseline(by_spread, of_slopes)

    def lifetimes(self, working: Any, shape: Any) -> Lifetimes:
        """Events and leaving as they follow from a shape, with what is lived in units of the ones the steps had.

        :param working: the log ratios at each step `[T, J - 1]`, or at all of them `[J - 1]`.
        :param shape: the true ones `[J - 1]`.
        """
        edges, cells = self.bins.edges, np.asarray(self._centred())
        grid = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
        width, interval = np.diff(grid), np.repeat(self.bins.within.argmax(0), 2)
        starting, events = self._starting()[0], cells[: self.bins.num_bins]
        left = np.clip(cells[len(events) : -1] / np.maximum(starting - events / 2, 1.0), 0.0, _MOST_LEAVING)
        censored = np.column_stack([left, np.zeros(len(left))]).ravel()
        censored[-1] = 1.0

        def cumulative(ratios: Any) -> np.ndarray:
            ratios = np.asarray(ratios)
            hazards = np.exp(np.concatenate([np.zeros((*ratios.shape[:-1], 1)), ratios], axis=-1))[..., interval]
            return np.insert(np.cumsum(width * hazards, axis=-1), 0, 0.0, axis=-1)

        lived, hazard = cumulative(working), cumulative(shape)
        return Lifetimes(jnp.asarray(lived), jnp.asarray(hazard), jnp.asarray(censored))

    def _in_jax(self) -> HazardTable:
        """For what is compiled: numbers of one type."""
        return jax.tree.map(lambda of: jnp.asarray(of, float), self)

    @property
    def _supposed(self) -> Any:
        """Events `[J]` supposed beside those in an interval, at the usual hazard: a quarter of what the noise has."""
        return 0.25 * jnp.maximum(self.stddev, 1.0) * jnp.sqrt(self.bins.within.sum(1))

    def _known_events(self) -> jax.Array:
        """Those in an interval and those supposed, above 0 whatever the noise."""
        counted = self.bins.within @ self._centred()[: self.bins.num_bins]
        return _above_0(counted + self._supposed, self._supposed / 2)

    def _centred(self) -> Any:
        """Cells that add up to N, which is public."""
        return self.cells - (self.cells.sum() - self.num_records) / len(self.cells)

    def _starting(self) -> tuple[Any, Any]:
        """Who is at risk where each bin begins, and who leaves it `[K]`."""
        num_bins, known = self.bins.num_bins, self._centred()
        leaving = known[:num_bins] + known[num_bins:-1]
        return known[-1] + leaving[::-1].cumsum()[::-1], leaving

    def log_hazards(self, rate: jax.Array) -> jax.Array:
        """From cells to log hazards `[J]`, as the module says, at hazard ratios that are the predictor's nodes."""
        width, within = jnp.diff(self.bins.edges), self.bins.within
        starting, leaving = self._starting()
        starting, left = _above_0(starting, self.stddev), self._centred()[len(width) : -1]
        supposed, events, weights = self._supposed, self._known_events(), jnp.asarray(_LOG_WEIGHTS, float)
        lived = within @ (width * _above_0(starting - leaving / 2, self.stddev))
        usual = jnp.log(events.sum() / (lived.sum() * (jnp.exp(weights) @ rate)))

        def log_surviving(hazard: jax.Array) -> jax.Array:
            return jax.scipy.special.logsumexp(weights - hazard[:, None] * rate, axis=1)

        def sweep(_: Any, log_hazard: jax.Array) -> jax.Array:
            steps = width * (jnp.exp(log_hazard) @ within)
            ends = jnp.cumsum(steps)
            begins, middles, ends = (log_surviving(at) for at in (ends - steps, ends - steps / 2, ends))
            first, whole = jnp.exp(middles - begins), jnp.exp(ends - begins)
            staying = 1 - jnp.clip(left / jnp.maximum(starting * first, 1.0), 0.0, _MOST_LEAVING)
            expected = within @ (starting * ((1 - first) + staying * (first - whole)))
            expected = expected + supposed * jnp.exp(log_hazard - usual)
            return usual + jnp.clip(log_hazard + jnp.log(events / expected) - usual, -_FARTHEST, _FARTHEST)

        return jax.lax.fori_loop(0, _SWEEPS, sweep, jnp.full(len(within), usual))


def _hazard_ratios(spreads: Any) -> jax.Array:
    """At the nodes of predictors of these standard deviations `[S, nodes]`."""
    return jnp.exp(jnp.asarray(spreads)[:, None] * _NODES)


@jax.jit
def _ratios(table: HazardTable, rates: jax.Array) -> jax.Array:
    """Log hazards over the first interval's `[S, J - 1]`, at hazard ratios `[S, nodes]`; compiled once for a size."""
    found = jax.vmap(table.log_hazards)(rates)
    return found[:, 1:] - found[:, :1]


@jax.jit
def _slope(table: HazardTable, rate: jax.Array) -> jax.Array:
    """Of the log hazards by the cells `[J, 2 K + 1]`."""
    return jax.jacfwd(lambda cells: table._replace(cells=cells).log_hazards(rate))(table.cells)


def _above_0(count: Any, stddev: Any) -> jax.Array:
    """A count without what noise may take below 0; what is well above the noise stays as it is."""
    return (count + jnp.sqrt(count**2 + jnp.maximum(stddev, 1.0) ** 2)) / 2


class Lifetimes(NamedTuple):
    """What `Outcome` says of a survival's record, whose value is what was lived, below 0 where no event was seen.

    For a residual d - exp(eta) L(t) at the steps' baseline L, of events that follow another: with what is lived there
    given as an expectation within a bin, the residual's mean at the truth is 0, whatever the bins.

    lived: the steps' cumulative hazard at each point of a grid from 0 on `[I + 1]`, of each step `[T, I + 1]`.
    hazard: the true one, but for its level.
    censored: of those at risk at the end of a grid's cell, the part that leaves `[I]`; all at the last.
    """

    is_loose = True  # not annotated, or they were fields
    usual = (0.0, 1.0)

    lived: Any
    hazard: Any
    censored: Any

    def linked_residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        """D - exp(eta) L(t)."""
        return (value > 0) - jnp.exp(jnp.minimum(eta, _LARGEST)) * jnp.abs(value)

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """An event in each cell, and leaving at its end."""
        rate = jnp.exp(jnp.minimum(eta, _LARGEST))[..., None]
        steps = jnp.clip(rate * jnp.diff(self.hazard), 1e-6, _LARGEST)
        staying = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - self.censored)[:-1]])
        before = staying * jnp.exp(-rate * self.hazard[:-1])
        after = before * jnp.exp(-steps)
        events = self.lived[:-1] + (1 / steps - 1 / jnp.expm1(steps)) * jnp.diff(self.lived)
        values = jnp.concatenate([events, jnp.broadcast_to(-self.lived[1:], events.shape)], axis=-1)
        return values, jnp.concatenate([before - after, after * self.censored], axis=-1)


# -- how large counts are ----------------------------------------------------------------------------

_ONE_BY_ONE, _WIDER = 4, 1.4
_FARTHEST_MEAN, _LEAST_SPREAD, _MOST_SPREAD = 8.0, 0.05, 2.5  # of log rates
_USUAL_SPREAD = 0.7
_NUM_MEANS, _NUM_STDDEVS = 81, 16
_NO_LAW = 0.1  # of what is expected in a cell
_BY_CHANCE = 0.8  # of a standard deviation: what noise is away from 0 on average
_NO_END = 1e3  # finite, for derivatives
_NUM_ENDS, _SURELY = 400, 3.0  # standard deviations of what is in cells


@final
@dataclasses.dataclass(frozen=True)
class CountCells:
    """What a table of counts is of: a column of one party, and the least count of each cell; public.

    :ivar column: of the counts.
    :ivar owner: whose it is.
    :ivar least: rising, the first 0 `[k]`.
    """

    column: str
    owner: str
    least: tuple[int, ...]

    @classmethod
    def of(cls, summed: SummedOutcome) -> CountCells | None:
        """Of a model's outcome; None where that is no count of a column."""
        outcome: Any = summed.outcome
        if outcome.least_reach is None or summed.observed is None:
            return None
        least = list(range(min(_ONE_BY_ONE, int(outcome.most)) + 1))
        while (following := int(np.ceil(_WIDER * least[-1]))) <= outcome.most:
            least.append(following)
        return cls(summed.observed, summed.party, tuple(least))

    def cells(self, schema: Schema) -> tuple[int, ...]:
        """How many cells each party publishes."""
        return tuple(len(self.least) if party == self.owner else 0 for party in schema.parties)

    @property
    def columns(self) -> tuple[str, ...]:
        """That it reads."""
        return (self.column,)

    def counts(self, schema: Schema, columns: Mapping[str, Any]) -> np.ndarray:
        """Records in each cell, exact. Secret."""
        place = np.searchsorted(self.least, np.asarray(columns[self.column]), side="right") - 1
        return np.bincount(np.maximum(place, 0), minlength=len(self.least))

    def usual(self, outcome: Outcome, cells: np.ndarray, stddev: float) -> tuple[float, float]:
        """Mean and standard deviation of predictors, by the table.

        :param cells: with noise.
        :param stddev: of the noise.
        """
        lowest, highest = -_FARTHEST_MEAN, float(np.log(max(outcome.unit, 2.0)))
        means = np.linspace(lowest, highest, _NUM_MEANS)
        spreads = np.geomspace(_LEAST_SPREAD, _MOST_SPREAD, _NUM_STDDEVS)
        expected = max(float(cells.sum()), 1.0) * self._shares(outcome, means[:, None], spreads)
        variance = stddev**2 + expected + (_NO_LAW * expected) ** 2
        fit = (np.square(cells - expected) / variance + np.log(variance)).sum(-1)
        fit = fit + np.log(spreads / _USUAL_SPREAD) ** 2
        mean, spread = np.unravel_index(int(np.argmin(fit)), fit.shape)
        return float(means[mean]), float(spreads[spread])

    def misfit(self, outcome: Outcome, cells: np.ndarray, stddev: float, usual: tuple[float, float]) -> float:
        """The share of the counts that a table has in other cells than the law, less what its noise makes of that.

        :param usual: mean and standard deviation of predictors.
        """
        number = max(float(cells.sum()), 1.0)
        between = np.abs(cells / number - self._shares(outcome, np.asarray(usual[0]), np.asarray(usual[1])))
        return max(0.0, float(between.sum()) - _BY_CHANCE * len(cells) * stddev / number) / 2

    def ends(self, outcome: Outcome, cells: np.ndarray, stddev: float, shares: np.ndarray) -> np.ndarray:
        """Predictors beyond which no more than these shares of all records are, by the table `[shares]`.

        Of those beyond some predictor a part has a count of c or more, and at least that which the law has at it: so
        they are no more than have such counts, over that part, whatever c is.
        """
        predictors = np.linspace(-_FARTHEST_MEAN, float(np.log(max(outcome.unit, 2.0))), _NUM_ENDS)
        with_more = np.maximum(np.cumsum(cells[::-1]), 0.0)
        deviations = np.sqrt(stddev**2 * np.arange(1, len(cells) + 1) + np.maximum(with_more, 1.0))
        most = (with_more + _SURELY * deviations) / max(float(cells.sum()), 1.0)
        parts = np.cumsum(self._chances(outcome, predictors)[:, ::-1], axis=1)
        beyond = np.minimum.accumulate((most / np.maximum(parts, 1e-30)).min(1))
        last = np.searchsorted(-beyond, -shares, side="right") - 1
        return np.where(last < _NUM_ENDS - 1, predictors[np.maximum(last, 0)], _NO_END)

    def _shares(self, outcome: Outcome, means: np.ndarray, spreads: np.ndarray) -> np.ndarray:
        """Of all records, those that the law has in each cell `[..., k]`, at Gaussian predictors."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(9)
        chances = self._chances(outcome, means[..., None] + spreads[..., None] * nodes)
        return np.einsum("...nk,n->...k", chances, weights / weights.sum())

    def _chances(self, outcome: Outcome, predictors: np.ndarray) -> np.ndarray:
        """That the law has of each cell at predictors `[..., k]`."""
        known, lowest = outcome.support(jnp.asarray(predictors)), jnp.zeros(())
        assert known is not None  # counts have one
        counts, chances = np.asarray((outcome.support(lowest) or known)[0]), np.asarray(known[1], np.float64)
        place = np.searchsorted(self.least, np.rint(counts), side="right") - 1
        within = np.zeros((len(counts), len(self.least)))
        within[np.arange(len(place)), np.clip(place, 0, None)] = 1.0
        return chances @ within


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Counted:
    """What `Outcome` says of a count, in a link that reaches to some part of the largest.

    :ivar outcome: of the model.
    :ivar reach: as of `Outcome.reaching`.
    :ivar ends: how far predictors go at most at each node of an integral over them, by a released table.
    """

    outcome: Outcome
    reach: Any
    ends: Any = _NO_END

    @property
    def is_loose(self) -> bool:
        """See `Outcome`."""
        return self.outcome.is_loose

    @property
    def usual(self) -> tuple[float, float]:
        """See `Outcome.usual`."""
        return self.outcome.usual

    @property
    def unit(self) -> float:
        """See `Outcome.unit`."""
        return self.outcome.unit

    def linked_residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        """As the link has it."""
        return self.outcome.linked_residual(eta, value, self.reach)

    def support(self, eta: jax.Array) -> tuple[jax.Array, jax.Array] | None:
        """See `Outcome.support`."""
        return self.outcome.support(eta)

    def tree_flatten(self) -> tuple[tuple[Any, Any], Outcome]:
        """What changes from fit to fit, and what does not."""
        return (self.reach, self.ends), self.outcome

    @classmethod
    def tree_unflatten(cls, outcome: Outcome, children: tuple[Any, Any]) -> Counted:
        """From both."""
        return cls(outcome, *children)


Law: TypeAlias = Outcome | Lifetimes | Counted
"""What residuals outcomes have at a predictor, and how often."""


def law_at(law: Law, step: Any) -> Law:
    """That of one step's residuals."""
    return law._replace(lived=law.lived[step]) if isinstance(law, Lifetimes) and law.lived.ndim > 1 else law


def ends_of(law: Law) -> Any:
    """How far predictors go at most, at each node or at all of them."""
    return law.ends if isinstance(law, Counted) else _NO_END


def doubts_put_back(law: Law) -> bool:
    """Whether what the truth releases beside noise is doubted as such: it comes of a cut of what a law has.

    Or of the baseline that the steps had, where it is not the table's at the truth: no step's point is nearer to that.
    """
    return isinstance(law, Lifetimes) or not law.is_loose
