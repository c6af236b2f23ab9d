"""`VertiMRF`: plan, fit and sample a Markov random field over columns that several parties hold."""

from __future__ import annotations

import dataclasses
import itertools
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, final, get_args

from vertinumpyro.core.errors import ArgumentError, UnprovenError
from vertinumpyro.core.rng import InsecureSeededSource, RandomSource, SystemRandomSource
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.mrf.adaptive import merged
from vertinumpyro.mrf.cells import DEFAULT_MAX_CELLS, CellColumn, cell_columns
from vertinumpyro.mrf.consistency import consistent
from vertinumpyro.mrf.encoder_plan import with_encoder
from vertinumpyro.mrf.encoding import EncoderName, encoder_of
from vertinumpyro.mrf.graph import DEFAULT_CLIQUE_LIMIT, check_clique_limit, select_measurements
from vertinumpyro.mrf.graphical_model import GraphicalModel, fit_graphical_model, require_engine
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.release import Measurement
from vertinumpyro.mrf.release_log import ReleaseLog
from vertinumpyro.mrf.shared_key import UNPROVEN
from vertinumpyro.mrf.spending import Run
from vertinumpyro.mrf.twin import PRIVACY_RECORD, MarkovTwin
from vertinumpyro.privacy import OUTSIDE_ANALYST, NeighbouringRelation, NoiseSource, PrivacyWarning, Spending
from vertinumpyro.privacy.ledger import recorded_steps, resume_spending, start_spending
from vertinumpyro.secure import FixedPoint, SecureBackend

