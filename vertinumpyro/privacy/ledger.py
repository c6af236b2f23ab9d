"""A plan is spent once: the record of what may have been released, written before it is released.

A run reserves steps *before* it computes them, so a crash can only make the record too high, never too low:

    with start_spending(plan, path) as spending:
        first_step = spending.reserve(50)      # on disk when this returns
        ...                                    # compute and reveal steps first_step .. first_step + 49

After a crash, `resume_spending(plan, path)` continues at the recorded step. What was reserved and not
revealed is lost; to repeat it could reveal the same step twice, with two noises that average out.
"""

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any, Protocol, final

from vertinumpyro.core.errors import ArgumentError, PlanSpentError

try:
    import fcntl
except ImportError:  # Windows: the in-process registry still guards
    fcntl = None

_RUNNING, _PAUSED, _FINISHED = "running", "paused", "finished"
_guard = threading.Lock()
_registry: dict[str, tuple[str, int]] = {}  # plan_id -> status, steps spent; of this process


class SpendablePlan(Protocol):
    """What a record keeps of a plan: `PrivacyPlan`, `ClientPlan`, a regression's."""

    @property
    def plan_id(self) -> str:
        """Whose budget it is."""
        ...

    @property
    def num_steps(self) -> int:
        """How many steps it pays for."""
        ...

    def fingerprint(self) -> str:
        """The id and a digest of the contents."""
        ...

    def to_dict(self) -> dict:
        """Plain data for JSON."""
        ...

    def table_rows(self) -> list[dict]:
        """The privacy table as plain data."""
        ...


@final
class Spending:
    """The budget of one plan while it is being used. Made by `start_spending` and `resume_spending`."""

    def __init__(self, plan: SpendablePlan, path: Path | None, steps_spent: int, lock: "_FileLock") -> None:
        self._plan, self._path, self._lock = plan, path, lock
        self._steps_spent, self._status = steps_spent, _RUNNING

    @property
    def plan(self) -> SpendablePlan:
        """The plan being spent."""
        return self._plan

    @property
    def steps_spent(self) -> int:
        """How many steps may have been released."""
        return self._steps_spent

    @property
    def steps_left(self) -> int:
        """How many steps may still be reserved."""
        return self._plan.num_steps - self._steps_spent

    def reserve(self, num_steps: int) -> int:
        """Counts `num_steps` further steps as released, durably, and returns the first of them.

        Raises:
            PlanSpentError: the spending is closed, or fewer steps are left; nothing is counted then.
        """
        if num_steps < 1:
            raise ArgumentError(f"num_steps must be at least 1, got {num_steps}")
        with _guard:
            if self._status != _RUNNING:
                raise PlanSpentError(f"this spending is {self._status}: resume it or make a new plan")
            if num_steps > self.steps_left:
                raise PlanSpentError(
                    f"the plan has {self.steps_left} of {self._plan.num_steps} steps left, not {num_steps}: "
                    "make a new plan, whose cost adds to this one's"
                )
            first = self._steps_spent
            self._steps_spent += num_steps
            self._register()  # first, and kept if the write below fails: the disk may already say so
            self._write()
        return first

    def finish(self) -> None:
        """Closes the plan for good, whether or not all its steps were used."""
        self._close(_FINISHED)

    def pause(self) -> None:
        """Closes this spending; `resume_spending` may continue it."""
        self._close(_PAUSED)

    def _close(self, status: str) -> None:
        with _guard:
            if self._status == _RUNNING:
                self._status = status
                self._register()
                try:
                    self._write()
                finally:
                    self._lock.release()

    def _register(self) -> None:
        _registry[self._plan.plan_id] = (self._status, self._steps_spent)

    def _write(self) -> None:
        if self._path is not None:
            _write_durably(self._path, self._record())

    def _record(self) -> dict[str, Any]:
        return {
            "format": 1,
            "fingerprint": self._plan.fingerprint(),
            "status": self._status,
            "steps_spent": self._steps_spent,
            "num_steps": self._plan.num_steps,
            "plan": self._plan.to_dict(),
            "adversaries": self._plan.table_rows(),
        }

    def __enter__(self) -> "Spending":
        """Returns itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Finishes when all steps are spent, otherwise pauses."""
        self._close(_PAUSED if self.steps_left else _FINISHED)

    def __repr__(self) -> str:
        """Shows nothing secret."""
        return f"Spending({self._status}, {self._steps_spent} of {self._plan.num_steps} steps)"


