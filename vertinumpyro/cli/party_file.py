"""`party.toml`: what one organisation keeps to itself: where its key, table and records are, and what it approves."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vertinumpyro.cli.config_sections import check_keys, positive, read_section
from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.data.toml import dump, read_settings
from vertinumpyro.privacy.account import ACCOUNT, Account
from vertinumpyro.study import Agreement, Approval, Policy
from vertinumpyro.transport import Address, Identity, make_identity

PARTY_FILE = "party.toml"
_APPROVALS, _LINKAGES = "approvals", "linkages"
_POLICY = """
# What this organisation approves at most; `study approve` refuses what is beyond.
# [policy]
# largest_epsilon = 1.0
# largest_total_epsilon = 3.0  # of all studies on this data set together
# link_with = ["insurer"]      # who may learn which of their records are here too
# padded_linkages = true       # and not how many are here
# against_cheats = true        # rows must hold against parties that do not follow the protocol
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """`[policy]`: what this organisation approves at most. A key that is left out sets no limit.

    :param largest_epsilon: of any row of a plan's privacy table.
    :param largest_epsilon_against: by the name of a row, its own limit, tighter or wider than `largest_epsilon`.
    :param largest_delta: of a plan.
    :param largest_total_epsilon: of all plans on one data set together, the new one included, against the outside
        analyst and every other party.
    :param total_delta: δ of that total; left out, the largest of the plans'.
    :param models: SHA-256 of the sources of models that may run here.
    :param link_with: the parties with whom records may be linked, which tells them who is here.
    :param padded_linkages: whether a linkage must hide how many records this party has.
    :param against_cheats: whether a plan's rows must hold against parties that do not follow the protocol, as those of
        tables across parties with "crypten" do; without it, what holds only if all follow it is approved too.
    """

    largest_epsilon: float | None = positive()
    largest_epsilon_against: Mapping[str, Any] | None = None
    largest_delta: float | None = positive()
    largest_total_epsilon: float | None = positive()
    total_delta: float | None = positive()
    models: list | None = None
    link_with: list | None = None
    padded_linkages: bool | None = None
    against_cheats: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyFile:
    """One organisation's own file.

    :param path: relative paths in it start at its folder, which also holds the key.
    :param name: as the study knows it.
    :param table: of a party; a helper has none.
    :param ledger: folder of its privacy records.
    :param data_set: what it calls the people of its table; all plans on one data set are one account. By default the
        table's file name.
    :param listen: what this machine binds, where that is not the address that others use.
    :param separator: between the fields of its CSV file.
    :param encoding: of its CSV file, as Python names it.
    :param decimal: the decimal point of its CSV file, "." or ",".
    :param id_column: what its file calls the ids, where that is not the schema's name for them.
    :param spool: a folder on a disk with room, for a table that is too large for memory: it is then read in blocks, and
        its encoded columns lie there while the process runs, in files without a name.
    :param workers: who computes on blocks of its records: a number of processes of this machine, or the address of its
        own Dask cluster, "tls://scheduler:8786".
    :param policy: what it approves at most.
    """

    path: Path
    name: str
    table: str | None = None
    ledger: str = "ledger"
    data_set: str | None = None
    listen: str | None = None
    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    id_column: str | None = None
    spool: str | None = None
    workers: int | str | None = None
    policy: PolicySettings = dataclasses.field(default_factory=PolicySettings)

    @classmethod
    def load(cls, path: Path) -> PartyFile:
        """Read and check it.

        :raises ArgumentError: names the key and the fix.
        """
        record = read_settings(path)
        keys = [field.name for field in dataclasses.fields(cls) if field.name != "path"]
        check_keys(path.name, record, keys)
        if not isinstance(record.get("name"), str):
            raise ArgumentError(f'{path.name} has no name; add name = "clinic", as the study calls this organisation')
        policy = read_section(PolicySettings, "[policy]", record.pop("policy", {}))
        for key, value in record.items():
            number = key == "workers" and type(value) is int
            if not isinstance(value, str) and not number:
                raise ArgumentError(f"{path.name}: {key} = {value!r}; give a text")
        return cls(path=path, policy=policy, **record)

    @property
    def folder(self) -> Path:
        """Where relative paths start."""
        return self.path.resolve().parent

    @property
    def identity(self) -> Identity:
        """Certificate and key."""
        return Identity(self.folder)

    @property
    def address(self) -> Address | None:
        """What this machine binds."""
        return None if self.listen is None else Address.parsed(self.listen)

    @property
    def limits(self) -> Policy:
        """What it approves at most."""
        given = {k: v for k, v in vars(self.policy).items() if v is not None}
        return Policy(party=self.name, **given)

    @property
    def read_options(self) -> dict[str, str]:
        """How its table is read."""
        stated = {key: getattr(self, key) for key in ("separator", "encoding", "decimal", "id_column")}
        return {key: value for key, value in stated.items() if value is not None}

    def table_path(self) -> Path:
        """Its table.

        :raises ArgumentError: a party has none.
        """
        if self.table is None:
            raise ArgumentError(f'{self.path.name} names no table; add table = "{self.name}.csv"')
        return self.folder / self.table

    @property
    def spool_path(self) -> Path | None:
        """Where its encoded columns go that memory would not hold."""
        return None if self.spool is None else self.folder / self.spool

    @property
    def account(self) -> Account:
        """Of its data set.

        :raises ArgumentError: a helper has none.
        """
        name = self.table_path().name if self.data_set is None else self.data_set
        return Account(self.folder / self.ledger / ACCOUNT, self.name, name, self.limits.total)

    def approval_path(self, agreement: Agreement) -> Path:
        """Where its approval of an agreement is kept."""
        return self.folder / _APPROVALS / f"{agreement.digest[:16]}.json"

    def linkage_path(self, digest: str) -> Path:
        """Where its result of a linkage is kept, by the digest of the agreement on it."""
        return self.folder / _LINKAGES / f"{digest[:16]}.npz"

    def approval(self, agreement: Agreement) -> Approval | None:
        """Its approval; None where it gave none."""
        path = self.approval_path(agreement)
        return Approval.load(path) if path.exists() else None

    def not_approved(self, agreement: Agreement, path: Path) -> str:
        """That it gave none for this agreement, in words: of other ones it may have, an earlier draft among them."""
        others = sorted(found.stem for found in (self.folder / _APPROVALS).glob("*.json"))
        told = f"{self.name} has not approved {path.name}"
        if others:
            told += (
                f" as it stands, digest {agreement.digest[:16]}: another digest was approved, {', '.join(others)}. Was "
                "it drafted again, or changed? `vertinumpyro study diff` compares two files"
            )
        return f"{told}: `vertinumpyro study approve {path.name} --party {self.path}`"

    def check_ledger(self) -> None:
        """Whether what a plan spends can be written down here.

        :raises PrivacyError: it cannot; nothing runs without a record.
        """
        folder, account = self.folder / self.ledger, self.account.path
        there = next(found for found in (folder, *folder.parents) if found.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
            if account.exists():
                account.open("r+b").close()
        except OSError as error:
            raise PrivacyError(
                f"ledger: nothing can be written to {folder} ({error.strerror}), and nothing runs without a record of "
                f"it. Give this user the right to, or name another folder in {self.path.name}"
            ) from None


def make_party(folder: Path, name: str, *, table: str | None, listen: str | None, days: int) -> PartyFile:
    """A key, a certificate, and a `party.toml` beside them.

    :raises ArgumentError: there are some already, which are not replaced.
    """
    if (folder / PARTY_FILE).exists():
        raise ArgumentError(f"{folder / PARTY_FILE} is there already; choose another folder")
    if listen is not None:
        Address.parsed(listen)
    make_identity(folder, name, days=days)
    record = {"name": name, "table": table, "ledger": "ledger" if table else None, "listen": listen}
    policy = "" if table is None else _POLICY
    text = dump({key: value for key, value in record.items() if value is not None}) + policy
    (folder / PARTY_FILE).write_text(text, encoding="utf-8")
    return PartyFile.load(folder / PARTY_FILE)
