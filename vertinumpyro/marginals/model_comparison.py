r"""How well models that were fitted to one release predict tables like it: expected log densities, and checks by cell.

A record's log density needs all of its columns, which no party has and no release shows. What a release shows are
tables, and of these the log score: with p_t(c) the posterior predictive probability of cell c of table t,

    elpd = N sum_t sum_c P_t(c) log p_t(c),

P the distribution that records come from: what N new records have in log score, summed over all tables (a composite
score: a record counts once in every table). It is linear in P, so the released counts y estimate it without bias but
for one thing: they have been fitted to. With theta^ = theta(y) the fit,

    E sum y log p(theta^) - elpd = Cov(y, log p(theta^)) = tr(L A C),

L the derivative of log p by theta, A that of theta^ by y, which the law of the tables has, and C the covariance of y:
its noise's, and N records' as simulated from the model. That is `p`, the number of parameters where one table is all
there is. The standard error has the same two parts. N is public, so what noise adds to a whole table is taken off.
Everything is post-processing of the release.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy import stats

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import require_collection
from vertinumpyro.marginals.table_likelihood import ReleasedCells, TableLikelihood
from vertinumpyro.mrf import Marginals

_DRAWS = 200
_FLOOR = 0.1  # of a record: a cell of a smaller share counts as having that, or its noise would decide


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TableELPD:
    """What a fit's predictions of the released tables are worth; post-processing of the release.

    :ivar elpd: expected log predictive density of the tables of N new records, summed over tables.
    :ivar se: its standard error, of sampling and of noise.
    :ivar noise_se: the part of noise alone.
    :ivar p: what fitting to the same tables gave away, which is taken off.
    :ivar log_probs: of each cell, table after table.
    """

    elpd: float
    se: float
    noise_se: float
    p: float
    log_probs: np.ndarray = dataclasses.field(repr=False)
    _scores: _CellScores = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, eq=False)
class _CellScores:
    """The cells of a release, and cells of simulated records, for scores that are linear in counts."""

    cells: ReleasedCells
    slices: tuple[slice, ...]
    records: Any

    def centred(self, weights: np.ndarray) -> np.ndarray:
        """Weights of cells [..., M], of each whole table about their mean: what noise is multiplied by."""
        found = weights * self.cells.modelled
        for at in self.slices:
            if self.cells.modelled[at].all():
                found[..., at] -= found[..., at].mean(-1, keepdims=True)
        return found

    def total(self, weights: np.ndarray) -> float:
        """The weights summed over N records, by the released counts."""
        centred = self.centred(weights)
        return float(centred @ self.cells.counts + (weights * self.cells.modelled - centred) @ self._expected_totals)

    @property
    def _expected_totals(self) -> np.ndarray:
        return np.concatenate([np.full(at.stop - at.start, self._per_cell(at)) for at in self.slices])

    def _per_cell(self, at: slice) -> float:
        return float(self.cells.total[at][0]) / (at.stop - at.start)

    def errors(self, weights: np.ndarray) -> tuple[float, float]:
        """Standard errors of `total`, and of it by noise alone."""
        noise = float(np.sum((self.centred(weights) * self.cells.stddev) ** 2))
        of_records = self.records @ (weights * self.cells.modelled * np.sqrt(self.cells.total))
        return math.sqrt(noise + float(np.var(of_records))), math.sqrt(noise)


def elpd_of(
    likelihood: TableLikelihood, draws: np.ndarray, middle: np.ndarray, release: Marginals, rng_key: jax.Array
) -> TableELPD:
    """See the module.

    :param likelihood: of the release's tables.
    :param draws: of flat theta, of which some are taken; and `middle`, their centre.
    """
    cells = likelihood.cells(release)
    probabilities = np.asarray(_expected(likelihood, draws, cells), np.float64).mean(0) / cells.total
    floor = _FLOOR / cells.total
    log_probs = np.log(np.maximum(probabilities, floor))
    tangent = likelihood.tangent(jnp.asarray(middle), cells)
    law = likelihood.at(tangent, cells, rng_key)
    ends = list(itertools.accumulate((math.prod(shape) for shape in likelihood.tables.shapes), initial=0))
    scores = _CellScores(
        cells=cells,
        slices=tuple(slice(*pair) for pair in itertools.pairwise(ends)),
        records=likelihood.simulated(tangent.centre, rng_key),
    )
    moved = law.scale @ law.scale.T @ (tangent.derivative @ law.whitening.T) @ law.whitening
    slopes = np.where(probabilities > floor, tangent.derivative / np.maximum(tangent.expected, 1e-300), 0.0)
    p = _covariance(scores, slopes * cells.modelled, moved * cells.modelled)
    se, noise_se = scores.errors(log_probs)
    return TableELPD(
        elpd=scores.total(log_probs) - p, se=se, noise_se=noise_se, p=p, log_probs=log_probs, _scores=scores
    )


def _covariance(scores: _CellScores, first: np.ndarray, second: np.ndarray) -> float:
    """tr(first C second'), C of the counts."""
    noise = np.sum(scores.centred(first) * second * scores.cells.stddev**2)
    roots = np.sqrt(scores.cells.total)
    of_records = [scores.records @ (weights * roots).T for weights in (first, second)]
    of_first, of_second = (found - found.mean(0) for found in of_records)
    return float(noise + np.sum(of_first * of_second) / len(of_first))


def _expected(likelihood: TableLikelihood, draws: np.ndarray, cells: ReleasedCells) -> jax.Array:
    """The model's counts [draws, M] at some of the draws."""
    some = jnp.asarray(draws[np.linspace(0, len(draws) - 1, min(_DRAWS, len(draws))).astype(int)])
    return jax.jit(lambda thetas: jax.lax.map(lambda flat: likelihood.expected(flat, cells), thetas))(some)


def compare(fits: Mapping[str, TableELPD]) -> pd.DataFrame:
    """Fits to one release, the best first: a row for each, with the columns that ArviZ's `compare` has.

    `elpd_diff` is how much less a fit has than the first, and `dse` the standard error of that difference, in which
    what both have in common has cancelled. Post-processing.

    :param fits: by names, of `MarginalPosterior.elpd`.
    :returns: rank, elpd, p, elpd_diff, se, dse.
    :raises ArgumentError: there are fewer than two, or they are of other releases or tables.
    """
    require_collection("fits", fits, "named scores")
    if len(fits) < 2:
        raise ArgumentError(f"fits: there are {len(fits)}; give two or more, by their names")
    names = sorted(fits, key=lambda name: -fits[name].elpd)
    best, rows = fits[names[0]], []
    for rank, name in enumerate(names):
        found = fits[name]
        if not np.array_equal(found._scores.cells.counts, best._scores.cells.counts):
            raise ArgumentError(
                f"fits: {name!r} and {names[0]!r} are of other releases, or of models of other columns; compare models "
                "of the same columns by one release"
            )
        dse = best._scores.errors(best.log_probs - found.log_probs)[0]
        rows.append([rank, found.elpd, found.p, best.elpd - found.elpd, found.se, dse])
    return pd.DataFrame(rows, index=names, columns=["rank", "elpd", "p", "elpd_diff", "se", "dse"])


def check_tables(likelihood: TableLikelihood, draws: np.ndarray, release: Marginals, prob: float) -> pd.DataFrame:
    """The released tables beside what the posterior expects of another release of as much noise, cell by cell.

    :param prob: of the predictive interval.
    """
    cells = likelihood.cells(release)
    expected = np.asarray(_expected(likelihood, draws, cells), np.float64)
    mean = expected.mean(0)
    spread = np.sqrt(expected.var(0) + mean * (1 - mean / cells.total) + cells.stddev**2)
    reach = float(stats.norm.ppf((1 + prob) / 2))
    names, places = [], []
    for key, shape in zip(likelihood.tables.keys, likelihood.tables.shapes, strict=True):
        names += [" x ".join(key.columns) + (" (fine)" if key.fine else "")] * math.prod(shape)
        places += [", ".join(map(str, place)) for place in np.ndindex(*shape)]
    table = pd.DataFrame(
        {
            "table": names, "cell": places, "released": cells.counts, "noise": cells.stddev, "expected": mean,
            "low": mean - reach * spread, "high": mean + reach * spread, "z": (cells.counts - mean) / spread,
        }
    )  # fmt: skip
    return pd.DataFrame(table[cells.modelled > 0]).reset_index(drop=True)
