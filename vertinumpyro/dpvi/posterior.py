"""What a fit returns: the guide's posterior, synthetic tables, predictive densities."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.scipy.special import logsumexp
from numpyro.infer import Predictive

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import VerticalDataset, decode_table
from vertinumpyro.dpvi import checkpoint
from vertinumpyro.dpvi.guide import Params, ReparameterisedGuide
from vertinumpyro.dpvi.loop import device_columns
from vertinumpyro.model.unobserved import UNOBSERVED
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
        return self.guide.constrain_params(self.params)

    def sample(self, rng_key: jax.Array, num_samples: int) -> dict[str, jax.Array]:
        """Draws of the global latents on their own supports, each [num_samples, ...]."""
        keys = jax.random.split(rng_key, num_samples)
        return jax.jit(jax.vmap(lambda key: self.guide.split.constrain(self.guide.sample(self.params, key))))(keys)

    def sample_synthetic(
        self, num_records: int | None = None, *, rng_key: jax.Array, num_posterior_samples: int = 20
    ) -> pd.DataFrame:
        """A synthetic table from the posterior predictive distribution, in the schema's own types.

        Records are spread evenly over `num_posterior_samples` draws of the latents. Post-processing: as many
        tables as you like cost no further privacy.

        :param num_records: N of the plan by default.
        """
        num_records = self.plan.num_records if num_records is None else num_records
        if num_records < 1:
            raise ArgumentError(f"num_records={num_records}; give 1 or more")
        draws = min(num_posterior_samples, num_records)
        each = -(-num_records // draws)
        latent_key, record_key = jax.random.split(rng_key)
        split = self.guide.split
        draw = jax.jit(lambda latents, key: Predictive(split.model, posterior_samples=latents)(key, UNOBSERVED, each))
        samples = draw(self.sample(latent_key, draws), record_key)
        columns = split.schema.columns
        missing = [name for name in columns if name not in samples]
        if missing:
            raise ArgumentError(f"the model has no site named after the columns {missing}; name sites as columns")
        order = np.random.default_rng(np.asarray(record_key).ravel()).permutation(draws * each)[:num_records]
        arrays = {name: np.asarray(samples[name]).reshape(-1)[order] for name in columns}
        seed = np.random.default_rng(np.asarray(latent_key).ravel())
        return decode_table(split.schema, arrays, seed)

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
        loc = self.params.get(f"{self.guide.guide.prefix}_loc")
        return self._draws(jax.random.PRNGKey(0), 256).mean(0) if loc is None else jnp.asarray(loc)

    def save(self, path: str | Path) -> None:
        """Write parameters, plan and schema to one `.npz` file; `DPVI.load` reads it."""
        metadata = {
            "schema": self.guide.split.schema.to_dict(),
            "plan": self.plan.to_dict(),
            "secure_noise": self.secure_noise,
        }
        checkpoint.save_tree(path, self.params, metadata)

    def _draws(self, rng_key: jax.Array, num_samples: int) -> jax.Array:
        keys = jax.random.split(rng_key, num_samples)
        return jax.vmap(lambda key: self.guide.sample(self.params, key))(keys)


def _log_densities(
    guide: ReparameterisedGuide, draws: jax.Array, columns: Mapping[str, Mapping[str, jax.Array]]
) -> jax.Array:
    """log mean over draws of p(x_n | theta), [n]."""
    split = guide.split

    def at(theta: jax.Array) -> jax.Array:
        parts = (split.log_density(party, theta, columns[party]) for party in split.parties)
        return logsumexp(sum(parts, start=split.component_prior(theta).log_weights), axis=-1)

    return logsumexp(jax.lax.map(at, draws), axis=0) - jnp.log(len(draws))
