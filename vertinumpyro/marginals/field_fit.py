"""A model fitted to a release through its Markov field: for models that tables of pairs do not determine.

Tables of two columns say nothing of how three hang together, and a mixture of many components may have any number of
such interactions at the same likelihood: what it has of them is chance, and costs more than the noise. The field of the
tables is the distribution of greatest entropy that has them, so it adds none. The model is learned from the field's
own records, of which N count: maximising their expected log density minimises KL(field || model). That is an
approximation: the field's records are cleaner than the tables, whose noise this posterior does not know of, so no
interval of it is promised to cover.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple, cast, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer.initialization import init_to_uniform
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.marginals.expected_tables import ModelTables, Sums
from vertinumpyro.model import SplitModel
from vertinumpyro.mrf import Marginals, MarkovTwin, VertiMRF
from vertinumpyro.posterior.guide import GuideFactory, Params, ReparameterisedGuide, chosen_init

_NUM_RECORDS = 200_000  # of the field: their own chance should be small beside that of the N real ones
BATCH = 1000
_RATE = 0.1
_TENTHS = 10
_VERY_FAR = 10.0  # times what noise and sampling explain; few components for a table may be off by some
_COMPARED = 50  # batches: a difference on the same records varies far less than the objectives do

StartAt = Callable[[Mapping[str, np.ndarray], np.ndarray], Mapping[str, Any]]
"""Values of the latents on their own supports, given encoded records [n] and the indices [K] of some of them."""


class FieldFit(NamedTuple):
    """What was learned.

    :ivar guide: over flat theta.
    :ivar params: its parameters.
    :ivar trend: how much the last tenth of the steps still gained, in nats a record.
    """

    guide: ReparameterisedGuide
    params: Params
    trend: float


class _At(NamedTuple):
    """Where the steps are: the optimiser's state, and the objective at the parameters that the last one began with."""

    params: Params
    state: Any
    objective: jax.Array


def fit_to_field(
    split: SplitModel,
    release: Marginals,
    settings: VertiMRF,
    guide: GuideFactory,
    rng_key: jax.Array,
    *,
    start_at: StartAt | None,
    num_steps: int,
    progress_bar: bool,
    misfit: Callable[[np.ndarray], float],
    num_starts: int,
) -> FieldFit:
    """Variational inference on the field's records, in mini-batches, with Adam; a guide of one point gives the mode.

    :param start_at: where to start, given K of the records; None starts at random, as does a guide with a strategy of
        its own.
    :param misfit: of the tables, at flat theta. What begins at records may end where components became one: where the
        tables are very far off it begins at other records.
    :param num_starts: at most; the nearest is taken.
    """
    start_key, draw_key, step_key = jax.random.split(rng_key, 3)
    keys = jax.random.split(step_key, num_steps)
    at_random: Any = partial(init_to_uniform, **{"radius": 1.0})
    create = partial(ReparameterisedGuide.create, guide, split, at_random, start_key)
    begins_at_records = start_at is not None and chosen_init(guide) is None
    made, params = create(start=jnp.zeros(split.num_parameters) if begins_at_records else None)
    steps = _Steps.of(split, guide, made, params, release, keys)
    tables = steps.tables
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(lambda: steps.program)  # on one core, while the field is fitted mostly on another
        records = _records(release, settings, draw_key)
        program = compiling.result()
    places = jnp.asarray(tables.of_records(records), jnp.int32)
    ends = np.linspace(0, num_steps, _TENTHS + 1, dtype=np.int32)

    def objective(at: _At) -> float:
        """On average over the first batches, the same ones wherever it is asked for."""
        steps = (program(places, tables.sums, keys, at, i, i + 1) for i in np.arange(_COMPARED, dtype=np.int32))
        return float(np.mean([step.objective for step in steps]))

    def fitted(params: Params) -> FieldFit:
        at = before = steps.begun(params)
        with tqdm(total=num_steps, disable=not progress_bar, unit="step") as bar:
            for first, last in itertools.pairwise(ends):
                before, at = at, jax.block_until_ready(program(places, tables.sums, keys, at, first, last))
                bar.update(int(last - first))
        return FieldFit(made, at.params, objective(before) - objective(at))

    if not begins_at_records:
        return fitted(params)
    assert start_at is not None
    tried: list[tuple[float, FieldFit]] = []
    for number in range(num_starts):
        key = jax.random.fold_in(start_key, number) if number else start_key
        chosen = jax.random.choice(key, len(places), (split.num_components,), replace=False)
        found = fitted(create(start=split.unconstrain(start_at(records, np.asarray(chosen))))[1])
        location = made.location(found.params)
        off = 0.0 if location is None else float(np.nan_to_num(misfit(np.asarray(location)), nan=np.inf))
        tried.append((off, found))
        if off <= _VERY_FAR:
            break
    return min(tried, key=lambda one: one[0])[1]


