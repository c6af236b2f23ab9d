r"""The law of released tables under a model: a Gaussian likelihood that knows how tables of one sample hang together.

A released cell is y_c = n_c + e_c: the count of N records from the model, and discrete Gaussian noise of a known
variance. The counts of all tables are sums over the same records, so cells of different tables are correlated, and a
product of one likelihood for each table would count the sample once for every table that a column is in. Therefore the
tables enter through d statistics, one for each parameter: u = G (y - N p(theta)), where G = D' W is the derivative D of
N p at a first estimate theta^, weighted by each cell's variance W^-1 = sigma^2 + N p. These are linear in y, so

    E u = 0 at the true theta,    Cov u = J = G diag(sigma^2) G' + N Cov[G 1(x)],

1(x) being the cells that one record x is in; the second part is the covariance of the records' scores, all correlations
between tables included, estimated from simulated records (public: the model at theta^ is post-processing). The
likelihood of theta is N(u(theta); 0, J), normal by the central limit theorem over N records and the noise's own law.
W decides how much of the tables' information the statistics keep, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from scipy import sparse

from vertinumpyro.core.compat import jit_fast
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import OBSERVED_SUFFIX
from vertinumpyro.marginals.expected_tables import ModelTables, Sums, TableKey
from vertinumpyro.model import SplitModel
from vertinumpyro.model.dummy_data import errors_on_stand_ins
from vertinumpyro.mrf import Marginals
from vertinumpyro.posterior.synthesis import Records, rehearse_twin

MOST_PARAMETERS = 1500
"""Of the law: it holds a matrix of their square, and one of parameters by cells."""

_SIMULATED = 20_000
"""Records for the covariance of scores: its standard deviations are right within a percent."""

_TOLERANCE = 1e-9
_RATE = 0.1
_LEAST = 1e-3


@final
class ReleasedCells(NamedTuple):
    """The cells of a release, table after table, each `[M]`, and what the model's are made of.

    :ivar counts: as released.
    :ivar stddev: of the noise.
    :ivar total: the records that a cell's table counts: N, or those whose masked values are present.
    :ivar modelled: 1.0; 0.0 where a masked value is missing, if the model does not speak of that.
    :ivar sums: of the model's tables, see `ModelTables`.
    """

    counts: np.ndarray
    stddev: np.ndarray
    total: np.ndarray
    modelled: np.ndarray
    sums: Sums


@final
class Law(NamedTuple):
    """The likelihood about a first estimate, as arrays.

    :ivar cells: the release.
    :ivar whitening: J^-1/2 G, `[d, M]`; rows of zeros where no table moves.
    :ivar centre: theta^, flat.
    :ivar scale: a square root of the inverse of the posterior's curvature there, `[d, d]`: theta = centre + scale @
        eta.
    :ivar information: the least eigenvalue of what the tables say of unconstrained theta; below about 1 the prior
        decides some direction.
    """

    cells: ReleasedCells
    whitening: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    information: float


@final
class Tangent(NamedTuple):
    """The model's tables about a first estimate.

    :ivar centre: theta^, flat.
    :ivar expected: the model's counts there, `[M]`.
    :ivar derivative: D, of the counts by theta, `[d, M]`.
    """

    centre: jax.Array
    expected: np.ndarray
    derivative: np.ndarray

    def most_information(self, cells: ReleasedCells) -> float:
        """At least `Law.information`: what noise alone leaves, as if no record had been drawn.

        J is at least G diag(sigma^2) G', so D' G' J^-1 G D is at most D' diag(sigma^-2) D.
        """
        scaled = self.derivative / cells.stddev
        return float(np.linalg.eigvalsh(scaled @ scaled.T)[0])


@final
class TableLikelihood:
    """The law of the tables of one kind of release under one model; its programs are compiled once.

    :param split: the model.
    :param release: its tables' columns and sizes are read, not their cells.
    :raises ModelContractError: see `ModelTables`.
    :raises ArgumentError: the release has no table of columns that the model observes.
    """

    def __init__(self, split: SplitModel, release: Marginals) -> None:
        self.split = split
        known = ModelTables(split, release.columns, ())
        keys = [key for key in table_keys(release) if known.has(key)]
        if not keys:
            raise ArgumentError("the release has no table of columns that the model observes")
        self.tables = ModelTables(split, release.columns, keys)
        spoken_of = split.structure.modelled_masks
        self._masked = {c.name for c in release.columns if c.missing == "mask" and c.name not in spoken_of}

    def cells(self, release: Marginals) -> ReleasedCells:
        """The cells of a release of these tables."""
        stddevs = release.fine_stddevs
        found = {TableKey(m.columns): [] for m in release.measurements}
        for m in release.measurements:
            found[TableKey(m.columns)].append((m.values, m.stddev))
        found |= {TableKey((name,), fine=True): [(values, stddevs[name])] for name, values in release.fine.items()}
        parts = []
        for key in self.tables.keys:
            values, stddev = found[key].pop(0)
            here = self._present(key, values.shape)
            is_masked = bool(self._masked & set(key.columns))
            total = max(values[here].sum(), 1.0) if is_masked else float(release.num_records)
            parts.append(
                (values.ravel(), np.full(values.size, stddev), np.full(values.size, total), 1.0 * here.ravel())
            )
        return ReleasedCells(*(np.concatenate(part) for part in zip(*parts, strict=True)), sums=self.tables.sums)

    @property
    def undrawn(self) -> str:
        """Why no records of the model can be simulated, as the law needs them; empty where they can."""
        columns = {name for key in self.tables.keys for name in key.columns}
        twin = rehearse_twin(self.split)
        return "" if columns.issubset(twin.drawn) else twin.describe()

    def rehearse(self, cells: ReleasedCells) -> None:
        """Traces what the law computes of the model, derivatives and all.

        :raises ModelContractError: the model raises something; says what and where.
        """
        flat = jax.ShapeDtypeStruct((self.split.num_parameters,), jnp.result_type(float))
        with errors_on_stand_ins():
            jax.eval_shape(self._derivatives, flat, cells)
            jax.eval_shape(self._prior_curvature, flat)

    def _present(self, key: TableKey, shape: tuple[int, ...]) -> np.ndarray:
        """Cells in which no masked value is missing; a missing value has the last cell of its column."""
        here = np.ones(shape, bool)
        for axis, name in enumerate(key.columns):
            if name in self._masked:
                here[(slice(None),) * axis + (-1,)] = False
        return here

    # -- functions of theta -----------------------------------------------------------------------

    def expected(self, flat: Float[Array, " theta"], cells: ReleasedCells) -> Float[Array, " M"]:
        """The model's counts; 0 where it does not speak of a cell."""
        return self.tables(flat, cells.sums) * jnp.asarray(cells.total * cells.modelled, flat.dtype)

    def log_likelihood(self, flat: Float[Array, " theta"], law: Law) -> jax.Array:
        """log N(u(theta); 0, J), less its constant."""
        left = jnp.asarray(law.cells.counts * law.cells.modelled, flat.dtype) - self.expected(flat, law.cells)
        return -0.5 * jnp.sum((jnp.asarray(law.whitening, flat.dtype) @ left) ** 2)

    def misfit(self, flat: Any, cells: ReleasedCells) -> float:
        """A cell's squared residual over the variance of its noise and sampling, on average: about 1."""
        expected = np.asarray(self._expected(jnp.asarray(flat), cells), np.float64)
        squares = (cells.counts - expected) ** 2 / (cells.stddev**2 + expected)
        return float((squares * cells.modelled).sum() / cells.modelled.sum())

    @cached_property
    def _expected(self) -> Any:
        return jit_fast(self.expected)

    # -- the first estimate -----------------------------------------------------------------------

    def estimate(self, starts: Float[Array, "starts theta"], cells: ReleasedCells, num_steps: int) -> jax.Array:
        """The best of several descents on the tables' weighted squares less the log prior: flat theta."""
        found = [self._descent(start, cells, num_steps) for start in starts]
        return min(found, key=lambda one: float(one[1]) if np.isfinite(one[1]) else np.inf)[0]

    @cached_property
    def _descent(self) -> Any:
        def objective(flat: jax.Array, cells: ReleasedCells) -> jax.Array:
            expected = self.expected(flat, cells)
            variance = jnp.asarray(cells.stddev, flat.dtype) ** 2 + jax.lax.stop_gradient(expected)
            squares = cells.modelled * (cells.counts - expected) ** 2 / variance
            return (0.5 * squares.sum() - self.split.log_prior(flat)) / cells.modelled.sum()

        def descend(start: jax.Array, cells: ReleasedCells, num_steps: int) -> tuple[jax.Array, jax.Array]:
            optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, num_steps), b2=0.99)

            def step(carry: tuple[jax.Array, Any], _: None) -> tuple[tuple[jax.Array, Any], None]:
                flat, state = carry
                updates, state = optimizer.update(jax.grad(objective)(flat, cells), state, flat)
                return (jnp.asarray(optax.apply_updates(flat, updates)), state), None

            (flat, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), None, length=num_steps)
            return flat, objective(flat, cells)

        return jax.jit(descend, static_argnames="num_steps")

    # -- the law ----------------------------------------------------------------------------------

    def tangent(self, centre: jax.Array, cells: ReleasedCells) -> Tangent:
        """The model's tables about a first estimate.

        :raises ArgumentError: more parameters than `MOST_PARAMETERS`.
        """
        if len(centre) > MOST_PARAMETERS:
            raise ArgumentError(
                f"the model has {len(centre)} parameters; the law of the tables is held for at most "
                f'{MOST_PARAMETERS}. Give law="field", or fewer components'
            )
        return Tangent(centre, *(np.asarray(array, np.float64) for array in self._derivatives(centre, cells)))

    def at(self, tangent: Tangent, cells: ReleasedCells, rng_key: jax.Array) -> Law:
        """The law about a first estimate."""
        centre, expected, derivative = tangent
        G = derivative / (cells.stddev**2 + expected)
        J = (G * cells.stddev**2) @ G.T + self._scores(centre, cells, G, rng_key)
        values, vectors = np.linalg.eigh(J)
        roots = np.where(values > _TOLERANCE * values[-1], 1 / np.sqrt(np.maximum(values, 1e-300)), 0.0)
        whitening = (vectors * roots).T @ G
        found = whitening @ derivative.T
        information = found.T @ found
        curvature, axes = np.linalg.eigh(information + np.asarray(self._prior_curvature(centre), np.float64))
        return Law(
            cells=cells,
            whitening=whitening,
            centre=np.asarray(centre),
            scale=axes / np.sqrt(np.maximum(curvature, _LEAST)),
            information=float(np.linalg.eigvalsh(information)[0]),
        )

    @cached_property
    def _derivatives(self) -> Any:
        def derivatives(flat: jax.Array, cells: ReleasedCells) -> tuple[jax.Array, jax.Array]:
            expected, tangent = jax.linearize(lambda theta: self.expected(theta, cells), flat)
            return expected, jax.lax.map(tangent, jnp.eye(len(flat), dtype=flat.dtype))

        return jax.jit(derivatives)

    @cached_property
    def _prior_curvature(self) -> Any:
        return jax.jit(lambda flat: -jax.hessian(self.split.log_prior)(flat))

    def _scores(self, centre: jax.Array, cells: ReleasedCells, G: np.ndarray, rng_key: jax.Array) -> np.ndarray:
        """N Cov[G 1(x)] over records x of the model."""
        # Tables count different numbers of records where values are missing.
        return np.atleast_2d(np.cov(self.simulated(centre, rng_key) @ (G * np.sqrt(cells.total)).T, rowvar=False))

    def simulated(self, centre: jax.Array, rng_key: jax.Array) -> Any:
        """1(x) of records x of the model, a sparse matrix [records, M] of the cells that each is in."""
        latents = {name: jnp.asarray(value)[None] for name, value in self._constrained(centre).items()}
        drawn = self._records.draw(latents, rng_key, _SIMULATED, {})
        places = self.tables.cells_of(_with_masks(drawn))
        rows, size = np.repeat(np.arange(len(places)), places.shape[1]), sum(map(math.prod, self.tables.shapes))
        return sparse.csr_matrix((np.ones(places.size), (rows, places.ravel())), shape=(len(places), size))

    @cached_property
    def _constrained(self) -> Any:
        return jit_fast(self.split.constrain)

    @cached_property
    def _records(self) -> Records:
        return Records(self.split, rehearse_twin(self.split))


def table_keys(release: Marginals) -> list[TableKey]:
    """Every table of a release, finer histograms last; in an order that no noise decides, see `Sums`."""
    tables = [TableKey(m.columns) for m in release.measurements] + [TableKey((n,), fine=True) for n in release.fine]
    return sorted(tables, key=lambda key: (key.fine, key.columns))


def _with_masks(drawn: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**{name + OBSERVED_SUFFIX: np.ones(len(values), bool) for name, values in drawn.items()}, **drawn}
