"""Which of NumPyro's autoguides can be trained on released gradients, and how a given one is rebuilt for flat theta.

A guide may be given as NumPyro's pages do, `AutoDiagonalNormal(model)`, as the class, or as a `functools.partial` of
the class. All mean the same family over flat unconstrained theta.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

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

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import Model

__all__ = [
    "SUPPORTED",
    "GuideFactory",
    "build_guide",
    "check_guide",
    "chosen_init",
    "chosen_settings",
    "has_location",
    "is_point",
]

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
