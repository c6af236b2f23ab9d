"""What a fit returns: the guide's posterior, synthetic tables, predictive densities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.scipy.special import logsumexp

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import checkpoint
from vertinumpyro.dpvi.arguments import checked_key
from vertinumpyro.dpvi.arviz_export import as_arviz
from vertinumpyro.dpvi.guide import Params, ReparameterisedGuide
from vertinumpyro.dpvi.kernel import score_link
from vertinumpyro.dpvi.loop import device_columns
from vertinumpyro.dpvi.synthesis import Records, encoded_covariates, twin_frame
from vertinumpyro.dpvi.twin_columns import TwinColumns, twin_columns
from vertinumpyro.privacy import ClientPlan, PrivacyPlan

__all__ = ["Diagnostics", "Posterior"]

_RECORDS_AT_A_TIME = 4096


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """How a fit went.

    released_norm: L2 norm of each noisy gradient per expected record; post-processing of the release, so DP.
    objective: negative ELBO per record on each batch, or None. NOT DP, internal.
    seconds: wall time of the steps, compilation included.
    """

    released_norm: np.ndarray
    objective: np.ndarray | None
    seconds: float

    @classmethod
    def empty(cls) -> Diagnostics:
        """Of a loaded posterior."""
        return cls(np.zeros(0), None, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Posterior:
    """A variational posterior learned under a plan. Everything in it but `diagnostics.objective` is released.

    :ivar params: the guide's unconstrained parameters; `guide_params` has NumPyro's names and constraints.
    :ivar secure_noise: whether noise and batches came from the operating system's CSPRNG. Where it is
        False the fit used `insecure_seed` and has no privacy.
    """

    guide: ReparameterisedGuide
    params: Params
    plan: PrivacyPlan | ClientPlan
    diagnostics: Diagnostics
    secure_noise: bool

    @property
    def guide_params(self) -> dict[str, Any]:
        """The guide's parameters as its autoguide names and constrains them."""
        return self.guide.named_params(self.params)

    def sample(self, rng_key: jax.Array, num_samples: int) -> dict[str, jax.Array]:
        """Draws of the global latents on their own supports, each [num_samples, ...]."""
        return self._constrained(jax.random.split(checked_key(rng_key), num_samples))

    @cached_property
    def _constrained(self) -> Callable[[jax.Array], dict[str, jax.Array]]:
        return jax.jit(jax.vmap(lambda key: self.guide.split.constrain(self.guide.sample(self.params, key))))

    def to_arviz(self, rng_key: jax.Array, num_samples: int = 1000) -> Any:
        """Draws of the global latents for ArviZ's tables and plots: one chain, plates as named dimensions.

        Post-processing, as `sample`. Nothing of the records is in it, so no observed data and no log likelihood.

        :returns: `arviz.InferenceData`, or from ArviZ 1 on an `xarray.DataTree`.
        :raises ArgumentError: arviz (extra `arviz`) is not installed.
        """
        return as_arviz(self.guide.split, self.sample(rng_key, num_samples))

    @cached_property
    def twin_columns(self) -> TwinColumns:
        """Which columns a synthetic table has, which covariates it needs, and what it leaves out."""
        return twin_columns(self.guide.split.structure)

    def sample_synthetic(
        self,
        num_records: int | None = None,
        *,
        rng_key: jax.Array,
        num_posterior_samples: int = 20,
        covariates: Any = None,
    ) -> pd.DataFrame:
        """A synthetic table from the posterior predictive distribution, in the storage types of the dataset's schema.

        Records are spread evenly over `num_posterior_samples` draws of the latents. Post-processing: as many
        tables as you like cost no further privacy. A column that the model does not draw is left out, with a
        `TwinWarning`.

        :param num_records: by default N of the plan, or the number of covariates' rows.
        :param covariates: the columns that the model reads and does not draw (`twin_columns.given`), as a table of
            any library in the schema's units, with a row for each synthetic record. They stand in the result as they
            are and nothing protects them: give public or synthetic ones.
        :raises ArgumentError: the model draws no column, covariates are missing or too many, or the numbers of records
            differ; names the columns.
        :raises DataError: a covariate breaks the schema.
        """
        split, twin = self.guide.split, self.twin_columns
        if not twin.drawn:
            raise ArgumentError(twin.describe())
        covariates, arrays = encoded_covariates(split.schema, twin, covariates)
        num_records = self._num_synthetic(num_records, covariates)
        if num_posterior_samples < 1:
            raise ArgumentError(f"num_posterior_samples={num_posterior_samples}; give 1 or more")
        if twin.left_out:
            dataclasses.replace(twin, given=()).warn(stacklevel=2)
        latent_key, record_key = jax.random.split(checked_key(rng_key))
        latents = self.sample(latent_key, min(num_posterior_samples, num_records))
        drawn = self._records.draw(latents, record_key, num_records, arrays)
        return twin_frame(split.schema, twin, drawn, np.random.default_rng(np.asarray(latent_key).ravel()), covariates)

    @cached_property
    def _records(self) -> Records:
        return Records(self.guide.split, self.twin_columns)

    def _num_synthetic(self, num_records: int | None, covariates: pd.DataFrame) -> int:
        if self.twin_columns.given:
            if num_records not in (None, len(covariates)):
                raise ArgumentError(
                    f"num_records={num_records}, and covariates has {len(covariates)} rows; leave num_records out"
                )
            return len(covariates)
        num_records = self.plan.num_records if num_records is None else num_records
        if num_records < 1:
            raise ArgumentError(f"num_records={num_records}; give 1 or more")
        return num_records

    def log_density(
        self, dataset: VerticalDataset, *, rng_key: jax.Array | None = None, num_samples: int = 64
    ) -> np.ndarray:
        """log p(x_n | theta) [N] at the guide's centre, or log of its mean over draws when rng_key is given.

        NOT DP, internal: it depends on the records of `dataset`, which must not be the released side's secret.
        """
        draws = self.centre()[None] if rng_key is None else self._draws(rng_key, num_samples)
        columns = device_columns(dataset)
        evaluate = jax.jit(partial(_log_densities, self.guide, draws))
        blocks = range(0, dataset.num_records, _RECORDS_AT_A_TIME)
        cut = jax.tree_util.tree_map
        return np.concatenate(
            [np.asarray(evaluate(cut(lambda c, s=s: c[s : s + _RECORDS_AT_A_TIME], columns))) for s in blocks]
        )

    def held_out_nll(self, dataset: VerticalDataset, **kwargs: Any) -> float:
        """Mean of -`log_density` over a held-out dataset, in nats per record. NOT DP, internal."""
        return float(-self.log_density(dataset, **kwargs).mean())

    def centre(self) -> jax.Array:
        """Flat unconstrained theta at the guide's location; the mean of 256 draws where it has none."""
        location = self.guide.location(self.params)
        return self._draws(jax.random.PRNGKey(0), 256).mean(0) if location is None else location

    def save(self, path: str | Path) -> None:
        """Write parameters, plan and schema to one `.npz` file; `DPVI.load` reads it."""
        metadata = {
            "schema": self.guide.split.schema.to_dict(),
            "plan": self.plan.to_dict(),
            "secure_noise": self.secure_noise,
        }
        checkpoint.save_tree(path, self.params, metadata)

    def _draws(self, rng_key: jax.Array, num_samples: int) -> jax.Array:
        keys = jax.random.split(checked_key(rng_key), num_samples)
        return jax.vmap(lambda key: self.guide.sample(self.params, key))(keys)


def _log_densities(
    guide: ReparameterisedGuide, draws: jax.Array, columns: Mapping[str, Mapping[str, jax.Array]]
) -> jax.Array:
    """log mean over draws of p(x_n | theta), [n]."""
    split, link = guide.split, score_link(guide.split)

    def at(theta: jax.Array) -> jax.Array:
        parts = (split.log_density(party, theta, columns[party]) for party in split.parties)
        return link.log_density(sum(parts, start=split.component_prior(theta).log_weights))

    return logsumexp(jax.lax.map(at, draws), axis=0) - jnp.log(len(draws))
