"""Which optimisers a fit takes: optax's, and NumPyro's own, which are turned into one of optax's form."""

from __future__ import annotations

from typing import Any

import jax
import optax
from numpyro.optim import Minimize, _NumPyroOptim

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.dpvi.settings import default_optimizer

__all__ = ["Optimizer", "as_optax", "check_optimizer", "first_state"]

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
