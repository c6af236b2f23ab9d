"""What all plans together cost the people of one data set: an account at each party, charged before anything is sent.

A `Ledger` counts the steps of one plan. People are in one data set and in many plans, so each party keeps an account
for each of its data sets: every plan that was ever begun on it, and how far it came. A plan counts in full from its
first step on, and while it runs, for it may be continued; the total is composed for each adversary. One that was closed
before its first step costs nothing, and begins anew if it is begun again: it is held against the limit as any other.

Whatever ledgers are opened, and wherever their files lie, the total stays below the limit and a step is counted for one
of them: a plan that costs nothing comes to cost something in `begin` alone, which checks the limit, and steps are added
in `reserve` alone, behind all that are on account. Both are one transaction.

The account is one SQLite file, written with a rollback journal (one file to keep and to copy, on network drives too)
and flushed before a call returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from vertinumpyro.core.errors import ArgumentError, PlanSpentError, PrivacyError
from vertinumpyro.privacy.accounting import NeighbouringRelation, composed_epsilon, under_replacement
from vertinumpyro.privacy.adversary import OUTSIDE_ANALYST, Adversary
from vertinumpyro.privacy.plan import Plan

ACCOUNT = "account.sqlite"
"""The file's name in a party's folder of records."""

ALL_OTHERS = "all other parties together"

_RELATION = NeighbouringRelation.REPLACE  # of all totals: it bounds the others
_WAIT_S = 30.0  # for another process of the same party
_TABLE = """
CREATE TABLE IF NOT EXISTS plans (
    plan_id TEXT PRIMARY KEY,
    data_set TEXT NOT NULL,
    party TEXT NOT NULL,
    plan TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    secure_noise INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    steps_spent INTEGER NOT NULL,
    begun TEXT NOT NULL
)
"""
_FAILED = "CREATE TABLE IF NOT EXISTS failed_checks (plan_id TEXT PRIMARY KEY, reason TEXT NOT NULL)"
_FILES = (
    "CREATE TABLE IF NOT EXISTS files (key_name TEXT, data_set TEXT, digest TEXT, UNIQUE (key_name, data_set, digest))"
)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TotalLimit:
    """What all plans on one data set may cost together.

    :ivar epsilon: the largest total ε against the outside analyst and against every other party.
    :ivar delta: the δ of the total; None takes the largest of the plans'.
    """

    epsilon: float
    delta: float | None = None

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ArgumentError(f"the limit of the total ε must be above 0, got {self.epsilon}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ArgumentError(f"the δ of the total must lie in (0, 1), got {self.delta}")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountEntry:
    """One plan of an account.

    :ivar party: whose table it was, as the plan calls it.
    :ivar begun: when, UTC, as ISO 8601.
    :ivar finished: whether no more of its steps can come.
    :ivar secure_noise: whether all its noise came from the operating system's CSPRNG.
    :ivar failed: which failed check of the other parties' messages closed it; empty where none did.
    """

    plan: Plan
    party: str
    steps_spent: int = 0
    finished: bool = False
    secure_noise: bool = True
    begun: str = ""
    failed: str = ""

    @property
    def counts(self) -> bool:
        """Whether it costs anything, or may yet."""
        return self.steps_spent > 0 or not self.finished


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Total:
    """What one adversary learns from all plans together, one record replaced.

    :ivar epsilon: infinite where nothing can be claimed.
    :ivar unproven: the steps of formulations that no proof covers.
    """

    adversary: str
    epsilon: float
    delta: float
    unproven: tuple[str, ...] = ()


@final
class Account:
    """One data set's account at one party.

    :param path: the SQLite file, made when the first plan begins; it may hold the accounts of several data sets.
    :param party: whose people's columns these are.
    :param data_set: its name at this party. The people count, not the file: a corrected file of the same people is the
        same data set, and the party knows.
    :param limit: what all plans may cost together; a plan that would pass it does not begin.
    """

    def __init__(self, path: Path, party: str, data_set: str, limit: TotalLimit | None = None) -> None:
        self.path, self.party, self.data_set, self.limit = path, party, data_set, limit

    def begin(self, plan: Plan, *, secure_noise: bool) -> int:
        """Enters a plan, or finds it entered; how many of its steps are spent, all of them where it was closed.

        :raises PlanSpentError: it is on account for another data set, or is another plan of the same id.
        :raises PrivacyError: the total would pass the limit, or the account cannot be written; nothing was entered.
        """
        with self._written() as database:
            self._check(database, plan, secure_noise)
            entry = self._entry(database, plan)
            if entry is None:
                self._enter(database, plan, secure_noise)
                return 0
            if not entry.counts:
                database.execute("UPDATE plans SET finished = 0 WHERE plan_id = ?", (plan.plan_id,))
            return plan.num_steps if entry.counts and entry.finished else entry.steps_spent

    def reserve(self, plan: Plan, first: int, num_steps: int, *, secure_noise: bool) -> None:
        """Counts further steps of a plan that was begun.

        :param first: the first of them; those before it may be on account already, and none behind it.
        :raises PlanSpentError: another ledger spends this plan, or has closed it; nothing is counted.
        """
        with self._written() as database:
            added = database.execute(
                "UPDATE plans SET steps_spent = ?, secure_noise = min(secure_noise, ?) "
                "WHERE plan_id = ? AND data_set = ? AND steps_spent <= ? AND NOT finished",
                (first + num_steps, secure_noise, plan.plan_id, self.data_set, first),
            )
            if not added.rowcount:
                raise PlanSpentError(
                    f"plan {plan.plan_id} was closed, or its steps from {first} on were spent, by another run of it: "
                    "continue that one, or make a new plan"
                )

    def note(self, plan: Plan, steps_spent: int, *, finished: bool, secure_noise: bool, failed: str = "") -> None:
        """What a ledger knows of a plan that counts; no count ever falls, and no insecure noise is forgotten."""
        with self._written() as database:
            if failed:
                database.execute("INSERT OR IGNORE INTO failed_checks VALUES (?, ?)", (plan.plan_id, failed))
            database.execute(
                "UPDATE plans SET steps_spent = max(steps_spent, ?), finished = max(finished, ?), "
                "secure_noise = min(secure_noise, ?) WHERE plan_id = ? AND (steps_spent > 0 OR NOT finished)",
                (steps_spent, finished, secure_noise, plan.plan_id),
            )

    def said(self, plan: Plan) -> str:
        """What a plan's record says of its account: of a party's own, nothing."""
        return ""

    def know_file(self, key_name: str, digest: str) -> None:
        """Notes a digest of the data set's file, under a key that lies elsewhere.

        :raises PrivacyError: the account cannot be written.
        """
        with self._written() as database:
            database.execute(_FILES)
            database.execute("INSERT OR IGNORE INTO files VALUES (?, ?, ?)", (key_name, self.data_set, digest))

    def known_files(self, key_name: str) -> set[str]:
        """The digests that were noted under a key.

        :raises PrivacyError: the account cannot be read.
        """
        if not self.path.exists():
            return set()
        with self._opened() as database:
            if not _has(database, "files"):
                return set()
            where = "key_name = ? AND data_set = ?"
            return {
                row[0] for row in database.execute(f"SELECT digest FROM files WHERE {where}", (key_name, self.data_set))
            }

    def entries(self) -> list[AccountEntry]:
        """Every plan that was begun, the oldest first.

        :raises PrivacyError: the account cannot be read.
        """
        if not self.path.exists():
            return []
        with self._opened() as database:
            return _entries(database, self.data_set)

    def totals(self, planned: Plan | None = None) -> list[Total]:
        """What all plans that count cost together, and `planned` with them where it is not among them.

        The outside analyst first, then every other party that took part anywhere; where a party took no part it is an
        outside analyst. Where there are several other parties, all of them together last.
        """
        return self._totals(self.entries(), planned)

    def check(self, planned: Plan) -> None:
        """Refuses a plan that `begin` would refuse.

        :raises PlanSpentError: it is on account for another data set, or is another plan of the same id.
        :raises PrivacyError: the total would pass the limit.
        """
        if self.path.exists():
            with self._opened() as database:
                self._check(database, planned, secure_noise=True)
        else:
            self._check_total(planned, [], secure_noise=True)

    def _check(self, database: sqlite3.Connection, plan: Plan, secure_noise: bool) -> None:
        """Where a plan comes to cost more than it does: it is new, was closed unused, or loses its noise."""
        entry = self._entry(database, plan)
        if entry is None or not entry.counts or entry.secure_noise > secure_noise:
            self._check_total(plan, _entries(database, self.data_set), secure_noise)

    def _check_total(self, plan: Plan, entries: Sequence[AccountEntry], secure_noise: bool) -> None:
        if self.limit is None:
            return
        if not secure_noise:
            raise PrivacyError(f"noise from a seed protects nobody, and {self.data_set!r} has a limit; leave it out")
        beyond = [
            f"{total.epsilon:.3g} against {total.adversary}"
            for total in self._totals(entries, plan)
            if total.adversary != ALL_OTHERS and not total.epsilon <= self.limit.epsilon
        ]
        if beyond:
            raise PrivacyError(
                f"with this plan the total ε of the data set {self.data_set!r} would be {', '.join(beyond)}, and "
                f"{self.party}'s policy allows {self.limit.epsilon:g}; nothing was begun"
            )

    def _entry(self, database: sqlite3.Connection, plan: Plan) -> AccountEntry | None:
        """What is on account of a plan.

        :raises PlanSpentError: it is there for another data set, or is another plan of the same id.
        """
        if not _has_plans(database):
            return None
        found = database.execute(
            "SELECT data_set, fingerprint, steps_spent, finished, secure_noise FROM plans WHERE plan_id = ?",
            (plan.plan_id,),
        ).fetchone()
        if found is None:
            return None
        data_set, fingerprint, steps_spent, finished, secure_noise = found
        if (data_set, fingerprint) != (self.data_set, plan.fingerprint()):
            raise PlanSpentError(
                f"plan {plan.plan_id} is on account for the data set {data_set!r}, or has changed since; make a new "
                "plan"
            )
        return AccountEntry(
            plan=plan,
            party=self.party,
            steps_spent=steps_spent,
            finished=bool(finished),
            secure_noise=bool(secure_noise),
        )

    def _enter(self, database: sqlite3.Connection, plan: Plan, secure_noise: bool) -> None:
        database.execute(
            "INSERT INTO plans VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?)",
            (
                plan.plan_id,
                self.data_set,
                self.party,
                json.dumps(plan.to_dict(), sort_keys=True),
                plan.fingerprint(),
                secure_noise,
                time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            ),
        )

    def _totals(self, entries: Sequence[AccountEntry], planned: Plan | None) -> list[Total]:
        counted = [entry for entry in entries if entry.counts]
        if planned is not None and planned.plan_id not in {entry.plan.plan_id for entry in counted}:
            counted.append(AccountEntry(plan=planned, party=self.party))
        others = dict.fromkeys(name for entry in counted for name in _others(entry))
        wanted = self.limit.delta if self.limit is not None else None
        # of those too that cost nothing: a δ that fell again as one is closed would let the total ε rise past the limit
        delta = max((e.plan.delta for e in (*entries, *counted)), default=0.0) if wanted is None else wanted
        return [
            _total(name, counted, delta)
            for name in [OUTSIDE_ANALYST, *others, *([ALL_OTHERS] if len(others) > 1 else [])]
        ]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = EXTRA")
                yield database
        except sqlite3.Error as error:
            raise PrivacyError(
                f"the account {self.path} cannot be used ({error}); nothing is released before it can be"
            ) from None

    @contextlib.contextmanager
    def _written(self) -> Iterator[sqlite3.Connection]:
        """One transaction; on disk when the block is left."""
        with contextlib.suppress(OSError):  # what is wrong with the folder, opening the file tells
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                database.execute(_TABLE)
                database.execute(_FAILED)
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

    def __repr__(self) -> str:
        return f"Account({self.data_set!r} at {self.party!r})"


def accounts(path: Path, limit: TotalLimit | None = None) -> list[Account]:
    """The accounts of all data sets in a file; none where there is no file.

    :raises PrivacyError: it cannot be read.
    """
    if not path.exists():
        return []
    with Account(path, "", "")._opened() as database:
        if not _has_plans(database):
            return []
        found = database.execute("SELECT data_set, party FROM plans GROUP BY data_set ORDER BY min(begun)").fetchall()
    return [Account(path, party, name, limit) for name, party in found]


def _has_plans(database: sqlite3.Connection) -> bool:
    """Not where the first plan of all was refused: that leaves an empty file."""
    return _has(database, "plans")


def _has(database: sqlite3.Connection, table: str) -> bool:
    return database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None


def _entries(database: sqlite3.Connection, data_set: str) -> list[AccountEntry]:
    if not _has_plans(database):
        return []
    rows = database.execute(
        "SELECT plan, party, steps_spent, finished, secure_noise, begun FROM plans WHERE data_set = ? "
        "ORDER BY begun, rowid",
        (data_set,),
    ).fetchall()
    known = _has(database, "failed_checks")  # not in what an earlier version wrote
    failed = dict(database.execute("SELECT plan_id, reason FROM failed_checks")) if known else {}
    plans = [Plan.from_dict(json.loads(text)) for text, *_ in rows]
    return [
        AccountEntry(
            plan=plan,
            party=party,
            steps_spent=steps,
            finished=bool(finished),
            secure_noise=bool(secure),
            begun=begun,
            failed=failed.get(plan.plan_id, ""),
        )
        for plan, (_, party, steps, finished, secure, begun) in zip(plans, rows, strict=True)
    ]


def _others(entry: AccountEntry) -> list[str]:
    return [name for name in getattr(entry.plan, "parties", ()) if name != entry.party]


def _seen_by(entry: AccountEntry, name: str) -> Adversary:
    """Who of a plan's observers an adversary is: itself, where it took part; otherwise an outsider."""
    observers = {observer.name: observer for observer in entry.plan.observers}
    others = _others(entry)
    if name == ALL_OTHERS and len(others) > 1:
        return max(entry.plan.observers, key=lambda observer: observer.colluders)
    return observers.get(others[0] if name == ALL_OTHERS and others else name, observers[OUTSIDE_ANALYST])


def _total(name: str, entries: Sequence[AccountEntry], delta: float) -> Total:
    seen = [(entry.plan, _seen_by(entry, name)) for entry in entries]
    rows = [plan.row(observer) for plan, observer in seen]
    events = [
        under_replacement(plan.event(observer), NeighbouringRelation(row.relation))
        for (plan, observer), row in zip(seen, rows, strict=True)
    ]
    secure = all(entry.secure_noise for entry in entries)
    return Total(
        adversary=name,
        epsilon=composed_epsilon(events, delta, _RELATION) if secure else math.inf,
        delta=delta,
        unproven=tuple(dict.fromkeys(step for row in rows for step in row.unproven)),
    )
