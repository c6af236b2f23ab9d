"""What the methods of `DPVI` are given, checked by type, so that a path or a name gets an answer that helps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vertinumpyro.core.arguments import shown
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Facts, VerticalDataset
from vertinumpyro.data.wording import NO_DATASET
from vertinumpyro.dpvi.defaults import default_init
from vertinumpyro.dpvi.optimizers import check_optimizer
from vertinumpyro.dpvi.second_moments import SecondMoments
from vertinumpyro.posterior.autoguides import check_guide, chosen_init
from vertinumpyro.privacy import ClientPlan, PrivacyPlan, Sampling
from vertinumpyro.secure import BACKENDS, Backend, InProcess, InsecureRehearsal

if TYPE_CHECKING:
    from vertinumpyro.dpvi.inference import DPVI

__all__ = ["check_dataset", "check_plan", "check_sampling", "check_settings"]


def check_settings(dpvi: DPVI) -> None:
    """Refuse what no fit can use, before any schema is known.

    :raises ArgumentError: names the argument and what to give instead.
    """
    if dpvi.model is not None and not callable(dpvi.model):
        raise ArgumentError(f"model={shown(dpvi.model)} is no function; give model(data, num_records), not its name")
    if not isinstance(dpvi.model_kwargs, Mapping):
        raise ArgumentError(f"model_kwargs={shown(dpvi.model_kwargs)} is no mapping; give names with values")
    if not callable(dpvi.init_loc_fn):
        raise ArgumentError(
            f"init_loc_fn={shown(dpvi.init_loc_fn)} is no strategy; give one of numpyro.infer's, as init_to_median"
        )
    check_optimizer(dpvi.optimizer)
    _check_numbers(dpvi)
    _check_backend(dpvi.backend)
    here = isinstance(dpvi.backend, InProcess) and not isinstance(dpvi.backend, InsecureRehearsal)
    if dpvi.num_devices > 1 and not here:
        raise ArgumentError(
            f"num_devices={dpvi.num_devices} is for a backend that computes in this process alone, which "
            f"{type(dpvi.backend).__name__} does not: leave num_devices out"
        )
    check_guide(dpvi.guide, dpvi.model)
    if dpvi.init_loc_fn is not default_init and chosen_init(dpvi.guide) is not None:
        raise ArgumentError("init_loc_fn is given to the guide and to DPVI; give it once")


def _check_numbers(dpvi: DPVI) -> None:
    rate, block, components = dpvi.learning_rate, dpvi.block_size, dpvi.num_components
    if components is not None and not (isinstance(components, int) and components >= 1):
        raise ArgumentError(f"num_components={shown(components)}; give 1 or more")
    if not isinstance(dpvi.warm_start, bool | SecondMoments | None):
        raise ArgumentError(
            f"warm_start={shown(dpvi.warm_start)} must be True, False, SecondMoments(), or None to let the plan decide"
        )
    if block is not None and not (isinstance(block, int) and block >= 1):
        raise ArgumentError(f"block_size={shown(block)} must be a number of records, at least 1")
    if not (isinstance(dpvi.num_devices, int) and dpvi.num_devices >= 1):
        raise ArgumentError(f"num_devices={shown(dpvi.num_devices)}; give 1 or more")
    if rate is not None and dpvi.optimizer is not None:
        raise ArgumentError(
            "learning_rate is the default optimiser's: give optimizer its own, or leave one of both out"
        )
    if rate is not None and not (isinstance(rate, int | float) and 0 < rate < math.inf):
        raise ArgumentError(f"learning_rate={shown(rate)} must be a positive number")


def _check_backend(backend: Any) -> None:
    if isinstance(backend, Backend):
        return
    name = backend.lower() if isinstance(backend, str) else getattr(backend, "__name__", "").lower()
    calls = {option.replace("_", ""): f"vertinumpyro.secure.{kind.__name__}()" for option, kind in BACKENDS.items()}
    fix = calls.get(name.replace("_", ""))
    choices = f"backend={fix}" if fix else "one of " + ", ".join(calls.values())
    raise ArgumentError(f"backend={shown(backend)} is no backend; give the object: {choices}")


def check_dataset(dataset: Any, kind: type = VerticalDataset) -> None:
    """:raises ArgumentError: it is a path, a schema, a table or something else than a `kind`, or than its facts."""
    if isinstance(dataset, Facts if kind is VerticalDataset else kind):
        return
    if kind is VerticalDataset:
        raise ArgumentError(f"dataset={shown(dataset)} {NO_DATASET}")
    fix = f"{kind.__name__}(dataset) of a VerticalDataset, or {kind.__name__}.from_clients([...])"
    raise ArgumentError(f"dataset={shown(dataset)} is no {kind.__name__}; make one: {fix}")


def check_sampling(sampling: Any, batch_size: int | None, num_steps: int | None) -> None:
    """:raises ArgumentError: it is no `Sampling`, or batch size and steps are given beside it."""
    if not isinstance(sampling, Sampling | None):
        raise ArgumentError(f"sampling={shown(sampling)} is none; give e.g. PoissonSampling or DisjointBatches")
    if sampling is not None and (batch_size, num_steps) != (None, None):
        raise ArgumentError("sampling fixes batch size and steps; leave batch_size and num_steps out")


def check_plan(plan: Any, kind: type[PrivacyPlan] | type[ClientPlan] = PrivacyPlan) -> None:
    """:raises ArgumentError: it is an epsilon or something else than a `kind`."""
    if not isinstance(plan, kind):
        raise ArgumentError(
            f"plan={shown(plan)} is no {kind.__name__}; make one: plan = dpvi.plan(dataset, epsilon=1.0)"
        )
