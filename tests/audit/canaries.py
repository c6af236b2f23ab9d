"""What the audits share: a fit's own steps on neighbouring tables, many times, and what an adversary proves by them.

The adversary subtracts the noise that it knows, picks a direction and a threshold on one half of the runs, and on the
other half Clopper-Pearson bounds give a lower bound on epsilon that holds with probability 1 - `FAILURE_PROB`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import beta

from vertinumpyro.core import compat
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.training_loop import DPVIState
from vertinumpyro.posterior.predictive import device_columns
from vertinumpyro.privacy import GradientPlan, PoissonSampling
from vertinumpyro.secure import fixed_point
from vertinumpyro.secure.backend import in_process

FAILURE_PROB = 1e-4
CHOICE_FAILURE_PROB = 1e-12  # so strict that no threshold is chosen far out, where a few lucky runs make it look good
OUTSIDE = "outside analyst"

Noise = Callable[[np.ndarray], np.ndarray]
"""What the parties add, [..., P, D], of what was drawn for them."""


def as_drawn(drawn: np.ndarray) -> np.ndarray:
    return drawn


def halved(drawn: np.ndarray) -> np.ndarray:
    return drawn // 2


def without(party: int) -> Noise:
    """One party's share never comes."""
    return lambda drawn: drawn * (np.arange(drawn.shape[-2]) != party)[:, None]


def leave_out_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: every record counts as shorter than the clip norm."""
    honest = fixed_point._clipped_weights
    monkeypatch.setattr(fixed_point, "_clipped_weights", lambda link, e, norm, mask: honest(link, e, 0 * norm, mask))


@dataclasses.dataclass(frozen=True)
class Runs:
    """What all steps released on each of several tables [tables, runs, steps, D], and the shares that were added."""

    plan: GradientPlan
    released: np.ndarray
    shares: np.ndarray

    def view(self, adversary: str, tables: Sequence[int] = (0, 1)) -> np.ndarray:
        """[2, runs, steps D]: what was released on two of the tables, less the adversary's own noise."""
        seen = self.released[list(tables)]
        if adversary in self.plan.parties:
            own = self.shares[list(tables), :, :, self.plan.parties.index(adversary)]
            seen = seen - own * 2.0**-self.plan.grid_bits
        return seen.reshape(*seen.shape[:2], -1)

    def lower_bound(self, adversary: str, tables: Sequence[int] = (0, 1)) -> float:
        """On epsilon, at the plan's delta."""
        return epsilon_lower_bound(self.view(adversary, tables), self.plan.delta)


def full_batches(num_records: int, num_steps: int) -> PoissonSampling:
    """Every step takes all records: nothing is left to chance but the noise."""
    return PoissonSampling(sampling_prob=1.0, num_steps=num_steps, max_batch_size=num_records)


def full_batch_plan(dpvi: DPVI, table: VerticalDataset, *, num_steps: int = 1, **settings: Any) -> GradientPlan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a large delta makes an audit sharp
        return dpvi.plan(table, sampling=full_batches(table.num_records, num_steps), **settings)


def run(
    dpvi: DPVI,
    plan: GradientPlan,
    tables: Sequence[VerticalDataset],
    num_runs: int,
    *,
    noise: Noise = as_drawn,
    over_runs: Callable[..., Any] = jax.vmap,
) -> Runs:
    """The plan's steps on each table, `num_runs` times with fresh exact noise.

    :param over_runs: makes a function of one run's noise one of all runs'.
    """
    kernel, first = dpvi.kernel(tables[0], plan, compat.random_key(0))
    local, prior_of, update = (
        compat.at_precision(kernel.user_x64, part) for part in (kernel.local, kernel.component_prior, kernel.update)
    )
    everyone = jnp.arange(plan.num_records)

    def step(columns: Any, state: DPVIState, shares: jax.Array) -> tuple[DPVIState, jax.Array]:
        prior = prior_of(state)
        inputs = local(state, columns, everyone), prior, jnp.ones(plan.num_records, bool)
        released = in_process(kernel.backend).clipped_noisy_sum(kernel.shape, *inputs, shares)
        return update(state, released.astype(prior.log_weights.dtype))[0], released

    def steps(columns: Any, shares: jax.Array) -> jax.Array:
        return jax.lax.scan(partial(step, columns), first, shares)[1]

    size = num_runs * plan.num_steps
    all_released, all_shares = [], []
    with compat.x64():
        of_runs = jax.jit(lambda columns, shares: over_runs(partial(steps, columns))(shares))
        for table in tables:
            drawn = plan.draw_noise_shares(kernel.guide.split.num_values, size, SystemRandomSource())
            added = noise(drawn).reshape(num_runs, plan.num_steps, *drawn.shape[1:])
            all_released.append(np.asarray(of_runs(device_columns(table), added)))
            all_shares.append(added)
    return Runs(plan, np.stack(all_released), np.stack(all_shares))


def epsilon_lower_bound(view: np.ndarray, delta: float) -> float:
    """A lower bound on epsilon at delta, of a view [2, runs, D]."""
    along = _along_difference(view)
    half = along.shape[1] // 2
    choose, test = along[:, :half], along[:, half:]
    # the middle first: it wins where several separate alike, as without noise, where quantiles lie on the values
    candidates = [np.median(choose, axis=1).mean(), *np.quantile(choose[0], np.linspace(0.5, 0.9995, 60))]
    chosen = max(candidates, key=lambda threshold: _bound(choose, threshold, delta, CHOICE_FAILURE_PROB))
    return _bound(test, chosen, delta, FAILURE_PROB)


def _along_difference(view: np.ndarray) -> np.ndarray:
    """[2, runs]: along the difference of the means, which is estimated on the first half."""
    means = view[:, : view.shape[1] // 2].mean(1)
    direction = means[1] - means[0]
    return view @ direction / np.linalg.norm(direction)


def _bound(along: np.ndarray, threshold: float, delta: float, failure_prob: float) -> float:
    runs = along.shape[1]
    false_alarms, hits = (int((row > threshold).sum()) for row in along)
    upper = beta.ppf(1 - failure_prob / 2, false_alarms + 1, runs - false_alarms) if false_alarms < runs else 1.0
    lower = beta.ppf(failure_prob / 2, hits, runs - hits + 1) if hits else 0.0
    return float(np.log(max(lower - delta, 1e-12) / upper))
