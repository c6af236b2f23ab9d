"""The accounts of the files that one process reads: every run on them is charged unless somebody says no, and none that
has begun fails for its account's sake.

A file's account lies beside it, in the folder where a party that is a process of its own keeps its records. So runs of
both kinds add up, for everybody who uses the file there, and the account goes where the folder goes. Where nothing can
be written there, it lies with the user's own data. A file is known by its place, however it changes, as the people
count; a copy of it in its folder is known by a digest under a key that no account has: who has the account alone learns
nothing of the file from it, not even whether a guess of all its records is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar, final

from vertinumpyro.core.errors import PlanSpentError, PrivacyError, VertinumpyroError
from vertinumpyro.core.files import create
from vertinumpyro.privacy.account import ACCOUNT, Account, AccountEntry, Total, TotalLimit
from vertinumpyro.privacy.accounting import rounded_up
from vertinumpyro.privacy.plan import Plan, PrivacyWarning

LEDGER = ".ledger"
"""What the folder of a file's records is called, behind the file's name."""

_T = TypeVar("_T")
_KEY = "files.key"
_KEY_BYTES = 32
_ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth", "Ninth", "Tenth")
_UNREADABLE = (VertinumpyroError, KeyError, TypeError, ValueError)  # another version's plans among them
_OFF = "No account was kept (account = false): what other runs on these records cost is not counted here."
_NO_FILE = (
    "The records came from no file, so no account of them was kept: what other runs on them cost is not counted here. "
    "account= names a folder for one."
)


class AccountWarning(PrivacyWarning):
    """These are not the first records to be released from a file, or no account of it can be kept."""


@final
class FilesAccount:
    """The accounts of one dataset's files. Made by `of`.

    :param accounts: one for each file, or a single one.
    :param files: of which file each is; None of what is no file's.
    :param otherwise: what is said where there is none.
    """

    def __init__(self, accounts: Sequence[Account], files: Sequence[_File | None], otherwise: str) -> None:
        self._accounts, self._otherwise = dict(zip(accounts, files, strict=True)), otherwise
        self._begun, self._said = False, ""

    @classmethod
    def of(
        cls, files: Mapping[str, Path], account: bool | Path | Mapping[str, Path], total_epsilon: float | None = None
    ) -> FilesAccount:
        """The accounts that runs on these files are charged to; nothing is written yet.

        :param files: by party; none where the records come from no file.
        :param account: True keeps each beside its file, False none; one folder for all records together, or by party
            the folder of its file's.
        :param total_epsilon: what all runs on an account may cost together, against the outside analyst and each party.
        """
        limit = None if total_epsilon is None else TotalLimit(epsilon=total_epsilon)
        if isinstance(account, Path):
            return cls([Account(account / ACCOUNT, "the account", account.resolve().name, limit)], [None], "")
        if account is False or not files:
            return cls([], [], _OFF if account is False else _NO_FILE)
        folders = account if isinstance(account, Mapping) else {}
        known = {party: _File(path) for party, path in files.items()}
        found = [known[party].account(party, folders.get(party), limit) for party in files]
        own = {(account.path, account.data_set): account for account in found}  # one file may be several parties'
        of_files = {(account.path, account.data_set): file for account, file in zip(found, known.values(), strict=True)}
        return cls(list(own.values()), list(of_files.values()), "")

    def begin(self, plan: Plan, *, secure_noise: bool) -> int:
        """As `Account.begin`, at all of them: none enters the plan that another one's limit refuses."""
        for account in self._accounts:
            if account.limit is not None:
                account.check(plan)
        spent = self._at_each(plan, lambda account: account.begin(plan, secure_noise=secure_noise))
        self._begun = True
        changed = [file.path.name for account, file in self._accounts.items() if file and file.changed(account)]
        self._said, is_first = self._told(plan)
        if changed and not is_first:
            self._said += f" {', '.join(changed)} changed since, and counts as the same people's."
        if not is_first:
            warnings.warn(self._said, AccountWarning, stacklevel=2)
        return max(spent, default=0)

    def reserve(self, plan: Plan, first: int, num_steps: int, *, secure_noise: bool) -> None:
        """As `Account.reserve`, of those that are still there: a plan counts in full from its beginning anyway."""
        self._at_each(plan, lambda account: account.reserve(plan, first, num_steps, secure_noise=secure_noise))

    def note(self, plan: Plan, steps_spent: int, *, finished: bool, secure_noise: bool, failed: str = "") -> None:
        """As `Account.note`."""
        told = {"finished": finished, "secure_noise": secure_noise, "failed": failed}
        self._at_each(plan, lambda account: account.note(plan, steps_spent, **told))

    def said(self, plan: Plan) -> str:
        """What the record says of the account, once a plan has begun."""
        return self._said or self.statement(plan)

    def statement(self, plan: Plan) -> str:
        """Which release on these files a plan's is, and what all of them cost together against everyone."""
        return self._told(plan)[0]

    def _told(self, plan: Plan) -> tuple[str, bool]:
        """The statement, and whether there is nothing that adds up."""
        if not self._accounts:
            return self._otherwise, True
        folders = ", ".join(dict.fromkeys(account.path.parent.name for account in self._accounts))
        try:
            earlier = {account: found for account in self._accounts if (found := _earlier(account, plan))}
            totals = [total for account in earlier for total in account.totals(plan)]
        except _UNREADABLE:
            return f"What is on account in {folders} cannot be read: what earlier runs cost is not counted here.", False
        if not earlier:
            return f"First release on {self._names(list(self._accounts))} (on account in {folders}).", True
        release = _ordinal(1 + max(map(len, earlier.values())))
        worst = max(totals, key=lambda total: total.epsilon)
        return f"{release} release on {self._names(list(earlier))}: {_in_all(worst)} (on account in {folders}).", False

    def _names(self, accounts: Sequence[Account]) -> str:
        files = [file.path.name for account in accounts if (file := self._accounts[account])]
        if len(accounts) < len(self._accounts):
            return ", ".join(files)
        return "these records" if not files else "this file" if len(files) == 1 else "these files"

    def _at_each(self, plan: Plan, act: Callable[[Account], _T]) -> list[_T]:
        """What they say; one that cannot be used is left out from here on, unless it has a limit to keep."""
        found = []
        for account in list(self._accounts):
            try:
                found.append(act(account))
            except PrivacyError as error:
                spent = isinstance(error, PlanSpentError) and not (self._begun and self._lost(account, plan))
                if spent or (account.limit is not None and not self._begun):
                    raise
                del self._accounts[account]
                self._otherwise = "The account could not be written to, so this run is missing from it."
                told = f"{account.path} could not be written to, so this run is missing from the account"
                warnings.warn(f"{told}; keep note of what it costs", AccountWarning, stacklevel=3)
        return found

    @staticmethod
    def _lost(account: Account, plan: Plan) -> bool:
        """Whether somebody took away an account that had the plan."""
        with contextlib.suppress(*_UNREADABLE):
            return plan.plan_id not in {entry.plan.plan_id for entry in account.entries()}
        return True

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"FilesAccount({len(self._accounts)})"


