"""Approvals: an organisation's signature under the digest of an agreement. Nothing runs without everybody's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.core.visible import visible
from vertinumpyro.study.agreement import FORM, Agreement
from vertinumpyro.transport import Identity

__all__ = ["Approval", "check_approvals"]

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
