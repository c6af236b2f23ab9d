"""Who an organisation is on the network: a certificate that the others know byte by byte, and the key to it.

Certificates are pinned: an agreement names every organisation's own, so no authority decides who is who, and a
certificate that anybody else issues for the same name is not it. One from an organisation's own authority serves as
well as one that signs itself; it is the certificate that is pinned, not who issued it.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from pathlib import Path
from typing import final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vertinumpyro.core.errors import ArgumentError, hidden_in
from vertinumpyro.core.files import create

CERTIFICATE, KEY = "certificate.pem", "key.pem"

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
_EARLIER = datetime.timedelta(days=1)  # a clock that is behind takes it all the same


@final
@dataclasses.dataclass(frozen=True)
class Certificate:
    """A certificate, as an agreement holds it.

    :ivar pem: its text.
    """

    pem: str

    def __post_init__(self) -> None:
        """Refuses what is no certificate, and names in it that do not show all that they hold."""
        try:
            parsed = self._parsed
            names = [str(part.value) for name in (parsed.subject, parsed.issuer) for part in name]
        except ValueError:
            raise ArgumentError("this is no certificate in PEM; give the text of certificate.pem") from None
        for name in names:
            if hidden := hidden_in(name):
                raise ArgumentError(f"a name in the certificate holds a character that is not seen, {hidden}")

    @classmethod
    def read(cls, path: str | Path) -> Certificate:
        """From a file.

        :raises ArgumentError: it is not there, or holds no certificate.
        """
        try:
            return cls(Path(path).read_text(encoding="ascii"))
        except OSError as error:
            raise ArgumentError(f"cannot read the certificate {str(path)!r}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ArgumentError(f"{str(path)!r} is no certificate in PEM") from None

    @property
    def der(self) -> bytes:
        """As it travels in a handshake."""
        return self._parsed.public_bytes(serialization.Encoding.DER)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `der`, in hexadecimal: what two administrators read to each other."""
        return self._parsed.fingerprint(hashes.SHA256()).hex()

    @property
    def public_key(self) -> CertificatePublicKeyTypes:
        """What it certifies."""
        return self._parsed.public_key()

    @property
    def expires(self) -> datetime.datetime:
        """When it ends, UTC."""
        return self._parsed.not_valid_after_utc

    @property
    def begins(self) -> datetime.datetime:
        """From when on it holds, UTC."""
        return self._parsed.not_valid_before_utc

    @property
    def _parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.pem.encode())


@final
@dataclasses.dataclass(frozen=True)
class Identity:
    """An organisation's certificate and the file of its key, which stays where it is.

    :ivar folder: holds `certificate.pem` and `key.pem`.
    """

    folder: Path

    @property
    def certificate(self) -> Certificate:
        """What the others know it by."""
        return Certificate.read(self.folder / CERTIFICATE)

    @property
    def private_key(self) -> PrivateKeyTypes:
        """The key, as `cryptography` holds it.

        :raises ArgumentError: it cannot be read.
        """
        try:
            return serialization.load_pem_private_key((self.folder / KEY).read_bytes(), password=None)
        except (OSError, ValueError, TypeError):
            raise ArgumentError(
                f"the key in {str(self.folder)!r} cannot be read; put it back, or make a new identity"
            ) from None

    @property
    def files(self) -> tuple[str, str]:
        """Certificate and key, for a TLS context."""
        return str(self.folder / CERTIFICATE), str(self.folder / KEY)


def make_identity(folder: str | Path, name: str, *, days: int = 730) -> Identity:
    """A new key (P-256) and a certificate for it that it signs itself.

    :param folder: made if it is not there; the key in it is for its owner's eyes alone.
    :param name: of the organisation, letters, digits and . _ -.
    :param days: that the certificate holds.
    :raises ArgumentError: the folder has a key already, which is not replaced, or cannot be written to.
    """
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"name={name!r} must be up to 64 letters, digits, '.', '_' and '-'")
    if days < 1:
        raise ArgumentError(f"days={days} must be at least 1")
    folder, key = Path(folder), ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(usage, critical=False)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with create(folder / KEY, private=True) as file:
            file.write(text)
        (folder / CERTIFICATE).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    except FileExistsError:
        raise ArgumentError(f"{str(folder)!r} has a {KEY} already; choose another folder, or move it away") from None
    except OSError as error:
        raise ArgumentError(f"cannot write to {str(folder)!r}: {error.strerror}") from None
    return Identity(folder)
