"""How a generalised linear model is stepped, chosen from public numbers alone, never from the data.

One generalised linear model on one schema, checked, and the `DPVI` that fits it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer import init_to_mean
from numpyro.infer.autoguide import AutoDelta, AutoDiagonalNormal

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import require_collection
from vertinumpyro.data import Column, Schema
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.dpvi import DPVI, Posterior, SecondMoments
from vertinumpyro.dpvi.outcome_tables import EventTimes
from vertinumpyro.dpvi.second_moments import MOST_COEFFICIENTS
from vertinumpyro.dpvi.second_moments import NUM_STEPS as FEW_STEPS
from vertinumpyro.model.hazards import table_numbers
from vertinumpyro.posterior.guide import GuideFactory
from vertinumpyro.regression.dataframe_input import part_of
from vertinumpyro.regression.families import Family, Survival, family_of
from vertinumpyro.regression.glm_model import BASELINE, INTERCEPT, Offset, Term, check_number, glm_model, terms_of
from vertinumpyro.secure import Backend

_NUM_STEPS, _CLIP_FACTOR = 200, 0.4


class Steps(NamedTuple):
    """How many steps, with what.

    :ivar num_steps: with all records in each, so that sub-sampling has nothing to add.
    :ivar clip_norm: of a record's gradient, over the family's usual residual.
    :ivar learning_rate: of Adam at its first step, over the family's usual coefficient.
    """

    num_steps: int
    clip_norm: float
    learning_rate: float


def default_steps(num_columns: int, num_steps: int | None = None, *, curvature: bool = False) -> Steps:
    """The settings of a fit that names none; `benchmarks/glm.py` has what they reach at epsilon from 0.1 to 10.

    Noise of T steps that is averaged costs what noise of one does, so T is as large as patience allows. A record is
    clipped where its outcome was half expected: its gradient's norm is the residual times sqrt(columns), as each
    column adds a number in [-1, 1] or a one, and 0.4 of a bounded residual is a clip norm of 0.4 sqrt(columns). With
    the rate 1 / sqrt(T) steps of noise alone move a coefficient by some 0.6 of its usual size. Where second moments say
    how far to go, 20 steps come as far, and a step of every party's records between organisations is what takes time.

    :param num_columns: features and label.
    :param num_steps: T; None takes 200, or 20 with second moments.
    :param curvature: whether steps go by noisy second moments.
    """
    steps = num_steps or (FEW_STEPS if curvature else _NUM_STEPS)
    return Steps(steps, round(_CLIP_FACTOR * math.sqrt(num_columns), 3), 1 / math.sqrt(steps))


def one_scale_adam(num_steps: int, learning_rate: float) -> optax.GradientTransformation:
    """Adam whose second moment is the mean over all coefficients, and whose rate falls by a cosine.

    Privacy's noise is the same in all of them; Adam's own scales would blow up those that hardly have a gradient. A
    guide's widths, whose gradients are of another kind, have a scale of their own.

    :param num_steps: T.
    :param learning_rate: at the first step.
    """
    kinds: Mapping[Any, Any] = {
        "coefficients": _one_scale(num_steps, learning_rate),
        "widths": _one_scale(num_steps, learning_rate),
    }
    return optax.multi_transform(kinds, _kinds)


def _kinds(params: Any) -> Any:
    return {name: "widths" if name.endswith("_scale") else "coefficients" for name in params}


def _one_scale(num_steps: int, learning_rate: float) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.05)

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jax.tree_util.tree_map(jnp.zeros_like, params), jnp.zeros(())

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        count, momentum, square = state[0] + 1, state[1], state[2]
        momentum = jax.tree_util.tree_map(lambda m, g: 0.9 * m + 0.1 * g, momentum, updates)
        leaves = jax.tree_util.tree_leaves(updates)
        size = max(1, sum(leaf.size for leaf in leaves))
        square = 0.999 * square + 0.001 * sum(jnp.sum(jnp.square(leaf)) for leaf in leaves) / size
        scale = rate(count - 1) / (1 - 0.9**count) / (jnp.sqrt(square / (1 - 0.999**count)) + 1e-8)
        return jax.tree_util.tree_map(lambda m: -scale * m, momentum), (count, momentum, square)

    return optax.GradientTransformation(init, update)


GuideName = Literal["point", "normal"]

_GUIDES: Mapping[str, GuideFactory] = {
    "point": AutoDelta,
    "normal": functools.partial(AutoDiagonalNormal, init_scale=0.05),
}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression:
    """The arguments of `glm_model`, and what follows from them; public.

    :raises ArgumentError: names what does not fit, and the fix.
    """

    schema: Schema
    label: str
    family: str
    features: tuple[str, ...] | None
    linear: tuple[str, ...]
    prior_scale: float
    scale: float
    cutpoints: tuple[float, ...] | None
    offset: str | None = None
    exposure: str | None = None
    time: str | None = None
    entry: str | None = None
    concentration: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.prior_scale < math.inf:
            raise ArgumentError(f"prior_scale must be positive and finite, got {self.prior_scale}")
        self._check_times()
        _ = self.terms  # validates the columns' names
        self.of_label.check(self.place, self.column)
        if self.exposure is not None and self.family not in ("poisson", "negative_binomial", "gamma", "survival"):
            raise ArgumentError(f"exposure={self.exposure!r}: family={self.family!r} has no rate; leave it out")
        if self.offset is not None and self.family == "normal":
            raise ArgumentError(f'offset={self.offset!r}: family="normal" needs none; take it off the label')

    def _check_times(self) -> None:
        if self.family != "survival":
            given = next((name for name in ("time", "entry") if getattr(self, name) is not None), None)
            if given is not None:
                raise ArgumentError(f'{given}={getattr(self, given)!r}: it is for family="survival"; leave it out')
            return
        if self.time is None:
            raise ArgumentError("time: family=\"survival\" needs the column of the event's time, or of the censoring's")
        for argument, name in {"time": self.time, "entry": self.entry}.items():
            if name is not None:
                self._check_time(argument, name)

    def _check_time(self, argument: str, name: str) -> None:
        columns = self.schema.columns
        if name not in columns:
            raise ArgumentError(f"{argument}: no party holds column {name!r}; {suggest(name, columns)}")
        place = Place(self.schema.party_of(name), name)
        check_number(argument, place, columns[name])
        if self.label in columns and place.party != self.place.party:
            raise ArgumentError(f"{argument}: {place} is not at the label's party, {self.place.party!r}; move it there")
        low, high = (float(table_numbers(columns[name], np.asarray(end))) for end in columns[name].encoded_range)
        if low < 0 or not high > 0:
            raise ArgumentError(f"{argument}: {place} may be negative; give it bounds from 0 on, where time begins")

    @classmethod
    def of(
        cls, schema: Schema, label: str, *, features: Iterable[str] | None, linear: Iterable[str],
        cutpoints: Iterable[float] | None, **settings: Any,
    ) -> Regression:  # fmt: skip
        """With the columns in any collection."""
        for argument, names in {"features": () if features is None else features, "linear": linear}.items():
            require_collection(argument, names, "columns")
        family = family_of(
            settings["family"], scale=settings["scale"], cutpoints=cutpoints,
            concentration=settings.get("concentration"),
        )  # fmt: skip
        return cls(
            schema=schema,
            label=label,
            features=None if features is None else tuple(features),
            linear=tuple(linear),
            cutpoints=getattr(family, "cutpoints", None),
            **settings,
        )

    @property
    def model_kwargs(self) -> dict[str, Any]:
        """What `glm_model` takes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def terms(self) -> tuple[Term | Offset, ...]:
        """What each column adds to the predictor."""
        return terms_of(
            self.schema, self.label, features=self.features, linear=self.linear, offset=self.offset,
            exposure=self.exposure, times=self.times,
        )  # fmt: skip

    @property
    def times(self) -> tuple[str, ...]:
        """Columns of a survival's label beside it."""
        return tuple(name for name in (self.time, self.entry) if name is not None)

    @property
    def all_columns(self) -> list[str]:
        """What the model reads: features, label and its times."""
        return [*self.columns, self.label, *self.times]

    @functools.cached_property
    def of_label(self) -> Family:
        """The label's distribution."""
        return family_of(self.family, scale=self.scale, cutpoints=self.cutpoints, concentration=self.concentration)

    @property
    def column(self) -> Column:
        """The label's."""
        return self.schema.columns[self.label]

    @property
    def place(self) -> Place:
        """Where the label is, for errors."""
        return Place(self.schema.party_of(self.label), self.label)

    @property
    def columns(self) -> list[str]:
        """The features' names."""
        return [term.column for term in self.terms]

    @property
    def of_its_columns(self) -> Regression:
        """The same on a schema of these columns alone; a party without any has no part in it."""
        return dataclasses.replace(self, schema=part_of(self.schema, self.all_columns))

    def steps(self, num_steps: int | None = None, *, curvature: bool = False) -> Steps:
        """How it is fitted unless somebody says otherwise, in the family's own units."""
        found = default_steps(self._num_columns, num_steps, curvature=curvature)
        return found._replace(
            clip_norm=found.clip_norm * self.of_label.residual(self.column),
            learning_rate=found.learning_rate * self.of_label.unit,
        )

    @property
    def _num_columns(self) -> int:
        """Features and label, by which a record's scores are bounded; see `dpvi.clipping`.

        A survival's baseline is in two sums, each with the times and an intercept, at the label's party.
        """
        across = 1 + len(self.terms) + len(self.times)
        if not self.num_intervals:
            return across
        own = 1 + sum(term.party == self.place.party for term in self.terms) + len(self.times)
        return across + own + 2 * (1 + len(self.times))

    @property
    def num_intervals(self) -> int:
        """Of a survival's baseline; 0 where the hazard never changes, and has no latents beside the intercept."""
        family = self.of_label
        return family.hazard.num_intervals if isinstance(family, Survival) and family.cutpoints else 0

    @property
    def event_times(self) -> EventTimes | None:
        """Of a survival, what a table of when events were is of; None where it would not say what is needed.

        That is where people enter late or the predictor has an offset, whose part in the time at risk no table has.
        """
        if self.family != "survival" or self.entry is not None or len(self.terms) > len(self._learned):
            return None
        assert self.time is not None
        latest = float(table_numbers(self.schema.columns[self.time], self.schema.columns[self.time].encoded_range[1]))
        if max(self.cutpoints or (0.0,)) >= latest:
            return None
        baseline = BASELINE if self.num_intervals else ""
        return EventTimes(self.label, self.time, INTERCEPT, baseline, self.cutpoints or ())

    @property
    def _learned(self) -> list[Term]:
        return [term for term in self.terms if isinstance(term, Term)]

    @property
    def has_moments(self) -> bool:
        """Whether second moments of its coefficients' scores are those of one sum, and not too many."""
        one_sum = not self.num_intervals or self.event_times is not None
        return one_sum and sum(term.size for term in self.terms) < MOST_COEFFICIENTS

    def found(self, posterior: Posterior) -> tuple[np.ndarray, float]:
        """Coefficients `[d]` in the terms' order and the intercept, at the posterior's centre."""
        sites = posterior.split.constrain(posterior.centre())
        coefficients = [np.ravel(np.asarray(sites[term.site], np.float64)) for term in self._learned]
        return np.concatenate(coefficients), float(sites[INTERCEPT])

    def baseline(self, posterior: Posterior) -> np.ndarray:
        """Of a survival, the hazard `[J]` in each interval where the predictor without its intercept is 0."""
        sites = posterior.split.constrain(posterior.centre())
        later = np.asarray(sites[BASELINE], np.float64) if self.num_intervals else np.zeros(0)
        return np.exp(np.concatenate([np.zeros(1), later]) + float(sites[INTERCEPT]))

    def predictor(self, columns: Mapping[str, np.ndarray], coefficients: np.ndarray, intercept: float) -> np.ndarray:
        """Eta `[N]` of records in model units."""
        parts = np.split(coefficients, np.cumsum([term.size for term in self.terms])[:-1])
        added = [term.added(part, columns[term.column]) for term, part in zip(self.terms, parts, strict=True)]
        return np.sum(added, axis=0) + intercept


