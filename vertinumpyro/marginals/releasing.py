"""`release_marginals`: a plan spent on noisy tables alone."""

from __future__ import annotations

from pathlib import Path

from vertinumpyro.core.arguments import checked, shown
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf import Marginals, MRFPlan, VertiMRF
from vertinumpyro.session import Session

__all__ = ["release_marginals"]


@checked
def release_marginals(
    data: VerticalDataset | Session,
    plan: MRFPlan,
    settings: VertiMRF | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    insecure_seed: int | None = None,
) -> Marginals:
    """Spend a plan on noisy tables of pairs of columns, to which any number of models can be fitted afterwards.

    Tables across parties come from one secure product of one-hot columns, in two rounds, with every party's noise;
    each party adds tables of its own columns. `MarginalInference` fits NumPyro models to them, `VertiMRF().field`
    a Markov random field.

    Args:
        data: the parties' tables in this process, or a session.
        plan: of `VertiMRF.plan`, with these settings.
        settings: cells, selection and backend; the defaults where there are none.
        run_dir: as in `VertiMRF.fit`, with `resume` and `insecure_seed`.

    Raises:
        ArgumentError: the plan was made for something else.
        PlanSpentError: it was spent before.
    """
    settings = VertiMRF() if settings is None else settings
    if not isinstance(settings, VertiMRF):
        raise ArgumentError(f"settings={shown(settings)} are none of VertiMRF's; give VertiMRF(...)")
    return settings.release(data, plan, run_dir=run_dir, resume=resume, insecure_seed=insecure_seed)
