"""The agreement of a study: everything public that every organisation must have alike before anything runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, final

from vertinumpyro.core import __version__
from vertinumpyro.core.errors import ArgumentError, hidden_in, visible
from vertinumpyro.data import Schema
from vertinumpyro.data.schema_checks import suggest
from vertinumpyro.data.toml import dump, read_settings
from vertinumpyro.privacy import Plan
from vertinumpyro.transport import Address, Certificate, Identity

LINKAGE = "linkage"
"""The method of an agreement that finds common records, and releases nothing."""

_KEYS = ("name", "version", "method", "schema", "members", "helpers", "settings", "model_digest", "linkage", "plan")


_MAY_MISS = ("helpers", "model_digest", "linkage", "plan")
_TABLES = ("schema", "members", "helpers", "settings")

FORM = 2
"""Of the digest: which text it is of. Approvals name it; those of form 1 did not say in which order columns stand."""

_SHOWN = 60  # characters of what differs
_LONGEST_NAME = 100  # of whoever takes part, and of the study


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One organisation, or a helper that holds no table.

    :ivar certificate: the one that it shows.
    :ivar address: where the others reach it; None for one that cannot be reached and dials everybody itself.
    """

    certificate: Certificate
    address: Address | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        where = {} if self.address is None else {"address": str(self.address)}
        return {**where, "certificate": self.certificate.pem}

    @classmethod
    def from_dict(cls, name: str, record: Mapping[str, Any]) -> Member:
        """From plain data; errors name the member."""
        if not isinstance(record, Mapping):
            raise ArgumentError(f"member {name!r} is no table; give its address and certificate")
        if unknown := set(record) - {"address", "certificate"}:
            raise ArgumentError(f"member {name!r}: unknown key {min(unknown)!r}; address and certificate are known")
        try:
            where = record.get("address")
            return cls(
                certificate=Certificate(str(record.get("certificate", ""))),
                address=None if where is None else Address.parsed(str(where)),
            )
        except ArgumentError as error:
            raise ArgumentError(f"member {name!r}: {error}") from None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """What a study is: who takes part, what runs, and what everybody gets of ε.

    :ivar name: for people.
    :ivar schema: all parties' columns.
    :ivar members: the parties, by name, in the schema's order; or the holders of whole records, in the plan's.
    :ivar helpers: the backend's, by name, in the backend's order: CrypTen's dealer, or SPU's nodes without data.
    :ivar method: what runs, as `--method` names it.
    :ivar settings: its settings, by section; tables in the order of their keys, which means nothing.
    :ivar model_digest: SHA-256 of the model's source; None where the library's own model is used.
    :ivar plan: the privacy plan, which is spent once; None where records are linked, and nothing is released.
    :ivar linkage: digest of the agreement under which the records were linked that this one is about; None where the
        parties' files hold the same people as they are.
    :ivar version: of this library, the same for all.
    :raises ArgumentError: names what does not fit.
    """

    name: str
    schema: Schema
    members: Mapping[str, Member]
    helpers: Mapping[str, Member]
    method: str
    settings: Mapping[str, Mapping[str, Any]]
    plan: Plan | None = None
    model_digest: str | None = None
    linkage: str | None = None
    version: str = __version__

    def __post_init__(self) -> None:
        """Checks that all fits together, and that whoever reads it sees what it says."""
        object.__setattr__(self, "settings", _plain("settings", self.settings))
        if no_table := [name for name, values in self.settings.items() if not isinstance(values, Mapping)]:
            raise ArgumentError(f"settings: {no_table[0]!r} is no table; write [settings.NAME] with its keys")
        for place, text in _texts("", self._canonical()):
            if hidden := hidden_in(text):
                raise ArgumentError(
                    f"{visible(place)}: {text[:_SHOWN]!r} holds a character that is not seen, or moves what stands "
                    f"beside it: {hidden}; do not approve it, and ask for a study without"
                )
        for name in (self.name, *self.members, *self.helpers):
            _check_name(name)
        parties = self.holders or tuple(self.schema.parties)
        if tuple(self.members) != parties:
            whose = "the plan's holders" if self.holders else "the schema's parties"
            raise ArgumentError(f"members are {', '.join(self.members)}; {whose} are {', '.join(parties)}")
        if (self.plan is None) != (self.method == LINKAGE):
            raise ArgumentError(f"method {self.method!r} {'needs a' if self.plan is None else 'has no'} privacy plan")
        if self.plan is not None and tuple(getattr(self.plan, "parties", ())) != parties:
            raise ArgumentError("plan was made for other parties; draft the study again")
        if twice := sorted(set(self.members) & set(self.helpers)):
            raise ArgumentError(f"{twice[0]!r} is a party and a helper; give the helper another name")
        names = self.names
        for index, name in enumerate(names):
            for other in names[:index]:
                if self._of(name).certificate.der == self._of(other).certificate.der:
                    raise ArgumentError(f"{other!r} and {name!r} show the same certificate; each needs its own")
                if self._of(name).address is None and self._of(other).address is None:
                    raise ArgumentError(f"neither {other!r} nor {name!r} can be reached; one of both needs an address")

    @property
    def holders(self) -> tuple[str, ...]:
        """Who hold whole records, each other ones; empty where the members hold columns of the same."""
        return tuple(getattr(self.plan, "holders", ()))

    @property
    def spent(self) -> Plan:
        """The plan that a run of this agreement spends.

        :raises ArgumentError: it links records, and spends none.
        """
        if self.plan is None:
            raise ArgumentError(f"{self.name!r} links records and releases nothing: `vertinumpyro link`")
        return self.plan

    @property
    def names(self) -> list[str]:
        """Everybody by number: the parties, then the helpers."""
        return [*self.members, *self.helpers]

    def _of(self, name: str) -> Member:
        return self.members[name] if name in self.members else self.helpers[name]

    def member(self, name: str) -> Member:
        """One of them.

        :raises ArgumentError: there is nobody of that name; says who there is.
        """
        if name not in self.names:
            raise ArgumentError(f"{name!r} takes no part in this study; {suggest(name, self.names)}")
        return self._of(name)

    def dials(self, name: str, other: str) -> bool:
        """Whether `name` dials `other`: who cannot be reached dials, otherwise who comes later in `names`."""
        if self._of(other).address is None or self._of(name).address is None:
            return self._of(other).address is not None
        return self.names.index(name) > self.names.index(other)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the one canonical form: what is approved, and what everybody comes for.

        Everything that the agreement says is in it, with the order of parties, columns and helpers, and nothing of how
        a file is laid out. So 1 and 1.0 are two things, as they may be to a model, and 1.0 and 1e0 are one.
        """
        return hashlib.sha256(_text(self._canonical()).encode()).hexdigest()

    def differences(self, other: Agreement) -> list[str]:
        """Where another agreement says something else, one line each: the place, here, there."""
        return list(_differences("", self._canonical(), other._canonical()))

    def _canonical(self) -> dict[str, Any]:
        """Certificates as they travel, so that a line break in a file makes no difference.

        Where the order of keys means something it is kept, elsewhere it is the alphabet's.
        """
        record = {"form": FORM, **self._record()}
        record["plan"] = json.loads(json.dumps(record["plan"], sort_keys=True))
        for group in ("members", "helpers"):
            for name, member in record[group].items():
                member["certificate"] = self._of(name).certificate.fingerprint
        return record

    def _record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "method": self.method,
            "model_digest": self.model_digest,
            "schema": self.schema.to_dict(),
            "settings": dict(self.settings),
            "members": {name: member.to_dict() for name, member in self.members.items()},
            "helpers": {name: member.to_dict() for name, member in self.helpers.items()},
            "linkage": self.linkage,
            "plan": None if self.plan is None else self.plan.to_dict(),
        }

    def save(self, path: str | Path) -> None:
        """Write `study.toml`; the plan is in it as JSON, for it is nobody's to edit."""
        record = {name: value for name, value in self._record().items() if value is not None}
        if self.plan is not None:
            record["plan"] = json.dumps(record["plan"], sort_keys=True)
        Path(path).write_text(dump(record), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Agreement:
        """What `save` wrote.

        :raises ArgumentError: names the file and what is wrong in it.
        """
        path = Path(path)
        record = read_settings(path)
        if unknown := set(record) - set(_KEYS):
            raise ArgumentError(f"{path.name}: unknown key {min(unknown)!r}; {suggest(min(unknown), _KEYS)}")
        if missing := [key for key in _KEYS if key not in record and key not in _MAY_MISS]:
            raise ArgumentError(f"{path.name} has no {missing[0]}; draft the study again")
        for key in _TABLES:
            if not isinstance(record.get(key, {}), Mapping):
                raise ArgumentError(f"{path.name}: {key} is no table; take the file as it was sent")
        try:
            plan = Plan.from_dict(json.loads(record["plan"])) if "plan" in record else None
        except (TypeError, ValueError) as error:  # ArgumentError is one; so is what json raises
            raise ArgumentError(
                f"{path.name}: its plan cannot be read ({error}); take the file as it was sent"
            ) from None
        schema = Schema.from_dict(record["schema"])
        order = list(getattr(plan, "holders", ()) or schema.parties)
        return cls(
            name=str(record["name"]),
            version=str(record["version"]),
            method=str(record["method"]),
            model_digest=_digest("model_digest", record),
            linkage=_digest("linkage", record),
            schema=schema,
            settings=record["settings"],
            members=_members(record["members"], order),
            helpers=_members(record.get("helpers", {}), None),
            plan=plan,
        )

    def check_identity(self, name: str, identity: Identity) -> None:
        """Refuses to be `name` with another certificate than the agreement's.

        :raises ArgumentError: shows both fingerprints.
        """
        known, own = self.member(name).certificate, identity.certificate
        if own.der != known.der:
            raise ArgumentError(
                f"the agreement knows {name!r} by the certificate {known.fingerprint}, and {str(identity.folder)!r} "
                f"holds {own.fingerprint}; draft the study with yours"
            )

    def check_version(self) -> None:
        """Refuses to take part with another version of the library.

        :raises ArgumentError: names both.
        """
        if self.version != __version__:
            raise ArgumentError(
                f"the study was drafted with vertinumpyro {self.version}, and this is {__version__}; all organisations "
                "need one version"
            )


def _members(record: Mapping[str, Any], order: list[str] | None) -> dict[str, Member]:
    names = list(record) if order is None else [name for name in order if name in record]
    names += [name for name in record if name not in names]
    return {name: Member.from_dict(name, record[name]) for name in names}


def _digest(key: str, record: Mapping[str, Any]) -> str | None:
    found = record.get(key)
    if found is not None and not isinstance(found, str):
        raise ArgumentError(f"{key} is no text; take the file as it was sent")
    return found


def _check_name(name: object) -> None:
    """Refuses a name that could be taken for more than one: it stands in tables that people approve."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or " ".join(name.split()) != name:
        raise ArgumentError(
            f"{str(name)[:_SHOWN]!r} is no name for a study, a party or a helper: give up to {_LONGEST_NAME} "
            "characters, with single spaces between words"
        )


def _plain(place: str, value: Any) -> Any:
    """Settings as a file holds them, tables in the order of their keys, as which they are signed and as which they run.

    :raises ArgumentError: a file cannot hold them.
    """
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(f"{place}.{key}", value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple) and not any(isinstance(one, Mapping) for one in value):
        return [_plain(place, one) for one in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise ArgumentError(f"{visible(place)}: give texts, numbers, truth values, lists or tables of them")


def _texts(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every text in a record, keys among them, and where it stands."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield place or "a key", key
            yield from _texts(f"{place}.{key}" if place else key, inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(place, inner)
    elif isinstance(value, str):
        yield place, value


def _text(value: Any) -> str:
    """One text for one value: ASCII, keys in their order."""
    return json.dumps(value)


def _differences(place: str, ours: Any, theirs: Any) -> Iterator[str]:
    """A line for each place at which two records have other texts."""
    if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):
        yield from _difference(place, _text(ours), _text(theirs))
        return
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        name = key if key.isascii() else _text(key)  # letters of other scripts may look alike
        inner = f"{place}.{name}" if place else name
        if key in ours and key in theirs:
            yield from _differences(inner, ours[key], theirs[key])
        else:
            yield from _difference(inner, *(_text(one[key]) if key in one else "" for one in (ours, theirs)))
    orders = [[key for key in one if key in ours and key in theirs] for one in (ours, theirs)]
    yield from _difference(f"{place}, in this order", *map(_text, orders))


def _difference(place: str, ours: str, theirs: str) -> Iterator[str]:
    """A line where two texts differ, with the part in which they do."""
    if ours == theirs:
        return
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    start = 0 if same < _SHOWN // 2 else same - _SHOWN // 4
    yield f"{place}: {_shown(ours, start)} here, {_shown(theirs, start)} there"


def _shown(text: str, start: int) -> str:
    if text in ("", "null"):
        return "nothing" if text else "no such key"
    part = text[start : start + _SHOWN]
    return f"{'...' * (start > 0)}{part}{'...' * (start + _SHOWN < len(text))}"
