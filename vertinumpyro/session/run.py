"""One run of a plan: its folder, its ledger, and what it has released so far, for every method alike.

A folder holds `privacy.json`, the ledger, and one file of results. What a step releases is first *staged*, on disk and
seen by nobody, for nobody else may read it; then the ledger counts it; then the staged file becomes the results, and
only then is it handed on. So at whatever moment the process dies, the ledger counts at least what was handed on, and
what it counts is either in the results or staged beside them: the next run goes on from there, and nothing has to be
released twice.

Where others see a release before it can be staged here (parties that are processes), the steps are reserved first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, BackendError, PlanSpentError, PrivacyError
from vertinumpyro.core.files import FileLock, create, flush_folder, load_arrays, write_arrays
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.account import Account
from vertinumpyro.privacy.files_account import FilesAccount
from vertinumpyro.privacy.ledger import Ledger, LedgerRegistry, read_record

PRIVACY_RECORD = "privacy.json"
_LOCK = "run.lock"
_Plan = TypeVar("_Plan", bound=Plan)


@final
class Payload(NamedTuple):
    """What one step released, as it is stored: public words and arrays."""

    words: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def published(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], party: str) -> np.ndarray:
    """Integers of a party, which may have sent anything in their place.

    :raises BackendError: there are none of this shape; names the party.
    """
    array = arrays.get(name)
    if array is None or (array.shape, array.dtype) != (shape, np.int64):
        raise BackendError(f"party {party!r} published something else than its {name}; run one version everywhere")
    return array


@final
class Run:
    """One plan being spent. Use as a context manager; made by `opened`.

    :ivar plan: the plan.
    :ivar folder: where it is recorded; None keeps everything in this process.
    :ivar ledger: counts what may have been released.
    :ivar facts: public facts that may not change between the start of a run and its continuation.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path | None,
        ledger: Ledger,
        results: str,
        facts: Mapping[str, Any],
        *,
        private: bool = False,
    ) -> None:
        self.plan, self.folder, self.ledger, self.facts = plan, folder, ledger, dict(facts)
        self._path, self._private = None if folder is None else folder / results, private
        self.first_step = ledger.steps_spent
        self._steps: dict[int, Payload] = {}
        self._state: Mapping[str, np.ndarray] | None = None

    @classmethod
    def opened(
        cls,
        plan: Plan,
        folder: str | Path | None,
        *,
        results: str,
        resume: bool = False,
        secure_noise: bool = True,
        facts: Mapping[str, Any] | None = None,
        book: LedgerRegistry | None = None,
        account: Account | FilesAccount | None = None,
        private: bool = False,
    ) -> Run:
        """Starts to spend a plan, or continues it from what its folder holds.

        :param folder: created if it is not there; None keeps the record in this process only.
        :param results: the name of the file of results.
        :param secure_noise: False where noise comes from a seed.
        :param book: see `Ledger.start`.
        :param account: see `Ledger.start`.
        :param private: the results are for their owner's eyes alone, as what a party sends is; otherwise whoever may
            read the folder's privacy record may read them.
        :raises PlanSpentError: the plan was started before, is in use, or its record is below its results.
        :raises ArgumentError: the folder cannot be written to, or its results are another plan's.
        """
        if folder is None:
            if resume:
                raise ArgumentError("resume=True needs run_dir, the folder of the run to continue")
            ledger = Ledger.start(plan, secure_noise=secure_noise, book=book, account=account)
            return cls(plan, None, ledger, results, facts or {})
        folder = Path(folder)
        begin = Ledger.resume if resume else Ledger.start
        with contextlib.nullcontext() if resume else _created(folder):
            if not resume and (folder / results).exists() and not (folder / PRIVACY_RECORD).exists():
                raise ArgumentError(f"run_dir holds a {results} without its {PRIVACY_RECORD}; choose an empty folder")
            ledger = begin(plan, folder / PRIVACY_RECORD, secure_noise=secure_noise, book=book, account=account)
        run = cls(plan, folder, ledger, results, facts or {}, private=private)
        try:
            run._settle()
            run._load()
        except BaseException:
            ledger.pause()
            raise
        return run

    @property
    def secure_noise(self) -> bool:
        """Whether all noise so far came from the operating system's CSPRNG."""
        return self.ledger.secure_noise

    # -- methods that release a few things, each kept ----------------------------------------------

    def step(self, index: int, compute: Callable[[], Payload]) -> Payload | None:
        """What a step released: as stored; None where a crash lost it; otherwise computed, counted and stored now.

        :param index: of the plan's steps.
        :param compute: adds the noise; what it returns is handed on once it is on record.
        """
        if index in self._steps:
            return self._steps[index]
        if index < self.ledger.steps_spent:
            return None
        released = compute()
        self._add(index, released)
        return released

    def stored(self, index: int) -> Payload | None:
        """What a step released, if it is stored."""
        return self._steps.get(index)

    def put(self, index: int, payload: Payload) -> bool:
        """Counts and stores a step, or stores another payload of one that is stored; False where that was lost.

        For a party that stands ready to send something: what it stored and did not send may be replaced.
        """
        if index == self.ledger.steps_spent:
            self._add(index, payload)
        elif index in self._steps:
            self.keep(index, payload)
        else:
            return False
        return True

    def keep(self, index: int, released: Payload) -> None:
        """Stores what a step released that was reserved before."""
        self._publish(self._staged({**self._steps, index: released}, self._state, self.ledger.steps_spent))
        self._steps[index] = released

    def missing(self, before: int | None = None) -> tuple[str, ...]:
        """Names of the steps that were reserved before this process and are not stored: spent, and lost.

        :param before: look at the steps up to there alone, without it.
        """
        last = self.first_step if before is None else min(before, self.first_step)
        return tuple(self.plan.step_names[step] for step in range(last) if step not in self._steps)

    @property
    def stored_steps(self) -> frozenset[int]:
        """The steps whose releases are stored."""
        return frozenset(self._steps)

    # -- methods whose state replaces itself ---------------------------------------------------------

    def commit_state(self, num_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Counts further steps, whose releases are all in this state, and stores it."""
        self._commit(num_steps, self._staged(self._steps, arrays, self.ledger.steps_spent + num_steps))
        self._state = arrays

    def keep_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Stores the state after steps that were reserved before."""
        self._publish(self._staged(self._steps, arrays, self.ledger.steps_spent))
        self._state = arrays

    def state(self) -> Mapping[str, np.ndarray] | None:
        """The arrays of the last state that was stored."""
        return self._state

    # -- files -------------------------------------------------------------------------------------

    def _add(self, index: int, released: Payload) -> None:
        steps = {**self._steps, index: released}
        self._commit(1, self._staged(steps, self._state, self.ledger.steps_spent + 1))
        self._steps = steps

    def _commit(self, num_steps: int, staged: Path | None) -> None:
        """Counts what is staged, then makes it the results."""
        self.ledger.reserve(num_steps)
        self._publish(staged)

    def _staged(
        self, steps: Mapping[int, Payload], state: Mapping[str, np.ndarray] | None, steps_spent: int
    ) -> Path | None:
        if self._path is None:
            return None
        arrays = {f"{index}/{name}": a for index, one in steps.items() for name, a in one.arrays.items()}
        words: dict[str, Any] = {}
        if steps or state is None:
            words = {"steps": {str(i): dict(one.words) for i, one in steps.items()}, "state": sorted(state or ())}
        arrays |= state or {}
        staged = _staging(self._path)
        record = {"fingerprint": self.plan.fingerprint(), "secure_noise": self.secure_noise, "steps_spent": steps_spent}
        try:
            staged.unlink(missing_ok=True)
            create(staged, private=True).close()
            write_arrays(staged, arrays, {**self.facts, **record, **words})
        except OSError as error:
            raise PrivacyError(
                f"{staged} cannot be written ({error.strerror}); nothing is released before it can be"
            ) from None
        flush_folder(staged.parent)  # before it is counted, its name must be on disk, too
        return staged

    def _publish(self, staged: Path | None) -> None:
        if staged is not None and self._path is not None:
            if not self._private:
                with contextlib.suppress(OSError):  # a file system without modes
                    staged.chmod(stat.S_IMODE(self._path.with_name(PRIVACY_RECORD).stat().st_mode))
            os.replace(staged, self._path)
            flush_folder(self._path.parent)

    def _settle(self) -> None:
        """What died between staging and handing on: counted, it is a result; not counted, nobody saw it."""
        assert self._path is not None
        staged = _staging(self._path)
        if not staged.exists():
            return
        try:
            metadata, _ = load_arrays(staged)
            counted = metadata["fingerprint"] == self.plan.fingerprint() and (
                self._stored_steps() <= metadata["steps_spent"] <= self.ledger.steps_spent
            )
        except (ArgumentError, KeyError, TypeError):
            counted = False  # cut off while it was written, so before it was counted
        if counted:
            self._publish(staged)
        else:
            staged.unlink()

    def _stored_steps(self) -> int:
        assert self._path is not None
        return -1 if not self._path.exists() else int(load_arrays(self._path)[0].get("steps_spent", -1))

    def _load(self) -> None:
        assert self._path is not None
        if not self._path.exists():
            return
        metadata, arrays = load_arrays(self._path)
        name = self._path.name
        if metadata.get("fingerprint") != self.plan.fingerprint():
            raise ArgumentError(f"{name} in run_dir belongs to another plan; choose the folder of this plan's run")
        if metadata.get("steps_spent", 0) > self.ledger.steps_spent:
            raise PlanSpentError(
                f"{PRIVACY_RECORD} counts {self.ledger.steps_spent} steps and {name} holds {metadata['steps_spent']}: "
                "the record was changed, or an older one put in its place. Put the newest one back"
            )
        for key, value in self.facts.items():
            if metadata.get(key) != value:
                raise ArgumentError(f"{name} cannot be used: its {key} are not this run's; restore the run's settings")
        if "steps" in metadata:
            self._steps = dict(_unpacked(metadata["steps"], arrays, name, self.ledger.steps_spent))
            arrays = {key: arrays[key] for key in metadata.get("state", ())}
        self._state = arrays or None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.ledger.__exit__(*exception)

    def __repr__(self) -> str:
        return f"Run({self.ledger!r})"


def _staging(path: Path) -> Path:
    return path.with_name(path.name + ".staged")


def _unpacked(
    steps: Mapping[str, Any], arrays: Mapping[str, np.ndarray], name: str, steps_spent: int
) -> Iterator[tuple[int, Payload]]:
    for key, words in steps.items():
        if not (key.isdigit() and int(key) < steps_spent):
            raise ArgumentError(f"{name} cannot be used: it holds a step that the privacy record does not count")
        own = {n.removeprefix(f"{key}/"): array for n, array in arrays.items() if n.startswith(f"{key}/")}
        yield int(key), Payload(words, own)


def recorded_plan(folder: str | Path | None, kind: type[_Plan]) -> _Plan:
    """The plan of the run in a folder.

    :param kind: the class of the method's plans.
    :raises PlanSpentError: there is no readable record, so nothing may be continued.
    :raises ArgumentError: the run is another method's.
    """
    if folder is None:
        raise ArgumentError("resume=True needs run_dir, the folder of the run to continue")
    plan = read_record(Path(folder) / PRIVACY_RECORD).plan
    if not isinstance(plan, kind):
        raise ArgumentError(
            f"the run in {str(folder)!r} was started with another method (its plan is of kind {plan.kind!r}); "
            "continue it with that"
        )
    return plan


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other processes from a run's folder, which is made if need be, while its files are written.

    :raises PlanSpentError: another process works in it.
    :raises ArgumentError: it cannot be made or written to.
    """
    with _created(folder):
        lock = FileLock(folder, folder / _LOCK)
        try:
            yield
        finally:
            lock.release(removed=True)


def require_space(folder: Path, num_bytes: int) -> None:
    """Refuses a folder on a disk with less room than a run's files take.

    :raises ArgumentError: says how much is missing.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ArgumentError(
            f"{str(folder)!r} is on a disk with {free / 2**20:.0f} MiB free, and this run's files take up to "
            f"{num_bytes / 2**20:.0f} MiB; choose another folder"
        )


@contextlib.contextmanager
def _created(folder: Path) -> Iterator[None]:
    """Makes a run's folder if need be; where the block fails and wrote nothing, there is none again."""
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ArgumentError(f"cannot write to the run's folder {str(folder)!r}: {error.strerror}") from None
    try:
        yield
    except BaseException:
        if new:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()
        raise
