"""The static facts of a model's sites and plates, from tracing it abstractly on stand-in columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import Distribution, biject_to

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model
from vertinumpyro.model.enumeration import Site, is_discrete, log_density_of, start_value
from vertinumpyro.model.party_plate import PARTY, RECORDS_PLATE
from vertinumpyro.model.party_sum import PartySums

__all__ = ["SiteFacts", "TracedModel", "traced"]


@dataclasses.dataclass(frozen=True)
class SiteFacts:
    """What the checks read of a site.

    :ivar observes: the column that is the very object observed, if one is.
    """

    type: str
    is_observed: bool
    is_discrete: bool
    plates: tuple[str, ...]
    is_scaled: bool
    party: str | None
    observes: str | None
    is_factor: bool
    density_shape: tuple[int, ...]
    support_size: int
    unconstrained_shape: tuple[int, ...]

    @property
    def in_records(self) -> bool:
        """Whether there is one of it for each record."""
        return RECORDS_PLATE in self.plates

    @property
    def is_latent(self) -> bool:
        """Whether it is a sample site without data."""
        return self.type == "sample" and not self.is_observed


@dataclasses.dataclass(frozen=True)
class TracedModel:
    """A model's sites on `num_records` records, its plates' sizes, and what the model raised, if it did.

    A model that raised has no sites here, but the plates that it had opened.

    :ivar sums: the shape of every party's part of each `party_sum`.
    """

    num_records: int
    sites: Mapping[str, SiteFacts]
    plates: Mapping[str, int]
    error: Exception | None
    sums: Mapping[str, Mapping[str, tuple[int, ...]]] = dataclasses.field(default_factory=dict)


def traced(model: Model, columns: Mapping[str, np.ndarray], num_records: int, *, densities: bool = True) -> TracedModel:
    """Trace the model abstractly: nothing is compiled or drawn.

    :param densities: whether anybody asks for `SiteFacts.density_shape`, which costs as much as the rest.
    """
    sites: dict[str, SiteFacts] = {}
    plates: dict[str, int] = {}
    sums = PartySums(model)
    recorder = handlers.trace(handlers.substitute(handlers.seed(sums, rng_seed=0), substitute_fn=start_value))

    def run(columns: Mapping[str, Any]) -> None:
        try:
            recorder.get_trace(_KnownColumns(columns), num_records)
        finally:
            plates.update({n: site["args"][0] for n, site in recorder.trace.items() if site["type"] == "plate"})
        sites.update({name: _facts_of(site, columns, densities) for name, site in recorder.trace.items()})

    try:
        jax.eval_shape(run, {name: jnp.asarray(column) for name, column in columns.items()})
    except Exception as error:  # the caller knows more of the model, and raises it
        return TracedModel(num_records, {}, plates, error)
    shapes = {name: {party: part.shape for party, part in parts.items()} for name, parts in sums.parts.items()}
    return TracedModel(num_records, sites, plates, None, shapes)


class _KnownColumns(dict[str, Any]):
    """The stand-in columns; asking for any other is an error that names it."""

    def __missing__(self, name: str) -> Any:
        raise ModelContractError(f"the model reads column '{name}', which the schema does not list")


def _facts_of(site: Site, columns: Mapping[str, Any], densities: bool) -> SiteFacts:
    is_sample = site["type"] == "sample"
    discrete = is_sample and is_discrete(site["fn"])
    latent = is_sample and not site["is_observed"]
    infer = site.get("infer") or {}
    return SiteFacts(
        type=site["type"],
        is_observed=is_sample and site["is_observed"],
        is_discrete=discrete,
        plates=tuple(frame.name for frame in site.get("cond_indep_stack") or ()),
        is_scaled=is_sample and site.get("scale") is not None,
        party=infer.get(PARTY),
        observes=next((name for name, column in columns.items() if column is site["value"]), None),
        is_factor=is_sample and bool(infer.get("is_auxiliary")),
        density_shape=log_density_of(site["name"], site).shape if is_sample and densities else (),
        support_size=_support_size(site["fn"]) if latent and discrete else 0,
        unconstrained_shape=biject_to(site["fn"].support).inv(site["value"]).shape if latent and not discrete else (),
    )


def _support_size(distribution: Distribution) -> int:
    """Number of values that NumPyro can enumerate; 0 where it cannot."""
    if not distribution.has_enumerate_support:
        return 0
    try:
        return int(distribution.enumerate_support(expand=False).shape[0])
    except (NotImplementedError, jax.errors.ConcretizationTypeError):
        return 0
