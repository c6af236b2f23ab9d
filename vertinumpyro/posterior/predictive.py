"""What every posterior of a split model can do, whatever it was learned from: twins, densities, ArviZ."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.scipy.special import logsumexp

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.core.row_blocks import slices
from vertinumpyro.core.validation import checked, shown
from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.constraints import drawn_within
from vertinumpyro.data.table import model_units, write_in_blocks
from vertinumpyro.model import SplitModel
from vertinumpyro.model.enumeration import trace_at
from vertinumpyro.model.user_code import public_state
from vertinumpyro.posterior.synthesis import Records, TwinColumns, encoded_covariates, rehearse_twin, twin_frame
from vertinumpyro.secure.score_functions import SOFTMAX, ScoreFunction, joint_link, link_of

ROWS_DRAWN = 2**19
"""Records of a synthetic table that are drawn at a time."""

_NOT_DP = "computed from single records of the dataset that was given, which no epsilon covers"
_RECORDS_AT_A_TIME = 4096


class PredictivePosterior(abc.ABC):
    """A posterior of the global latents of a split model."""

    def __getstate__(self) -> dict[str, Any]:
        """The fields, which are public; compiled programs are made again on demand."""
        return public_state(self)

    @property
    @abc.abstractmethod
    def split(self) -> SplitModel:
        """The model."""

    @property
    @abc.abstractmethod
    def num_learned(self) -> int:
        """N, the number of records that it was learned from, public."""

    @property
    @abc.abstractmethod
    def spread_note(self) -> str:
        """What the spread of the draws leaves out; empty where it knows the sampling and the noise of privacy."""

    @property
    def is_interval(self) -> bool:
        """Whether quantiles of the draws are intervals; `spread_note` says why not."""
        return not self.spread_note

    @property
    def reading_notes(self) -> tuple[str, ...]:
        """What to know before any number is read, in sentences without a full stop."""
        return ()

    def __str__(self) -> str:
        """The notes, itself in short, and where there are intervals a row for each number, within 80 columns."""
        with pd.option_context("display.width", 80, "display.precision", 3):
            rows = [str(self.summary())] if self.is_interval else []
            return "\n".join([*(f"{note}." for note in self.reading_notes), repr(self), *rows])

    @abc.abstractmethod
    def sample_flat(self, rng_key: jax.Array, num_samples: int) -> jax.Array:
        """Draws of flat unconstrained theta, [num_samples, theta]."""

    @property
    def _num_draws(self) -> float:
        """How many different draws there are at most."""
        return math.inf

    @property
    def _without_privacy(self) -> np.ndarray | None:
        """Standard deviations [theta] that the same records would leave without the noise of privacy, where known."""
        return None

    @abc.abstractmethod
    def centre(self) -> jax.Array:
        """Flat unconstrained theta in the middle."""

    def _shared(self, name: str, make: Callable[[], Any]) -> Any:
        """A program that depends on the model alone, made once for all posteriors of it."""
        compiled = self.split.compiled
        if name not in compiled:
            compiled[name] = make()
        return compiled[name]

    @property
    def _constrained(self) -> Callable[[jax.Array], Mapping[str, jax.Array]]:
        number, split = self.num_learned, self.split
        run = partial(split.with_derived, num_records=number)
        return self._shared(f"constrained {number if split.structure.derived else ''}", lambda: jax.jit(jax.vmap(run)))

    @checked
    def sample(self, rng_key: jax.Array, num_samples: int) -> dict[str, jax.Array]:
        """Draws of the global latents on their own supports, each [num_samples, ...].

        As NumPyro's `get_samples`, with the deterministic sites that follow from them, as of `handlers.reparam`.
        """
        return dict(self._constrained(self.sample_flat(checked_key(rng_key), num_samples)))

    @checked
    def summary(self, rng_key: jax.Array | None = None, *, prob: float = 0.95, num_samples: int = 2000) -> pd.DataFrame:
        """A row for each number of each latent, on its own support, and of what is derived from them. Post-processing.

        Columns are `estimate`, the posterior mean; `std_error`, the posterior standard deviation; `lower` and `upper`,
        the ends of the central interval, drawn out to a mean that lies outside, as of a heavy tail; `privacy_share`,
        the part of the posterior variance that the noise of privacy adds, as far as can be told; `effective_records`:
        so many records without that noise would say as much.

        Where the spread of the draws is no interval (`is_interval`), there is the column estimate alone, and
        `summary().attrs["spread_note"]` says why. The last two columns are there where they are known.

        :param rng_key: of the draws; None takes one that is always the same.
        :param prob: of the interval.
        :raises ArgumentError: prob is not between 0 and 1.
        """
        if not 0 < prob < 1:
            raise ArgumentError(f"prob={prob:g} must lie between 0 and 1")
        draws = self.sample_flat(compat.random_key(0) if rng_key is None else checked_key(rng_key), num_samples)
        flat = {} if self._without_privacy is None else self.split.unflatten(jnp.asarray(self._without_privacy))
        spread = self.split.unflatten(jnp.std(draws, axis=0))
        frames = []
        for name, values in self._constrained(draws).items():
            frames.append(_summary(name, np.asarray(values, np.float64), prob))
            if flat:
                frames[-1]["privacy_share"] = _share(flat.get(name), spread.get(name), values)
        table = pd.concat(frames)
        if flat:
            table["effective_records"] = (1 - table["privacy_share"]) * self.num_learned
        if not self.is_interval:
            table = pd.DataFrame({"estimate": table["estimate"]})
            table.attrs["spread_note"] = self.spread_note
        table.attrs["reading_notes"] = self.reading_notes
        return table

    @checked
    def to_arviz(
        self,
        rng_key: jax.Array,
        num_samples: int = 1000,
        *,
        log_likelihood: bool = False,
        posterior_predictive: bool = False,
        dataset: VerticalDataset | None = None,
        allow_not_dp: bool = False,
    ) -> Any:
        """Draws of the global latents for ArviZ's tables and plots: one chain, plates as named dimensions.

        Post-processing, as `sample`: nothing of the records is in the group `posterior`. Where the draws' spread is no
        interval, the group's attribute `spread_note` says so.

        The other groups are NOT DP, as their attribute `not_dp` says: they are computed from the records of `dataset`,
        a number for each draw and record.

        :param log_likelihood: add this group, with log p(x_n | theta) over all columns as `log_density`.
        :param posterior_predictive: add this group, with columns drawn for each record, in the model's units; those
            that the model reads and does not draw are the dataset's.
        :param dataset: the records of both.
        :param allow_not_dp: True where they may be seen by whoever sees the result.
        :returns: an `xarray.DataTree`, or `arviz.InferenceData` before ArviZ 1, which needs Python 3.12.
        :raises ArgumentError: arviz (extra `arviz`) is not installed, or there is no dataset.
        :raises PrivacyError: a group of records is wanted without `allow_not_dp=True`.
        """
        groups = {"log_likelihood": log_likelihood, "posterior_predictive": posterior_predictive}
        wanted = [group for group, asked in groups.items() if asked]
        draws = self.sample_flat(checked_key(rng_key), num_samples)
        of_records = self._of_records(wanted, draws, rng_key, dataset, allow_not_dp) if wanted else {}
        return _as_arviz(self.split, self._constrained(draws), self.spread_note, of_records)

    def _of_records(
        self, wanted: list[str], draws: jax.Array, rng_key: jax.Array, dataset: VerticalDataset | None, allowed: bool
    ) -> dict[str, Mapping[str, Any]]:
        """The groups of `to_arviz` that are of records. NOT DP."""
        if not allowed:
            raise PrivacyError(f"{wanted[0]}: {_NOT_DP}; give allow_not_dp=True where whoever sees it may see them")
        if dataset is None:
            raise ArgumentError(f"{wanted[0]} is of records; give their dataset, as in dataset=held_out")
        found: dict[str, Mapping[str, Any]] = {}
        if "log_likelihood" in wanted:
            found["log_likelihood"] = {"log_density": self._log_densities(draws, dataset, mean=False)}
        if "posterior_predictive" in wanted:
            if not self.twin_columns.drawn:
                raise ArgumentError(self.twin_columns.describe())
            key, columns = jax.random.fold_in(checked_key(rng_key), 1), device_columns(dataset)
            found["posterior_predictive"] = self._records.replicated(self._constrained(draws), key, columns)
        return found

    @cached_property
    def twin_columns(self) -> TwinColumns:
        """Which columns a synthetic table has, which covariates it needs, and what it leaves out."""
        return rehearse_twin(self.split)

    @overload
    def sample_synthetic(
        self,
        num_records: int | None = None,
        *,
        rng_key: jax.Array,
        num_posterior_samples: int = 20,
        num_tables: None = None,
        covariates: Any = None,
    ) -> pd.DataFrame: ...

    @overload
    def sample_synthetic(
        self,
        num_records: int | None = None,
        *,
        rng_key: jax.Array,
        num_posterior_samples: int = 20,
        num_tables: int,
        covariates: Any = None,
    ) -> list[pd.DataFrame]: ...

    @checked
    def sample_synthetic(
        self,
        num_records: int | None = None,
        *,
        rng_key: jax.Array,
        num_posterior_samples: int = 20,
        num_tables: int | None = None,
        covariates: Any = None,
    ) -> pd.DataFrame | list[pd.DataFrame]:
        """A synthetic table from the posterior predictive distribution, in the storage types of the dataset's schema.

        Records are spread evenly over `num_posterior_samples` draws of the latents, and drawn together (`Stratified`):
        each is an exact draw of the model, and their shares are nearer to it than those of independent records, which
        `num_tables` gives. Post-processing: as many tables as you like cost no further privacy. A column that the model
        does not draw is left out, with a `TwinWarning`.

        :param num_records: by default N of the plan, or the number of covariates' rows.
        :param num_tables: return so many tables in a list, each from one draw of the latents: what
            `evaluation.combine_estimates` needs for intervals that know all uncertainty, where `is_interval`.
        :param covariates: the columns that the model reads and does not draw (`twin_columns.given`), as a table of
            any library in the schema's units, with a row for each synthetic record; the id column may stand beside
            them. They stand in the result as they are and nothing protects them: give public or synthetic ones.
        :returns: a data frame, or a list of them.
        :raises ArgumentError: the model draws no column, covariates are missing or too many, or the numbers of records
            differ; names the columns.
        :raises DataError: a covariate breaks the schema.
        """
        if num_tables is None:
            made = self._blocks(num_records, rng_key, num_posterior_samples, covariates, rows=None)
            return next(made)
        self._check_number("num_tables", num_tables)
        keys = jax.random.split(checked_key(rng_key), num_tables)
        return [next(self._blocks(num_records, key, 1, covariates, rows=None, stratified=False)) for key in keys]

    @checked
    def synthetic_blocks(
        self,
        num_records: int | None = None,
        *,
        rng_key: jax.Array,
        num_posterior_samples: int = 20,
        covariates: Any = None,
        rows: int = ROWS_DRAWN,
    ) -> Iterator[pd.DataFrame]:
        """The records of a synthetic table, up to `rows` at a time, in one block's memory.

        All blocks are of the same draws of the latents, and records are drawn together (`Stratified`) within each. A
        table of up to `rows` records is `sample_synthetic`'s with the same key.

        :param rows: records of a block.
        :raises ArgumentError: a number is below 1; and as `sample_synthetic`.
        :raises DataError: as there.
        """
        self._check_number("rows", rows)
        return self._blocks(num_records, rng_key, num_posterior_samples, covariates, rows=rows)

    @checked
    def write_synthetic(
        self,
        path: str | Path,
        num_records: int | None = None,
        *,
        rng_key: jax.Array,
        num_posterior_samples: int = 20,
        covariates: Any = None,
    ) -> None:
        """Write a synthetic table of any length as CSV or Parquet, as the name says, block by block.

        :raises ArgumentError: the name ends in neither, or there is no such folder; and as `synthetic_blocks`.
        """
        blocks = self._blocks(num_records, rng_key, num_posterior_samples, covariates, rows=ROWS_DRAWN)
        write_in_blocks(Path(path), blocks)

    def _blocks(
        self, num_records: int | None, rng_key: jax.Array, num_posterior_samples: int, covariates: Any, *,
        rows: int | None, stratified: bool = True,
    ) -> Iterator[pd.DataFrame]:  # fmt: skip
        """Checks everything now, and draws as far as is asked; rows=None draws all records at once."""
        twin = self.twin_columns
        if not twin.drawn:
            raise ArgumentError(twin.describe())
        given, arrays = encoded_covariates(self.split.schema, twin, covariates)
        num_records = self._num_synthetic(num_records, given)
        self._check_number("num_posterior_samples", num_posterior_samples)
        if twin.left_out or twin.complete:
            dataclasses.replace(twin, given=()).warn(stacklevel=4)
        latent_key, record_key = jax.random.split(checked_key(rng_key))
        latents = self.sample(latent_key, int(min(num_posterior_samples, num_records, self._num_draws)))
        rng = np.random.default_rng(np.asarray(latent_key).ravel())

        def drawn(number: int, block: slice) -> pd.DataFrame:
            key = record_key if number == 0 else jax.random.fold_in(record_key, number)
            own = {name: array[block] for name, array in arrays.items()}
            beside, schema = given.iloc[block].reset_index(drop=True), self.split.schema

            def freely(attempt: int) -> pd.DataFrame:
                of_attempt = key if attempt == 0 else jax.random.fold_in(key, attempt)
                found = self._records.draw(latents, of_attempt, block.stop - block.start, own, stratified=stratified)
                return twin_frame(schema, twin, found, rng, beside)

            return drawn_within(freely, schema.kept_by_twins, schema.columns, given=twin.given)

        size = num_records if rows is None else rows
        return (drawn(number, block) for number, block in enumerate(slices(num_records, size)))

    @staticmethod
    def _check_number(name: str, number: int) -> None:
        if number < 1:
            raise ArgumentError(f"{name}={number}; give 1 or more")

    @property
    def _records(self) -> Records:
        return self._shared("records", lambda: Records(self.split, self.twin_columns))

    def _num_synthetic(self, num_records: int | None, covariates: pd.DataFrame) -> int:
        if self.twin_columns.given:
            if num_records not in (None, len(covariates)):
                raise ArgumentError(
                    f"num_records={num_records}, and covariates has {len(covariates)} rows; leave num_records out"
                )
            return len(covariates)
        num_records = self.num_learned if num_records is None else num_records
        if num_records < 1:
            raise ArgumentError(f"num_records={num_records}; give 1 or more")
        return num_records

    @checked
    def log_density(
        self, dataset: VerticalDataset, *, rng_key: jax.Array | None = None, num_samples: int = 64
    ) -> np.ndarray:
        """log p(x_n | theta) [N] at the posterior's centre, or log of its mean over draws when rng_key is given.

        NOT DP, internal: it depends on the records of `dataset`, which must not be the released side's secret.
        """
        draws = self.centre()[None] if rng_key is None else self.sample_flat(checked_key(rng_key), num_samples)
        return self._log_densities(draws, dataset, mean=True)

    def _log_densities(self, draws: jax.Array, dataset: VerticalDataset, *, mean: bool) -> np.ndarray:
        columns, name = device_columns(dataset), f"log_densities {mean}"
        evaluate = self._shared(name, lambda: jax.jit(partial(_log_densities, self.split, mean)))
        blocks = range(0, dataset.num_records, _RECORDS_AT_A_TIME)
        cut = jax.tree_util.tree_map
        return np.concatenate(
            [np.asarray(evaluate(draws, cut(lambda c, s=s: c[s : s + _RECORDS_AT_A_TIME], columns))) for s in blocks],
            axis=-1,
        )

    def held_out_nll(self, dataset: VerticalDataset, **kwargs: Any) -> float:
        """Mean of -`log_density` over a held-out dataset, in nats per record. NOT DP, internal."""
        return float(-self.log_density(dataset, **kwargs).mean())


def _share(without: Any, spread: Any, values: Any) -> np.ndarray | float:
    """Part of the variance that privacy adds; NaN where a latent has other numbers than its unconstrained ones."""
    if without is None or np.shape(without) != np.shape(values)[1:]:
        return math.nan
    return np.clip(1 - np.square(np.asarray(without) / np.asarray(spread)), 0, 1).ravel()


def _summary(name: str, values: np.ndarray, prob: float) -> pd.DataFrame:
    """Rows of one latent, of its draws [draws, ...]."""
    places = [",".join(map(str, place)) for place in np.ndindex(values.shape[1:])]
    low, high = np.quantile(values, [(1 - prob) / 2, (1 + prob) / 2], axis=0)
    mean = values.mean(0)
    ends = {"lower": np.minimum(low, mean), "upper": np.maximum(high, mean)}
    columns = {"estimate": mean, "std_error": values.std(0), **ends}
    index = [f"{name}[{place}]" if place else name for place in places]
    return pd.DataFrame({column: np.ravel(found) for column, found in columns.items()}, index=index)


def _log_densities(
    split: SplitModel, mean: bool, draws: jax.Array, columns: Mapping[str, Mapping[str, jax.Array]]
) -> jax.Array:
    """log p(x_n | theta) [draws, n], or the log of its mean over draws, [n]."""
    link = score_link(split)

    def at(theta: jax.Array) -> jax.Array:
        parts = [split.log_density(party, theta, columns[party]) for party in split.parties]
        return link.log_density(link.total(split.component_prior(theta).log_weights, parts))

    found = jax.lax.map(at, draws)
    return logsumexp(found, axis=0) - jnp.log(len(draws)) if mean else found


Columns = Mapping[str, Mapping[str, jax.Array]]
"""Every party's encoded columns on the device: columns[party][name], each [N]."""


