"""`release_marginals` spends a plan on noisy tables; `MarginalInference` fits an ordinary NumPyro model to them at no
further cost, returns draws of the latents with all that follows from them, and says before how long that takes.

For how long, the model's derivatives are tried on stand-ins, and their number is known: the tables' law takes them for
its descents, its tangent and the draws; the field's law for each of its steps.
"""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.initialization import init_to_uniform

from vertinumpyro.core import compat
from vertinumpyro.core.compat import jit_fast
from vertinumpyro.core.errors import ArgumentError, InferenceWarning
from vertinumpyro.core.files import load_arrays, save_arrays
from vertinumpyro.core.types import Model
from vertinumpyro.core.validation import check_fields, checked, shown
from vertinumpyro.data import DatasetInfo, Schema, VerticalDataset
from vertinumpyro.marginals.expected_tables import ModelTables
from vertinumpyro.marginals.field_fit import BATCH, fit_to_field
from vertinumpyro.marginals.model_comparison import TableELPD, check_tables, elpd_of
from vertinumpyro.marginals.samplers import PARTICLES, STEPS, Draws, Whitened, check_few
from vertinumpyro.marginals.table_likelihood import MOST_PARAMETERS, Law, ReleasedCells, TableLikelihood, table_keys
from vertinumpyro.model import SplitModel, split_model
from vertinumpyro.model.dummy_data import errors_on_stand_ins
from vertinumpyro.model.mixture import components_at, mixture_model
from vertinumpyro.model.user_code import public_state, require_names
from vertinumpyro.mrf import Marginals, MRFPlan, VertiMRF
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.field import has_engine, require_engine
from vertinumpyro.mrf.preflight import fewer_cells, field_seconds, tables_seconds
from vertinumpyro.posterior.guide import GuideFactory
from vertinumpyro.posterior.predictive import PredictivePosterior, checked_key
from vertinumpyro.posterior.synthesis import rehearse_twin
from vertinumpyro.privacy import FitTime
from vertinumpyro.session import Session
from vertinumpyro.session.cost_estimate import drawing_seconds, require_allowed, timed

LawName = Literal["tables", "field"]