def _earlier(account: Account, plan: Plan) -> list[AccountEntry]:
    """Other plans that count."""
    return [entry for entry in account.entries() if entry.counts and entry.plan.plan_id != plan.plan_id]


def _ordinal(number: int) -> str:
    return _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"Release {number}:"


def _in_all(total: Total) -> str:
    proved = ", not proved" if total.unproven else ""
    return f"ε = {rounded_up(total.epsilon)} in all against everyone{proved}, δ = {total.delta:g}"


@final
class _File:
    """One file, and how it is known again."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    def account(self, party: str, folder: Path | None, limit: TotalLimit | None) -> Account:
        """Its own, or that of the file of its folder that it is a copy of."""
        if folder is not None:
            return Account(folder / ACCOUNT, party, self.path.name, limit)
        home = self._home()
        if not (home / ACCOUNT).exists():
            for path in sorted(self.path.parent.glob(f"*{LEDGER}/{ACCOUNT}")):
                account = Account(path, party, path.parent.name.removesuffix(LEDGER), limit)
                if self._digest is not None and self._digest in _known(account, self._key_name):
                    return account
        return Account(home / ACCOUNT, party, self.path.name, limit)

    def changed(self, account: Account) -> bool:
        """Whether the account knows the file by other contents alone; it knows these from now on."""
        if self._digest is None:
            return False
        known = _known(account, self._key_name)
        with contextlib.suppress(PrivacyError):
            account.know_file(self._key_name, self._digest)
        return bool(known) and self._digest not in known

    def _home(self) -> Path:
        """Beside it, or with the user's data where nothing can be written there."""
        beside = self.path.with_name(self.path.name + LEDGER)
        if _can_write(beside):
            return beside
        place = hashlib.blake2b(os.fsencode(self.path), digest_size=8).hexdigest()
        other = _user_folder() / "ledgers" / place
        warnings.warn(
            f"nothing can be written beside {self.path.name}, so its account lies in {other}: other users' runs, and "
            "those on other machines, are missing from it. [data.ledgers], or account= in Python, names another folder",
            AccountWarning,
            stacklevel=4,
        )
        return other

    @cached_property
    def _key(self) -> bytes | None:
        return _key_of_user()

    @property
    def _key_name(self) -> str:
        return hashlib.blake2b(b"name", key=self._key or b"", digest_size=8).hexdigest()

    @cached_property
    def _digest(self) -> str | None:
        if self._key is None:
            return None
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        try:
            with self.path.open("rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
        except OSError:
            return None
        return digest.hexdigest()


def _known(account: Account, key_name: str) -> set[str]:
    try:
        return account.known_files(key_name)
    except PrivacyError:
        return set()


def _can_write(folder: Path) -> bool:
    """Whether a folder can be written to, or made."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()) / "vertinumpyro"


def _key_of_user() -> bytes | None:
    """Under which files are known again by this user; None where it can neither be read nor made."""
    path = _user_folder() / _KEY
    with contextlib.suppress(OSError, RuntimeError):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError), create(path, private=True) as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
        key = path.read_bytes()
        return key if len(key) == _KEY_BYTES else None
    return None