def device_columns(dataset: VerticalDataset) -> dict[str, dict[str, jax.Array]]:
    """Every party's encoded columns as device arrays, each [N]."""
    return {
        party: {name: jnp.asarray(model_units(column)) for name, column in dataset.arrays(party).items()}
        for party in dataset.parties
    }


def score_link(split: SplitModel) -> ScoreFunction:
    """The link of a split model: its outcomes' where parties sum up predictors, else a mixture's."""
    summed = split.structure.summed
    if not summed:
        return SOFTMAX
    links = [link_of(found.outcome.described()) for found in summed]
    return joint_link(links, [split.parties.index(found.party) for found in summed])


def checked_key(rng_key: Any) -> jax.Array:
    """The key as uint32 numbers, which every NumPyro release takes and a file can hold; typed keys give theirs.

    :raises ArgumentError: it is a seed, several keys, or something else than a key of jax's present generator.
    """
    if isinstance(rng_key, jax.Array | np.ndarray):
        typed = jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)
        numbers = jax.random.key_data(rng_key) if typed else jnp.asarray(rng_key)
        if numbers.dtype == jnp.uint32 and numbers.shape == compat.random_key(0).shape:
            return numbers
    raise ArgumentError(f"rng_key={shown(rng_key)} is no key; give one, jax.random.key(seed)")


