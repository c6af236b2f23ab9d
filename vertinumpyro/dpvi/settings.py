"""Settings: defaults chosen from public facts alone (N, the privacy target, the schema; never the data), and checks.

| whom ε is for | batch | steps |
|---|---|---|
| someone who knows who is in a batch, as parties do | N | none or 25 after tables, 150 from random values |
| nobody who does: one party alone, hidden batches, `adversary="outside analyst"` | N / 30, at least 100 | 1,000 |

Towards somebody who knows the batches sub-sampling buys nothing: noise against a step's signal is least with everybody
in it, and every further step costs in full. Of a million records or so a sum that is clipped on shares has no room for
all: a step takes as many as it has room for, and what tables of pairs show is learned from tables alone. Towards the
others batches of N / 30 amplify: sqrt(T) n / sigma, the signal-to-noise ratio of the whole run, is within 2% of its
limit from there on, and smaller batches compute less.

| setting | default | why |
|---|---|---|
| clip norm | 0.6 sqrt(columns) | see `default_clip_norm`, and `dpvi.clipping` for a `party_sum` |
| K of the mixture | 20; N / 400 from tables, from 20 to 200 | noisy steps from random values find few components |
| the same without steps | N / 50, from 10 to 400 | `MarginalInference`'s: no step has to compute it |
| rate of Adam | 0.1 sqrt(1000 / T), at most 0.3; 0.02 from tables | fewer steps go further each |
| guide's scale at the start | 0.1; 0.02 from tables | a start that is known is not to be drawn past |
| start | noisy tables where they can be had (`DPVI.warm_start`) | see `dpvi.initial_state` |
| part of mu^2 for tables | 0.8; 1 without steps | one release of tables says more than as much for gradients |

From tables a step's work is that of K = 20 with N / 400 components and a quarter of the steps, and what is learned is
more: the start has to find nothing, so what is left to the steps is small against a parameter's own noise, and a rate
that moved every parameter far would lose what the tables said.

Tried on Adult and not kept, as the held-out NLL moved by less than two runs differ (0.03): the mean of the last 10 or
of all iterates, a rate that stays, more of the budget for early or for late steps, momenta shrunk by their noise. Noise
that is correlated between steps has nothing to give here: a record that is in every step moves the sum of T gradients
by T C, and independent noise of sqrt(T) C a step already adds up to T C. Batches whose indices stay hidden among
the parties would count against nobody, and reach at best what a budget for the outside analyst alone reaches: 9.29,
where full batches from tables come to 8.74.

Which optimisers a fit takes: optax's, and NumPyro's own, which are turned into one of optax's form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import optax
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.initialization import init_to_uniform
from numpyro.optim import Minimize, _NumPyroOptim

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import shown
from vertinumpyro.data import DatasetInfo, Schema, VerticalDataset
from vertinumpyro.data.schema_checks import NO_DATASET
from vertinumpyro.dpvi.second_moments import SecondMoments
from vertinumpyro.posterior.guide import GuideFactory, check_guide, chosen_init
from vertinumpyro.privacy import ClientPlan, GradientPlan, Sampling
from vertinumpyro.secure import BACKENDS, Backend, InProcess, InsecureSimulation

Optimizer = optax.GradientTransformation | optax.MultiSteps | _NumPyroOptim
"""`optax.adam(0.05)`, or `numpyro.optim.Adam(0.05)`."""


def check_optimizer(optimizer: Any) -> None:
    """Refuse what cannot take a step on a released gradient, as far as its type shows.

    :raises ArgumentError: names the optimiser and says what to give instead.
    """
    if optimizer is None or isinstance(optimizer, optax.GradientTransformation | optax.MultiSteps):
        return
    if isinstance(optimizer, Minimize):
        raise ArgumentError(
            "optimizer=Minimize(...) evaluates the objective many times a step, and each evaluation would be a "
            "release; give optax.adam(0.05) or another first-order optimiser"
        )
    if not isinstance(optimizer, _NumPyroOptim):
        given = repr(optimizer) if isinstance(optimizer, str | int | float) else type(optimizer).__name__
        raise ArgumentError(f"optimizer={given} is no optimiser; give one of optax's, as in optimizer=optax.adam(0.05)")
    if optimizer.update_with_value:
        raise ArgumentError(
            "optimizer=optax_to_numpyro(...) wants the objective's value, which is not released; give optax's own "
            "optimiser without the wrapper"
        )


def as_optax(
    optimizer: Optimizer | None, num_steps: int, learning_rate: float | None = None
) -> optax.GradientTransformation:
    """The optimiser as an optax transformation; the library's default for None.

    :param num_steps: of the plan, for the default's schedule.
    :param learning_rate: of the default.
    """
    if optimizer is None:
        return default_optimizer(num_steps, learning_rate)
    if isinstance(optimizer, optax.MultiSteps):
        return optimizer.gradient_transformation()
    return _of_numpyro(optimizer) if isinstance(optimizer, _NumPyroOptim) else optimizer


def first_state(optimizer: optax.GradientTransformation, params: Any) -> Any:
    """The optimiser's state before its first update.

    :raises ArgumentError: it was made for parameters of other names; the message lists the guide's.
    """
    try:
        return optimizer.init(params)
    except Exception as error:  # optax's own text shows the parameters' values at length
        names = sorted(params)
        raise ArgumentError(
            f"optimizer: it cannot start ({type(error).__name__}) from the guide's parameters, which are {names}; give "
            "one for these, as optax.adam(0.05)"
        ) from error


def _of_numpyro(optimizer: _NumPyroOptim) -> optax.GradientTransformation:
    """Its state holds the parameters; the update is the way from the present ones to its next."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        state = optimizer.update(updates, state)
        return jax.tree_util.tree_map(lambda new, old: new - old, optimizer.get_params(state), params), state

    return optax.GradientTransformation(optimizer.init, update)


