"""How long tables, field and twin take: the field is tried on uniform tables, what goes with the records is reckoned.

Compiling is most of a usual fit, and nothing but compiling says how long it takes. So the field that `preflight` tries
is timed, whose program is that of the fit where all tables fit the field. Mirror descent ends where Stein's estimate of
the risk is least: after 300 to 1,000 steps on the public tables, so 600 are reckoned, of all paths that a fit takes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from vertinumpyro.data import DatasetInfo
from vertinumpyro.mrf.field import fit_graphical_model, has_engine
from vertinumpyro.mrf.marginals import Marginals
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.privacy import FitTime
from vertinumpyro.session.fit_time import COUNT_S, drawing_seconds, slowness, timed

if TYPE_CHECKING:
    from vertinumpyro.mrf.vertimrf import VertiMRF

_STEPS = 600
_TRIED = 50  # of them


class _Tried(NamedTuple):
    """Seconds of choosing the field's tables and laying them out, of compiling, and of a step of all paths.

    keeps_program: whether the fit's program is the one that is compiled now.
    """

    choosing: float
    compiling: float
    step: float
    keeps_program: bool


def tables_seconds(facts: DatasetInfo, plan: MRFPlan) -> float:
    """Seconds of counting the parties' tables and those across them."""
    pairs = len(plan.workload) if plan.workload is not None else math.comb(sum(plan.num_columns), 2)
    return COUNT_S * slowness() * facts.num_records * (pairs + 2 * plan.num_triples)


def release_time(method: VertiMRF, facts: DatasetInfo, plan: MRFPlan) -> FitTime:
    """Of `VertiMRF.release`, in which rounds fit fields between tables."""
    return fit_time(method, facts, plan) if plan.num_rounds else _of_tables(facts, plan)


def _of_tables(facts: DatasetInfo, plan: MRFPlan, unknown: str = "") -> FitTime:
    return FitTime(
        before={"the tables": tables_seconds(facts, plan)}, unknown=unknown, shorter="Name a workload of fewer tables. "
    )


def fit_time(method: VertiMRF, facts: DatasetInfo, plan: MRFPlan) -> FitTime:
    """Of `VertiMRF.fit`, and of a twin as large as the table; without the engine of the tables alone.

    :raises ArgumentError: a field of these tables would fail.
    """
    if not has_engine():
        return _of_tables(facts, plan, "the field, for want of `mbi`")
    release, trying = timed(lambda: method.stand_in(facts.schema, plan))
    tried = _try_field(method, release)
    field = _of_field(method, tried)
    before = {"trying it on stand-ins": trying + tried.choosing + tried.compiling}
    before["the tables"] = tables_seconds(facts, plan) + plan.num_rounds * field
    return FitTime(
        before=before,
        after={"the field": field, "the synthetic table": drawing_seconds(facts)},
        unknown="" if plan.encoding is None else "the encoder's reports and estimates",
        shorter=fewer_cells(release),
    )


def field_seconds(method: VertiMRF, release: Marginals) -> float:
    """Of a field of these tables, which is tried."""
    return _of_field(method, _try_field(method, release))


def _of_field(method: VertiMRF, tried: _Tried) -> float:
    again = 0.0 if tried.keeps_program else tried.compiling
    return tried.choosing + again + min(_STEPS, method.iterations) * tried.step


def fewer_cells(release: Marginals) -> str:
    """What would shorten a field's fit."""
    widest = max(release.columns, key=lambda column: column.num_cells)
    return (
        f"Give the widest columns, as {widest.name!r}, fewer values in the schema or bins, lower clique_limit or "
        "iterations, or name a workload. "
    )


def _try_field(method: VertiMRF, release: Marginals) -> _Tried:
    chosen, choosing = timed(lambda: method.chosen_tables(release.plan, release.columns, release.measurements))
    first, one, some = (timed(partial(fit_graphical_model, **chosen, iterations=n))[1] for n in (1, 1, _TRIED))
    kept = len(chosen["measurements"]) >= len(chosen["released"]) and not release.triples  # others will be chosen
    step = max(0.0, some - one) / (_TRIED - 1)
    return _Tried(choosing + one, max(0.0, first - one), step, kept)
