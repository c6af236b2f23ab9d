"""A plan is spent once: the record of what may have been released, written before it is released.

Steps are reserved *before* anybody can see what they release, so a crash can only make the record too high, never too
low:

    with Ledger.start(plan, path) as ledger:
        first_step = ledger.reserve(50)      # on disk when this returns
        ...                                  # reveal steps first_step .. first_step + 49

After a crash, `Ledger.resume(plan, path)` continues at the recorded step. To repeat a step could reveal it twice, with
two noises that average out. Between organisations every party has a ledger of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any, final

from vertinumpyro.core.errors import ArgumentError, PlanSpentError, PrivacyError
from vertinumpyro.core.files import FileLock, locked, replaced
from vertinumpyro.privacy.account import Account
from vertinumpyro.privacy.files_account import FilesAccount
from vertinumpyro.privacy.plan import Plan

SYSTEM_NOISE = "the operating system's CSPRNG"
INSECURE_SEED = "an insecure seed: no privacy"
"""What `privacy.json` says of the noise."""

_FORMAT = 2
_READABLE = (1, 2)  # 1 did not say where the noise came from, and named no kind of plan
_RUNNING, _PAUSED, _FINISHED = "running", "paused", "finished"


@final
class LedgerRegistry:
    """What one process knows of the plans that it began: plan_id -> status and steps spent.

    It holds against a plan that is restored from JSON and begun again, and against an older file put in place.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._plans: dict[str, tuple[str, int]] = {}
        self.said: dict[str, str] = {}

    def get(self, plan: Plan) -> tuple[str | None, int]:
        """(status, steps) of a plan; (None, 0) if it was never begun here."""
        return self._plans.get(plan.plan_id, (None, 0))

    def set(self, plan: Plan, status: str, steps: int) -> None:
        """Notes a plan's status and steps."""
        self._plans[plan.plan_id] = status, steps


_OF_THIS_PROCESS = LedgerRegistry()


def begun(plan: Plan) -> bool:
    """Whether this process began to spend a plan."""
    return _OF_THIS_PROCESS.get(plan)[0] is not None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """What a `privacy.json` says.

    :ivar plan: with its id, so that its budget is the same budget.
    :ivar secure_noise: whether all noise so far came from the operating system's CSPRNG.
    :ivar failed: which check of the other parties' messages failed in it, and closed it; empty where none did.
    :ivar account: what was to be said of the account when it began; empty of a party's own.
    """

    plan: Plan
    status: str
    steps_spent: int
    secure_noise: bool
    failed: str = ""
    account: str = ""

    def refuse_failed(self) -> None:
        """Refuses to go on with a plan that a failed check closed.

        :raises PlanSpentError: says which check.
        """
        if self.failed:
            raise PlanSpentError(
                f"plan {self.plan.plan_id} was closed when a check failed: {self.failed}. An attempt that fails counts "
                "as spent, and there is no second one: find out together who sent what, then make a new plan, whose "
                "cost adds to this one's"
            )


