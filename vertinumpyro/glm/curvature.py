r"""Second moments of the features from noisy tables, so that few steps suffice.

Gradient steps take as many rounds as the features are far from orthogonal. Tables of all pairs of columns, one release
of two rounds, hold XᵀX of the features X that the coefficients multiply: exactly for one coefficient a value, by a
cell's middle for a number. With c the largest curvature of the family's log density by η,

    H = c (M + 2 ν √d I) + prior's precisions,    M ≈ XᵀX, ν the noise of its entries,

is at least the negative log posterior's Hessian everywhere (Böhning and Lindsay 1988), but for what cells blur and a
noise matrix's norm beyond 2 ν √d, which is rare. So steps H⁻¹g, accelerated (Nesterov), cannot overshoot, whatever the
table: nothing here is tuned to one. All of it is post-processing of released tables.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Facts
from vertinumpyro.data.binning import integer_starts
from vertinumpyro.dpvi.kernel import DPVIState, Kernel
from vertinumpyro.dpvi.tables_start import TablesStart
from vertinumpyro.glm.model import INTERCEPT, Term
from vertinumpyro.model import SplitModel
from vertinumpyro.mrf import Marginals, MRFPlan, VertiMRF
from vertinumpyro.mrf.adaptive import merged
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.dependence import one_way
from vertinumpyro.posterior.guide import GuideFactory
from vertinumpyro.secure import Backend

if TYPE_CHECKING:
    from vertinumpyro.dpvi import DPVI
    from vertinumpyro.glm.inference import Regression

__all__ = ["CURVATURE_SHARE", "MOST_COEFFICIENTS", "CurvatureStart", "accelerated_newton"]

CURVATURE_SHARE = 0.1
"""Part of μ² for the tables: directions that their noise hides are stepped along with care, and matter little."""

MOST_COEFFICIENTS = 1500
"""Up to which H is inverted and kept in the steps' state."""


class NewtonState(NamedTuple):
    """Where the steps are, public: their number, the point before the last extrapolation, and N H⁻¹ [d, d]."""

    count: jax.Array
    before: jax.Array
    inverse: jax.Array


def accelerated_newton(num_steps: int) -> optax.GradientTransformation:
    """Steps H⁻¹g with Nesterov's momentum t / (t + 3); their size falls to 1 / T, and the last does not extrapolate.

    The inverse is part of the state, where `CurvatureStart` puts it; until then it is the identity.

    Args:
        num_steps: T.
    """

    def init(params: Any) -> NewtonState:
        flat, _ = ravel_pytree(params)
        return NewtonState(jnp.zeros((), jnp.int32), flat, jnp.eye(flat.size, dtype=flat.dtype))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, NewtonState]:
        (descent, unravel), (here, _) = ravel_pytree(updates), ravel_pytree(params)
        size = jnp.maximum(1.0 - state.count / num_steps, 1.0 / num_steps)
        after = here - size.astype(here.dtype) * (state.inverse @ descent)
        momentum = jnp.where(state.count < num_steps - 1, state.count / (state.count + 3.0), 0.0)
        extrapolated = after + momentum.astype(here.dtype) * (after - state.before)
        return unravel(extrapolated - here), NewtonState(state.count + 1, after, state.inverse)

    return optax.GradientTransformation(init, update)


