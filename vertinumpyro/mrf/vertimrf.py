"""`VertiMRF`: plan, fit and sample a Markov random field over columns that several parties hold.

A plan whose cross-party tables come from an encoder's reports.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.validation import check_fields, checked, shown
from vertinumpyro.data import DatasetInfo, Schema, TableFacts, VerticalDataset
from vertinumpyro.mrf.cells import DEFAULT_MAX_CELLS, CellColumn, cell_columns
from vertinumpyro.mrf.contingency import product_widths, tables_form
from vertinumpyro.mrf.encoders import ENCODERS, SECURE_MARGINALS, check_encoder, encoder_of
from vertinumpyro.mrf.encoders.base import Budget, Encoding
from vertinumpyro.mrf.field import DEFAULT_ITERATIONS, GraphicalModel, fit_graphical_model, require_engine
from vertinumpyro.mrf.forecast import PairsForecast, forecast_pairs, held_by_records
from vertinumpyro.mrf.marginals import Marginals, columns_to_list
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.plan import MRFPlan, warn_of_loss
from vertinumpyro.mrf.preflight import (
    field_cells,
    fit_time,
    memory_parts,
    rehearse_field,
    rehearse_tables,
    require_memory,
    stand_in,
    tables_time,
)
from vertinumpyro.mrf.releases import RELEASED, Releases, TablesWork
from vertinumpyro.mrf.table_selection import (
    WIDEST_TABLE,
    Estimate,
    NamedTable,
    bins_within,
    check_clique_limit,
    crossing,
    field_tables,
    named_tables,
    require_workload,
)
from vertinumpyro.mrf.triples import FIRST_SHARE, choose_triples, compounds, decided
from vertinumpyro.mrf.twin import MarkovTwin
from vertinumpyro.privacy import (
    OUTSIDE_ANALYST,
    FitTime,
    NeighbouringRelation,
    NoiseSource,
    Plan,
    PrivacyWarning,
    neighbouring,
)
from vertinumpyro.privacy.forecast import listed
from vertinumpyro.secure import Backend, FixedPoint
from vertinumpyro.secure.computation import Computation, CrossProducts, VectorSum
from vertinumpyro.session import InProcessSession, Run, Session, session_of
from vertinumpyro.session.cost_estimate import announce


def with_encoder(
    plan: MRFPlan,
    encoder: str,
    columns: Sequence[CellColumn],
    *,
    epsilon: float,
    num_keys: int = 2000,
) -> MRFPlan:
    """The plan with an encoder instead of secure marginals: its local part stays, the rest of ε is the encoder's.

    :param plan: calibrated for secure marginals, and for whom.
    :param encoder: which.
    :param columns: all columns.
    :param epsilon: what they get at most.
    :param num_keys: hash keys of each pair of columns.
    :raises ArgumentError: the encoder holds nothing against one of them, or ε is out of reach.
    """
    if encoder == SECURE_MARGINALS or not plan.cross_releases:
        return plan
    kind = ENCODERS[encoder]
    if not kind.holds_against_parties and any(target.colluders for target in plan.targets()):
        others = [SECURE_MARGINALS, *(name for name, other in ENCODERS.items() if other.holds_against_parties)]
        choices = " or ".join(f'encoder="{name}"' for name in others)
        raise ArgumentError(
            f"parties know hash keys, and encoder={encoder!r} holds nothing against them: choose {choices}, or on "
            f'purpose adversary="{OUTSIDE_ANALYST}" (which the server is, too)'
        )

    def holds(encoding: Encoding) -> bool:
        return dataclasses.replace(plan, encoding=encoding).delta_at(epsilon) <= plan.delta

    budget = Budget(
        columns=columns,
        parties=plan.parties,
        num_records=plan.num_records,
        num_pairs=plan.num_cross_pairs,
        relation=plan.relation,
        delta=plan.delta,
        mu_squared=sum(release.mu**2 for release in plan.cross_releases),
        epsilon=epsilon - plan.local_epsilon(),
        num_keys=num_keys,
        holds=holds,
    )
    return dataclasses.replace(plan, encoding=kind.calibrated(budget))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class VertiMRF:
    """Synthetic tables from a Markov random field across parties (Zhao et al. 2024, made private).

    Holds public choices only; data enters through the methods. `plan` fixes every release's budget before anything
    is computed, `fit` spends the plan.

    :ivar encoder: how cross-party tables are computed. "secure_marginals": one integer `noisy_cross_product` of one-hot
        columns for all pairs of columns at different parties. "sketch": Flajolet-Martin sketches, whose hash keys one
        pair of columns shares, sent to a server. "randomized_response": every value perturbed, sent to a server.
        "sketch_shared_key": the paper's sketches, from which rows can be reconstructed.
    :ivar selection: "all" measures every cross-party table once. "adaptive" keeps the exact tables secret-shared after
        one cross product, shows all of them with part of the budget, and spends the rest on tables that the model so
        far gets most wrong, a few in each of `num_rounds` rounds.
    :ivar workload: pairs of columns, at one party or at two; their tables, and no others, are measured then, once. Also
        words for many of them: `"star:COLUMN"`, a column with each other one; `"chains"`, each party's columns with
        their neighbours; `"blocks:K"`, all pairs of K neighbours at a time. None takes all pairs, up to 20,000.
    :ivar triples: tables of two columns of one party with one of another, chosen from a first look at all pairs: "auto"
        takes as many as N, the budget and the cells allow, and none where the first look would hide in noise what pairs
        show; a number takes as many at most, False none. Their number and its reason stand in the plan. Pairs pay for
        them: their noise is a quarter larger, which models and regressions of the same release have, too.
    :ivar target: a column that the twin is to predict: all triples are of it and of two columns that go with it.
    :ivar num_rounds: rounds of the adaptive selection.
    :ivar tables_per_round: tables that each round measures again.
    :ivar bins: cells of single columns; see `cell_columns`.
    :ivar max_cells: cells of reals, counts and integers.
    :ivar clique_limit: most cells of all maximal cliques of the model together. None takes what `memory_limit` leaves
        for them, and no more than a core fits in about a minute.
    :ivar memory_limit: bytes that tables, estimates and field may take, records aside; what may take more is refused
        before anything is spent.
    :ivar iterations: the most steps of mirror descent, which ends where Stein's estimate of its tables' risk is least.
    :ivar num_keys: hash keys of each pair of columns, for sketches; more pay at larger ε: with 8,000 instead of 2,000
        the mean 3-way TVD on NLTCS at ε = 3.2 is .008 instead of .015.
    :ivar allow_unproven: must be True for "sketch_shared_key", which has no privacy guarantee.
    :ivar recovery: release finer histograms of binned columns, from which values within a cell are drawn.
    :ivar backend: computes the cross products.
    """

    encoder: str = SECURE_MARGINALS
    selection: Literal["all", "adaptive"] = "all"
    workload: str | Sequence[str | Sequence[str]] | None = None
    triples: Literal["auto", False] | int = False
    target: str | None = None
    num_rounds: int = 3
    tables_per_round: int = 5
    bins: Mapping[str, int] = dataclasses.field(default_factory=dict)
    max_cells: int = DEFAULT_MAX_CELLS
    clique_limit: int | None = None
    memory_limit: int = 2 * 2**30
    iterations: int = DEFAULT_ITERATIONS
    recovery: bool = True
    num_keys: int = 2000
    allow_unproven: bool = False
    backend: Backend = dataclasses.field(default_factory=FixedPoint)

    def __post_init__(self) -> None:
        check_fields(self)
        check_encoder(self.encoder, allow_unproven=self.allow_unproven)
        if self.encoder != SECURE_MARGINALS and self.selection != "all":
            raise ArgumentError('selection="adaptive" needs encoder="secure_marginals": others report once')
        for name in ("num_rounds", "tables_per_round", "num_keys", "clique_limit", "memory_limit", "iterations"):
            if (given := getattr(self, name)) is not None and given < 1:
                raise ArgumentError(f"{name} must be at least 1, got {given}")
        if self.triples != "auto" and self.triples < 0:
            raise ArgumentError(f"triples must not be negative, got {self.triples}")
        if self.target is not None and not self.triples:
            raise ArgumentError('target says which tables of three columns are released: give triples="auto", too')

    def grouped(self, schema: Schema) -> VertiMRF:
        """The same, with columns too wide for a table of two counted in groups of neighbours: `bins` names them."""
        sizes = {column.name: column.num_cells for column in cell_columns(schema, self.bins, self.max_cells)}
        return dataclasses.replace(self, bins={**self.bins, **bins_within(sizes, self.clique_limit or WIDEST_TABLE)})

    def columns(self, schema: Schema) -> tuple[CellColumn, ...]:
        """The schema's columns in cells.

        :raises ArgumentError: `bins` or `target` does not fit the schema, or two columns are too wide for
            `clique_limit`.
        """
        columns = cell_columns(schema, self.bins, self.max_cells)
        check_clique_limit({column.name: column.num_cells for column in columns}, self.clique_limit or WIDEST_TABLE)
        if self.target is not None and self.target not in (names := [column.name for column in columns]):
            raise ArgumentError(f"target: the schema has no column {shown(self.target)}; it has {listed(names)}")
        return columns

    @checked
    def plan(
        self,
        dataset: DatasetInfo,
        *,
        epsilon: float,
        delta: float = 1e-5,
        adversary: str | None = None,
        relation: NeighbouringRelation | Literal["replace", "add_remove"] = NeighbouringRelation.REPLACE,
        noise: Literal["collaborative", "trusted"] = "collaborative",
        collusion_threshold: int = 0,
        cross_share: float = 0.6,
        recovery_share: float = 0.1,
        first_share: float | None = None,
    ) -> MRFPlan:
        """The privacy plan of one fit; reads only the dataset's public facts (schema and N).

        :param dataset: the parties' tables, a session, or `TableFacts`.
        :param epsilon: what everyone gets at most: the outside analyst, each party, coalitions of up to
            `collusion_threshold`.
        :param delta: δ; at 1/N, the choice of the papers on these models, and above it warns.
        :param adversary: the name of a row of the privacy table, to narrow ε to it; rows above it are warned of.
        :param relation: "replace", one record becomes any other, or "add_remove", one record's contribution is there or
            zeroed; N is public either way.
        :param noise: who adds noise to cross-party tables.
        :param collusion_threshold: with so many parties colluding the noise on cross-party tables is still in full.
        :param cross_share: part of the budget (of μ²) for cross-party tables.
        :param recovery_share: part of each local budget for finer histograms, where there are binned columns.
        :param first_share: part of the cross-party budget for the first look at all tables, by default .5 with adaptive
            selection and .65 where tables of three columns follow.
        :raises ArgumentError: names the argument and the fix.
        """
        columns = self.columns(dataset.schema)
        if delta >= 1 / dataset.num_records:
            warnings.warn(
                f"delta={delta:g} is at least 1/num_records: publishing a random record would satisfy it. "
                "Choose a smaller delta",
                PrivacyWarning,
                stacklevel=3,
            )
        held = [[c for c in columns if c.party == party] for party in dataset.parties]
        if self.workload is None:
            require_workload(math.comb(len(columns), 2))
        made = partial(
            MRFPlan.calibrated,
            epsilon=epsilon,
            adversary=adversary,
            num_records=dataset.num_records,
            parties=dataset.parties,
            num_columns=tuple(len(own) for own in held),
            num_binned=tuple(sum(c.binned for c in own) * self.recovery for own in held),
            delta=delta,
            relation=neighbouring(relation),
            noise=NoiseSource(kind=noise, num_parties=len(dataset.parties), collusion_threshold=collusion_threshold),
            cross_share=cross_share,
            recovery_share=recovery_share if self.recovery else 0.0,
            workload=self._workload(columns),
            **self._rounds(held, 0.5 if first_share is None else first_share),
        )
        plan = self._with_triples(columns, made, first_share)
        plan = with_encoder(plan, self.encoder, columns, epsilon=epsilon, num_keys=self.num_keys)
        plan.warn_if_narrowed()
        require_memory(columns, plan, self._most_cells(columns, plan), self.memory_limit)
        plan.keep_time(partial(self.time, TableFacts(dataset.schema, dataset.num_records), plan))
        plan.keep_forecast(partial(self.forecast, dataset.schema))
        return plan

    def time(self, facts: DatasetInfo, plan: MRFPlan) -> FitTime:
        """How long tables, field and twin take here, tried on stand-ins; `plan.time` is this of its own plan."""
        on_stand_in = partial(self.stand_in, facts.schema, plan)
        return fit_time(facts, plan, on_stand_in, self.chosen_tables, self.iterations)

    def _workload(self, columns: Sequence[CellColumn]) -> tuple[NamedTable, ...] | None:
        return None if self.workload is None else named_tables(columns, self.workload)

    def _with_triples(
        self, columns: Sequence[CellColumn], made: Callable[..., MRFPlan], first_share: float | None
    ) -> MRFPlan:
        """The plan with as many tables of three columns as pay, calibrated anew: a coalition may see more of these."""
        plan = made()
        if not self.triples:
            return plan
        first = FIRST_SHARE if first_share is None else first_share
        num, why = decided(columns, plan, self.triples, first, self.encoder, self.target)
        if not num:
            return dataclasses.replace(plan, triples_why=why)
        return made(num_triples=num, triples_why=why, first_share=first, target=self.target)

    def _rounds(self, held: Sequence[Sequence[CellColumn]], first_share: float) -> dict[str, Any]:
        pairs = sum(len(a) * len(b) for a, b in itertools.combinations(held, 2))
        if self.selection == "all" or not pairs:
            return {}
        tables = min(self.tables_per_round, pairs)
        return {"num_rounds": self.num_rounds, "tables_per_round": tables, "first_share": first_share}

    @checked
    def fit(
        self,
        data: VerticalDataset | Session,
        plan: MRFPlan,
        *,
        run_dir: str | Path | None = None,
        resume: bool = False,
        insecure_seed: int | None = None,
        allow_long: bool = False,
    ) -> MarkovTwin:
        """Spend the plan and return the fitted field.

        What follows the releases is rehearsed first, on uniform tables: where it fails, nothing is spent.

        :param data: the parties' tables in this process, or a session.
        :param plan: made by `plan` for this dataset and these settings.
        :param run_dir: folder for `privacy.json`, which counts a release before anybody sees it, and `released.npz`.
        :param resume: continue the run of `run_dir`: from stored tables, which costs nothing, and with the releases
            that were not counted yet. A process that dies loses nothing that was counted; results that were deleted
            stay spent and lost, and a warning says so.
        :param insecure_seed: draw all noise from a seeded generator, for tests and paired benchmarks: no privacy at
            all. A run that is continued draws other noise than one that was not interrupted.
        :param allow_long: fit even where it will take more than ten minutes, as its parts took on stand-ins. From one
            minute on a `LongFitWarning` says how long, and where the time goes.
        :raises ArgumentError: the plan was made for other parties, columns or records, or the run to continue was; or
            it would take more than ten minutes, and `allow_long` is False.
        :raises PlanSpentError: the plan was spent before, or none of what it paid for is stored.
        """
        session = session_of(data, self.backend)
        plan_time = partial(self.time, session, plan)

        def rehearsed(schema: Schema, columns: tuple[CellColumn, ...], plan: MRFPlan, estimate: Estimate) -> None:
            rehearse_field(schema, columns, plan, estimate)
            announce(session, plan, plan_time, run_dir=run_dir, resume=resume, allow_long=allow_long)

        released, by_parties = self._released(
            session, plan, rehearsed, run_dir=run_dir, resume=resume, insecure_seed=insecure_seed
        )
        started = time.perf_counter()
        model = self.field(released)
        return MarkovTwin.of(released, model, {"parties": by_parties, "server": time.perf_counter() - started})

    @checked
    def release(
        self,
        data: VerticalDataset | Session,
        plan: MRFPlan,
        *,
        run_dir: str | Path | None = None,
        resume: bool = False,
        insecure_seed: int | None = None,
        allow_long: bool = False,
    ) -> Marginals:
        """Spend the plan and return its tables, for any number of models; arguments and errors as `fit`.

        The engine of Markov random fields is needed only where rounds choose tables by a field.
        """

        def rehearsed(schema: Schema, columns: tuple[CellColumn, ...], plan: MRFPlan, estimate: Estimate) -> None:
            if plan.num_rounds:
                require_engine()
            rehearse_tables(columns, plan, estimate)
            time = partial(self.time if plan.num_rounds else tables_time, session, plan)
            announce(session, plan, time, run_dir=run_dir, resume=resume, allow_long=allow_long, releases_alone=True)

        session = session_of(data, self.backend)
        return self._released(session, plan, rehearsed, run_dir=run_dir, resume=resume, insecure_seed=insecure_seed)[0]

    def _released(
        self,
        data: VerticalDataset | Session,
        plan: MRFPlan,
        rehearsed: Callable[[Schema, tuple[CellColumn, ...], MRFPlan, Estimate], None],
        *,
        run_dir: str | Path | None,
        resume: bool,
        insecure_seed: int | None,
    ) -> tuple[Marginals, float]:
        """The release, and the seconds that it took after its rehearsal."""
        session = session_of(data, self.backend)
        columns = self.columns(session.schema)
        self.check(session, plan)
        self._check_encoder(session)
        require_memory(columns, plan, self._most_cells(columns, plan), self.memory_limit)
        rehearsed(session.schema, columns, plan, partial(self._field, plan, iterations=1))
        started = time.perf_counter()
        facts = {"columns": columns_to_list(columns)}
        with session.open(
            self, plan, run_dir=run_dir, results=RELEASED, resume=resume, facts=facts, insecure_seed=insecure_seed
        ) as run:
            released = self.released_in(session, run, plan)
        return released, time.perf_counter() - started

    def released_in(self, session: Session, run: Run, plan: MRFPlan) -> Marginals:
        """The plan's tables as the first steps of a run, whose plan this is, or begins with it (`GradientPlan.start`).

        What the run has stored is taken as it is.

        :raises PlanSpentError: every step of the tables was counted before, and none of them is stored.
        """
        columns, estimate = self.columns(session.schema), partial(self._field, plan)
        found = Releases(session=session, run=run, plan=plan, columns=columns, estimate=estimate).all()
        missing = run.missing(before=plan.num_steps)
        warn_of_loss(missing)
        return Marginals(
            schema=session.schema,
            columns=columns,
            plan=plan,
            measurements=found.measurements,
            fine=found.fine,
            secure_noise=run.secure_noise,
            missing=missing,
        )

    def stand_in(self, schema: Schema, plan: MRFPlan) -> Marginals:
        """Uniform tables in the place of a release by this plan, to try on them what is to follow it. Public."""
        return stand_in(schema, self.columns(schema), plan, partial(self._field, plan, iterations=1))

    def forecast(self, schema: Schema, plan: MRFPlan, earlier: Marginals | None = None) -> PairsForecast:
        """In how many pairs of columns an association of medium size would be seen, from public numbers alone.

        Rounds that measure chosen tables again are taken for one look at all of them.

        :param earlier: a release of such records, as last month's, which says how many pairs will show one, too.
        :raises ArgumentError: the earlier release has no tables of two columns.
        """
        return forecast_pairs(schema, self._at_once(schema, plan), earlier)

    def forecast_by_records(self, dataset: VerticalDataset, plan: MRFPlan) -> dict[tuple[str, ...], float]:
        """The chance that each pair will show an association, by the records. NOT DP: for who holds them all, alone."""
        return held_by_records(dataset, self._at_once(dataset.schema, plan))

    def _at_once(self, schema: Schema, plan: MRFPlan) -> Marginals:
        return self.stand_in(schema, dataclasses.replace(plan, num_rounds=0, tables_per_round=0))

    def field(self, released: Marginals) -> GraphicalModel:
        """The field fitted to a release. Post-processing."""
        return self._field(released.plan, released.columns, released.measurements)

    def computations(self, facts: DatasetInfo, plan: MRFPlan) -> list[tuple[Computation, int]]:
        """What the parties compute together, and how often: one cross product, and a sum in each round."""
        columns = self.columns(facts.schema)
        crossed = crossing(columns, plan.workload)
        widths = product_widths(crossed, plan.parties)
        if not plan.cross_releases:
            return []
        form = tables_form(crossed, plan.parties)
        product = CrossProducts(num_records=plan.num_records, widths=widths, form=form)
        largest = max((a.num_cells * b.num_cells for a in columns for b in columns if a.party != b.party), default=0)
        sums = VectorSum(num_parties=len(plan.parties), num_values=plan.tables_per_round * largest, of_shares=True)
        triples = [(self._triples_product(columns, plan), 1)] if plan.num_triples else []
        return [(product, 1), *([(sums, 1 + plan.num_rounds)] if plan.num_rounds else []), *triples]

    def _triples_product(self, columns: tuple[CellColumn, ...], plan: MRFPlan) -> CrossProducts:
        """Of the compounds that uniform tables would choose, in the place of those that released ones will."""
        crossed = compounds(columns, choose_triples(columns, plan, ()))
        form, widths = tables_form(crossed, plan.parties), product_widths(crossed, plan.parties)
        return CrossProducts(num_records=plan.num_records, widths=widths, form=form)

    def memory(self, schema: Schema, plan: MRFPlan) -> int:
        """Bytes that a fit in one process takes at most beside the parties' encoded columns, whatever N is."""
        columns = self.columns(schema)
        return sum(memory_parts(columns, plan, self._most_cells(columns, plan)).values())

    def _most_cells(self, columns: Sequence[CellColumn], plan: MRFPlan) -> int:
        return self.clique_limit or field_cells(columns, plan, self.memory_limit)

    def work(
        self, facts: DatasetInfo, party: str, columns: Mapping[str, np.ndarray], plan: MRFPlan, source: RandomSource
    ) -> TablesWork:
        """One party's part; see `session.Method`."""
        return TablesWork(self.columns(facts.schema), party, columns, plan, source)

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses a plan that was not made for these settings on such a table.

        :raises ArgumentError: names what differs.
        """
        if not isinstance(plan, MRFPlan):
            raise ArgumentError("plan must be an MRFPlan: make it by `plan`")
        if plan.refinement_rounds:
            raise ArgumentError("plan: its refinement_rounds were an earlier version's; make a new plan")
        columns = self.columns(dataset.schema)
        fresh = {
            "num_records": dataset.num_records,
            "parties": dataset.parties,
            "num_columns": tuple(len(dataset.schema.column_names(party)) for party in dataset.parties),
            "workload": self._workload(columns),
            "num_rounds": self.num_rounds if self.selection == "adaptive" and plan.num_cross_pairs else 0,
            "num_binned": tuple(
                sum(c.binned and c.party == party for c in columns) * self.recovery for party in dataset.parties
            ),
        }
        other = [name for name, value in fresh.items() if getattr(plan, name) != value]
        if plan.num_triples > (math.inf if self.triples == "auto" else self.triples):
            other.append("triples")
        if plan.num_triples and plan.target != self.target:
            other.append("target")
        if encoder_of(plan.encoding) != self.encoder and (plan.encoding or plan.cross_releases):
            other.append("encoder")
        if other:
            raise ArgumentError(f"plan was made for another {', '.join(other)}; make a new plan for this dataset")

    def _check_encoder(self, session: Session) -> None:
        if self.encoder != "secure_marginals" and not isinstance(session, InProcessSession):
            raise ArgumentError(
                f"encoder={self.encoder!r} sends reports to a server, which is simulated in one process: parties in "
                'processes of their own need encoder="secure_marginals"'
            )

    def _field(
        self,
        plan: MRFPlan,
        columns: Sequence[CellColumn],
        measurements: Sequence[Measurement],
        iterations: int | None = None,
    ) -> GraphicalModel:
        """The field fitted to released tables. Post-processing."""
        tables = self.chosen_tables(plan, columns, measurements)
        return fit_graphical_model(**tables, iterations=iterations or self.iterations)

    def chosen_tables(
        self, plan: MRFPlan, columns: Sequence[CellColumn], measurements: Sequence[Measurement]
    ) -> dict[str, Any]:
        """Which released tables the field is fitted to, as `fit_graphical_model` takes them. Post-processing."""
        sizes = {column.name: column.num_cells for column in columns}
        return field_tables(measurements, sizes, plan.num_records, self._most_cells(columns, plan))
