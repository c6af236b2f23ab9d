"""What DPVI returns: the guide's posterior.

Pytrees of arrays under public names, and back: what a run stores, and a saved posterior.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.files import load_arrays, save_arrays
from vertinumpyro.dpvi.noise_aware import NoiseAwareDraws
from vertinumpyro.dpvi.priors import prior_stddev
from vertinumpyro.model import SplitModel
from vertinumpyro.model.user_code import public_state
from vertinumpyro.mrf import Marginals
from vertinumpyro.posterior.guide import Params, ReparameterisedGuide
from vertinumpyro.posterior.predictive import PredictivePosterior, checked_key
from vertinumpyro.privacy import ClientPlan, GradientPlan
from vertinumpyro.privacy.forecast import listed, says_little
from vertinumpyro.privacy.gradient_plan import NO_STEPS


def as_numbers(leaf: Any) -> np.ndarray:
    """An array as files and messages hold it: of typed keys their numbers."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def from_numbers(numbers: np.ndarray, like: Any) -> jax.Array:
    """The array that `as_numbers` took apart, which was of the kind of `like`."""
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(numbers), impl=jax.random.key_impl(like))
    return jnp.asarray(numbers)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def tree_arrays(tree: Any) -> dict[str, np.ndarray]:
    """A pytree's leaves by their paths."""
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(key): as_numbers(leaf) for key, leaf in named}


def tree_of(stored: Mapping[str, np.ndarray], like: Any, name: str) -> Any:
    """The stored leaves in the structure of `like`.

    :param name: the file's, for errors.
    :raises ArgumentError: if names or shapes differ: the file is of another model, guide or optimiser.
    """
    named, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(key) for key, _ in named]
    if sorted(names) != sorted(stored):
        raise ArgumentError(f"{name} was saved for another model, guide or optimizer")
    leaves = []
    for key, (_, expected) in zip(names, named, strict=True):
        found, needed = stored[key], np.shape(as_numbers(expected))
        if found.shape != needed:
            raise ArgumentError(f"{name} holds {key} of shape {found.shape}, and this model needs {needed}")
        leaves.append(from_numbers(found, expected))
    return jax.tree_util.tree_unflatten(structure, leaves)


def state_leaves(state: Any) -> dict[str, np.ndarray]:
    """A state's leaves by number, for those who know its structure."""
    return {f"state_{i}": as_numbers(leaf) for i, leaf in enumerate(jax.tree_util.tree_leaves(state))}