def start_spending(plan: SpendablePlan, path: str | os.PathLike | None = None) -> Spending:
    """Starts to spend a plan that was never started.

    Args:
        plan: the plan.
        path: a JSON file to create for the record; None keeps it in this process only, which cannot guard
            against a second process or a restart.

    Raises:
        PlanSpentError: this plan was started before, or the file already holds a record.
    """
    target = None if path is None else Path(path)
    with _guard:
        if plan.plan_id in _registry:
            raise PlanSpentError("this plan was already started: resume it, or make a new plan")
        lock = _FileLock(target)
        try:
            if target is not None and target.exists():
                raise PlanSpentError(f"{target} already holds a record: use resume_spending or another path")
            spending = Spending(plan, target, 0, lock)
            spending._write()
            spending._register()
        except BaseException:
            lock.release()
            raise
    return spending


def resume_spending(plan: SpendablePlan, path: str | os.PathLike | None = None) -> Spending:
    """Continues a plan at its recorded step.

    The larger of the file's count and this process's count holds. A sampling that can only be resumed at some
    steps (`Sampling.resume_step`) needs the steps up to there reserved and left unused.

    Args:
        plan: the same plan, for instance restored by `PrivacyPlan.from_dict`.
        path: the record that `start_spending` made; None for a plan paused in this process.

    Raises:
        PlanSpentError: the plan is finished or in use, or the record is missing or another plan's.
    """
    target = None if path is None else Path(path)
    with _guard:
        lock = _FileLock(target)
        try:
            spending = Spending(plan, target, _recorded_steps(plan, target), lock)
            spending._write()
            spending._register()
        except BaseException:
            lock.release()
            raise
    return spending


def recorded_steps(plan: SpendablePlan, path: str | os.PathLike) -> int:
    """How many steps the record counts as spent, whether or not the plan can go on. Changes nothing.

    Raises:
        PlanSpentError: the plan is in use, or the record is missing or another plan's.
    """
    target = Path(path)
    with _guard:
        status, steps = _registry.get(plan.plan_id, (None, 0))
        if status == _RUNNING:
            raise PlanSpentError("this plan is in use in this process: pause that spending first")
        _read(plan, target)  # a missing record is refused before a lock is made beside it
        lock = _FileLock(target)
        try:
            return max(steps, _read(plan, target)[1])
        finally:
            lock.release()


def _recorded_steps(plan: SpendablePlan, path: Path | None) -> int:
    status, steps = _registry.get(plan.plan_id, (None, 0))
    if status == _RUNNING:
        raise PlanSpentError("this plan is in use in this process: pause that spending first")
    if path is not None:
        stored_status, stored_steps = _read(plan, path)
        steps = max(steps, stored_steps)
        status = _FINISHED if _FINISHED in (status, stored_status) else stored_status
    if status is None:
        raise PlanSpentError("nothing is recorded of this plan here: give the path of its record")
    if status == _FINISHED or steps >= plan.num_steps:
        raise PlanSpentError("this plan is spent: make a new plan, whose cost adds to this one's")
    return steps


def _read(plan: SpendablePlan, path: Path) -> tuple[str, int]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        fingerprint, status, steps = record["fingerprint"], record["status"], int(record["steps_spent"])
    except FileNotFoundError:
        raise PlanSpentError(f"{path} does not exist: without its record a plan counts as spent") from None
    except (KeyError, TypeError, ValueError):
        raise PlanSpentError(f"{path} is not a readable record: without it a plan counts as spent") from None
    if fingerprint != plan.fingerprint():
        raise PlanSpentError(f"{path} is the record of another plan, or the plan was changed since")
    if not 0 <= steps <= plan.num_steps:
        raise PlanSpentError(f"{path}: steps_spent is out of range, so the plan counts as spent")
    return status, steps


def _write_durably(path: Path, record: dict[str, Any]) -> None:
    """Replaces the file in one step, and returns only when a power cut could not undo it."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    with contextlib.suppress(OSError):  # some file systems have no directory handles to flush
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class _FileLock:
    """Keeps other processes from the record; the system drops it when the process dies."""

    def __init__(self, path: Path | None) -> None:
        self._file = None
        if path is None or fcntl is None:
            return
        self._file = open(path.with_name(path.name + ".lock"), "w")  # noqa: SIM115 (held until release)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise PlanSpentError(f"{path} is in use by another process") from None

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