@final
class _Steps:
    """The steps' program, compiled once for fits of the same public numbers, whatever their release and their key.

    A guide is the same function of its parameters wherever they start.
    """

    def __init__(
        self, split: SplitModel, guide: ReparameterisedGuide, params: Params, release: Marginals, keys: jax.Array
    ) -> None:
        self.tables = ModelTables(split, release.columns, ())
        self._optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, len(keys), alpha=0.01), b2=0.99)
        run = jax.jit(partial(_run, self.tables, guide, self._optimizer, release.num_records))
        places = jax.ShapeDtypeStruct((_NUM_RECORDS, self.tables.num_blocks), jnp.int32)
        self._traced = run.lower(places, self.tables.sums, keys, self.begun(params), np.int32(0), np.int32(0))

    @classmethod
    def of(
        cls,
        split: SplitModel,
        factory: GuideFactory,
        guide: ReparameterisedGuide,
        params: Params,
        release: Marginals,
        keys: jax.Array,
    ) -> _Steps:
        """Those of the model's fit before, if that was one of this kind."""
        kind = (factory, release.columns, release.num_records, keys.shape, keys.dtype, compat.user_has_x64())
        before, steps = split.compiled.get("steps on a field", (None, None))
        if steps is None or before != kind:
            steps = cls(split, guide, params, release, keys)
            split.compiled["steps on a field"] = kind, steps
        return steps

    def begun(self, params: Params) -> _At:
        """Before the first step."""
        return _At(params, self._optimizer.init(params), jnp.zeros(()))

    @cached_property
    def program(self) -> Callable[..., _At]:
        """(records, sums, keys, where the steps are, first, last) -> where they are before `last`."""
        return self._traced.compile()


def _run(
    tables: ModelTables,
    guide: ReparameterisedGuide,
    optimizer: optax.GradientTransformation,
    weight: int,
    records: jax.Array,
    sums: Sums,
    keys: jax.Array,
    at: _At,
    first: jax.Array,
    last: jax.Array,
) -> _At:
    """The steps from `first` on to before `last`, a batch of the records in each, which count as `weight` together."""

    def step(i: jax.Array, at: _At) -> _At:
        eta, chosen = jax.random.split(keys[i])
        rows = records[jax.random.randint(chosen, (BATCH,), 0, len(records))]
        value, gradient = jax.value_and_grad(lambda theta: tables.log_density(theta, rows, sums).mean())(
            guide.sample(at.params, eta)
        )
        ascent = guide.pull_back(at.params, eta, weight * gradient)
        down = jax.tree_util.tree_map(lambda g: -g / weight, ascent)
        updates, state = optimizer.update(down, at.state, at.params)
        params = cast(Params, optax.apply_updates(at.params, updates))
        return _At(params, state, -value)

    return jax.lax.fori_loop(first, last, step, at)


def _records(release: Marginals, settings: VertiMRF, rng_key: jax.Array) -> dict[str, np.ndarray]:
    """Encoded records of the field, raked to the tables that it does not hold. Public."""
    twin = MarkovTwin.of(release, settings.field(release), {})
    return twin.encoded_records(_NUM_RECORDS, compat.numpy_generator(rng_key))