_OF_FIELD = (
    "the spread of these draws is of the field's records: it leaves out the noise of the tables, and is no interval"
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class MarginalPosterior(PredictivePosterior):
    """A posterior learned from released tables. Everything in it is post-processing of the release.

    :ivar model: the split model.
    :ivar plan: what the tables cost.
    :ivar draws: of flat unconstrained theta, [draws, theta].
    :ivar middle: its centre.
    :ivar law: "tables", the exact law of the tables with all correlations, or "field", an approximation; and `why`.
    :ivar misfit: mean squared residual of the tables' cells at the centre, over the variance of noise and sampling:
        no probability and no score of predictions. About 1 where the model can have made the tables, less where it has
        nearly as many parameters as they have cells that noise leaves, well above where it cannot. `check_tables` has
        the cells.
    :ivar secure_noise: whether the tables' noise came from the operating system's CSPRNG.
    """

    model: SplitModel
    plan: MRFPlan
    draws: np.ndarray
    middle: np.ndarray
    law: LawName
    why: str
    misfit: float
    secure_noise: bool

    @property
    def split(self) -> SplitModel:
        """See `PredictivePosterior.split`."""
        return self.model

    @property
    def num_learned(self) -> int:
        """N of the plan."""
        return self.plan.num_records

    @property
    def spread_note(self) -> str:
        """See `PredictivePosterior.spread_note`."""
        return "" if self.law == "tables" else _OF_FIELD

    def sample_flat(self, rng_key: jax.Array, num_samples: int) -> jax.Array:
        """Some of the stored draws; with repetition where more are asked for than there are."""
        replace = num_samples > len(self.draws)
        rows = jax.random.choice(checked_key(rng_key), len(self.draws), (num_samples,), replace=replace)
        return jnp.asarray(self.draws)[rows]

    @property
    def _num_draws(self) -> float:
        return len(self.draws)

    def centre(self) -> jax.Array:
        """See `PredictivePosterior.centre`."""
        return jnp.asarray(self.middle)

    @checked
    def elpd(self, release: Marginals, rng_key: jax.Array | None = None) -> TableELPD:
        """Expected log predictive density of the released tables, for `compare`; post-processing, with standard errors.

        :param release: what it was fitted to.
        :param rng_key: of simulated records; None takes one that is always the same.
        :raises ArgumentError: it is fitted by the field's law, whose draws are of no tables, or to other columns.
        """
        if self.law != "tables":
            raise ArgumentError(
                'the posterior is of law="field", which has no law of the tables; fit it by law="tables"'
            )
        key = compat.random_key(0) if rng_key is None else checked_key(rng_key)
        return elpd_of(self._likelihood(release), self.draws, self.middle, release, key)

    @checked
    def check_tables(self, release: Marginals, *, prob: float = 0.95) -> pd.DataFrame:
        """The released tables beside posterior predictive ones, cell by cell; post-processing.

        Columns are `table`, `cell` (a code for each of its columns), `released`, `noise` (its standard deviation in a
        cell), `expected`, the ends of the predictive interval `low` and `high`, in which are the posterior, sampling
        and noise, and `z`, the distance in standard deviations of these.

        :param prob: of the interval.
        :raises ArgumentError: `release` is none, or of other columns.
        """
        return check_tables(self._likelihood(release), self.draws, release, prob)

    def _likelihood(self, release: Marginals) -> TableLikelihood:
        if not isinstance(release, Marginals) or release.schema != self.model.schema:
            raise ArgumentError("release: it is none, or of other columns; give what the posterior was fitted to")
        return TableLikelihood(self.model, release)

    def save(self, path: str | Path) -> None:
        """Write draws, plan and schema to one `.npz` file; `MarginalInference.load` reads it."""
        words = {
            "schema": self.model.schema.to_dict(),
            "plan": self.plan.to_dict(),
            "law": self.law,
            "why": self.why,
            "misfit": self.misfit,
            "secure_noise": self.secure_noise,
        }
        save_arrays(path, {"draws": self.draws, "middle": self.middle}, words)

    def __repr__(self) -> str:
        """Shows public facts."""
        note = f"; {self.spread_note}" if self.spread_note else ""
        return f"MarginalPosterior({len(self.draws)} draws of {self.draws.shape[1]} parameters, law={self.law!r}{note})"


@checked
def release_marginals(
    data: VerticalDataset | Session,
    plan: MRFPlan,
    settings: VertiMRF | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    insecure_seed: int | None = None,
    allow_long: bool = False,
) -> Marginals:
    """Spend a plan on noisy tables of pairs of columns, to which any number of models can be fitted afterwards.

    Tables across parties come from one secure product of one-hot columns, with every party's noise; each party adds
    tables of its own columns. `MarginalInference` fits NumPyro models to them, `VertiMRF().field`
    a Markov random field.

    :param data: the parties' tables in this process, or a session.
    :param plan: of `VertiMRF.plan`, with these settings.
    :param settings: cells, selection and backend; the defaults where there are none.
    :param run_dir: as in `VertiMRF.fit`, with `resume`, `insecure_seed` and `allow_long`.
    :raises ArgumentError: the plan was made for something else, or it would take more than ten minutes.
    :raises PlanSpentError: it was spent before.
    """
    settings = VertiMRF() if settings is None else settings
    if not isinstance(settings, VertiMRF):
        raise ArgumentError(f"settings={shown(settings)} are none of VertiMRF's; give VertiMRF(...)")
    return settings.release(
        data, plan, run_dir=run_dir, resume=resume, insecure_seed=insecure_seed, allow_long=allow_long
    )


_START = partial(init_to_uniform, **{"radius": 1.0})
_DRAW_VALUES = 2**24
_MOST_COMPONENTS, _MOST_OF_TABLES = 400, 20
_SHAPE_RATE = 0.01  # at the paper's 1 a component cannot be narrow within wide bounds
_LARGEST_MISFIT, _LARGEST_TREND = 1.5, 0.01


@dataclasses.dataclass(frozen=True)
class MarginalInference:
    """Bayesian inference for a NumPyro model from a release of noisy tables: the contract is `DPVI`'s.

    Every fit is post-processing: any number of models can be fitted to one release, and cost nothing.

    :param model: `model(data, num_records, **model_kwargs)`, or None for `mixture_model` of the schema, with
        `shape_rate=0.01`.
    :param law: how the release enters. "tables": the law of the tables themselves, exact noise and all correlations
        between the tables of one sample included; intervals cover. "field": through the Markov field of the tables
        (extra `mrf`), for models that tables of pairs do not determine, as mixtures of many components; twins are as
        near as the field's, intervals are not promised to cover. "auto": the tables' law where the tables determine
        every parameter, the field otherwise; `MarginalPosterior.why` says which and why.
    :param method: "svi", or "nuts", which is for the tables' law, or "augmentation", for up to 2,000 records: the exact
        posterior, without the law's normal counts, by a Gibbs sampler in which the records are latent.
    :param guide: of the field's law: the posterior's mode by default, which makes the best twins, or an autoguide of
        `DPVI`'s. The tables' law has a full-rank Normal up to 200 parameters, a mean field beyond.
    :param num_components: K of the mixture when `model` is None; None takes N / 50, at least 10 and at most 400; at
        most 20 under the tables' law, which leaves the interactions of many components to chance. Under the field's law
        they start about as many of the field's records, unless the guide has an `init_loc_fn` of its own.
    :param model_kwargs: further arguments of the model.
    :param num_steps: of the descent to the first estimate, and on the field's records.
    :param num_starts: descents to the first estimate of the tables' law; through the field, fits of the library's
        mixture from other records where one ended very far from the tables. The best is taken.
    :param settings: cells and limits of the field.
    """

    model: Model | None = None
    _: dataclasses.KW_ONLY
    law: Literal["auto", "tables", "field"] = "auto"
    method: Literal["svi", "nuts", "augmentation"] = "svi"
    guide: GuideFactory = AutoDelta
    num_components: int | None = None
    model_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_steps: int = 3000
    num_starts: int = 3
    settings: VertiMRF = dataclasses.field(default_factory=VertiMRF)
    _programs: dict[Any, Whitened] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)
    _times: dict[Any, FitTime] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Before any release is known."""
        check_fields(self)
        if self.model is not None and not callable(self.model):
            raise ArgumentError("model is no function; give model(data, num_records), not its name")
        for name, choices in (("law", ("auto", "tables", "field")), ("method", ("svi", "nuts", "augmentation"))):
            if getattr(self, name) not in choices:
                raise ArgumentError(f"{name}={getattr(self, name)!r} must be one of {choices}")
        if self.method != "svi" and self.law == "field":
            raise ArgumentError(
                f'method="{self.method}" samples the law of the tables; with law="field" give method="svi"'
            )
        for name, least in (("num_steps", 100), ("num_starts", 1), ("num_components", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ArgumentError(f"{name}={value} must be at least {least}")

    def __getstate__(self) -> dict[str, Any]:
        """The settings; what was compiled is made again."""
        require_names("MarginalInference", {"model": self.model, "guide": self.guide})
        return public_state(self, _programs={}, _times={})

    def split(self, schema: Schema, num_records: int) -> SplitModel:
        """The model split between the schema's parties.

        :raises ModelContractError: names the site and says what to change.
        """
        components = self.components(num_records)
        model = mixture_model(schema, components, shape_rate=_SHAPE_RATE) if self.model is None else self.model
        return split_model(model, schema, self.model_kwargs)

    def components(self, num_records: int) -> int:
        """K of the library's mixture of so many records."""
        most = _MOST_OF_TABLES if self.law == "tables" else _MOST_COMPONENTS
        return self.num_components or int(np.clip(num_records // 50, 10, most))

    @checked
    def fit(
        self, release: Marginals, rng_key: jax.Array, *, num_samples: int = 1000, progress_bar: bool = True,
        allow_long: bool = False,
    ) -> MarginalPosterior:  # fmt: skip
        """The posterior of the model's latents given the tables; `TwinWarning` says what its twins will lack.

        :param release: of `release_marginals`, or `MarkovTwin.marginals`.
        :param num_samples: draws to keep; of NUTS, after half as many of warm-up.
        :param allow_long: fit even where it will take more than ten minutes, as the model's derivatives took on
            stand-ins; it is not tried then. From one minute on a `LongFitWarning` says how long.
        :raises ModelContractError: the model breaks the contract, or its tables cannot be computed; names the site.
        :raises ArgumentError: the law cannot be had for this model; says what to give.
        """
        if not isinstance(release, Marginals):
            raise ArgumentError("release must be tables: of release_marginals(dataset, plan), or twin.marginals")
        start_key, law_key, fit_key = jax.random.split(checked_key(rng_key), 3)
        program = self._program(release)
        split, cells = program.of.split, program.of.cells(release)
        rehearse_twin(split).warn(stacklevel=3)
        if not allow_long:
            require_allowed(self._time_of(program.of, cells, release), allow_long=False)
        law, why = self._law(program.of, cells, start_key, law_key)
        if law is None:
            misfit = partial(program.of.misfit, cells=cells)
            found = self._from_field(split, release, misfit, fit_key, num_samples, progress_bar)
        elif self.method == "nuts":
            found = program.nuts(law, fit_key, num_samples)
        elif self.method == "augmentation":
            found = program.augmented(law, fit_key, num_samples)
        else:
            found = program.svi(law, fit_key, num_samples)
        posterior = MarginalPosterior(
            model=split,
            plan=release.plan,
            draws=np.asarray(found.draws),
            middle=np.asarray(found.centre),
            law="field" if law is None else "tables",
            why=why,
            misfit=program.of.misfit(found.centre, cells),
            secure_noise=release.secure_noise,
        )
        if posterior.misfit > _LARGEST_MISFIT:
            warnings.warn(
                f"the tables are {posterior.misfit:.1f} times as far from the model's as noise and sampling explain: "
                "it cannot have made them, or the fit has not converged. Give it more components or num_steps",
                InferenceWarning,
                stacklevel=3,
            )
        return posterior

    def rehearse(self, schema: Schema, plan: MRFPlan) -> SplitModel:
        """Tries on uniform tables whether a release by this plan could be fitted; before it is spent.

        :returns: the model, of which `rehearse_twin` says what a synthetic table would hold.
        :raises ModelContractError: the model breaks the contract, its tables cannot be computed, or it raises something
            where its derivatives are taken; names the site.
        :raises ArgumentError: the engine of Markov fields, which the law may need, is missing, or the model cannot be
            drawn from, which the law of the tables needs.
        """
        if self.law != "tables":
            require_engine()
        of, cells, _ = self.on_stand_in(schema, plan)
        if self._asked:
            _check_drawn(of)
        if self.model is not None and self.law != "field" and of.split.num_parameters <= MOST_PARAMETERS:
            of.rehearse(cells)
        return of.split

    def on_stand_in(self, schema: Schema, plan: MRFPlan) -> tuple[TableLikelihood, ReleasedCells, Marginals]:
        """The law of a release by this plan, and uniform tables in its place, as cells and as they are."""
        release = self.settings.stand_in(schema, plan)
        of = self._program(release).of
        return of, of.cells(release), release

    def time(self, facts: DatasetInfo, plan: MRFPlan) -> FitTime:
        """How long release, fit and twin take here, tried on stand-ins; nothing is spent."""
        return _fit_time(facts, plan, lambda: self._model_time(*self.on_stand_in(facts.schema, plan)))

    def _time_of(self, of: TableLikelihood, cells: ReleasedCells, release: Marginals) -> FitTime:
        """Once for all releases of the same tables."""
        if of not in self._times:
            self._times[of] = self._model_time(of, cells, release)
        return self._times[of]

    def _model_time(self, of: TableLikelihood, cells: ReleasedCells, release: Marginals) -> FitTime:
        by_field = self.law != "tables" and self._takes_field(of, cells) is not None
        steps = {"num_starts": self.num_starts, "num_steps": self.num_steps}
        return model_time(of, cells, release, self.settings, by_field=by_field, method=self.method, **steps)

    def load(self, path: str | Path) -> MarginalPosterior:
        """The posterior that `MarginalPosterior.save` wrote, of this model.

        :raises ArgumentError: it is of another model.
        """
        words, arrays = load_arrays(path)
        plan = MRFPlan.from_dict(words["plan"])
        split = self.split(Schema.from_dict(words["schema"]), plan.num_records)
        if arrays["draws"].shape[1:] != (split.num_parameters,):
            raise ArgumentError(f"{Path(path).name} was saved for another model")
        kept = {name: words[name] for name in ("law", "why", "misfit", "secure_noise")}
        return MarginalPosterior(model=split, plan=plan, draws=arrays["draws"], middle=arrays["middle"], **kept)

    @property
    def _asked(self) -> bool:
        """Whether it is the tables' law or none."""
        return self.law == "tables" or self.method != "svi"

    # -- the laws ---------------------------------------------------------------------------------

    def _program(self, release: Marginals) -> Whitened:
        """The model's tables, and what is compiled for them, once for all releases of the same tables."""
        if self.method == "augmentation":
            check_few(release.num_records)
        key = (release.schema, release.columns, release.num_records, tuple(table_keys(release)))
        if key not in self._programs:
            likelihood = TableLikelihood(self.split(release.schema, release.num_records), release)
            self._programs[key] = Whitened(likelihood, release.num_records)
        return self._programs[key]

    def _takes_field(self, of: TableLikelihood, cells: ReleasedCells) -> str | None:
        """Why it is the field's law, where that is known before any table; None where the tables' law is tried."""
        if self.law == "field":
            return "law='field' was asked for"
        split, count = of.split, int(cells.modelled.sum())
        if self._asked:
            return None
        if split.num_parameters > min(count, MOST_PARAMETERS):
            return f"{count} cells of tables cannot determine {split.num_parameters} parameters"
        if self.model is None and split.num_components > 1:
            return f"the {split.num_components} components of a mixture can change places"
        return f"the law of the tables simulates records, and {of.undrawn}" if of.undrawn else None

    def _law(
        self, of: TableLikelihood, cells: ReleasedCells, start_key: jax.Array, law_key: jax.Array
    ) -> tuple[Law | None, str]:
        """The tables' law, or None for the field's; and why."""
        if (why := self._takes_field(of, cells)) is not None:
            return None, why
        split, asked = of.split, self._asked
        if asked:
            _check_drawn(of)
        starts = jnp.stack([split.init(_START, key) for key in jax.random.split(start_key, self.num_starts)])
        tangent = of.tangent(of.estimate(starts, cells, self.num_steps), cells)
        left_open = "the tables leave some parameters to the prior"
        if not asked and tangent.most_information(cells) < 1:  # then the law's is, which has more to be compiled
            return None, left_open
        law = of.at(tangent, cells, law_key)
        if asked:
            return law, "the law of the tables was asked for"
        if law.information < 1:
            return None, left_open
        return law, "the tables determine every parameter"

    def _from_field(
        self, split: SplitModel, release: Marginals, misfit: Callable[[np.ndarray], float], rng_key: jax.Array,
        num_samples: int, progress_bar: bool,
    ) -> Draws:  # fmt: skip
        require_engine()
        fit_key, draw_key = jax.random.split(rng_key)
        found = fit_to_field(
            split,
            release,
            self.settings,
            self.guide,
            fit_key,
            start_at=partial(components_at, release.schema) if self.model is None else None,
            num_steps=self.num_steps,
            progress_bar=progress_bar,
            misfit=misfit,
            num_starts=self.num_starts,
        )
        if found.trend > _LARGEST_TREND:
            warnings.warn(
                f"the last tenth of the steps still gained {found.trend:.3f} nats a record: the fit has not converged. "
                "Raise num_steps",
                InferenceWarning,
                stacklevel=4,
            )
        is_point = isinstance(found.guide.guide, AutoDelta)
        kept = 1 if is_point else max(20, min(num_samples, _DRAW_VALUES // split.num_parameters))
        draw = jit_fast(jax.vmap(partial(found.guide.sample, found.params)))
        draws = draw(jax.random.split(draw_key, kept))
        location = found.guide.location(found.params)
        return Draws(draws, draws.mean(0) if location is None else location)


def _check_drawn(of: TableLikelihood) -> None:
    if of.undrawn:
        raise ArgumentError(
            f"the law of the tables simulates records of the model, and {of.undrawn}. Give its distributions a sample "
            'method, or take law="field" and method="svi"'
        )


_TRIED = 5
_OF_A_STEP = 1.3  # times a derivative: the guide, the optimiser
_PROGRAMS = 4  # that the tables' law compiles: descents, tangent, curvature, draws
_LEAPFROGS, _DRAWS = 7, 1500  # of NUTS in whitened coordinates; with warm-up
_COMPARED = 100  # steps whose objective says whether the fit has converged


class _Derivative(NamedTuple):
    """Seconds of compiling one, and of one."""

    compiling: float
    each: float


def _fit_time(facts: DatasetInfo, plan: MRFPlan, on_stand_in: Callable[[], FitTime]) -> FitTime:
    """Of a release, `MarginalInference.fit` and a twin as large as the table.

    :param on_stand_in: `model_time` on a stand-in of the release, which it makes.
    """
    found, trying = timed(on_stand_in)
    tried = {"trying it on stand-ins": trying, "the tables": tables_seconds(facts, plan)}
    return dataclasses.replace(
        found, before=tried, after={**found.after, "the synthetic table": drawing_seconds(facts)}
    )


def model_time(
    of: TableLikelihood,
    cells: ReleasedCells,
    release: Marginals,
    settings: VertiMRF,
    *,
    by_field: bool,
    method: str,
    num_starts: int,
    num_steps: int,
) -> FitTime:
    """Of `MarginalInference.fit` alone.

    :param settings: of the field.
    :param by_field: whether the model is learned through the field.
    :param method: from which the tables' law draws; from `num_starts` points descend `num_steps` steps each.
    """
    model = (
        _of_field(of, release.columns, num_steps) if by_field else _of_tables(of, cells, method, num_starts, num_steps)
    )
    field = 0.0
    if by_field and has_engine():
        field = field_seconds(release, settings.chosen_tables, settings.iterations)
    if (os.cpu_count() or 1) > 1:  # the model compiles beside the field's fit
        model = model._replace(compiling=max(0.0, model.compiling - field))
    return FitTime(
        after={**({"the field": field} if by_field else {}), "the model": sum(model)},
        unknown='method="augmentation" beyond its first estimate' if method == "augmentation" else "",
        shorter="Give the model fewer components or parameters, or MarginalInference fewer num_steps. "
        + (fewer_cells(release) if by_field else ""),
    )


def _of_field(of: TableLikelihood, columns: Sequence[CellColumn], num_steps: int) -> _Derivative:
    """All that follows the field."""
    tables = ModelTables(of.split, columns, ())
    rows = jnp.zeros((BATCH, tables.num_blocks), jnp.int32)

    def objective(flat: jax.Array) -> jax.Array:
        return tables.log_density(flat, rows, tables.sums).mean()

    tried = _tried(jax.jit(jax.grad(objective)), of)
    return _Derivative(tried.compiling, (num_steps + _COMPARED) * _OF_A_STEP * tried.each)


def _of_tables(of: TableLikelihood, cells: ReleasedCells, method: str, num_starts: int, num_steps: int) -> _Derivative:
    """All descents, the tangent and the draws."""

    def objective(flat: jax.Array) -> jax.Array:
        return jnp.sum(((jnp.asarray(cells.counts, flat.dtype) - of.expected(flat, cells)) / 1e3) ** 2)

    tried = _tried(jax.jit(jax.grad(objective)), of)
    draws = {"svi": STEPS * PARTICLES, "nuts": _DRAWS * _LEAPFROGS}.get(method, 0)
    times = num_starts * num_steps + of.split.num_parameters + draws
    return _Derivative(_PROGRAMS * tried.compiling, times * _OF_A_STEP * tried.each)


def _tried(derivative: Callable[[jax.Array], Any], of: TableLikelihood) -> _Derivative:
    flat, seconds = jnp.zeros(of.split.num_parameters), []
    for _ in range(1 + _TRIED):
        started = time.perf_counter()
        with errors_on_stand_ins():
            jax.block_until_ready(derivative(flat))
        seconds.append(time.perf_counter() - started)
    each = float(np.median(seconds[1:]))
    return _Derivative(max(0.0, seconds[0] - each), each)