START_SHARE = 0.8
"""Part of μ² for the tables that a fit starts from."""

WARM_STEPS = 25
"""From tables."""

_KNOWN_STEPS, _AMPLIFIED_STEPS = 150, 1000
_LARGEST_RATE, _WARM_RATE = 0.3, 0.02
_COMPONENTS, _MOST_COMPONENTS, _RECORDS_A_COMPONENT = 20, 200, 400
_NUM_BATCHES_AN_EPOCH = 30
_SMALLEST_BATCH = 100

default_guide: GuideFactory = partial(AutoDiagonalNormal, init_scale=0.1)
"""Mean-field Normal, narrow at the start."""

warm_guide: GuideFactory = partial(AutoDiagonalNormal, init_scale=0.02)
"""The same, narrower, for steps that start from tables."""

default_init: Callable[..., Any] = partial(init_to_uniform, **{"radius": 0.1})
"""Small random unconstrained values, so that the components of a mixture differ."""


def default_batch(num_records: int, *, amplified: bool, most: float = math.inf) -> tuple[int, int]:
    """(batch size, number of steps), as the module's table has them, of steps from random values.

    :param amplified: whether sub-sampling counts against everyone whom ε is for: nobody of them knows the batches.
    :param most: how many records a batch has room for.
    """
    size, steps = num_records, _KNOWN_STEPS
    if amplified:
        size, steps = max(_SMALLEST_BATCH, round(num_records / _NUM_BATCHES_AN_EPOCH)), _AMPLIFIED_STEPS
    return int(min(size, num_records, most)), steps


def default_components(num_records: int, *, warm: bool) -> int:
    """K of the library's mixture, as the module's table has it.

    :param warm: whether the steps start from tables.
    """
    if not warm:
        return _COMPONENTS
    return min(_MOST_COMPONENTS, max(_COMPONENTS, num_records // _RECORDS_A_COMPONENT))


def default_clip_norm(num_scores: int | float) -> float:
    """0.6 sqrt(columns and learned masks): somewhat below the norm of a typical record's gradient.

    Each adds a score of norm near one. A clip norm far below rescales every record, which biases what is
    learned (rare records count too much); one far above buys noise for nothing.

    :param num_scores: how many there are, `num_scores` of a schema.
    """
    return round(0.6 * math.sqrt(num_scores), 3)


def num_scores(schema: Schema) -> int:
    """Columns, and masks that are learned besides."""
    return len(schema.columns) + sum(column.mask_is_learned for column in schema.columns.values())


def default_rate(num_steps: int, *, warm: bool = False) -> float:
    """Of Adam at its first step."""
    return _WARM_RATE if warm else min(_LARGEST_RATE, 0.1 * math.sqrt(_AMPLIFIED_STEPS / num_steps))


def default_optimizer(num_steps: int, learning_rate: float | None = None) -> optax.GradientTransformation:
    """Adam whose step size falls by a cosine, so that the last iterates average out the noise."""
    if learning_rate is None:
        learning_rate = default_rate(num_steps)
    return optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.05))


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
    _check_numbers(num_components, block_size, num_devices)
    _check_rate(learning_rate, optimizer)
    if not isinstance(warm_start, bool | SecondMoments | None):
        raise ArgumentError(
            f"warm_start={shown(warm_start)} must be True, False, SecondMoments(), or None to let the plan decide"
        )
    _check_backend(backend)
    here = isinstance(backend, InProcess) and not isinstance(backend, InsecureSimulation)
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
    if isinstance(dataset, DatasetInfo if kind is VerticalDataset else kind):
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


def check_plan(plan: Any, kind: type[GradientPlan] | type[ClientPlan] = GradientPlan) -> None:
    """:raises ArgumentError: it is an epsilon or something else than a `kind`."""
    if not isinstance(plan, kind):
        raise ArgumentError(
            f"plan={shown(plan)} is no {kind.__name__}; make one: plan = dpvi.plan(dataset, epsilon=1.0)"
        )