__all__ = ["VertiMRF"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class VertiMRF:
    """Synthetic tables from a Markov random field across parties (Zhao et al. 2024, made private).

    Holds public choices only; data enters through the methods. `plan` fixes every release's budget before anything
    is computed, `fit` spends the plan.

    Attributes:
        encoder: how cross-party tables are computed. "secure_marginals": one integer `noisy_cross_product` of one-hot
            columns for all pairs of columns at different parties. "sketch": Flajolet-Martin sketches, whose hash keys
            one pair of columns shares, sent to a server. "randomized_response": every value perturbed, sent to a
            server. "sketch_shared_key": the paper's sketches, from which rows can be reconstructed.
        selection: "all" measures every cross-party table once. "adaptive" keeps the exact tables secret-shared after
            one cross product, shows all of them with part of the budget, and spends the rest on tables that the model
            so far gets most wrong, a few in each of `num_rounds` rounds.
        num_rounds: rounds of the adaptive selection.
        tables_per_round: tables that each round measures again.
        bins: cells of single columns; see `cell_columns`.
        max_cells: cells of reals, counts and integers.
        clique_limit: most cells of all maximal cliques of the model together.
        iterations: steps of mirror descent.
        consistency: let tables agree on single columns before the fit.
        num_keys: hash keys of each pair of columns, for sketches; more pay at larger ε: with 8,000 instead of 2,000
            the mean 3-way TVD on NLTCS at ε = 3.2 is .008 instead of .015.
        refinement_rounds: rounds in which each party fits a model to its own tables and measures again those sets of
            two to four columns that the model gets most wrong. None by default: all useful triples are measured anyway.
        allow_unproven: must be True for "sketch_shared_key", which has no privacy guarantee.
        recovery: release finer histograms of binned columns, from which values within a cell are drawn.
        backend: computes the cross products.
    """

    encoder: EncoderName = "secure_marginals"
    selection: Literal["all", "adaptive"] = "all"
    num_rounds: int = 3
    tables_per_round: int = 5
    bins: Mapping[str, int] = dataclasses.field(default_factory=dict)
    max_cells: int = DEFAULT_MAX_CELLS
    clique_limit: int = DEFAULT_CLIQUE_LIMIT
    iterations: int = 1000
    consistency: bool = True
    recovery: bool = True
    num_keys: int = 2000
    refinement_rounds: int = 0
    allow_unproven: bool = False
    backend: SecureBackend = dataclasses.field(default_factory=FixedPoint)

    def __post_init__(self) -> None:
        """Refuses values outside the documented ranges."""
        if self.encoder not in get_args(EncoderName):
            raise ArgumentError(f"encoder must be one of {list(get_args(EncoderName))}, got {self.encoder!r}")
        if self.encoder == "sketch_shared_key":
            _check_opt_in(self.allow_unproven)
        if self.encoder != "secure_marginals" and self.selection != "all":
            raise ArgumentError('selection="adaptive" needs encoder="secure_marginals": others report once')
        if self.selection not in ("all", "adaptive"):
            raise ArgumentError(f'selection must be "all" or "adaptive", got {self.selection!r}')
        for name in ("num_rounds", "tables_per_round", "num_keys"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.refinement_rounds < 0:
            raise ArgumentError(f"refinement_rounds must not be negative, got {self.refinement_rounds}")
        if self.iterations < 1:
            raise ArgumentError(f"iterations must be at least 1, got {self.iterations}")

    def columns(self, schema: Schema) -> tuple[CellColumn, ...]:
        """The schema's columns in cells.

        Raises:
            ArgumentError: `bins` does not fit the schema, or two columns are too wide for `clique_limit`.
        """
        columns = cell_columns(schema, self.bins, self.max_cells)
        check_clique_limit({column.name: column.num_cells for column in columns}, self.clique_limit)
        return columns

    def plan(
        self,
        dataset: VerticalDataset,
        *,
        epsilon: float,
        delta: float = 1e-5,
        adversary: str = OUTSIDE_ANALYST,
        relation: NeighbouringRelation | Literal["replace", "add_remove"] = NeighbouringRelation.REPLACE,
        noise: Literal["collaborative", "trusted"] = "collaborative",
        collusion_threshold: int = 0,
        cross_share: float = 0.6,
        recovery_share: float = 0.1,
        refinement_share: float = 0.2,
        first_share: float = 0.5,
    ) -> MRFPlan:
        """The privacy plan of one fit; reads only the dataset's public facts (schema and N).

        Args:
            dataset: the parties' tables.
            epsilon: what `adversary` gets at most.
            delta: δ; at 1/N, the choice of the papers on these models, and above it warns.
            adversary: the name of a row of the privacy table.
            relation: the neighbouring relation.
            noise: who adds noise to cross-party tables.
            collusion_threshold: with so many parties colluding the noise on cross-party tables is still in full.
            cross_share: part of the budget (of μ²) for cross-party tables.
            recovery_share: part of each local budget for finer histograms, where there are binned columns.
            refinement_share: part of each local budget, less that of finer histograms, for rounds of refinement.
            first_share: part of the cross-party budget for the first look at all tables, with adaptive selection.

        Raises:
            ArgumentError: names the argument and the fix.
        """
        require_engine()
        columns = self.columns(dataset.schema)
        if delta >= 1 / dataset.num_records:
            warnings.warn(
                f"delta={delta:g} is at least 1/num_records: publishing a random record would satisfy it. "
                "Choose a smaller delta",
                PrivacyWarning,
                stacklevel=2,
            )
        held = [[c for c in columns if c.party == party] for party in dataset.parties]
        plan = MRFPlan.calibrated(
            epsilon=epsilon,
            adversary=adversary,
            num_records=dataset.num_records,
            parties=dataset.parties,
            num_columns=tuple(len(own) for own in held),
            num_binned=tuple(sum(c.binned for c in own) * self.recovery for own in held),
            delta=delta,
            relation=_relation(relation),
            noise=NoiseSource(kind=noise, num_parties=len(dataset.parties), collusion_threshold=collusion_threshold),
            cross_share=cross_share,
            recovery_share=recovery_share if self.recovery else 0.0,
            refinement_rounds=self.refinement_rounds,
            refinement_share=refinement_share if self.refinement_rounds else 0.0,
            **self._rounds(held, first_share),
        )
        return with_encoder(plan, self.encoder, columns, epsilon=epsilon, adversary=adversary, num_keys=self.num_keys)

    def _rounds(self, held: Sequence[Sequence[CellColumn]], first_share: float) -> dict[str, Any]:
        pairs = sum(len(a) * len(b) for a, b in itertools.combinations(held, 2))
        if self.selection == "all" or not pairs:
            return {}
        tables = min(self.tables_per_round, pairs)
        return {"num_rounds": self.num_rounds, "tables_per_round": tables, "first_share": first_share}

    def fit(
        self,
        dataset: VerticalDataset,
        plan: MRFPlan,
        *,
        run_dir: str | Path | None = None,
        resume: bool = False,
        insecure_seed: int | None = None,
    ) -> MarkovTwin:
        """Spend the plan and return the fitted field.

        Args:
            dataset: the parties' tables.
            plan: made by `plan` for this dataset and these settings.
            run_dir: folder for `privacy.json`, written before each release, and `released.npz`, written after it.
            resume: continue the run of `run_dir`: from stored tables, which costs nothing, and with the releases that
                were not reserved yet. What was reserved and not stored is spent and stays lost; a warning says so.
            insecure_seed: draw all noise from a seeded generator, for tests and paired benchmarks: no privacy at all.
                A run that is continued draws other noise than one that was not interrupted.

        Raises:
            ArgumentError: the plan was made for other parties, columns or records, or the run to continue was.
            PlanSpentError: the plan was spent before, or none of what it paid for is stored.
        """
        require_engine()
        columns = self.columns(dataset.schema)
        self._check_plan(dataset, columns, plan)
        started = time.perf_counter()
        with _spending(plan, run_dir, resume) as spending:
            first_step = plan.num_steps if spending is None else spending.steps_spent
            log = ReleaseLog.opened(_folder(run_dir), plan, columns, first_step if resume else None)
            _warn_of_loss(log)
            source = _source(insecure_seed, first_step)
            run = Run(
                dataset=dataset,
                columns=columns,
                plan=plan,
                backend=self.backend,
                spending=spending,
                source=source,
                log=log,
            )
            released = run.release(lambda own, tables: self._field(own, plan, tables))
        parties_done = time.perf_counter()
        model = self._field(columns, plan, released.measurements)
        return MarkovTwin(
            schema=dataset.schema,
            columns=columns,
            plan=plan,
            model=model,
            measurements=released.measurements,
            fine=released.fine,
            secure_noise=log.secure_noise,
            seconds={"parties": parties_done - started, "server": time.perf_counter() - parties_done},
            missing=log.missing(),
        )

    def _check_plan(self, dataset: VerticalDataset, columns: tuple[CellColumn, ...], plan: MRFPlan) -> None:
        fresh = {
            "num_records": dataset.num_records,
            "parties": dataset.parties,
            "num_columns": tuple(len(dataset.schema.column_names(party)) for party in dataset.parties),
            "refinement_rounds": self.refinement_rounds,
            "num_rounds": self.num_rounds if self.selection == "adaptive" and plan.num_cross_pairs else 0,
            "num_binned": tuple(
                sum(c.binned and c.party == party for c in columns) * self.recovery for party in dataset.parties
            ),
        }
        other = [name for name, value in fresh.items() if getattr(plan, name) != value]
        if encoder_of(plan.encoding) != self.encoder and (plan.encoding or plan.cross_releases):
            other.append("encoder")
        if other:
            raise ArgumentError(f"plan was made for another {', '.join(other)}; make a new plan for this dataset")

    def _field(
        self, columns: Sequence[CellColumn], plan: MRFPlan, measurements: Sequence[Measurement]
    ) -> GraphicalModel:
        """The field fitted to released tables. Post-processing."""
        sizes = {column.name: column.num_cells for column in columns}
        tables = merged(measurements)
        tables = consistent(tables, plan.num_records) if self.consistency else tables
        chosen = select_measurements(tables, sizes, plan.num_records, self.clique_limit)
        return fit_graphical_model(sizes, chosen, plan.num_records, iterations=self.iterations)


def _folder(run_dir: str | Path | None) -> Path | None:
    return None if run_dir is None else Path(run_dir)


def _spending(plan: MRFPlan, run_dir: str | Path | None, resume: bool) -> AbstractContextManager[Spending | None]:
    """The plan being spent; None where all of it was reserved before, so that only stored tables are left."""
    folder = _folder(run_dir)
    if folder is None:
        if resume:
            raise ArgumentError("resume=True needs run_dir, the folder of the run to continue")
        return start_spending(plan)
    record = folder / PRIVACY_RECORD
    if not resume:
        folder.mkdir(parents=True, exist_ok=True)
        return start_spending(plan, record)
    if recorded_steps(plan, record) >= plan.num_steps:
        return nullcontext()
    return resume_spending(plan, record)


def _source(insecure_seed: int | None, first_step: int) -> RandomSource:
    """Noise; a seeded run that goes on must not draw the noise of its first steps again."""
    if insecure_seed is None:
        return SystemRandomSource()
    return InsecureSeededSource(insecure_seed + (first_step << 64))


def _warn_of_loss(log: ReleaseLog) -> None:
    if missing := log.missing():
        warnings.warn(
            f"reserved before the run stopped, and not stored: {', '.join(missing)}. That part of the budget is spent "
            "and its tables are lost; the twin is made from the rest",
            PrivacyWarning,
            stacklevel=3,
        )


def _check_opt_in(allow_unproven: bool) -> None:
    if not allow_unproven:
        raise UnprovenError(
            f'encoder="sketch_shared_key" has no privacy guarantee: {UNPROVEN}. Choose "sketch" or '
            '"secure_marginals"; for comparison on public data set allow_unproven=True'
        )
    warnings.warn(f"encoder='sketch_shared_key': {UNPROVEN}. For public data only", PrivacyWarning, stacklevel=4)


def _relation(relation: Any) -> NeighbouringRelation:
    try:
        return NeighbouringRelation(relation)
    except ValueError:
        choices = [known.value for known in NeighbouringRelation]
        raise ArgumentError(f"relation={relation!r} is unknown; choose one of {choices}") from None
