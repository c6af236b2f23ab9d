"""Draws of the posterior in ArviZ's form: the one module that imports `arviz`.

Short because nothing else may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.model import SplitModel
from vertinumpyro.model.enumeration import trace_at

NOT_DP = "computed from single records of the dataset that was given, which no epsilon covers"


def as_arviz(
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
        found[group].attrs["not_dp"] = NOT_DP
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
