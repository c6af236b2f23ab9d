"""How long a fit will take is said before anything is spent; who may refuse it for that, and how fast this machine is.

Fields, models and steps are tried on stand-ins by the methods themselves, in the programs that the fit runs next. What
is left, work that is in proportion to the records, follows from their number and from one matrix product.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from vertinumpyro.core.errors import ArgumentError, LongFitWarning
from vertinumpyro.core.row_blocks import threads_for
from vertinumpyro.data import DatasetInfo
from vertinumpyro.privacy import FitTime, Plan
from vertinumpyro.privacy.ledger import begun
from vertinumpyro.session.distributed import OrganisationSession
from vertinumpyro.session.run import PRIVACY_RECORD
from vertinumpyro.session.session import Session, SessionWrapper

LONG_S, LONGEST_S = 60.0, 600.0
_Found = TypeVar("_Found")
_SIZE, _TRIES = 512, 5
_USUAL_S = 0.006  # of a product of that size, where the constants of this module's callers were measured

COUNT_S = 4e-8
"""Seconds for a record in a table of two columns."""

_DRAW_S = 2e-6  # for a value of a synthetic record


@functools.cache
def slowness() -> float:
    """How many times as long as where constants were measured this machine takes, by a product of two matrices."""
    matrix, found = np.ones((_SIZE, _SIZE)), []
    with threads_for(_SIZE**3):
        for _ in range(_TRIES):
            started = time.perf_counter()
            np.matmul(matrix, matrix)
            found.append(time.perf_counter() - started)
    return min(found) / _USUAL_S


def timed(compute: Callable[[], _Found]) -> tuple[_Found, float]:
    """What a function returns, and the seconds that it took."""
    started = time.perf_counter()
    found = compute()
    return found, time.perf_counter() - started


def drawing_seconds(facts: DatasetInfo) -> float:
    """Seconds of drawing a twin as large as the table."""
    return _DRAW_S * slowness() * facts.num_records * len(facts.schema.columns)


def announce(
    session: Session | None,
    plan: Plan,
    estimate: Callable[[], FitTime],
    *,
    run_dir: str | Path | None,
    resume: bool,
    allow_long: bool,
    releases_alone: bool = False,
) -> None:
    """Says how long a fit will take, in a `LongFitWarning` from one minute on; refuses what nobody allowed.

    A run that goes on, and a plan that was begun, are not looked at: the first was allowed, the second says itself that
    it is spent. Nor is a party between organisations: each measures another machine, and where one refused and another
    did not, that one's plan would be begun and nobody there. So whoever drafts the study is asked, before it has a
    plan that anybody approves; an approval then holds however long it takes.

    :param estimate: asked where the plan was not (`Plan.known_time`).
    :param releases_alone: leave out what follows them.
    :raises ArgumentError: it would take more than ten minutes, and `allow_long` is False; nothing is spent.
    """
    if resume or begun(plan) or _has_record(run_dir) or not _decides(session):
        return
    found = plan.known_time or estimate()
    require_allowed(dataclasses.replace(found, after={}) if releases_alone else found, allow_long=allow_long)


def require_allowed(found: FitTime, *, allow_long: bool) -> None:
    """Warns of what takes more than a minute, and refuses what takes more than ten and nobody allowed.

    :raises ArgumentError: says how long it would take, where the time goes and what would shorten it.
    """
    if found.seconds > LONGEST_S and not allow_long:
        raise ArgumentError(
            f"allow_long: the fit would take {found.words}, more than {LONGEST_S / 60:.0f} minutes; nothing was spent. "
            f"{found.shorter}Or give allow_long=True (on the command line --allow-long, in a configuration [run] "
            "allow_long = true)"
        )
    if found.seconds > LONG_S:
        warnings.warn(f"the fit will take {found.words}", LongFitWarning, stacklevel=5)


def _has_record(run_dir: str | Path | None) -> bool:
    return run_dir is not None and Path(run_dir, PRIVACY_RECORD).exists()


def _decides(session: Session | None) -> bool:
    """Whether this process has started all parties' parts, or has all their tables; None has them."""
    while isinstance(session, SessionWrapper):
        session = session.inner
    return not isinstance(session, OrganisationSession)
