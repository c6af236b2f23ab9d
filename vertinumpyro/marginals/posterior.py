"""What `MarginalInference` returns: draws of the latents, and everything that follows from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core.stored_arrays import save_arrays
from vertinumpyro.model import SplitModel
from vertinumpyro.mrf import MRFPlan
from vertinumpyro.posterior.predictive import PredictivePosterior, checked_key

__all__ = ["Law", "MarginalPosterior"]

Law = Literal["tables", "field"]

_OF_FIELD = (
    "the spread of these draws is of the field's records: it leaves out the noise of the tables, and is no interval"
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class MarginalPosterior(PredictivePosterior):
    """A posterior learned from released tables. Everything in it is post-processing of the release.

    :ivar model: the split model.
    :ivar plan: what the tables cost.
    :ivar draws: of flat unconstrained theta, [draws, theta].
    :ivar middle: its centre.
    :ivar law: "tables", the exact law of the tables with all correlations, or "field", an approximation; and `why`.
    :ivar misfit: mean squared standardised residual of the tables' cells at the centre; about 1 where the model can
        have made them, well above where it cannot.
    :ivar secure_noise: whether the tables' noise came from the operating system's CSPRNG.
    """

    model: SplitModel
    plan: MRFPlan
    draws: np.ndarray
    middle: np.ndarray
    law: Law
    why: str
    misfit: float
    secure_noise: bool

    @property
    def split(self) -> SplitModel:
        """See `PredictivePosterior.split`."""
        return self.model

    @property
    def num_learned(self) -> int:
        """N of the plan."""
        return self.plan.num_records

    @property
    def spread_note(self) -> str:
        """See `PredictivePosterior.spread_note`."""
        return "" if self.law == "tables" else _OF_FIELD

    def sample_flat(self, rng_key: jax.Array, num_samples: int) -> jax.Array:
        """Some of the stored draws; with repetition where more are asked for than there are."""
        replace = num_samples > len(self.draws)
        rows = jax.random.choice(checked_key(rng_key), len(self.draws), (num_samples,), replace=replace)
        return jnp.asarray(self.draws)[rows]

    @property
    def _num_draws(self) -> float:
        return len(self.draws)

    def centre(self) -> jax.Array:
        """See `PredictivePosterior.centre`."""
        return jnp.asarray(self.middle)

    def save(self, path: str | Path) -> None:
        """Write draws, plan and schema to one `.npz` file; `MarginalInference.load` reads it."""
        words = {
            "schema": self.model.schema.to_dict(),
            "plan": self.plan.to_dict(),
            "law": self.law,
            "why": self.why,
            "misfit": self.misfit,
            "secure_noise": self.secure_noise,
        }
        save_arrays(path, {"draws": self.draws, "middle": self.middle}, words)

    def __repr__(self) -> str:
        """Shows public facts."""
        note = f"; {self.spread_note}" if self.spread_note else ""
        return f"MarginalPosterior({len(self.draws)} draws of {self.draws.shape[1]} parameters, law={self.law!r}{note})"
