"""Types that more than one floor speaks.

Short because it is what floors have in common, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

MOST_OUTCOMES = 6
"""Of one model: the clip of so many residuals looks at 2^5 patterns of their signs (`secure.number_formats`)."""

Theta = Mapping[str, jax.Array]
"""Unconstrained values of the global latent sites, by site name."""

Model = Callable[..., Any]
"""A NumPyro model `model(data, num_records, **model_kwargs)`."""


class ScoreTable(NamedTuple):
    """Plated scores that take few values: record n's are `scores[codes[n]]`.

    Sites that read one column of `V` categories have no more than V rows of scores. So sums over records
    become sums over V rows, weighted by how much weight fell on each. A batch shorter than V has one row for
    each record instead, so the rows are as secret as the codes.

    scores: d l_vk / d theta_k for each row v (real, or encoded on a ring).
    codes:  each record's row.
    """

    scores: Num[Array, "V K d"]
    codes: Int[Array, " n"]

    def per_record(self) -> Num[Array, "n K d"]:
        """Every record's own row."""
        return self.scores[self.codes]


class Contribution(NamedTuple):
    """What one party computes on its own columns of a batch. Secret: it never leaves the party in the clear.

    `n` records, `K` mixture components, or outcomes of `party_sum`s, `d` parameters of each component, `s` parameters
    that the components share.

    log_density:     l^p_nk, the log density of the party's columns of record n under component k. Of a `party_sum`,
        what the party adds to each of the Z numbers of the outcome's link: mostly one, its part of the predictor, and
        at the outcome's party further ones of its own behind it; of several, all parts, then all own numbers.
    plated_scores:   d l^p_nk / d theta_k, for parameters that belong to one component.
    shared_scores:   d l^p_nk / d theta, for parameters that several components read.
    tables:          further plated scores, of parameters that stand after those of `plated_scores`.
    """

    log_density: Float[Array, "n Z"]
    plated_scores: Float[Array, "n K d"]
    shared_scores: Float[Array, "n K s"]
    tables: tuple[ScoreTable, ...] = ()

    def without_tables(self) -> Contribution:
        """The same contribution with every record's plated scores written out, [n, K, all d]."""
        rows = (self.plated_scores, *(table.per_record() for table in self.tables))
        return self._replace(plated_scores=jnp.concatenate(rows, axis=-1), tables=())


class ComponentPrior(NamedTuple):
    """log p(z = k | theta) and its derivative: public, because theta is.

    log_weights:  log pi_k; zeros for the sums of a model without a component.
    scores:       d log pi_k / d theta for the parameters that the component's prior reads.
    """

    log_weights: Float[Array, " Z"]
    scores: Float[Array, "K d0"]
