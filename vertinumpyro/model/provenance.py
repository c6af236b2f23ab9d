"""Which columns and which latents each site of a model reads, found by tracing and not by running it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.ops.provenance import eval_provenance

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model, Theta
from vertinumpyro.model.enumeration import Site, log_density_of, trace_at
from vertinumpyro.model.party_sum import PartySums
from vertinumpyro.model.user_code import text_of, where

__all__ = ["Reads", "provenance"]

SiteReads = Mapping[str, frozenset[str]]
"""For each sample site, names of the columns or of the latents that something of it depends on."""

PartReads = Mapping[tuple[str, str], frozenset[str]]
"""The same for each part of a `party_sum`, by the names of the sum and of the party."""


# What of a site is asked for, in the order in which `_parts` computes it.
_PARTS = ("value", "density", "distribution")


class Reads(NamedTuple):
    """What each sample site depends on.

    columns:              columns that its log density or its value reads.
    value_columns:        columns that its value reads: the observation.
    distribution_columns: columns that its distribution reads, mask included: the covariates.
    latents:              global latents that its log density or its value reads.
    sums:                 each `party_sum` that its log density or its value reads; what the sum is made of is not
        counted as read by the site.
    value_sums:           those that its value reads.
    part_columns:         columns that each part of a sum reads, by the names of the sum and of the party.
    part_latents:         global latents that it reads.
    part_sums:            other sums that it reads.
    """

    columns: SiteReads
    value_columns: SiteReads
    distribution_columns: SiteReads
    latents: SiteReads
    sums: SiteReads
    value_sums: SiteReads
    part_columns: PartReads
    part_latents: PartReads
    part_sums: PartReads


def provenance(
    model: Model,
    latents: Mapping[str, tuple[int, ...]],
    component_site: str | None,
    columns: Mapping[str, np.ndarray],
    num_records: int,
    sums: Iterable[str] = (),
) -> Reads:
    """Who reads what, from tracing the model with its component enumerated.

    :param latents: unconstrained shape of each global latent.
    :param sums: names of the model's party_sums, each of which holds one number for each record.
    :raises ModelContractError: if the model cannot be traced with the component enumerated.
    """

    def run(columns: Mapping[str, Any], theta: Theta, totals: Mapping[str, jax.Array]) -> tuple[Any, Any]:
        summing = PartySums(model, totals)
        trace = trace_at(summing, theta, component_site, columns, num_records)
        sites = {name: _parts(site) for name, site in trace.items() if site["type"] == "sample"}
        return sites, {
            (name, party): {"part": part} for name, of in summing.parts.items() for party, part in of.items()
        }

    inputs = {
        "columns": {name: jnp.asarray(column) for name, column in columns.items()},
        "latents": {name: jnp.zeros(shape) for name, shape in latents.items()},
        "sums": {name: jnp.zeros(num_records) for name in sums},
    }
    try:
        sites, parts = _reads(run, inputs)
    except (TypeError, ValueError) as error:
        if isinstance(error, ModelContractError) or component_site is None:
            raise
        raise ModelContractError(
            f"the model raises {type(error).__name__}{where(error)} when its component '{component_site}' is "
            f"enumerated as an array [K, 1] ({text_of(error)}); index parameters by the component, as in a[z], and let "
            "the other axes broadcast"
        ) from error

    def only(found: Mapping[Any, Any], kind: str, *parts: str) -> dict[Any, frozenset[str]]:
        return {
            site: frozenset(name for part in parts for of_kind, name in of_site[part] if of_kind == kind)
            for site, of_site in found.items()
        }

    return Reads(
        columns=only(sites, "columns", *_PARTS),
        value_columns=only(sites, "columns", "value"),
        distribution_columns=only(sites, "columns", "distribution"),
        latents=only(sites, "latents", *_PARTS),
        sums=only(sites, "sums", *_PARTS),
        value_sums=only(sites, "sums", "value"),
        part_columns=only(parts, "columns", "part"),
        part_latents=only(parts, "latents", "part"),
        part_sums=only(parts, "sums", "part"),
    )


def _parts(site: Site) -> dict[str, Any]:
    fn, value = site["fn"], site["value"]
    without_data = fn.log_prob(jnp.ones_like(value)) if site["is_observed"] else ()
    return dict(zip(_PARTS, (value, log_density_of(site["name"], site), without_data), strict=True))


def _reads(
    outcomes: Callable[..., tuple[Any, Any]], inputs: Mapping[str, Mapping[str, jax.Array]]
) -> list[dict[Any, dict[str, frozenset[tuple[str, str]]]]]:
    """For each site, and each part of a sum, and for each piece of it, the inputs (kind, name) that it depends on."""
    # Keywords of `eval_provenance` may not be called as its own parameter, so each name gets a prefix.
    prefixed = {f"{kind}:{name}": array for kind, of_kind in inputs.items() for name, array in of_kind.items()}
    found = eval_provenance(
        lambda **kw: outcomes(*({name: kw[f"{kind}:{name}"] for name in inputs[kind]} for kind in inputs)),
        **prefixed,
    )

    def names(of_part: Any) -> frozenset[tuple[str, str]]:
        sets = jax.tree_util.tree_leaves(of_part, is_leaf=lambda leaf: isinstance(leaf, frozenset))
        pairs = (name.partition(":") for name in frozenset().union(*sets))
        return frozenset((kind, name) for kind, _, name in pairs)

    return [{site: {part: names(of) for part, of in parts.items()} for site, parts in kind.items()} for kind in found]
