"""Whether a fit had anything left to learn, from what its steps released.

At the optimum the gradient of the ELBO is zero, and a released sum holds noise alone. So the norms of the last sums,
beside those that noise of the plan's size gives, say whether the steps ended too early; nobody need look at a record.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import jax
import numpy as np

from vertinumpyro.core.compat import jit_fast
from vertinumpyro.core.errors import InferenceWarning
from vertinumpyro.dpvi.kernel import DPVIState, Kernel
from vertinumpyro.privacy.noisy_sum_plan import NoisySumPlan

__all__ = ["Residual", "residual_gradient", "warn_if_unconverged"]

_LAST = 10  # of the steps, this part is looked at
_MOST_ERRORS = 4.0  # the sum of squares has a long tail: noise alone passes three in one fit of three hundred
_MOST_NORM = 0.03  # what a gradient of this norm still gains is some thousandths of a nat a record


class Residual(NamedTuple):
    """What some steps released beside what steps at the optimum release.

    Attributes:
        norm: of the gradient, in clip norms a record; 0 where noise explains all.
        standard_errors: how far the mean squared norm lies above that of steps at the optimum.
    """

    norm: float
    standard_errors: float


def warn_if_unconverged(kernel: Kernel, state: DPVIState, plan: NoisySumPlan, released_norm: np.ndarray) -> None:
    """An `InferenceWarning` where the last tenth of the steps still released a gradient beside the noise.

    :param state: after the last step.
    :param released_norm: of every step of this process, in clip norms per expected record.
    """
    count = max(1, plan.num_gradients // _LAST)
    if len(released_norm) < count:  # a run that went on for a few steps only
        return
    residual = residual_gradient(kernel, state, plan, released_norm[-count:])
    if residual.standard_errors > _MOST_ERRORS and residual.norm > _MOST_NORM:
        warnings.warn(
            f"the last {count} of {plan.num_gradients} noisy gradients still had a norm of {residual.norm:.2f} clip "
            "norms a record beside the noise: the fit has not converged. Raise num_steps or learning_rate",
            InferenceWarning,
            stacklevel=5,
        )


def residual_gradient(kernel: Kernel, state: DPVIState, plan: NoisySumPlan, released_norm: np.ndarray) -> Residual:
    """What is left of some steps' sums beyond what noise and sampling explain.

    Of D released values with noise of standard deviation s, over clip norm C and expected batch B, the squared norm of
    the noise has mean D s^2 / (C B)^2 and variance 2 / D of its square. To that come, at most: what a batch of a
    share q of the records differs by, (1 - q) / B; what the guide's width moves the gradient by, 1 / N; and the
    gradient of the log prior, which the likelihood's balances at the optimum.
    """
    size, values = plan.expected_batch_size, kernel.shape.num_values
    noise = values * (kernel.shape.noise_stddev / (plan.clip_norm * size)) ** 2
    error = noise * math.sqrt(2 / (values * len(released_norm)))
    share = min(1.0, size / plan.num_records)
    excess = float(np.mean(released_norm**2)) - noise - (1 - share) / size - 1 / plan.num_records
    if excess > max(_MOST_ERRORS * error, _MOST_NORM**2):  # the prior can only explain more, and has to be compiled
        excess -= _prior_gradient(kernel, state, plan) ** 2
    return Residual(math.sqrt(max(0.0, excess)), excess / error)


def _prior_gradient(kernel: Kernel, state: DPVIState, plan: NoisySumPlan) -> float:
    """Norm of the gradient of the log prior, in clip norms a record."""

    split = kernel.guide.split
    if "prior_gradient" not in split.compiled:
        split.compiled["prior_gradient"] = jit_fast(jax.grad(split.log_prior))
    theta = jit_fast(kernel.guide.sample)(state.params, state.rng_key)
    gradient = np.asarray(split.compiled["prior_gradient"](theta))
    return float(np.linalg.norm(gradient)) / (plan.clip_norm * plan.num_records)
