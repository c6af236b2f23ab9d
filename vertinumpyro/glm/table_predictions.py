"""Predictions between parties by coefficients that were learned from tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from vertinumpyro.data import Schema
from vertinumpyro.glm.between import VerticalPredictor
from vertinumpyro.glm.inference import Regression

__all__ = ["predictor_of_tables"]

_SAME_MEAN = {"negative_binomial": "poisson"}


def predictor_of_tables(
    schema: Schema, label: str, family: str, features: tuple[str, ...], linear: Iterable[str],
    found: Mapping[str, float], cutpoints: Iterable[float] | None, **settings: Any,
) -> VerticalPredictor:  # fmt: skip
    """The predictor with a coefficient for each value of each feature: of its first 0, of a linear one as many steps.

    Args:
        schema, label, family, features, linear: as in `MarginalGLM`, checked.
        found: coefficients by name, in the features' order, the intercept among them where there is one.
        cutpoints: of ordered classes.
        **settings: of `VerticalPredictor`.
    """
    left = iter([value for name, value in found.items() if name != "intercept"])
    parts = []
    for name in features:
        size = schema.columns[name].num_categories
        parts.append(next(left) * np.arange(size) if name in linear else [0.0, *(next(left) for _ in range(size - 1))])
    regression = Regression.of(
        schema, label, family=_SAME_MEAN.get(family, family), features=features, linear=(), prior_scale=1.0, scale=1.0,
        cutpoints=cutpoints,
    )  # fmt: skip
    return VerticalPredictor(
        regression=regression.of_its_columns,
        coefficients=tuple(float(value) for part in parts for value in part),
        intercept=float(found.get("intercept", 0.0)),
        **settings,
    )
