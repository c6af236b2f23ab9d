"""`DPVI`: plan, fit and resume private variational inference on a vertically partitioned table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from numpyro.infer.autoguide import AutoDelta

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.files import read_metadata
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.types import Model
from vertinumpyro.core.validation import checked
from vertinumpyro.data import DatasetInfo, Schema, TableFacts, VerticalDataset
from vertinumpyro.data.schema import check_schema
from vertinumpyro.dpvi.accelerated_newton import MomentsStart
from vertinumpyro.dpvi.clipping import COMPILER_BYTES, Budget, Clip, batch_shape, check_clip, chosen_clip, planned_shape
from vertinumpyro.dpvi.initial_state import Start, TableStart, steps_optimizer, takes_all_records
from vertinumpyro.dpvi.party_steps import StepsWork, release_layout
from vertinumpyro.dpvi.posterior import Diagnostics, Posterior, load_params
from vertinumpyro.dpvi.preflight import fit_time, rehearsed, try_step
from vertinumpyro.dpvi.second_moments import MomentsPlan, SecondMoments, moments_of
from vertinumpyro.dpvi.settings import (
    Optimizer,
    check_dataset,
    check_optimizer,
    check_plan,
    check_sampling,
    check_settings,
    default_batch,
    default_components,
    default_guide,
    default_init,
)
from vertinumpyro.dpvi.training_loop import (
    CHECKPOINT,
    AfterChunk,
    DPVIState,
    Kernel,
    OnEstimate,
    end_without_steps,
    restored,
    run_steps,
    spread_over,
)
from vertinumpyro.model.mixture import mixture_model
from vertinumpyro.model.split import SplitModel, split_model
from vertinumpyro.model.user_code import public_state, require_names
from vertinumpyro.mrf import Marginals
from vertinumpyro.posterior.guide import GuideFactory, ReparameterisedGuide, chosen_init
from vertinumpyro.posterior.predictive import checked_key
from vertinumpyro.posterior.synthesis import TwinColumns, rehearse_twin
from vertinumpyro.privacy import (
    FitTime,
    GradientPlan,
    NeighbouringRelation,
    NoiseSource,
    NoSteps,
    Plan,
    PoissonSampling,
    Sampling,
    calibrate_noise_multiplier,
    neighbouring,
)
from vertinumpyro.privacy.accounting import gaussian_noise_multiplier
from vertinumpyro.privacy.adversary import list_adversaries
from vertinumpyro.privacy.plan import check_target, select_adversaries
from vertinumpyro.secure import Backend, BetweenProcesses, FixedPoint
from vertinumpyro.secure.computation import ClippedSum, Computation, block_memory
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.session import Run, Session, session_of
from vertinumpyro.session.cost_estimate import announce

_PROVISIONAL_GRID_BITS = 24  # coarser than any backend's grid: a multiplier that holds here holds there
_MOST_KERNELS = 8  # whose programs are kept; beyond, those that were made first are let go
_OF_MIXTURES: dict[Any, Kernel] = {}  # of the library's own model, guide and optimiser: for whoever has their numbers


@dataclasses.dataclass(frozen=True)
class DPVI:
    """Differentially private variational inference for a NumPyro model with per-party plates.

    Holds public choices only; data enters through the methods. `plan` fixes sampler, clip, noise and
    accounting before anything is computed, `fit` spends the plan.

    :param model: `model(data, num_records, **model_kwargs)`, or None for `mixture_model` of the schema.
    :param guide: one of NumPyro's autoguides of the model, `AutoNormal(model)`, its class, or a `functools.partial` of
        that; `posterior.guide.SUPPORTED` lists them.
    :param optimizer: an optax optimiser, or one of `numpyro.optim`; None takes Adam with a cosine schedule.
    :param learning_rate: of that Adam at its first step; None takes the one in `dpvi.settings`.
    :param backend: how the cross-party step is computed.
    :param init_loc_fn: a NumPyro init strategy for the model's own sites, unless the guide has one of its own.
    :param num_components: K of the mixture when `model` is None; None takes 20, and more from tables of many records
        (`dpvi.settings`).
    :param model_kwargs: further arguments of the model.
    :param warm_start: begin at the model fitted to noisy tables, which most of the budget buys (`dpvi.initial_state`).
        True refuses where that cannot be had. None does it where it can: every step takes all records, `epsilon` is
        given, the model's tables can be computed and are not too wide, the guide has a location, `init_loc_fn` is
        the default, and the extra `mrf` is installed; `plan.start` says. There the tables have all of the budget and
        no steps follow where these would add nothing, unless steps, their clip, their guide, their optimiser or their
        diagnostics are given; `print(plan)` says. A model with a `party_sum` takes
        `SecondMoments()` where its parts are linear in their latents, and no optimiser, batch or guide but a point is
        given: 20 steps, and a posterior that knows their noise (`dpvi.noise_aware`).
    :param block_size: records of a batch at a time; None keeps an array of records by released values below 128 MiB.
    :param num_devices: JAX's first devices here share the records of a batch; for fixed point and plaintext.
    :param diagnostics: also trace the objective on the data, which is NOT DP: never in a release run.
    :raises ArgumentError: names what no fit can use, and what to give instead.
    """

    model: Model | None = None
    _: dataclasses.KW_ONLY
    guide: GuideFactory = default_guide
    optimizer: Optimizer | None = None
    learning_rate: float | None = None
    backend: Backend = dataclasses.field(default_factory=FixedPoint)
    init_loc_fn: Callable[..., Any] = default_init
    num_components: int | None = None
    model_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    diagnostics: bool = False
    block_size: int | None = None
    num_devices: int = 1
    warm_start: bool | SecondMoments | None = None
    _splits: dict[Any, SplitModel] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)
    _twins: dict[Schema, TwinColumns] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)
    _starts: dict[int | None, TableStart] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _kernels: dict[Any, Kernel] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Before any schema is known, as `check_settings` says."""
        check_optimizer(self.optimizer)
        check_settings(
            model=self.model,
            model_kwargs=self.model_kwargs,
            guide=self.guide,
            init_loc_fn=self.init_loc_fn,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            backend=self.backend,
            num_components=self.num_components,
            block_size=self.block_size,
            num_devices=self.num_devices,
            warm_start=self.warm_start,
        )

    def __getstate__(self) -> dict[str, Any]:
        """The settings; split models and their programs are made again."""
        require_names("DPVI", {name: getattr(self, name) for name in ("model", "guide", "optimizer", "init_loc_fn")})
        return public_state(self, _splits={}, _twins={}, _starts={}, _kernels={})

    def split(self, schema: Schema, plan: GradientPlan | None = None) -> SplitModel:
        """The model split between the schema's parties.

        :param plan: whose fit is meant: the mixture's default K follows from its records and its start.
        :raises ModelContractError: names the site and says what to change.
        """
        check_schema(schema)
        if plan is not None and not plan.num_gradients:
            tables = self._tables(plan.num_records, alone=True)
            return self._split(schema, tables.inference.components(plan.num_records))
        warm = plan is not None and plan.start is not None
        components = self._components(plan.num_records if plan else 0, warm=warm)
        return self._split(schema, components, None if plan is None else Clip.of(plan))

    def _split(self, schema: Schema, components: int, clip: Clip | None = None) -> SplitModel:
        known = None if clip is None else clip.standardisation
        key = (schema, components, known)
        if key not in self._splits and clip is not None and known is not None:
            self._splits[key] = clip.standardised(self._split(schema, components))
        if key not in self._splits:
            model = mixture_model(schema, components) if self.model is None else self.model
            self._splits[key] = split_model(model, schema, self.model_kwargs)
        return self._splits[key]

    def _components(self, num_records: int, *, warm: bool) -> int:
        return self.num_components or default_components(num_records, warm=warm and self.model is None)

    def twin_columns(self, schema: Schema) -> TwinColumns:
        """What a synthetic table of the model would hold, found by drawing a few records at arbitrary parameters."""
        if schema not in self._twins:
            made = (split for (of, *_), split in self._splits.items() if of == schema)  # K does not matter here
            self._twins[schema] = rehearse_twin(next(made, None) or self.split(schema))
        return self._twins[schema]

    @checked
    def plan(
        self,
        dataset: DatasetInfo,
        *,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float = 1e-5,
        adversary: str | None = None,
        relation: NeighbouringRelation | Literal["replace", "add_remove"] = NeighbouringRelation.REPLACE,
        clip_norm: float | None = None,
        clip: Literal["joint", "local"] | None = None,
        residual_bound: float | None = None,
        batch_size: int | None = None,
        num_steps: int | None = None,
        sampling: Sampling | None = None,
        noise: Literal["collaborative", "trusted"] = "collaborative",
        collusion_threshold: int = 0,
        batch_indices: Literal["known", "hidden"] = "known",
        allow_unproven: bool = False,
    ) -> GradientPlan:
        """The privacy plan of one fit, from schema and N alone: of a dataset, a session or `TableFacts`.

        Give `epsilon`, and the noise is calibrated so that nobody gets more: not the outside analyst, not a party, not
        a coalition of up to `collusion_threshold`. `adversary`, the name of a row of the privacy table, narrows that
        to one, and a `PrivacyWarning` says what the others get. Or give `noise_multiplier`.

        Where the posterior will know the noise, `plan.forecast` has the standard errors to expect of it, and
        `print(plan)` says of which coefficients so many records at that epsilon say little.

        Records are sampled by Poisson with expected size `batch_size` for `num_steps` steps, unless `sampling` says
        otherwise. What is None is chosen from N, the schema and whom ε is for (`dpvi.settings`). Under "replace" one
        record becomes any other, under "add_remove" its contribution is there or zeroed; N is public either way. A
        `TwinWarning` says what the model cannot give a synthetic table of.

        `clip="local"` is for a model with a `party_sum`, and None takes it there: each party clips its own scores, the
        residual is cut to `residual_bound` of the largest one, and no norm is computed together (`dpvi.clipping`).
        `clip="joint"` clips the whole record on shares, which takes most of a step's rounds, and is for one outcome.

        :raises ArgumentError: names the argument and the fix.
        :raises ModelContractError: if the model cannot be split.
        :raises RangeError: if clip, batch or noise could wrap the backend's ring.
        :raises UnprovenError: if the backend's bound is not proved and allow_unproven is not set.
        """
        check_dataset(dataset)
        if (epsilon is None) == (noise_multiplier is None):
            raise ArgumentError("give either epsilon, to calibrate the noise, or noise_multiplier")
        check_sampling(sampling, batch_size, num_steps)
        parties = tuple(dataset.schema.parties)
        shares = NoiseSource(kind=noise, num_parties=len(parties), collusion_threshold=collusion_threshold)
        watchers = list_adversaries(parties, batch_indices=batch_indices)
        amplified = not any(
            one.knows_indices for one in select_adversaries(watchers, shares.covered(watchers), adversary)
        )
        all_records = takes_all_records(sampling, batch_size, dataset.num_records, amplified=amplified)
        likely = self._components(dataset.num_records, warm=all_records and self.warm_start is not False)
        likely_split = self._split(dataset.schema, likely)
        budget = None
        if epsilon is not None:
            check_target(epsilon)
            one = gaussian_noise_multiplier(epsilon, delta, neighbouring(relation))
            budget = Budget.of_one_release(dataset.num_records, one, shares, neighbouring(relation))
        chosen = chosen_clip(likely_split, clip, clip_norm, residual_bound, budget)
        likely_split = self._split(dataset.schema, likely, chosen)
        self.twin_columns(dataset.schema).warn(stacklevel=3)
        own = {"all_records": all_records, "epsilon": epsilon}
        begun = self._likely_start(likely_split, chosen, dataset.num_records, **own)
        asked = self._asks_for_steps or any(
            given is not None for given in (num_steps, batch_size, sampling, clip_norm, clip, residual_bound)
        )
        start, alone = None, False
        if begun is not None and budget is not None and not asked:
            alone = begun.holds_all(likely_split, chosen, budget)
        if begun is not None:
            begun = self._tables(dataset.num_records, alone=True) if alone else begun
            start = begun.plan(
                dataset,
                likely_split,
                chosen,
                all_records=all_records,
                alone=alone,
                epsilon=epsilon,
                delta=delta,
                adversary=adversary,
                relation=relation,
                noise=noise,
                collusion_threshold=collusion_threshold,
            )
        if alone and start is not None:
            sampling = NoSteps()
        elif sampling is None:
            size, steps = default_batch(dataset.num_records, amplified=amplified, most=chosen.most_records)
            if begun is not None and start is not None:
                size, steps = dataset.num_records, begun.steps.num_steps
            size, steps = batch_size if batch_size is not None else size, num_steps if num_steps is not None else steps
            sampling = PoissonSampling.for_batch_size(size, dataset.num_records, steps)
        settings: dict[str, Any] = {
            "sampling": sampling,
            "clip_norm": chosen.norm,
            "noise": shares,
            "num_records": dataset.num_records,
            "parties": parties,
            "delta": delta,
            "relation": neighbouring(relation),
            "batch_indices": batch_indices,
            "start": start,
        }
        mechanism: dict[str, Any] = {"noise_multiplier": 1.0, "grid_bits": _PROVISIONAL_GRID_BITS, "unproven": ()}
        components = self._components(dataset.num_records, warm=start is not None)
        split = self._split(dataset.schema, components, chosen)
        if not isinstance(sampling, NoSteps):
            if epsilon is not None:
                noise_multiplier = calibrate_noise_multiplier(
                    epsilon=epsilon, adversary=adversary, grid_bits=_PROVISIONAL_GRID_BITS, **settings
                )
            assert noise_multiplier is not None
            grid_bits = self._grid_bits(batch_shape(split, sampling, shares, chosen, noise_multiplier, **self._blocks))
            mechanism = {
                "noise_multiplier": noise_multiplier,
                "grid_bits": grid_bits,
                "unproven": self.backend.info().unproven,
            }
        plan = GradientPlan(
            **settings,
            **mechanism,
            clip_parts=chosen.parts,
            residual_bound=chosen.residual_bound,
            standardisation=chosen.standardisation,
            allow_unproven=allow_unproven,
            adversary=adversary,
        )
        plan.warn_if_narrowed()
        if begun is not None and start is not None and plan.num_gradients:
            plan.keep_forecast(begun.forecast(split, plan))
        plan.keep_time(partial(self.time, TableFacts(dataset.schema, dataset.num_records), plan))
        return plan

    def _grid_bits(self, shape: BatchShape) -> int:
        """Of the steps' sums.

        :raises RangeError: they are fewer than the noise was calibrated for.
        """
        grid_bits = self.backend.grid_bits(shape)
        if grid_bits < _PROVISIONAL_GRID_BITS:
            raise RangeError(f"the backend's grid of 2^-{grid_bits} is too coarse; lower clip_norm or the batch size")
        return grid_bits

    @property
    def _blocks(self) -> dict[str, Any]:
        """How a batch is divided."""
        return {"block_size": self.block_size, "num_devices": self.num_devices}

    def _likely_start(self, split: SplitModel, clip: Clip, num_records: int, **own: Any) -> Start | None:
        """What steps may begin with: the moments that were asked for or that a linear `party_sum` has, or tables.

        :param own: all_records and epsilon of the plan.
        """
        if self.warm_start is False:
            return None
        if isinstance(self.warm_start, SecondMoments):
            return self._moments
        if self.warm_start is None and self._moments.is_possible(split, clip, **own):
            return self._moments
        return self._tables(num_records, alone=False)

    @property
    def _asks_for_steps(self) -> bool:
        """Whether a setting is of the steps, so that there are to be some."""
        chosen = (self.warm_start, self.optimizer, self.learning_rate)
        return self.diagnostics or self.guide is not default_guide or any(given is not None for given in chosen)

    @property
    def _moments(self) -> MomentsStart:
        settings = self.warm_start if isinstance(self.warm_start, SecondMoments) else SecondMoments()
        return MomentsStart(settings, self.guide, self.optimizer is not None or self.learning_rate is not None)

    def _tables(self, num_records: int, *, alone: bool) -> TableStart:
        """:param alone: whether no steps follow, whose work and noise grow with K."""
        components = self.num_components if alone else self._components(num_records, warm=True)
        if components not in self._starts:
            settings = {"guide": self.guide, "init_loc_fn": self.init_loc_fn, "required": self.warm_start is True}
            self._starts[components] = TableStart.of(self.model, components, self.model_kwargs, **settings)
        return self._starts[components]

    def _start_of(self, plan: Plan) -> Start | None:
        """What a plan's steps begin with; None where that is random values."""
        if not isinstance(plan, GradientPlan) or plan.start is None:
            return None
        by_moments = isinstance(plan.start, MomentsPlan) and not isinstance(self.warm_start, bool)
        return self._moments if by_moments else self._tables(plan.num_records, alone=not plan.num_gradients)

    def kernel(self, dataset: DatasetInfo, plan: GradientPlan, rng_key: jax.Array) -> tuple[Kernel, DPVIState]:
        """The `init`/`step` pair underneath, for people who write their own loop: the kernel and its first state.

        :raises ArgumentError: if the plan was made for other parties, records or backend.
        """
        check_dataset(dataset)
        check_plan(plan)
        rng_key = checked_key(rng_key)
        self.check(dataset, plan)
        split = self.split(dataset.schema, plan)
        guide_key, step_key = jax.random.split(rng_key)
        factory, start = self._guide_of(plan), None
        if self.init_loc_fn is default_init and chosen_init(factory) is None and split.standardisation is not None:
            # near 0 by standardised scores, or the steps begin at the far end of a wide column
            start = jnp.asarray(split.from_standardised @ split.init(default_init, guide_key), float)
        guide, params = ReparameterisedGuide.create(factory, split, self.init_loc_fn, guide_key, start=start)
        kernel = self._kernel(guide, plan)
        return kernel, kernel.init(step_key, params)

    def _kernel(self, guide: ReparameterisedGuide, plan: GradientPlan) -> Kernel:
        """The same one for plans of the same public numbers, so that a further fit traces and compiles nothing.

        A guide is the same function of its parameters wherever they start.
        """
        split, start = guide.split, self._start_of(plan)
        whitens = len(plan.parties) if isinstance(plan.start, MomentsPlan) and plan.start.whitened else 0
        settings = {
            "shape": planned_shape(split, plan, **self._blocks),
            "num_records": plan.num_records,
            "expected_batch_size": plan.expected_batch_size,
            "user_x64": compat.user_has_x64(),
            "whitens": whitens > 0,
            "reaches": isinstance(plan.start, MomentsPlan) and plan.start.is_of_counts,
        }
        key = (id(split), type(start), plan.num_gradients, *settings.values())
        kept = self._kernels
        if self._is_default:
            key, kept = (*key, self.learning_rate, self.diagnostics, self.num_devices), _OF_MIXTURES
        if key not in kept:
            while len(kept) >= _MOST_KERNELS:
                kept.pop(next(iter(kept)))
            prior = None if start is None else start.working_prior(split)
            kept[key] = Kernel(
                guide=dataclasses.replace(guide, working_prior=prior),
                optimizer=steps_optimizer(
                    start, plan.num_gradients, self.optimizer, self.learning_rate, whitens=whitens
                ),
                backend=self.backend,
                diagnostics=self.diagnostics,
                spread=spread_over(self.num_devices),
                **settings,
            )
        return kept[key]

    @property
    def _is_default(self) -> bool:
        """Whether numbers alone tell its steps from another's: the library's own mixture, guide and optimiser."""
        own = self.model is None and self.optimizer is None and self.guide is default_guide
        return own and type(self.backend) is FixedPoint

    def _guide_of(self, plan: Plan) -> GuideFactory:
        start = self._start_of(plan)
        if start is None or self.guide is not default_guide:
            return self.guide
        assert isinstance(plan, GradientPlan)
        return start.steps.guide if plan.num_gradients else AutoDelta

    @checked
    def fit(
        self,
        data: VerticalDataset | Session,
        plan: GradientPlan,
        rng_key: jax.Array,
        *,
        run_dir: str | Path | None = None,
        resume: bool = False,
        progress_bar: bool = True,
        after_chunk: AfterChunk | None = None,
        on_estimate: OnEstimate | None = None,
        insecure_seed: int | None = None,
        allow_long: bool = False,
    ) -> Posterior:
        """Spend the plan: run its steps and return the posterior over the global latents.

        :param data: every party's columns in this process, or a session with parties elsewhere.
        :param rng_key: model randomness (initial values, eta); public, it protects nothing.
        :param run_dir: folder for `privacy.json`, which counts every step before anybody sees it, and a checkpoint. The
            record is what stops a second process from spending the same plan.
        :param resume: continue the run of `run_dir` at its recorded step; a run that is complete costs nothing.
        :param after_chunk: called every few steps.
        :param on_estimate: called with the steps' seconds, as one on stand-ins took, before anything is spent.
        :param insecure_seed: draw noise and batches from a seeded generator, for tests: no privacy at all.
        :param allow_long: fit even where it will take more than ten minutes, as its parts took on stand-ins. From one
            minute on a `LongFitWarning` says how long, and where the time goes.
        :raises ArgumentError: if the guide or the optimiser cannot take a step, or all would take more than ten minutes
            and `allow_long` is False; nothing is spent.
        :raises PlanSpentError: if the plan was spent before.
        """
        session = session_of(data, self.backend)
        kernel, state = self.kernel(session, plan, rng_key)
        runner, tried = rehearsed(session, kernel, state, plan) if plan.num_gradients else (None, None)
        if on_estimate is not None and tried is not None:
            on_estimate(plan.num_gradients * tried.step)
        start, released = self._start_of(plan), None
        if start is not None:
            start.rehearse(session, plan, kernel, state)
        time = partial(fit_time, kernel, session, plan, tried, start)
        announce(session, plan, time, run_dir=run_dir, resume=resume, allow_long=allow_long)
        with session.open(
            self, plan, run_dir=run_dir, results=CHECKPOINT, resume=resume, insecure_seed=insecure_seed
        ) as run:
            if start is not None:
                released = start.release(session, run, kernel.guide.split)
                if run.state() is None:
                    state = start.state(released, plan, kernel, state, rng_key, progress_bar=progress_bar)
            state = restored(run, state)
            if plan.num_gradients:
                state, diagnostics = run_steps(
                    session,
                    run,
                    kernel,
                    runner,
                    state,
                    insecure_seed=insecure_seed,
                    progress_bar=progress_bar,
                    after_chunk=after_chunk,
                )
            else:
                diagnostics = end_without_steps(session, run, state)
        tables = released if isinstance(released, Marginals) else None
        found = "" if start is None else start.draws(released, plan, kernel, state, rng_key)
        knows = {"no_interval": found} if isinstance(found, str) else {"noise_aware": found}
        return dataclasses.replace(self._posterior(kernel, state, plan, diagnostics, run), marginals=tables, **knows)

    @staticmethod
    def _posterior(
        kernel: Kernel, state: DPVIState, plan: GradientPlan, diagnostics: Diagnostics, run: Run
    ) -> Posterior:
        return Posterior(
            guide=kernel.guide, params=state.params, plan=plan, diagnostics=diagnostics, secure_noise=run.secure_noise
        )

    def computations(self, facts: DatasetInfo, plan: GradientPlan) -> list[tuple[Computation, int]]:
        """What the parties compute together, and how often: the start's, and a clipped sum for each block of a step."""
        kernel, state = self.kernel(facts, plan, compat.random_key(0))
        summed = ClippedSum(shape=kernel.shape, layout=release_layout(kernel, state, facts))
        steps = (summed.of_one_block, plan.num_gradients * kernel.shape.num_blocks)
        start = self._start_of(plan)
        of_start = [] if start is None else start.computations(facts, plan)
        return [*of_start, *([steps] if plan.num_gradients else [])]

    def memory(self, facts: DatasetInfo, plan: GradientPlan) -> int:
        """Bytes that a fit takes at most beside the encoded columns, of a record's scores and the compiler's."""
        shape = planned_shape(self.split(facts.schema, plan), plan, **self._blocks)
        start, of_steps = self._start_of(plan), block_memory(shape) if plan.num_gradients else 0
        return COMPILER_BYTES + of_steps + (0 if start is None else start.memory(facts, plan))

    def time(self, facts: DatasetInfo, plan: GradientPlan) -> FitTime:
        """How long a fit and a twin take here, a step tried on stand-ins; `plan.time` is this of its own plan."""
        kernel, state = self.kernel(facts, plan, compat.random_key(0))
        elsewhere = isinstance(self.backend, BetweenProcesses) or not plan.num_gradients
        tried = None if elsewhere else try_step(kernel, state, facts, plan)
        return fit_time(kernel, facts, plan, tried, self._start_of(plan))

    def work(self, facts: DatasetInfo, party: str, columns: Any, plan: GradientPlan, source: RandomSource) -> StepsWork:
        """One party's part; see `session.Method`."""
        start, own = self._start_of(plan), None
        if start is not None:
            own = start.work(facts, self.split(facts.schema, plan), party, columns, plan, source)

        def kernel() -> tuple[Kernel, DPVIState]:
            return self.kernel(facts, plan, compat.random_key(0))

        return StepsWork(kernel, facts, party, columns, plan, source, own)

    def load(self, path: str | Path) -> Posterior:
        """A posterior saved by `Posterior.save`; this DPVI must have the same model and guide."""
        metadata = read_metadata(path)
        plan = Plan.from_dict(metadata["plan"])
        split = self.split(Schema.from_dict(metadata["schema"]), plan if isinstance(plan, GradientPlan) else None)
        key = compat.random_key(0)
        guide, params = ReparameterisedGuide.create(self._guide_of(plan), split, self.init_loc_fn, key)
        params, draws = load_params(path, params)
        return Posterior(
            guide=guide,
            params=params,
            plan=plan,
            diagnostics=Diagnostics.empty(metadata.get("residual")),
            secure_noise=metadata["secure_noise"],
            noise_aware=draws,
            no_interval=metadata.get("no_interval", ""),
        )

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses a plan that was not made for this model and backend on such a table.

        :raises ArgumentError: names what differs.
        """
        if not isinstance(plan, GradientPlan):
            raise ArgumentError("plan must be a PrivacyPlan: make it by `plan`")
        split = self.split(dataset.schema, plan)
        if plan.num_records != dataset.num_records:
            made, found = plan.num_records, dataset.num_records
            raise ArgumentError(f"plan was made for {made} records, the dataset has {found}; make a new plan")
        if plan.parties != split.parties:
            raise ArgumentError(f"plan was made for parties {plan.parties}, the schema has {split.parties}")
        check_clip(split, plan)
        if (start := self._start_of(plan)) is not None:
            start.check(dataset, split, plan)
        elif isinstance(self.warm_start, SecondMoments):
            moments_of(plan)  # says that there are none
        if not plan.num_gradients:
            return
        if plan.grid_bits != self.backend.grid_bits(planned_shape(split, plan, **self._blocks)):
            raise ArgumentError("plan was made for another backend, model or number of components; make a new plan")
        if set(self.backend.info().unproven) - set(plan.unproven):
            raise ArgumentError("plan was made for a backend with a proved bound; make a new plan for this one")