def state_of(like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The state that `state_leaves` took apart."""
    leaves, structure = jax.tree_util.tree_flatten(like)
    found = [from_numbers(arrays[f"state_{i}"], leaf) for i, leaf in enumerate(leaves)]
    return jax.tree_util.tree_unflatten(structure, found)


_DRAWS = "noise_aware."


def load_params(path: str | os.PathLike[str], like: Any) -> tuple[Any, NoiseAwareDraws | None]:
    """Parameters that `Posterior.save` wrote, in the structure of `like`, and its draws; raises as `tree_of`."""
    arrays = load_arrays(path)[1]
    draws = {name.removeprefix(_DRAWS): arrays.pop(name) for name in list(arrays) if name.startswith(_DRAWS)}
    return tree_of(arrays, like, Path(path).name), NoiseAwareDraws(**draws) if draws else None


GUIDES_OWN = "the spread of these draws is the guide's own: it leaves out the noise of the steps, and is no interval"
"""Of every posterior that was learned by noisy steps."""

OF_TABLES = (
    "it is the model at its best fit to the noisy tables, which leaves their noise out, and no interval; "
    "MarginalInference fits further models to the same tables at no further cost"
)
"""Of every posterior that was learned from tables without steps."""

_MOST_OF_VARIANCE = 0.9
_APART = 3.0  # standard deviations
_MISFIT = 0.08  # of the counts


MOST_ERRORS = 4.0  # the sum of squares has a long tail: noise alone passes three in one fit of three hundred
MOST_NORM = 0.03  # what a gradient of this norm still gains is some thousandths of a nat a record


class Residual(NamedTuple):
    """What some steps released beside what steps at the optimum release.

    :ivar norm: of the gradient, in clip norms a record; 0 where noise explains all.
    :ivar standard_errors: how far the mean squared norm lies above that of steps at the optimum.
    """

    norm: float
    standard_errors: float

    @property
    def is_noise(self) -> bool:
        """Whether it is within the noise, or too little to matter."""
        return self.standard_errors <= MOST_ERRORS or self.norm <= MOST_NORM


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """How a fit went.

    released_norm: L2 norm of each noisy gradient per expected record; post-processing of the release, so DP.
    objective: negative ELBO per record on each batch, or None. NOT DP, internal.
    seconds: wall time of the steps, compilation included. NOT DP, internal: it is in no file.
    residual: what the last tenth of the steps released beside the noise; post-processing, so DP. None where this
        process took too few steps to tell.
    """

    released_norm: np.ndarray
    objective: np.ndarray | None
    seconds: float
    residual: Residual | None = None

    @classmethod
    def empty(cls, residual: Sequence[float] | None = None) -> Diagnostics:
        """Of a loaded posterior."""
        return cls(np.zeros(0), None, 0.0, None if residual is None else Residual(*residual))


def _listed(names: list[str], chosen: np.ndarray) -> str:
    """Some of the names, or that it is all of them."""
    return "all" if chosen.all() else listed([name for name, is_one in zip(names, chosen, strict=True) if is_one])


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Posterior(PredictivePosterior):
    """A variational posterior learned under a plan. All of it is released but `diagnostics.objective` and `.seconds`.

    After steps by second moments of a `party_sum` the draws are those of the posterior given everything that was
    released, the steps' noise included (`dpvi.noise_aware`), and their quantiles are intervals.

    Otherwise the spread of its draws is the guide's own and no interval (`is_interval`, `spread_note`): the steps'
    noise moves the guide about the posterior, and is in no width of it. Intervals come from `MarginalInference` and
    `MarginalGLM`, too.

    :ivar noise_aware: draws that know the noise; None where they cannot be had.
    :ivar no_interval: why not, where more than the steps' kind is to blame.
    :ivar marginals: the noisy tables that the steps started from, for further models at no further cost; None where
        they started elsewhere, and in a posterior that was loaded: `Marginals.save` keeps them.
    :ivar params: the guide's unconstrained parameters; `guide_params` has NumPyro's names and constraints.
    :ivar secure_noise: whether noise and batches came from the operating system's CSPRNG. Where it is
        False the fit used `insecure_seed` and has no privacy.
    """

    guide: ReparameterisedGuide
    params: Params
    plan: GradientPlan | ClientPlan
    diagnostics: Diagnostics
    secure_noise: bool
    marginals: Marginals | None = None
    noise_aware: NoiseAwareDraws | None = None
    no_interval: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """Without what is not DP: the objective, and how long the steps took."""
        return public_state(self, diagnostics=dataclasses.replace(self.diagnostics, objective=None, seconds=0.0))

    @property
    def guide_params(self) -> dict[str, Any]:
        """The guide's parameters as its autoguide names and constrains them."""
        return self.guide.named_params(self.params)

    @property
    def split(self) -> SplitModel:
        """See `PredictivePosterior.split`."""
        return self.guide.split

    @property
    def num_learned(self) -> int:
        """N of the plan."""
        return self.plan.num_records

    @property
    def spread_note(self) -> str:
        """See `PredictivePosterior.spread_note`."""
        if self.noise_aware is not None:
            return ""
        if not self.plan.num_gradients:
            return OF_TABLES
        return f"{GUIDES_OWN}; {self.no_interval}" if self.no_interval else GUIDES_OWN

    @property
    def reading_notes(self) -> tuple[str, ...]:
        """See `PredictivePosterior.reading_notes`: whether steps ended at an optimum, and whether noise hides much."""
        return self.convergence_note, *self._signal_notes()

    @property
    def convergence_note(self) -> str:
        """Whether the steps ended at an optimum, as far as what they released and its noise tell."""
        residual = self.diagnostics.residual
        if not self.plan.num_gradients:
            return f"Steps: {NO_STEPS}"
        if residual is None:
            return "Whether the steps ended at an optimum is not known here"
        if residual.is_noise:
            return "The steps ended at an optimum: their last gradients are within the noise"
        return (
            f"The steps did not end at an optimum: their last gradients are {residual.standard_errors:.0f} standard "
            f"errors beyond the noise, {residual.norm:.2f} clip norms a record; raise num_steps or learning_rate"
        )

    def _signal_notes(self) -> Iterator[str]:
        """Of which numbers the draws that know the noise say little, beside the prior or beside the noise."""
        if self.noise_aware is None:
            return
        names, stddev = self.split.names, self.noise_aware.draws.std(0)
        little = says_little(stddev, prior_stddev(self.split))
        if little.any():
            yield f"At this epsilon and N the data say little beside the prior of: {_listed(names, little)}"
        hidden = ~little & (np.square(self.noise_aware.stddev / stddev) < 1 - _MOST_OF_VARIANCE)
        if self.noise_aware.apart is not None and (apart := np.abs(self.noise_aware.apart) > _APART).any():
            yield (
                f"The prior and what was released are more than {_APART:g} standard deviations of both apart in: "
                f"{_listed(names, apart)}; where that is no surprise, the prior is too narrow"
            )
        if self.noise_aware.misfit is not None and (misfit := float(self.noise_aware.misfit)) > _MISFIT:
            yield (
                f"By the released table {misfit:.0%} of the counts are elsewhere than the model has them: standard "
                "errors may be too short; a negative binomial has room for counts that vary more"
            )
        if hidden.any():
            yield f"Over {_MOST_OF_VARIANCE:.0%} of the variance is the noise of privacy of: {_listed(names, hidden)}"

    @property
    def _num_draws(self) -> float:
        """See `PredictivePosterior`."""
        return math.inf if self.noise_aware is None else len(self.noise_aware.draws)

    @property
    def _without_privacy(self) -> np.ndarray | None:
        """See `PredictivePosterior`."""
        return None if self.noise_aware is None else self.noise_aware.stddev

    def __repr__(self) -> str:
        """Shows public facts."""
        guide = type(self.guide.guide).__name__
        note = self.spread_note or "its draws know the noise"
        note = note if self.plan.num_gradients else f"steps: {NO_STEPS}; {note}"
        return f"Posterior({self.split.num_parameters} parameters, {guide}, N={self.num_learned}; {note})"

    def sample_flat(self, rng_key: jax.Array, num_samples: int) -> jax.Array:
        """Draws, [num_samples, theta]: of those that know the noise, or of the guide."""
        if self.noise_aware is not None:
            draws = jnp.asarray(self.noise_aware.draws, float)
            repeated = num_samples > len(draws)
            return draws[jax.random.choice(checked_key(rng_key), len(draws), (num_samples,), replace=repeated)]
        return self._flat(jax.random.split(checked_key(rng_key), num_samples))

    @cached_property
    def _flat(self) -> Callable[[jax.Array], jax.Array]:
        return jax.jit(jax.vmap(lambda key: self.guide.sample(self.params, key)))

    def centre(self) -> jax.Array:
        """Flat unconstrained theta: the mean of the draws that know the noise, or the guide's location; the mean of 256
        draws where it has none."""
        if self.noise_aware is not None:
            return jnp.asarray(self.noise_aware.draws.mean(0), float)
        location = self.guide.location(self.params)
        return self.sample_flat(jax.random.key(0), 256).mean(0) if location is None else location

    def save(self, path: str | Path) -> None:
        """Write parameters, plan and schema to one `.npz` file; `DPVI.load` reads it."""
        metadata = {
            "schema": self.guide.split.schema.to_dict(),
            "plan": self.plan.to_dict(),
            "secure_noise": self.secure_noise,
            "no_interval": self.no_interval,
            "residual": self.diagnostics.residual,
        }
        known = {} if self.noise_aware is None else self.noise_aware._asdict()
        more = {f"{_DRAWS}{name}": values for name, values in known.items() if values is not None}
        save_arrays(path, {**tree_arrays(self.params), **more}, metadata)