@final
@dataclasses.dataclass(frozen=True)
class CurvatureStart(TablesStart):
    """Tables of all pairs of columns, and the steps' H by them. The coefficients start where the prior has its mean.

    Attributes:
        regression: the model.
        backend: computes the tables across parties.
    """

    regression: Regression
    backend: Backend

    @cached_property
    def tables(self) -> VertiMRF:
        """A cell for each value that has a coefficient, and few for a number."""
        codes = {term.column: term.size - self._has_missing(term) for term in self.regression.terms if not term.ends}
        bins = {name: size for name, size in codes.items() if size > 1}
        return VertiMRF(recovery=False, bins=bins, backend=self.backend)

    def _has_missing(self, term: Term) -> bool:
        return self.regression.schema.columns[term.column].missing == "category"

    def plan_if_wanted(self, dpvi: DPVI, facts: Facts, *, all_records: bool, **settings: Any) -> MRFPlan:
        """See `TablesStart.plan_if_wanted`: always."""
        if not all_records or settings["epsilon"] is None:
            raise ArgumentError(
                "curvature=True: it needs epsilon, and steps that take all records; leave noise_multiplier, batch_size "
                "and sampling out, or set curvature=False"
            )
        sizes = [len(facts.schema.column_names(party)) for party in facts.parties]
        own, pairs = sum(math.comb(size, 2) for size in sizes), math.comb(sum(sizes), 2)
        return self.plan(facts, share=CURVATURE_SHARE, cross_share=1 - own / pairs, **settings)

    def rehearse_on(self, facts: Facts, plan: MRFPlan) -> None:
        """See `TablesStart.rehearse_on`."""
        if not np.isfinite(self.inverse(self.tables.stand_in(facts.schema, plan))).all():
            raise ArgumentError("curvature=True: the moments' inverse is not finite; set curvature=False")

    def state(
        self, released: Marginals, kernel: Kernel, guide: GuideFactory, cold: DPVIState, rng_key: jax.Array, *,
        progress_bar: bool,
    ) -> DPVIState:  # fmt: skip
        """See `TablesStart.state`: the first state, with the inverse."""
        order = self._order(kernel.guide.split)  # a point is flat theta
        inverse = released.num_records * self.inverse(released)[np.ix_(order, order)]
        steps = cold.optimizer_state._replace(inverse=jnp.asarray(inverse, cold.optimizer_state.inverse.dtype))
        return cold._replace(optimizer_state=steps)

    def inverse(self, released: Marginals) -> np.ndarray:
        """H⁻¹ `[1 + d, 1 + d]` of the intercept and the coefficients, in the terms' order. Post-processing."""
        moments, noise = self._moments(released)
        curvature = self.regression.of_label.curvature
        assert curvature is not None
        width = 2 * noise * math.sqrt(len(moments))
        values, vectors = np.linalg.eigh((moments + moments.T) / 2)
        precisions = np.full(len(moments), self.regression.prior_scale**-2.0)
        precisions[0] /= 4
        steep = (vectors * (curvature * (np.maximum(values, 0.0) + width))) @ vectors.T + np.diag(precisions)
        return np.linalg.inv(steep)

    def _moments(self, released: Marginals) -> tuple[np.ndarray, float]:
        """M `[1 + d, 1 + d]`, and the noise of a cell."""
        tables, cells = merged(released.measurements), {column.name: column for column in released.columns}
        designs = {term.column: design(term, cells[term.column]) for term in self.regression.terms}
        spans = dict(zip(designs, self._spans(), strict=True))
        moments = np.zeros((1 + sum(d.shape[1] for d in designs.values()),) * 2)
        moments[0, 0] = released.num_records
        for name, rows in designs.items():
            counts = one_way(name, tables, released.num_records).values
            moments[spans[name], spans[name]] = (rows.T * counts) @ rows
            moments[0, spans[name]] = moments[spans[name], 0] = counts @ rows
        for table in tables:
            if len(table.columns) == 2 and set(table.columns) <= set(designs):
                a, b = table.columns
                block = designs[a].T @ table.values @ designs[b]
                moments[spans[a], spans[b]], moments[spans[b], spans[a]] = block, block.T
        return moments, max(table.stddev for table in tables)

    def _spans(self) -> Iterator[slice]:
        start = 1
        for term in self.regression.terms:
            yield slice(start, start + term.size)
            start += term.size

    def _order(self, split: SplitModel) -> np.ndarray:
        """For each entry of flat theta, its place among intercept and coefficients."""
        flat = split.unflatten(np.arange(float(split.num_parameters)))
        places = {site: np.ravel(place).astype(int) for site, place in flat.items()}
        order = np.zeros(split.num_parameters, int)
        order[places[INTERCEPT]] = 0
        for term, span in zip(self.regression.terms, self._spans(), strict=True):
            order[places[term.site]] = np.arange(span.start, span.stop)
        return order


def design(term: Term, column: CellColumn) -> np.ndarray:
    """What a record of each cell multiplies the coefficients by, `[cells, size]`; of a number the middle of a cell."""
    if term.ends is None:
        return np.eye(column.num_cells, term.size)
    if not column.domain_size:
        values = (np.arange(column.num_bins) + 0.5) / column.num_bins
    else:
        starts = integer_starts(0, column.domain_size - 1, column.num_bins)
        values = (starts + np.append(starts[1:], column.domain_size) - 1) / 2
    return np.asarray(term.scaled(values))[:, None]
