"""Authenticated encryption between one client and one compute node.

X25519 between the two registered keys, HKDF-SHA256 with a random salt for each message, AES-256-GCM. Both ends
are authenticated by their registered public keys: only the two of them can make or read a message. What a round
is about (its fingerprint) and both names are authenticated with every message, so a message cannot be moved to
another round, client or node. There is no forward secrecy: whoever later steals a private key reads what it
protected, so give every round its own keys where that matters.
"""

from __future__ import annotations

import dataclasses
import os
from typing import final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vertinumpyro.core.errors import ArgumentError, BackendError

__all__ = ["ChannelKey", "Envelope"]

_SALT_BYTES = 32
_NONCE = bytes(12)  # a key of its own for every message, so the nonce never repeats under a key


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Envelope:
    """One encrypted message on its way; everything in it may be seen by the network."""

    round_id: str
    client: str
    node: str
    ciphertext: bytes

    def __repr__(self) -> str:
        """Names and size, not the bytes."""
        return f"Envelope(client={self.client!r}, node={self.node!r}, {len(self.ciphertext)} bytes)"


@final
class ChannelKey:
    """One participant's private key. Its public half is registered with the others before the first round."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()

    @property
    def public(self) -> bytes:
        """The public half, 32 bytes."""
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        return self._private.public_key().public_bytes(*raw)

    def seal(self, message: bytes, peer: bytes, context: bytes) -> bytes:
        """Encrypts a message to the owner of the public key `peer`, bound to a public `context`."""
        salt = os.urandom(_SALT_BYTES)
        return salt + AESGCM(self._message_key(peer, salt)).encrypt(_NONCE, message, context)

    def open(self, ciphertext: bytes, peer: bytes, context: bytes) -> bytes:
        """Decrypts what `seal` made at the other end under the same context.

        Raises:
            BackendError: it was changed, cut, made by somebody else, or made for another context.
        """
        salt, sealed = ciphertext[:_SALT_BYTES], ciphertext[_SALT_BYTES:]
        try:
            return AESGCM(self._message_key(peer, salt)).decrypt(_NONCE, sealed, context)
        except InvalidTag:
            raise BackendError(
                "a message does not authenticate: it was changed, or sealed by another key or for another round"
            ) from None

    def _message_key(self, peer: bytes, salt: bytes) -> bytes:
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise ArgumentError("a registered public key must be 32 bytes of X25519; register it again") from None
        return HKDF(hashes.SHA256(), length=32, salt=salt, info=b"vertinumpyro dca channel").derive(secret)

    def __repr__(self) -> str:
        """Nothing secret."""
        return "ChannelKey()"
