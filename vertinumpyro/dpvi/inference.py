"""`DPVI`: plan, fit and resume private variational inference on a vertically partitioned table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import optax

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import InsecureSeededSource, SystemRandomSource
from vertinumpyro.core.types import Model
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.dpvi import checkpoint
from vertinumpyro.dpvi.defaults import (
    DEFAULT_NUM_STEPS,
    default_batch_size,
    default_clip_norm,
    default_guide,
    default_init,
    default_optimizer,
)
from vertinumpyro.dpvi.guide import GuideFactory, ReparameterisedGuide
from vertinumpyro.dpvi.kernel import DPVIState, Kernel
from vertinumpyro.dpvi.posterior import Diagnostics, Posterior
from vertinumpyro.dpvi.run import CHECKPOINT, Run
from vertinumpyro.model.mixture import mixture_model
from vertinumpyro.model.split import SplitModel, split_model
from vertinumpyro.privacy import (
    NeighbouringRelation,
    NoiseSource,
    PoissonSampling,
    PrivacyPlan,
    Sampling,
    calibrate_noise_multiplier,
)
from vertinumpyro.privacy.adversary import OUTSIDE_ANALYST
from vertinumpyro.secure import BatchShape, FixedPoint, SecureBackend

__all__ = ["DPVI"]

_PROVISIONAL_GRID_BITS = 24  # coarser than any backend's grid: a multiplier that holds here holds there


@dataclasses.dataclass(frozen=True)
class DPVI:
    """Differentially private variational inference for a NumPyro model with per-party plates.

    Holds public choices only; data enters through the methods. `plan` fixes sampler, clip, noise and
    accounting before anything is computed, `fit` spends the plan.

    :param model: `model(data, num_records, **model_kwargs)`, or None for `mixture_model` of the schema.
    :param guide: an autoguide class with one joint latent vector, or a `functools.partial` of one.
    :param optimizer: an optax optimiser; None takes Adam with a cosine schedule.
    :param backend: how the cross-party step is computed.
    :param init_loc_fn: a NumPyro init strategy for the model's own sites.
    :param num_components: K of the mixture when `model` is None.
    :param model_kwargs: further arguments of the model.
    :param diagnostics: also trace the objective on the data, which is NOT DP: never in a release run.
    """

    model: Model | None = None
    _: dataclasses.KW_ONLY
    guide: GuideFactory = default_guide
    optimizer: optax.GradientTransformation | None = None
    backend: SecureBackend = dataclasses.field(default_factory=FixedPoint)
    init_loc_fn: Callable[..., Any] = default_init
    num_components: int = 20
    model_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    diagnostics: bool = False
    _splits: dict[Schema, SplitModel] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def split(self, schema: Schema) -> SplitModel:
        """The model split between the schema's parties.

        :raises ModelContractError: names the site and says what to change.
        """
        if schema not in self._splits:
            model = mixture_model(schema, self.num_components) if self.model is None else self.model
            self._splits[schema] = split_model(model, schema, self.model_kwargs)
        return self._splits[schema]

    def plan(
        self,
        dataset: VerticalDataset,
        *,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float = 1e-5,
        adversary: str = OUTSIDE_ANALYST,
        relation: NeighbouringRelation | Literal["replace", "add_remove"] = NeighbouringRelation.REPLACE,
        clip_norm: float | None = None,
        batch_size: int | None = None,
        num_steps: int | None = None,
        sampling: Sampling | None = None,
        noise: Literal["collaborative", "trusted"] = "collaborative",
        collusion_threshold: int = 0,
        batch_indices: Literal["known", "hidden"] = "known",
        allow_unproven: bool = False,
    ) -> PrivacyPlan:
        """The privacy plan of one fit; reads only the dataset's public facts (schema and N).

        Give `epsilon`, and the noise is calibrated so that `adversary` gets at most that; or give
        `noise_multiplier`. Records are sampled by Poisson with expected size `batch_size` for `num_steps`
        steps, unless `sampling` says otherwise. Where clip_norm, batch_size or num_steps is None, it is chosen
        from N and the schema (`dpvi.defaults`).

        :raises ArgumentError: names the argument and the fix.
        :raises ModelContractError: if the model cannot be split.
        :raises RangeError: if clip, batch or noise could wrap the backend's ring.
        :raises UnprovenError: if the backend's bound is not proved and allow_unproven is not set.
        """
        if (epsilon is None) == (noise_multiplier is None):
            raise ArgumentError("give either epsilon, to calibrate the noise, or noise_multiplier")
        if sampling is not None and (batch_size, num_steps) != (None, None):
            raise ArgumentError("sampling fixes batch size and steps; leave batch_size and num_steps out")
        split = self.split(dataset.schema)
        clip_norm = default_clip_norm(dataset.schema) if clip_norm is None else clip_norm
        settings: dict[str, Any] = {
            "sampling": sampling or _default_sampling(dataset.num_records, batch_size, num_steps),
            "clip_norm": clip_norm,
            "noise": NoiseSource(kind=noise, num_parties=len(split.parties), collusion_threshold=collusion_threshold),
            "num_records": dataset.num_records,
            "parties": split.parties,
            "delta": delta,
            "relation": _relation(relation),
            "batch_indices": batch_indices,
        }
        if epsilon is not None:
            noise_multiplier = calibrate_noise_multiplier(
                epsilon=epsilon, adversary=adversary, grid_bits=_PROVISIONAL_GRID_BITS, **settings
            )
        assert noise_multiplier is not None
        shape = _batch_shape(split, settings["sampling"], settings["noise"], clip_norm, noise_multiplier)
        grid_bits = self.backend.grid_bits(shape)
        if grid_bits < _PROVISIONAL_GRID_BITS:
            raise RangeError(f"the backend's grid of 2^-{grid_bits} is too coarse; lower clip_norm or the batch size")
        return PrivacyPlan(
            **settings,
            noise_multiplier=noise_multiplier,
            grid_bits=grid_bits,
            unproven=self.backend.info().unproven,
            allow_unproven=allow_unproven,
        )

    def kernel(self, dataset: VerticalDataset, plan: PrivacyPlan, rng_key: jax.Array) -> tuple[Kernel, DPVIState]:
        """The `init`/`step` pair underneath, for people who write their own loop: the kernel and its first state.

        :raises ArgumentError: if the plan was made for other parties, records or backend.
        """
        split = self.split(dataset.schema)
        shape = _batch_shape(split, plan.sampling, plan.noise, plan.clip_norm, plan.noise_multiplier)
        self._check_plan(dataset, plan, split, shape)
        guide_key, step_key = jax.random.split(rng_key)
        guide, params = ReparameterisedGuide.create(self.guide, split, self.init_loc_fn, guide_key)
        kernel = Kernel(
            guide=guide,
            optimizer=self.optimizer or default_optimizer(plan.num_steps),
            backend=self.backend,
            shape=shape,
            num_records=plan.num_records,
            expected_batch_size=plan.expected_batch_size,
            diagnostics=self.diagnostics,
        )
        return kernel, kernel.init(step_key, params)

    def fit(
        self,
        dataset: VerticalDataset,
        plan: PrivacyPlan,
        rng_key: jax.Array,
        *,
        run_dir: str | Path | None = None,
        resume: bool = False,
        progress_bar: bool = True,
        insecure_seed: int | None = None,
    ) -> Posterior:
        """Spend the plan: run its steps and return the posterior over the global latents.

        :param rng_key: model randomness (initial values, eta); public, it protects nothing.
        :param run_dir: folder for `privacy.json`, written before every chunk is released, and a checkpoint. The
            record is what stops a second process from spending the same plan.
        :param resume: continue the run of `run_dir` at its recorded step.
        :param insecure_seed: draw noise and batches from a seeded generator, for tests and paired benchmarks.
            The result has no privacy at all.
        :raises PlanSpentError: if the plan was spent before.
        """
        self.backend.check_in_process()
        kernel, state = self.kernel(dataset, plan, rng_key)
        run = Run(kernel, plan, None if run_dir is None else Path(run_dir))
        with run.open_ledger(resume) as spending:
            state = run.restored(state) if resume else state
            source = SystemRandomSource() if insecure_seed is None else InsecureSeededSource(insecure_seed)
            state, diagnostics = run.steps(state, dataset, spending, source, progress_bar)
        return Posterior(
            guide=kernel.guide,
            params=state.params,
            plan=plan,
            diagnostics=diagnostics,
            secure_noise=run.secure_noise,
        )

    def recover(
        self, dataset: VerticalDataset, plan: PrivacyPlan, rng_key: jax.Array, *, run_dir: str | Path
    ) -> Posterior:
        """The posterior at the last checkpoint of a run, whether or not it can go on. Spends nothing.

        For a run that died after its last step was paid for: what was released is still there.

        :raises ArgumentError: if the folder holds no checkpoint of this plan.
        """
        kernel, state = self.kernel(dataset, plan, rng_key)
        run = Run(kernel, plan, Path(run_dir))
        if not (Path(run_dir) / CHECKPOINT).exists():
            raise ArgumentError(f"run_dir holds no {CHECKPOINT}; nothing of the run can be recovered")
        state = run.restored(state)
        return Posterior(
            guide=kernel.guide,
            params=state.params,
            plan=plan,
            diagnostics=Diagnostics.empty(),
            secure_noise=run.secure_noise,
        )

    def load(self, path: str | Path) -> Posterior:
        """A posterior saved by `Posterior.save`; this DPVI must have the same model and guide."""
        metadata = checkpoint.read_metadata(path)
        split = self.split(Schema.from_dict(metadata["schema"]))
        key = compat.random_key(0)
        guide, params = ReparameterisedGuide.create(self.guide, split, self.init_loc_fn, key)
        return Posterior(
            guide=guide,
            params=checkpoint.load_tree(path, params),
            plan=PrivacyPlan.from_dict(metadata["plan"]),
            diagnostics=Diagnostics.empty(),
            secure_noise=metadata["secure_noise"],
        )

    def _check_plan(self, dataset: VerticalDataset, plan: PrivacyPlan, split: SplitModel, shape: BatchShape) -> None:
        if plan.num_records != dataset.num_records:
            raise ArgumentError(
                f"plan was made for {plan.num_records} records, the dataset has {dataset.num_records}; make a new plan"
            )
        if plan.parties != split.parties:
            raise ArgumentError(f"plan was made for parties {plan.parties}, the schema has {split.parties}")
        if plan.grid_bits != self.backend.grid_bits(shape):
            raise ArgumentError("plan was made for another backend, model or number of components; make a new plan")
        if set(self.backend.info().unproven) - set(plan.unproven):
            raise ArgumentError("plan was made for a backend with a proved bound; make a new plan for this one")


def _relation(relation: NeighbouringRelation | str) -> NeighbouringRelation:
    try:
        return NeighbouringRelation(relation)
    except ValueError:
        choices = [known.value for known in NeighbouringRelation]
        raise ArgumentError(f"relation={relation!r} is unknown; choose one of {choices}") from None


def _default_sampling(num_records: int, batch_size: int | None, num_steps: int | None) -> Sampling:
    return PoissonSampling.for_batch_size(
        default_batch_size(num_records) if batch_size is None else batch_size,
        num_records,
        DEFAULT_NUM_STEPS if num_steps is None else num_steps,
    )


def _batch_shape(
    split: SplitModel, sampling: Sampling, noise: NoiseSource, clip_norm: float, noise_multiplier: float
) -> BatchShape:
    return BatchShape(
        batch_size=sampling.max_batch_size,
        num_components=split.num_components,
        num_parties=len(split.parties),
        num_values=split.num_values,
        clip_norm=clip_norm,
        noise_stddev=noise_multiplier * clip_norm * (noise.num_shares / noise.num_covering) ** 0.5,
    )
