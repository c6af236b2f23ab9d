"""Coefficients that `MarginalGLM` learned from tables: draws, intervals, odds and rate ratios."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.glm.cells import UNIT
from vertinumpyro.marginals import MarginalPosterior

__all__ = ["TABLE_FAMILIES", "GLMPosterior"]

TABLE_FAMILIES: Mapping[str, str] = {
    "bernoulli": "odds ratio",
    "probit": "",
    "ordinal": "odds ratio",
    "normal": "",
    "poisson": "rate ratio",
    "negative_binomial": "rate ratio",
}
"""Families, and what the exponential of a coefficient is."""


@final
@dataclasses.dataclass(frozen=True)
class GLMPosterior:
    """Coefficients learned from released tables; everything in it is post-processing of the release.

    Attributes:
        family: one of `TABLE_FAMILIES`.
        names: of the coefficients, without the intercept.
        posterior: of the whole model: the features' joint distribution is among its latents.
        num_samples: draws.
    """

    family: str
    names: tuple[str, ...]
    posterior: MarginalPosterior = dataclasses.field(repr=False)
    num_samples: int

    @property
    def _sites(self) -> Mapping[str, Any]:
        return jax.vmap(self.posterior.model.constrain)(jnp.asarray(self.posterior.draws))

    def means(self) -> dict[str, float]:
        """Posterior means of the columns of `draws`, by name."""
        return {str(name): float(value) for name, value in self.draws().mean().items()}

    def cutpoints(self) -> np.ndarray | None:
        """Posterior means of an ordinal label's cut points; None of other families."""
        return np.asarray(self._sites["cutpoints"]).mean(axis=0) if self.family == "ordinal" else None

    def draws(self) -> pd.DataFrame:
        """A column for each coefficient, the intercept's first where there is one, `[num_samples, ...]`."""
        sites = self._sites
        found = {"intercept": np.asarray(sites["intercept"])} if "intercept" in sites else {}
        found |= dict(zip(self.names, UNIT * np.asarray(sites["coefficients_in_units"]).T, strict=True))
        return pd.DataFrame(found)

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Mean, standard deviation and interval of every coefficient; odds or rate ratios with theirs beside it.

        Args:
            level: of the intervals, which are between equal tails.

        Raises:
            ArgumentError: `level` is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ArgumentError(f"level={level} must be between 0 and 1")
        draws = self.draws()
        low, high = (draws.quantile(q) for q in ((1 - level) / 2, (1 + level) / 2))
        found = pd.DataFrame({"mean": draws.mean(), "sd": draws.std(), "low": low, "high": high})
        if words := TABLE_FAMILIES[self.family]:
            ratios = pd.DataFrame({words: draws.median(), "ratio low": low, "ratio high": high}).apply(np.exp)
            found = found.join(ratios.drop(index="intercept", errors="ignore"))
        return found