def _as_arviz(
    split: SplitModel,
    draws: Mapping[str, jax.Array],
    spread_note: str,
    of_records: Mapping[str, Mapping[str, np.ndarray]],
) -> Any:
    """Draws [num_samples, ...] of the global latents as one chain, with the model's plates as dimensions.

    :param spread_note: an attribute of the group `posterior`, unless it is empty.
    :param of_records: further groups by their names, of arrays [num_samples, record_dim]; marked as not DP.
    :returns: an `xarray.DataTree`, or `arviz.InferenceData` before ArviZ 1.
    :raises ArgumentError: arviz is not installed.
    """
    try:
        import arviz
    except ImportError as error:
        raise ArgumentError("this needs arviz: install it with `pip install 'vertinumpyro[arviz]'`") from error
    groups = {
        group: {name: np.asarray(values)[None] for name, values in arrays.items()}
        for group, arrays in {"posterior": draws, **of_records}.items()
    }
    dims = _dimensions(split) | {name: ["record_dim"] for arrays in of_records.values() for name in arrays}
    make: Any = arviz.from_dict
    old = int(arviz.__version__.split(".")[0]) < 1
    found = make(**groups, dims=dims) if old else make(groups, dims=dims)
    if spread_note:
        found["posterior"].attrs["spread_note"] = spread_note
    for group in of_records:
        found[group].attrs["not_dp"] = _NOT_DP
    return found


def _dimensions(split: SplitModel) -> dict[str, list[str]]:
    """Each latent's axes: plates by their names, the others numbered."""
    dims: dict[str, list[str]] = {}

    def run() -> None:
        theta = split.unflatten(jnp.zeros(split.num_parameters))
        trace = trace_at(split.model, theta, split.structure.component_site, split.stand_ins(1), 1)
        for name in split.structure.latents:
            site, shape = trace[name], jnp.shape(trace[name]["value"])
            dims[name] = [f"{name}_dim_{axis}" for axis in range(len(shape))]
            for plate in site["cond_indep_stack"]:
                axis = len(shape) - site["fn"].event_dim + plate.dim
                if axis >= 0 and shape[axis] == plate.size:
                    dims[name][axis] = plate.name

    jax.eval_shape(run)
    return dims
