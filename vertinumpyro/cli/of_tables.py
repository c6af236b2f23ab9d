"""What the methods that begin with one release of noisy tables share: settings, plan and what compares twins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import pandas as pd

from vertinumpyro.cli import outputs
from vertinumpyro.cli.beside_release import beside_the_release, share_errors
from vertinumpyro.cli.config import Config
from vertinumpyro.cli.methods import CommandMethod, given
from vertinumpyro.cli.wording import at_most, count
from vertinumpyro.data import Facts, Schema, VerticalDataset
from vertinumpyro.evaluation import ReportFigure, ReportTable
from vertinumpyro.mrf import Marginals, MRFPlan, VertiMRF
from vertinumpyro.mrf.encoders import encoder_of
from vertinumpyro.secure import BACKENDS
from vertinumpyro.secure.computation import Computation

__all__ = ["TABLE_PRIVACY", "OfTables"]

_OF_THE_PLAN = ("cross_share", "recovery_share", "refinement_share")
TABLE_PRIVACY = ("epsilon", "delta", "adversary", "relation", "noise", "collusion_threshold")


class OfTables(CommandMethod):
    """Noisy tables of columns, from which a twin follows.

    :cvar what: is made of them, in words.
    :ivar method: their cells, budget and backend.
    """

    plan_class = MRFPlan
    what: ClassVar[str]
    own_settings: Mapping[str, tuple[str, ...]] = {"privacy": (*TABLE_PRIVACY, "allow_unproven"), "fit": ("backend",)}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        settings = {k: v for k, v in given(config.mrf).items() if k not in _OF_THE_PLAN}
        allow = bool(config.privacy.allow_unproven)
        self.method = VertiMRF(**settings, allow_unproven=allow, backend=BACKENDS[config.fit.backend]())
        self._twin: pd.DataFrame | None = None  # or of a long one its first block
        self._num_synthetic: int | None = None

    def checked(self) -> Sequence[str]:
        """The columns in cells."""
        columns = self.method.columns(self.config.schema)
        return [f"{count(sum(column.num_cells for column in columns), 'cell')} of {count(len(columns), 'column')}"]

    def plan(self, facts: Facts) -> MRFPlan:
        """See `CommandMethod`."""
        privacy = {k: v for k, v in given(self.config.budget).items() if k in TABLE_PRIVACY}
        shares = {k: v for k, v in given(self.config.mrf).items() if k in _OF_THE_PLAN}
        return self.method.plan(facts, **privacy, **shares)

    @classmethod
    def plan_facts(cls, plan: MRFPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        return {
            "method": cls.what,
            "encoder": encoder_of(plan.encoding),
            "records N (public)": f"{plan.num_records:,}",
            "releases": f"{plan.num_steps:,}",
            "tables across parties": f"{plan.num_cross_pairs:,}",
            "part of the budget for them": f"{plan.cross_share:g}",
            "noise": f"{plan.noise.kind}, {count(plan.noise.num_shares, 'share')}",
            "backend": backend,
            "plan": plan.plan_id[:16],
        }

    def facts(self, plan: MRFPlan) -> dict[str, str]:
        """With the memory that the columns' cells take."""
        memory = self.method.memory(self.config.schema, plan)
        return {**super().facts(plan), "memory, records aside": at_most(memory)}

    def computations(self, facts: Facts, plan: MRFPlan) -> Sequence[tuple[Computation, int]]:
        """See `VertiMRF.computations`."""
        return self.method.computations(facts, plan)

    def twin_items(self, released: Marginals | None, schema: Schema) -> Iterator[ReportFigure | ReportTable]:
        """The twin, and beside the tables that it follows from, where the run still has them."""
        if self._twin is None:
            return
        errors = None if released is None else share_errors(released)
        yield outputs.synthetic_summary(self._twin, schema, errors, num_records=self._num_synthetic)
        yield outputs.first_records(self._twin)
        if released is not None:
            yield from beside_the_release(released, self._twin)

    def internal_items(self, result: object, dataset: VerticalDataset) -> Sequence[ReportFigure]:
        """See `CommandMethod`."""
        if self._twin is None or not outputs.can_draw():
            return ()
        return list(outputs.beside_the_real_table(dataset, self._twin))
