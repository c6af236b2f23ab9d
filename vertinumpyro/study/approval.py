"""Approvals: an organisation's signature under the digest of an agreement, without all of which nothing runs; and its
own policy, what it approves at most whatever others propose.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from vertinumpyro.core.errors import ArgumentError, PrivacyError, visible
from vertinumpyro.privacy.account import TotalLimit
from vertinumpyro.study.agreement import FORM, LINKAGE, Agreement
from vertinumpyro.transport import Identity


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits of one party.

    :ivar party: whose they are, as the study knows it.
    :ivar largest_epsilon: of any row of a plan's privacy table; None sets no limit.
    :ivar largest_epsilon_against: of single rows, by their names: tighter or wider than `largest_epsilon`.
    :ivar largest_delta: of a plan.
    :ivar largest_total_epsilon: of all plans on one data set together, this one included, against the outside analyst
        and every other party.
    :ivar total_delta: the δ of that total; None takes the largest of the plans'.
    :ivar models: SHA-256 of the sources of models that may run here; None allows all.
    :ivar link_with: the parties with whom records may be linked, which tells them who is here; None allows all.
    :ivar padded_linkages: whether a linkage must hide how many records this party has.
    :ivar against_cheats: whether rows must hold against parties that do not follow the protocol.
    """

    party: str = ""
    largest_epsilon: float | None = None
    largest_epsilon_against: Mapping[str, float] = dataclasses.field(default_factory=dict)
    largest_delta: float | None = None
    largest_total_epsilon: float | None = None
    total_delta: float | None = None
    models: Sequence[str] | None = None
    link_with: Sequence[str] | None = None
    padded_linkages: bool = False
    against_cheats: bool = False

    def __post_init__(self) -> None:
        names = ("largest_epsilon", "largest_delta", "largest_total_epsilon", "total_delta")
        limits = {name: getattr(self, name) for name in names}
        limits |= {f"largest_epsilon_against {name!r}": value for name, value in self.largest_epsilon_against.items()}
        for name, value in limits.items():
            if value is not None and not value > 0:
                raise ArgumentError(f"policy: {name} = {value}; give a number above 0, or leave it out")

    @property
    def total(self) -> TotalLimit | None:
        """What all plans on a data set may cost together; None sets no limit."""
        if self.largest_total_epsilon is None:
            return None
        return TotalLimit(epsilon=self.largest_total_epsilon, delta=self.total_delta)

    def check(self, agreement: Agreement, *, unverified: str = "nobody says that they do") -> None:
        """Refuses an agreement beyond the limits of one plan, or a linkage; `Account.check` is for the total.

        :param unverified: why rows do not hold against parties that cheat; empty where they do.
        :raises PrivacyError: names every limit that it passes, with both numbers.
        """
        beyond = self._of_linkage(agreement) if agreement.plan is None else self._of_plan(agreement)
        if self.against_cheats and agreement.plan is not None and unverified:
            beyond.append(f"the policy wants rows that hold against parties that cheat, and {unverified}")
        if beyond:
            raise PrivacyError("not approved: " + "; ".join(beyond))

    def _of_linkage(self, agreement: Agreement) -> list[str]:
        beyond = []
        if self.link_with is not None:
            allowed = [*self.link_with, self.party]
            others = [name for name in agreement.members if name not in allowed]
            beyond += [f"the policy links no records with {name}" for name in others]
        if self.padded_linkages and "pad_to" not in agreement.settings[LINKAGE]:
            beyond.append("the policy wants lists that are padded: study draft-linkage --pad-to")
        return beyond

    def _of_plan(self, agreement: Agreement) -> list[str]:
        plan, beyond = agreement.spent, []
        rows = {row.adversary for row in plan.adversaries}
        if unknown := sorted(set(self.largest_epsilon_against) - rows):
            beyond.append(f"the policy limits ε against {unknown[0]!r}, whom the plan says nothing of")
        for row in plan.adversaries:
            limit = self.largest_epsilon_against.get(row.adversary, self.largest_epsilon)
            if limit is not None and not row.epsilon <= limit:
                beyond.append(f"ε against {row.adversary} is {row.epsilon:.3g}, and the policy allows {limit:g}")
        if self.largest_delta is not None and plan.delta > self.largest_delta:
            beyond.append(f"δ is {plan.delta:g}, and the policy allows {self.largest_delta:g}")
        if self.models is not None and agreement.model_digest not in (None, *self.models):
            beyond.append(f"the model {str(agreement.model_digest)[:16]} is not among those that may run here")
        return beyond