@final
class Ledger:
    """The budget of one plan while it is being used. Made by `start` and `resume`; use as a context manager.

    Formal guarantee: when `reserve` returns, the steps are on disk, and no other ledger on this file, on this machine,
    or on its account, wherever that ledger's file lies, gives them out again.
    """

    def __init__(
        self,
        plan: Plan,
        path: Path | None,
        steps_spent: int,
        lock: FileLock,
        book: LedgerRegistry,
        account: Account | FilesAccount | None = None,
        *,
        secure_noise: bool,
    ) -> None:
        self.plan = plan
        self._path, self._lock, self._book, self._account = path, lock, book, account
        self._num_steps = plan.num_steps
        self._steps_spent, self._status, self._secure_noise = steps_spent, _RUNNING, secure_noise
        self._failed = ""
        if account is not None:
            book.said[plan.plan_id] = account.said(plan)

    @classmethod
    def start(
        cls,
        plan: Plan,
        path: str | os.PathLike[str] | None = None,
        *,
        secure_noise: bool = True,
        book: LedgerRegistry | None = None,
        account: Account | FilesAccount | None = None,
    ) -> Ledger:
        """Starts to spend a plan that was never started.

        :param path: a JSON file to create for the record; None keeps it in this process only, which cannot guard
            against a second process or a restart.
        :param secure_noise: False where noise comes from a seed: then the record claims nothing.
        :param book: what this process knows; another one stands for another process.
        :param account: of the data set that is spent on, which counts with the file; None keeps none.
        :raises PlanSpentError: this plan was started before, or the file already holds a record.
        :raises PrivacyError: the account's limit does not allow the plan, or a record cannot be written.
        """
        target = None if path is None else Path(path)
        book = _OF_THIS_PROCESS if book is None else book
        with book.lock:
            if book.get(plan)[0] is not None:
                raise PlanSpentError("this plan was already started: resume it, or make a new plan")
            with locked(target) as lock:
                if target is not None and target.exists():
                    raise PlanSpentError(f"{target} already holds a record: resume that run, or use another path")
                if account is not None and (spent := account.begin(plan, secure_noise=secure_noise)):
                    remedy = f"and {target} is gone: put it back to continue, or make" if target else "make"
                    raise PlanSpentError(f"{spent} steps of this plan are on account, {remedy} a new plan")
                return cls(plan, target, 0, lock, book, account, secure_noise=secure_noise)._begun()

    @classmethod
    def resume(
        cls,
        plan: Plan,
        path: str | os.PathLike[str] | None = None,
        *,
        secure_noise: bool = True,
        book: LedgerRegistry | None = None,
        account: Account | FilesAccount | None = None,
    ) -> Ledger:
        """Continues a plan at its recorded step; a plan that is spent has no steps left.

        The largest of the file's count, the account's and this process's holds. A sampling that can only be resumed at
        some steps (`Sampling.resume_step`) needs the steps up to there reserved and left unused.

        :param plan: the same plan, for instance restored by `Plan.from_dict`.
        :param path: the record that `start` made; None for a plan paused in this process.
        :raises PlanSpentError: the plan is in use, or the record is missing or another plan's.
        """
        target = None if path is None else Path(path)
        book = _OF_THIS_PROCESS if book is None else book
        with book.lock:
            status, steps = book.get(plan)
            if status == _RUNNING:
                raise PlanSpentError("this plan is in use in this process: close that ledger first")
            if target is None:
                if status is None:
                    raise PlanSpentError("nothing is recorded of this plan here: give the path of its record")
                charged = 0 if account is None else account.begin(plan, secure_noise=secure_noise)
                spent = _all_if(plan, status, max(steps, charged))
                return cls(plan, None, spent, FileLock(None), book, account, secure_noise=secure_noise)._begun()
            _own_record(plan, target)  # a missing record is refused before a lock is made beside it
            with locked(target) as lock:
                record = _own_record(plan, target)
                secure = secure_noise and record.secure_noise
                charged = 0 if account is None else account.begin(plan, secure_noise=secure)
                spent = _all_if(plan, record.status, max(steps, record.steps_spent, charged))
                return cls(plan, target, spent, lock, book, account, secure_noise=secure)._begun()

    @property
    def steps_spent(self) -> int:
        """How many steps may have been released."""
        return self._steps_spent

    @property
    def steps_left(self) -> int:
        """How many steps may still be reserved."""
        return self._num_steps - self._steps_spent

    @property
    def secure_noise(self) -> bool:
        """Whether all noise, that of earlier runs of this plan included, came from the operating system's CSPRNG."""
        return self._secure_noise

    def reserve(self, num_steps: int) -> int:
        """Counts `num_steps` further steps as released, durably, and returns the first of them.

        :raises PlanSpentError: the ledger is closed, fewer steps are left, or another ledger on this account spends the
            plan; nothing is counted then.
        """
        if num_steps < 1:
            raise ArgumentError(f"num_steps must be at least 1, got {num_steps}")
        with self._book.lock:
            if self._status != _RUNNING:
                raise PlanSpentError(f"this ledger is {self._status}: resume the plan or make a new one")
            if num_steps > self.steps_left:
                raise PlanSpentError(
                    f"the plan has {self.steps_left} of {self._num_steps} steps left, not {num_steps}: "
                    "make a new plan, whose cost adds to this one's"
                )
            first = self._steps_spent
            self._count(first + num_steps)  # first, and kept if a write below fails: the disk may already say so
            if self._account is not None:
                try:
                    self._account.reserve(self.plan, first, num_steps, secure_noise=self._secure_noise)
                except PlanSpentError:
                    self._count(first)
                    raise
            self._write()
        return first

    def reserve_up_to(self, step: int) -> None:
        """Counts all steps before `step` as released; those that already are cost nothing."""
        if step > self._steps_spent:
            self.reserve(step - self._steps_spent)

    def finish(self) -> None:
        """Closes the plan for good, whether or not all its steps were used."""
        self._close(_FINISHED)

    def fail(self, reason: str, steps: int) -> None:
        """Closes the plan for good, as a check of the other parties' messages failed: an attempt counts as spent.

        :param reason: which check; it is on record, and depends on nobody's column.
        :param steps: up to which step this counts.
        """
        self.reserve_up_to(steps)
        self._failed = reason
        self._close(_FINISHED)

    def pause(self) -> None:
        """Closes this ledger; `resume` may continue it."""
        self._close(_PAUSED)

    def _begun(self) -> Ledger:
        self._tell_account()
        self._write()
        self._note()
        return self

    def _close(self, status: str) -> None:
        with self._book.lock:
            if self._status == _RUNNING:
                self._status = status
                self._note()
                try:
                    self._tell_account()
                    self._write()
                finally:
                    self._lock.release()

    def _note(self) -> None:
        self._book.set(self.plan, self._status, self._steps_spent)

    def _count(self, steps_spent: int) -> None:
        self._steps_spent = steps_spent
        self._note()

    def _tell_account(self) -> None:
        if self._account is not None:
            finished = self._status == _FINISHED
            self._account.note(
                self.plan, self._steps_spent, finished=finished, secure_noise=self._secure_noise, failed=self._failed
            )

    def _write(self) -> None:
        if self._path is not None:
            try:
                _write_durably(self._path, self._as_dict())
            except OSError as error:
                raise PrivacyError(
                    f"{self._path} cannot be written ({error.strerror}); nothing is released before it can be"
                ) from None

    def _as_dict(self) -> dict[str, Any]:
        """The largest ε stands first; of a run with insecure noise it claims nothing, as its rows say."""
        worst = self.plan.worst.to_dict()
        return {
            "format": _FORMAT,
            "fingerprint": self.plan.fingerprint(),
            "status": self._status,
            "steps_spent": self._steps_spent,
            "num_steps": self._num_steps,
            **({"failed_check": self._failed} if self._failed else {}),
            **({"account": said} if (said := self._book.said.get(self.plan.plan_id)) else {}),
            "noise": SYSTEM_NOISE if self._secure_noise else INSECURE_SEED,
            "epsilon": worst["epsilon"],
            "delta": worst["delta"],
            "against": [observer.name for observer in self.plan.covered],
            "plan": self.plan.to_dict(),
            "adversaries": self.plan.table_rows(secure_noise=self._secure_noise),
        }

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close(_PAUSED if self.steps_left else _FINISHED)

    def __repr__(self) -> str:
        return f"Ledger({self._status}, {self._steps_spent} of {self._num_steps} steps)"


