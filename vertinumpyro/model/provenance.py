"""Which columns and which latents each site of a model reads, found by tracing and not by running it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.ops.provenance import eval_provenance

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model
from vertinumpyro.model.enumeration import trace_at

__all__ = ["provenance", "traced_without_python_values"]


def provenance(
    model: Model,
    latents: Mapping[str, tuple[int, ...]],
    component_site: str | None,
    columns: Mapping[str, np.ndarray],
    num_records: int,
) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """For each sample site, the columns and the global latents that its log density or its value reads.

    :param latents: unconstrained shape of each global latent.
    :raises ModelContractError: if the model cannot be traced with the component enumerated.
    """

    def outcomes(theta: Mapping[str, jax.Array], columns: Mapping[str, Any]) -> dict[str, Any]:
        trace = trace_at(model, theta, component_site, columns, num_records)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        return {name: (site["fn"].log_prob(site["value"]), site["value"]) for name, site in sites.items()}

    theta = {name: jnp.zeros(shape) for name, shape in latents.items()}
    arrays = {name: jnp.asarray(column) for name, column in columns.items()}
    try:
        data_reads = _reads(lambda data: outcomes(theta, data), arrays)
        return data_reads, _reads(lambda at: outcomes(at, arrays), theta)
    except (TypeError, ValueError) as error:
        if isinstance(error, ModelContractError):
            raise
        raise ModelContractError(
            f"the model fails (see the cause above) when its component '{component_site}' is enumerated as "
            "an array [K, 1]; index parameters by the component, as in a[z], and let the other axes broadcast"
        ) from error


@contextmanager
def traced_without_python_values() -> Iterator[None]:
    """Where a model is traced: turns jax's error about Python conditions into the library's own."""
    try:
        yield
    except jax.errors.ConcretizationTypeError as error:
        raise ModelContractError(
            "the model uses a column or a latent as a plain Python number or condition (see the cause "
            "above); use jnp.where and the like, and pass public constants in model_kwargs"
        ) from error


def _reads(
    outcomes: Callable[[Mapping[str, Any]], dict[str, Any]], inputs: Mapping[str, jax.Array]
) -> dict[str, frozenset[str]]:
    """For each site, the names of the inputs that it depends on."""
    # Keywords of `eval_provenance` may not be called as its own parameter, so each name gets a prefix.
    prefixed = {f"input:{name}": array for name, array in inputs.items()}
    with traced_without_python_values():
        found = eval_provenance(lambda **kw: outcomes({name: kw[f"input:{name}"] for name in inputs}), **prefixed)
    return {
        site: frozenset(name.removeprefix("input:") for name in frozenset().union(*of_site))
        for site, of_site in found.items()
    }
