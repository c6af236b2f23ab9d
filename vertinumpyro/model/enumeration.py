"""Evaluating a NumPyro model at given global latents with the record-level discrete latent enumerated; NumPyro's
transforms of latents to their supports, of which that of simplices compiles in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions import Distribution, biject_to
from numpyro.distributions.transforms import IndependentTransform, StickBreakingTransform
from numpyro.distributions.util import clamp_probs
from numpyro.infer.initialization import init_to_uniform
from numpyro.primitives import Messenger

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model, Theta
from vertinumpyro.model.party_plate import PARTY

_MOST_MULTIPLIED = 512
"""Sticks whose logarithms are added up by a matrix of so many squared; a scan of more is compiled step by step."""


def transform_to(support: Any) -> Any:
    """`numpyro.distributions.biject_to`: the same maps, up to rounding."""
    return _cheaper(biject_to(support))


def _cheaper(transform: Any) -> Any:
    if type(transform) is StickBreakingTransform:
        return _StickBreaking()
    if type(transform) is IndependentTransform:
        return IndependentTransform(_cheaper(transform.base_transform), transform.reinterpreted_batch_ndims)
    return transform


class _StickBreaking(StickBreakingTransform):
    """y_k = z_k prod_(j < k) (1 - z_j), the product as exp of one matrix product.

    NumPyro's product over the sticks is a scan of log2 K levels of slices. They and their derivatives are most of what
    is compiled for a model of simplices.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        """The simplex [..., K] at x [..., K - 1]."""
        count = x.shape[-1]
        share = clamp_probs(jax.nn.sigmoid(x - jnp.log(count - jnp.arange(count))))
        logs = jnp.log1p(-share)
        if count > _MOST_MULTIPLIED:
            left = jnp.cumsum(logs, axis=-1)
        else:
            up_to = jnp.triu(jnp.ones((count, count), x.dtype))
            left = jnp.dot(logs, up_to, precision=jax.lax.Precision.HIGHEST)
        edge = [(0, 0)] * (x.ndim - 1)
        taken = jnp.pad(share, [*edge, (0, 1)], constant_values=1.0)
        return taken * jnp.exp(jnp.pad(left, [*edge, (1, 0)]))


Site = dict[str, Any]


class _Enumerate(Messenger):
    """Sets the component site to its whole support on a new dimension left of the record plate: [K, 1].

    :param shift: 0, or what stands for 0 where it is asked who reads the component.
    """

    def __init__(self, fn: Model, site: str | None, shift: Any) -> None:
        super().__init__(fn)
        self._site, self._shift = site, shift

    def process_message(self, msg: Site) -> None:
        if msg["type"] == "sample" and msg["name"] == self._site:
            support = msg["fn"].enumerate_support(expand=False)
            msg["value"] = support.reshape((-1, 1)) + self._shift


class _SubstituteUnconstrained(Messenger):
    """Sets global latents from unconstrained values, or from values on their own supports where those are known.

    The transform is read from the site as it is traced, so a support that depends on another latent works. NumPyro's
    `scan` and `cond` run their sites apart from all handlers, and take the values from what these leave with them.
    """

    def __init__(self, fn: Model, theta: Theta, known: Theta) -> None:
        super().__init__(fn)
        self._theta, self._known = theta, known

    def process_message(self, msg: Site) -> None:
        if msg["type"] == "control_flow":
            msg["kwargs"]["substitute_stack"].append(("substitute", self._value))
        elif not msg.get("_control_flow_done") and (value := self._value(msg)) is not None:
            msg["value"] = value

    def _value(self, site: Site) -> Any:
        if site["type"] != "sample" or site["is_observed"]:
            return None
        if site["name"] in self._known:
            return self._known[site["name"]]
        if site["name"] not in self._theta:
            return None
        value, step = self._theta[site["name"]], (site["infer"] or {}).get("_scan_current_index")
        return transform_to(site["fn"].support)(value if step is None else value[step])


def is_discrete(distribution: Distribution) -> bool:
    """Whether the support is discrete; NumPyro 0.19 forgets it for vectors (`.to_event`)."""
    support: Any = distribution.support
    return bool(support.is_discrete or getattr(support, "base_constraint", support).is_discrete)


def start_value(site: Site) -> Any:
    """A value for a continuous latent, so that priors which cannot be drawn from (improper ones) work."""
    continuous = site["type"] == "sample" and not is_discrete(site["fn"])
    return init_to_uniform(site) if continuous else None


def trace_at(
    model: Model, theta: Theta, component_site: str | None, *args: Any, known: Theta | None = None, shift: Any = 0
) -> dict[str, Site]:
    """The model's trace at unconstrained global latents, with the component site enumerated.

    :param known: latents on their own supports. To transform what a caller has already, or does not read, is most of
        the work of tracing a model of many columns.
    :param shift: see `_Enumerate`.
    """
    at_theta = _SubstituteUnconstrained(handlers.seed(model, rng_seed=0), theta, known or {})
    return handlers.trace(_Enumerate(at_theta, component_site, shift)).get_trace(*args)


def log_density_of(name: str, site: Site) -> jax.Array:
    """The site's log density at its value; where that fails, `user_code.where` finds the name here."""
    return site["fn"].log_prob(site["value"])


def log_jacobian(trace: Mapping[str, Site], theta: Theta) -> jax.Array:
    """Of the transforms of unconstrained theta, at which the trace was taken."""
    jacobians = (
        transform_to(trace[name]["fn"].support).log_abs_det_jacobian(value, trace[name]["value"])
        for name, value in theta.items()
    )
    return sum((jnp.sum(one) for one in jacobians), start=jnp.zeros(()))


def log_densities(
    trace: Mapping[str, Site], sites: Iterable[str], num_components: int, num_records: int
) -> dict[str, jax.Array]:
    """Log densities [K, num_records] of record-level sites.

    :raises ModelContractError: for a site whose log densities have another shape.
    """
    K, n = num_components, num_records
    found = {name: log_density_of(name, trace[name]) for name in sites}
    for name, log_density in found.items():
        if log_density.shape not in ((n,), (1, n), (K, n), (K, 1), (1, 1)):
            party = trace[name]["infer"].get(PARTY)
            raise ModelContractError(
                f"site '{name}'{'' if party is None else f' of party {party!r}'} has log densities of shape "
                f"{log_density.shape} for {n} records and {K} components; index parameters by the component, as in a[z]"
            )
    return {name: jnp.broadcast_to(log_density, (K, n)) for name, log_density in found.items()}


def constrain(model: Model, theta: Theta, component_site: str | None, *args: Any) -> Mapping[str, jax.Array]:
    """The global latents on their own supports."""
    trace = trace_at(model, theta, component_site, *args)
    return {name: trace[name]["value"] for name in theta}