def inference_of(
    regression: Regression, guide: GuideName, backend: Backend, *, num_steps: int, learning_rate: float | None,
    curvature: bool = False,
) -> DPVI:  # fmt: skip
    """The inference; the same one for the same settings, so that a model is split and compiled once for many fits.

    :param regression, guide, backend: what is fitted, and how.
    :param num_steps: T.
    :param learning_rate: of Adam; None takes the default.
    :param curvature: take steps by noisy second moments in the place of Adam's.
    """
    made = _inference if isinstance(backend, Hashable) else _inference.__wrapped__
    if curvature:  # these fit any number of steps
        return made(regression, guide, backend, None, None)
    return made(regression, guide, backend, num_steps, learning_rate or regression.steps(num_steps).learning_rate)


@functools.lru_cache(maxsize=8)
def _inference(
    regression: Regression, guide: GuideName, backend: Backend, num_steps: int | None, learning_rate: float | None
) -> DPVI:
    """Without a learning rate by second moments."""
    adam = None if num_steps is None or learning_rate is None else one_scale_adam(num_steps, learning_rate)
    events, model_kwargs = None if adam is not None else regression.event_times, regression.model_kwargs
    return DPVI(
        glm_model,
        guide=_GUIDES[guide],
        optimizer=adam,
        backend=backend,
        init_loc_fn=init_to_mean,
        model_kwargs=model_kwargs | ({} if events is None else {"held_baseline": True}),
        warm_start=SecondMoments(events=events) if adam is None else False,
    )
