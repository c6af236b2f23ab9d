"""What the methods of `DPVI` are given, checked by type, so that a path or a name gets an answer that helps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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

__all__ = ["check_dataset", "check_plan", "check_sampling", "check_settings"]


def check_settings(
    *,
    model: Any,
    model_kwargs: Any,
    guide: Any,
    init_loc_fn: Any,
    optimizer: Any,
    learning_rate: Any,
    backend: Any,
    num_components: Any,
    block_size: Any,
    num_devices: Any,
    warm_start: Any,
) -> None:
    """Refuse what no fit can use, before any schema is known.

    :raises ArgumentError: names the argument and what to give instead.
    """
    if model is not None and not callable(model):
        raise ArgumentError(f"model={shown(model)} is no function; give model(data, num_records), not its name")
    if not isinstance(model_kwargs, Mapping):
        raise ArgumentError(f"model_kwargs={shown(model_kwargs)} is no mapping; give names with values")
    if not callable(init_loc_fn):
        raise ArgumentError(
            f"init_loc_fn={shown(init_loc_fn)} is no strategy; give one of numpyro.infer's, as init_to_median"
        )
    check_optimizer(optimizer)
    _check_numbers(num_components, block_size, num_devices)
    _check_rate(learning_rate, optimizer)
    if not isinstance(warm_start, bool | SecondMoments | None):
        raise ArgumentError(
            f"warm_start={shown(warm_start)} must be True, False, SecondMoments(), or None to let the plan decide"
        )
    _check_backend(backend)
    here = isinstance(backend, InProcess) and not isinstance(backend, InsecureRehearsal)
    if num_devices > 1 and not here:
        raise ArgumentError(
            f"num_devices={num_devices} is for a backend that computes in this process alone, which "
            f"{type(backend).__name__} does not: leave num_devices out"
        )
    check_guide(guide, model)
    if init_loc_fn is not default_init and chosen_init(guide) is not None:
        raise ArgumentError("init_loc_fn is given to the guide and to DPVI; give it once")


def _check_numbers(num_components: Any, block_size: Any, num_devices: Any) -> None:
    if num_components is not None and not (isinstance(num_components, int) and num_components >= 1):
        raise ArgumentError(f"num_components={shown(num_components)}; give 1 or more")
    if block_size is not None and not (isinstance(block_size, int) and block_size >= 1):
        raise ArgumentError(f"block_size={shown(block_size)} must be a number of records, at least 1")
    if not (isinstance(num_devices, int) and num_devices >= 1):
        raise ArgumentError(f"num_devices={shown(num_devices)}; give 1 or more")


def _check_rate(rate: Any, optimizer: Any) -> None:
    if rate is not None and optimizer is not None:
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