def read_record(path: str | os.PathLike[str]) -> Record:
    """What the record of a run says; changes nothing.

    :raises PlanSpentError: there is none, or it cannot be read: then nobody knows what was spent.
    """
    target = Path(path)
    try:
        text = target.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PlanSpentError(f"{target} does not exist: without its record a plan counts as spent") from None
    except (OSError, UnicodeDecodeError):
        raise _unreadable(target) from None
    try:
        stored = json.loads(text)
        if stored["format"] not in _READABLE:
            raise PlanSpentError(
                f"{target} is of format {stored['format']}, which another version of the library wrote; this one reads "
                f"formats {' and '.join(map(str, _READABLE))}. Continue the run with that version"
            )
        plan, status, steps = Plan.from_dict(stored["plan"]), stored["status"], stored["steps_spent"]
        secure = stored.get("noise", SYSTEM_NOISE) == SYSTEM_NOISE
        same, failed = stored["fingerprint"] == plan.fingerprint(), str(stored.get("failed_check", ""))
        account = str(stored.get("account", ""))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _unreadable(target) from None
    if not same:
        raise PlanSpentError(f"{target} is the record of another plan, or the plan was changed since")
    if type(steps) is not int or not 0 <= steps <= plan.num_steps or status not in (_RUNNING, _PAUSED, _FINISHED):
        raise PlanSpentError(f"{target}: status or steps_spent is out of range, so the plan counts as spent")
    return Record(plan=plan, status=status, steps_spent=steps, secure_noise=secure, failed=failed, account=account)


def write_record(plan: Plan, path: str | os.PathLike[str], *, secure_noise: bool) -> None:
    """Records a plan as spent in full, beside results that are kept elsewhere than where it was spent.

    The count can only be too high: nothing can be released under the plan from this record on.

    :raises PlanSpentError: there is a record already.
    """
    target = Path(path)
    with locked(target) as lock:
        if target.exists():
            raise PlanSpentError(f"{target} already holds a record: use another path")
        book = LedgerRegistry()
        book.said |= _OF_THIS_PROCESS.said
        Ledger(plan, target, plan.num_steps, FileLock(None), book, secure_noise=secure_noise).finish()
        lock.release(removed=True)


def _unreadable(path: Path) -> PlanSpentError:
    return PlanSpentError(
        f"{path} is not a readable record, so nobody knows what that run has spent, and it cannot be continued: put "
        "back an untouched copy of the file, or start a new run in another folder, whose cost adds to that run's"
    )


def _own_record(plan: Plan, path: Path) -> Record:
    record = read_record(path)
    if record.plan.fingerprint() != plan.fingerprint():
        raise PlanSpentError(f"{path} is the record of another plan, or the plan was changed since")
    record.refuse_failed()
    return record


def _all_if(plan: Plan, status: str | None, steps: int) -> int:
    """A finished plan is spent, whatever its count."""
    return plan.num_steps if status == _FINISHED else steps


def _write_durably(path: Path, record: dict[str, Any]) -> None:
    """Replaces the file in one step, and returns only when a power cut could not undo it."""
    with replaced(path, path.with_name(path.name + ".tmp")) as file:
        file.write(json.dumps(record, indent=1).encode())