_DOMAIN = f"vertinumpyro approval {FORM}\n".encode()
_SCHEME = ec.ECDSA(hashes.SHA256())


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Approval:
    """One party's signature under one agreement.

    It is of no use for another agreement, nor for a plan that was changed afterwards, whose digest is another; and a
    plan is spent once at every party's ledger, however often its approvals are shown.

    :ivar member: who signed.
    :ivar digest: of the agreement.
    :ivar signature: ECDSA with SHA-256 by the key of the member's certificate, hexadecimal.
    """

    member: str
    digest: str
    signature: str

    @classmethod
    def sign(cls, agreement: Agreement, member: str, identity: Identity) -> Approval:
        """Approve, as a member.

        :raises ArgumentError: the identity is not the member's in the agreement, or its key cannot sign.
        """
        agreement.check_identity(member, identity)
        key = identity.private_key
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ArgumentError(
                f"the key in {str(identity.folder)!r} is not of an elliptic curve; make one: party init"
            )
        text = _text(member, agreement.digest)
        return cls(member=member, digest=agreement.digest, signature=key.sign(text, _SCHEME).hex())

    def check(self, agreement: Agreement) -> None:
        """Refuses what is no signature of this member under this agreement.

        :raises PrivacyError: says which and what to do.
        """
        if self.digest != agreement.digest:
            raise PrivacyError(
                f"{self.member!r} approved {visible(self.digest[:16])}, and this agreement is {agreement.digest[:16]}: "
                "it was changed after the approval, or the approval is another study's"
            )
        public = agreement.member(self.member).certificate.public_key
        try:
            assert isinstance(public, ec.EllipticCurvePublicKey)
            public.verify(bytes.fromhex(self.signature), _text(self.member, self.digest), _SCHEME)
        except (AssertionError, InvalidSignature, ValueError):
            raise PrivacyError(f"the approval of {self.member!r} does not bear its signature") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the form of the digest."""
        return {"form": FORM, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Approval:
        """From plain data.

        :raises ArgumentError: it is no approval.
        """
        words = {name: value for name, value in record.items() if name != "form"}
        if set(words) != {"member", "digest", "signature"} or not all(isinstance(v, str) for v in words.values()):
            raise ArgumentError("this is no approval; it needs form, member, digest and signature")
        if record.get("form", 1) != FORM:
            raise ArgumentError(
                "this approval is of another version of the library, whose digest stands for something else: the first "
                "one did not say in which order columns stand. Look at the study again, and approve it anew"
            )
        return cls(**words)

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Approval:
        """What `save` wrote.

        :raises ArgumentError: the file holds no approval.
        """
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise ArgumentError(f"cannot read an approval from {str(path)!r}") from None
        return cls.from_dict(record if isinstance(record, dict) else {})


def check_approvals(agreement: Agreement, approvals: Sequence[Approval]) -> None:
    """Every party's valid approval is there; helpers hold no data and approve nothing.

    :raises PrivacyError: names the parties whose approval is missing or not valid.
    """
    for approval in approvals:
        approval.check(agreement)
    if missing := [name for name in agreement.members if name not in {approval.member for approval in approvals}]:
        raise PrivacyError(f"not approved by {', '.join(missing)}; nothing runs without every party's approval")


def _text(member: str, digest: str) -> bytes:
    return _DOMAIN + json.dumps([member, digest]).encode()
