"""NumPyro autoguides over the global latents, and the pull-back of a released gradient through them.

A guide may be given as NumPyro's pages do, `AutoDiagonalNormal(model)`, as the class, or as a `functools.partial` of
the class. All mean the same family over flat unconstrained theta, for which the guide is built again.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.autoguide import (
    AutoBNAFNormal,
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuide,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.infer.initialization import init_to_value

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import Model
from vertinumpyro.model.enumeration import Site
from vertinumpyro.model.split import SplitModel

Params = Mapping[str, Any]
"""Unconstrained guide parameters by site name."""

_THETA = "theta"


class WorkingPrior(NamedTuple):
    """An independent Gaussian over flat unconstrained theta, where the model's own density has no mode to go to.

    A hierarchy's is unbounded where its scale goes to 0 and all that it scales does, too.
    """

    mean: jax.Array
    stddev: jax.Array


@dataclasses.dataclass(frozen=True)
class ReparameterisedGuide:
    """A reparameterised guide theta = theta(phi; eta) for the global latents of a split model.

    The private step releases g, a noisy gradient of the log likelihood with respect to unconstrained theta.
    `pull_back` turns it into the gradient of the ELBO with respect to phi, for one public eta: the product
    g' d theta / d phi plus the gradient of log p(theta) - log q(theta). Nothing in it reads data, so it is
    post-processing and every guide costs the same privacy (Eqs. 10 and 12 of the DPVI paper, for any flow).

    :ivar working_prior: of a point, in the place of the model's.

    The autoguide is built for one real vector, flat unconstrained theta, and not for the model's own sites: it
    is the same family (NumPyro's autoguides live in that space too), and it traces in no time.
    """

    split: SplitModel
    guide: AutoGuide
    transforms: Mapping[str, Any]
    working_prior: WorkingPrior | None = None

    @classmethod
    def create(
        cls,
        factory: GuideFactory,
        split: SplitModel,
        init_loc_fn: Callable[..., Any],
        rng_key: jax.Array,
        *,
        start: Float[Array, " theta"] | None = None,
    ) -> tuple[ReparameterisedGuide, Params]:
        """The guide and its initial unconstrained parameters.

        :param init_loc_fn: a NumPyro init strategy (`init_to_uniform`, `init_to_median`, ...) for the model's sites;
            one that the factory carries goes before it.
        :param start: flat unconstrained theta to start from instead.
        :raises ArgumentError: if the factory gives no guide that reparameterises all latents jointly, or the strategy
            no finite start.
        """
        init_key, guide_key = jax.random.split(rng_key)
        if start is None:
            start = split.init(chosen_init(factory) or init_loc_fn, init_key)
        _check_start(split, start)
        made, values = cls._built(factory, split, start, guide_key)
        transforms = made.transforms
        params = jax.jit(lambda v: {n: x if transforms[n] is None else transforms[n].inv(x) for n, x in v.items()})(
            values
        )
        return made, params

    @classmethod
    def _built(
        cls, factory: GuideFactory, split: SplitModel, start: Float[Array, " theta"], rng_key: jax.Array
    ) -> tuple[ReparameterisedGuide, dict[str, Any]]:
        """The guide about `start`, and its constrained parameters there."""
        at_start: Any = init_to_value(values={_THETA: start})
        guide = build_guide(factory, _theta_model(split.num_parameters), at_start)
        try:
            trace = handlers.trace(handlers.seed(guide, rng_key)).get_trace()
        except (ValueError, TypeError, RuntimeError) as error:  # settings that do not fit; nothing here is secret
            raise ArgumentError(
                f"guide={type(guide).__name__} does not fit the model's {split.num_parameters} parameters: {error}"
            ) from error
        sites = {name: site for name, site in trace.items() if site["type"] == "param"}
        transforms = {name: _transform(site) for name, site in sites.items()}
        return cls(split, guide, transforms), {name: site["value"] for name, site in sites.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        """The model, and what the guide is made from again: NumPyro's own objects hold functions without a name."""
        return _rebuilt, (self.split, type(self.guide), chosen_settings(self.guide))

    def __deepcopy__(self, memo: Any) -> ReparameterisedGuide:
        """Itself: nothing of it changes."""
        return self

    def constrain_params(self, params: Params) -> dict[str, Any]:
        """The guide's parameters as NumPyro names and constrains them (`auto_loc`, `auto_scale`, ...)."""
        return {
            name: value if self.transforms[name] is None else self.transforms[name](value)
            for name, value in params.items()
        }

    def named_params(self, params: Params) -> dict[str, Any]:
        """As `constrain_params`; those of `AutoNormal` and `AutoDelta` by the model's sites (`age_auto_loc`)."""
        constrained, prefix = self.constrain_params(params), f"{self.guide.prefix}_"
        if not isinstance(self.guide, (AutoNormal, AutoDelta)):
            return constrained
        by_site = self.split.constrain if isinstance(self.guide, AutoDelta) else self.split.unflatten
        kinds = {name.removeprefix(f"{_THETA}_{prefix}"): value for name, value in constrained.items()}
        return {f"{site}_{prefix}{kind}": v for kind, value in kinds.items() for site, v in by_site(value).items()}

    def location(self, params: Params) -> Float[Array, " theta"] | None:
        """Where the guide is centred in flat unconstrained theta; None for a flow, which has no such parameter."""
        names = (f"{self.guide.prefix}_loc", f"{_THETA}_{self.guide.prefix}_loc")
        return next((jnp.asarray(params[name]) for name in names if name in params), None)

    def sample(self, params: Params, rng_key: jax.Array) -> Float[Array, " theta"]:
        """One reparameterised draw of flat unconstrained theta."""
        return self._drawn(params, rng_key)[0]

    def pull_back(self, params: Params, rng_key: jax.Array, gradient: Float[Array, " theta"]) -> Params:
        """Gradient of the ELBO with respect to phi at the eta of `rng_key`, given the likelihood's at theta."""

        def surrogate(params: Params) -> jax.Array:
            theta, bound = self._entropy_bound(params, rng_key)
            return jnp.vdot(gradient, theta) + bound

        return jax.grad(surrogate)(params)

    def entropy_bound(self, params: Params, rng_key: jax.Array) -> jax.Array:
        """log p(theta) - log q(theta) at one draw: the public part of the ELBO."""
        return self._entropy_bound(params, rng_key)[1]

    def _entropy_bound(self, params: Params, rng_key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One draw of flat unconstrained theta, and `entropy_bound` at it."""
        theta, site = self._drawn(params, rng_key)
        if isinstance(self.guide, AutoDelta):
            # no Jacobian of theta's transforms, so that a point estimate is the mode in the model's own units
            return theta, self.point_prior(theta)
        # A flow remembers what it computed on the way: its density needs no inverse, which BNAF does not have.
        known = [site["intermediates"]] if site["intermediates"] else []
        return theta, self.split.log_prior(theta) - site["fn"].log_prob(theta, *known).sum()

    def point_prior(self, theta: Float[Array, " theta"]) -> jax.Array:
        """What a point adds to the log likelihood, up to a constant."""
        if self.working_prior is None:
            return self.split.log_prior(theta, on_supports=True)
        return -jnp.sum(((theta - self.working_prior.mean) / self.working_prior.stddev) ** 2) / 2

    def _drawn(self, params: Params, rng_key: jax.Array) -> tuple[jax.Array, Site]:
        """Flat unconstrained theta, and the site that has its density."""
        substituted = handlers.substitute(self.guide, data=self.constrain_params(params))
        trace = handlers.trace(handlers.seed(substituted, rng_key)).get_trace()
        auxiliary = (s for s in trace.values() if s["type"] == "sample" and (s["infer"] or {}).get("is_auxiliary"))
        site = next(auxiliary, trace[_THETA])  # AutoNormal and AutoDelta draw theta itself
        return site["value"], site


def _rebuilt(split: SplitModel, family: type[AutoGuide], settings: Mapping[str, Any]) -> ReparameterisedGuide:
    start = jnp.zeros(split.num_parameters)
    return ReparameterisedGuide._built(partial(family, **settings), split, start, compat.random_key(0))[0]


def _check_start(split: SplitModel, start: jax.Array) -> None:
    on_host = np.asarray(start)  # where looking at it compiles nothing
    sites = [name for name, value in split.unflatten(on_host).items() if not np.isfinite(value).all()]
    if sites:
        raise ArgumentError(
            f"init_loc_fn: it starts from values that are not finite, or on the edge of their support, at {sites}; "
            "choose another, as numpyro.infer.init_to_median"
        )


def _transform(site: dict[str, Any]) -> Any:
    """Bijection from the reals to a parameter's constraint; None for a tree of unconstrained arrays."""
    constraint = site["kwargs"].get("constraint")
    return None if constraint is None else biject_to(constraint)


def _theta_model(num_parameters: int) -> Callable[[], None]:
    """A model whose one latent is flat unconstrained theta. No density is used, and a flat one compiles soonest."""

    def model() -> None:
        numpyro.sample(_THETA, dist.ImproperUniform(dist.constraints.real_vector, (), (num_parameters,)))

    return model


GuideFactory = Callable[..., Any]
"""An autoguide, its class, or a `functools.partial` of the class; or a function called as it would be."""

SUPPORTED: tuple[type[AutoGuide], ...] = (
    AutoDelta,
    AutoNormal,
    AutoDiagonalNormal,
    AutoMultivariateNormal,
    AutoLowRankMultivariateNormal,
    AutoIAFNormal,
    AutoBNAFNormal,
)
"""Families that one joint vector determines and that never evaluate the model's density."""

_FLOWS = (AutoIAFNormal, AutoBNAFNormal)
_OF_THE_OLD_MODEL = ("self", "model", "init_loc_fn", "create_plates")


def check_guide(guide: Any, model: Model | None) -> None:
    """Refuse what can be seen to be no guide for `model` before the model is traced.

    :raises ArgumentError: names what was given and lists what works.
    """
    if not callable(guide):
        raise _unsupported(guide, "it is no autoguide")
    family = _family(guide)
    if family is not None and not issubclass(family, SUPPORTED):
        known = issubclass(family, AutoGuide)
        reason = "it needs more than a gradient with respect to all latents together" if known else "it is no autoguide"
        raise _unsupported(guide, reason)
    if isinstance(guide, AutoGuide) and model is not None and guide.model != model:
        raise ArgumentError(
            f"guide={type(guide).__name__}(...) was made for another function than `model`; make it for the one that "
            f"DPVI gets, without handlers around it, or give the class: guide={type(guide).__name__}"
        )


def chosen_init(guide: GuideFactory) -> Callable[..., Any] | None:
    """The init strategy that the user chose for the guide; None where it is NumPyro's default."""
    if isinstance(guide, partial):
        return guide.keywords.get("init_loc_fn")
    if not isinstance(guide, AutoGuide):
        return None
    default = inspect.signature(type(guide)).parameters.get("init_loc_fn")
    return None if default is not None and guide.init_loc_fn is default.default else guide.init_loc_fn


def has_location(guide: GuideFactory) -> bool:
    """Whether the family is known to be centred at a parameter, so that it can be put where it should start."""
    family = _family(guide)
    return family is not None and issubclass(family, SUPPORTED) and not issubclass(family, _FLOWS)


def is_point(guide: GuideFactory) -> bool:
    """Whether the family is a point without a width."""
    family = _family(guide)
    return family is not None and issubclass(family, AutoDelta)


def build_guide(guide: GuideFactory, model: Model, init_loc_fn: Callable[..., Any]) -> AutoGuide:
    """The guide's family and settings for another model and start; the guide itself stays as it is.

    :raises ArgumentError: if this gives none of `SUPPORTED`; the cause is what NumPyro raised.
    """
    try:
        factory = partial(type(guide), **_settings(guide)) if isinstance(guide, AutoGuide) else guide
        built = factory(model, init_loc_fn=init_loc_fn)
    except ArgumentError:
        raise
    except Exception as error:
        raise _unsupported(guide, f"called with a model and init_loc_fn it raises {_first_line(error)}") from error
    if not isinstance(built, SUPPORTED):
        raise _unsupported(guide, f"called with a model and init_loc_fn it returns a {type(built).__name__}")
    return built


def chosen_settings(guide: AutoGuide) -> dict[str, Any]:
    """Those of `_settings` that are not the family's defaults."""
    defaults = inspect.signature(type(guide).__init__).parameters
    return {name: value for name, value in _settings(guide).items() if value is not defaults[name].default}


def _settings(guide: AutoGuide) -> dict[str, Any]:
    """The arguments that the guide was constructed with, which every autoguide keeps under their own names."""
    settings, own = {}, vars(guide)
    for name in inspect.signature(type(guide).__init__).parameters:
        if name in _OF_THE_OLD_MODEL:
            continue
        stored = next((key for key in (name, f"_{name}") if key in own), None)
        if stored is None:
            raise _unsupported(guide, f"its argument {name!r} cannot be read back, so give a functools.partial")
        settings[name] = own[stored]
    return settings


def _family(guide: Any) -> type | None:
    """The class that a guide is, or makes; None for other callables."""
    if isinstance(guide, AutoGuide):
        return type(guide)
    while isinstance(guide, partial):
        guide = guide.func
    return guide if isinstance(guide, type) else None


def _unsupported(guide: Any, reason: str) -> ArgumentError:
    given = _family(guide)
    name = given.__name__ if given is not None else getattr(guide, "__name__", repr(guide))
    names = ", ".join(supported.__name__ for supported in SUPPORTED)
    return ArgumentError(
        f"guide={name} is not supported: {reason}. Give one of {names}, as the class, a functools.partial of it, or "
        "constructed for the model, AutoNormal(model)"
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
