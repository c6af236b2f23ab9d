"""The roles of Algorithm 1 where clients are real: each object holds what its owner may know, and no more.

    client.messages(round, vector)       one envelope for each node
    node.receive(envelope)               decrypts, checks, keeps
    counted = agree(round, [node.received for node in nodes])
    combine(round, [node.reveal(counted) for node in nodes])

A client whose envelopes reached some nodes only is left out by `agree`, at no cost but its noise share: as long
as no more than T clients drop, nothing has to be sent again.

**Authenticated encryption between one client and one compute node.** X25519 between the two registered keys,
HKDF-SHA256 with a random salt for each message, AES-256-GCM. Both ends are authenticated by their registered public
keys: only the two of them can make or read a message. What a round is about (its fingerprint) and both names are
authenticated with every message, so a message cannot be moved to another round, client or node. There is no forward
secrecy: whoever later steals a private key reads what it protected, so give every round its own keys where that
matters.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vertinumpyro.core.errors import ArgumentError, BackendError, PrivacyError
from vertinumpyro.core.rng import RandomSource, SystemRandomSource
from vertinumpyro.privacy import sample_discrete_gaussian
from vertinumpyro.privacy.holder_plan import ClientPlan
from vertinumpyro.privacy.noise_shares import SMALLEST_SHARE
from vertinumpyro.secure.dca.backend import check_nodes, split

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

        :raises BackendError: it was changed, cut, made by somebody else, or made for another context.
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


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """One noisy sum.

    :ivar clients: the names of all clients that were asked.
    :ivar nodes: the names of the compute nodes; at least one of them keeps to the protocol.
    :ivar num_values: d.
    :ivar share_variance: the variance of each client's noise share, in grid units².
    :ivar max_unreliable: T, for clients that drop out and clients that collude together. The sum is refused when more
        than T drop out, since every missing client takes its noise share along.
    :ivar round_id: a random name, made here; every message carries it.
    """

    clients: tuple[str, ...]
    nodes: tuple[str, ...]
    num_values: int
    share_variance: int
    max_unreliable: int = 0
    round_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        """Refuses names that repeat and numbers outside the documented ranges."""
        for name in ("clients", "nodes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ArgumentError(f"{name} must have different names")
        check_nodes(len(self.nodes))
        if not 0 <= self.max_unreliable <= len(self.clients) - 2:
            raise ArgumentError(
                f"max_unreliable must lie between 0 and {len(self.clients) - 2}, the number of clients less two: "
                "one client's noise is no secret to itself, and another's must remain"
            )
        if self.num_values < 1 or self.share_variance < SMALLEST_SHARE:
            raise ArgumentError(f"num_values must be at least 1 and share_variance at least {SMALLEST_SHARE}")

    @classmethod
    def of_plan(cls, plan: ClientPlan, *, clients: tuple[str, ...], nodes: tuple[str, ...], num_values: int) -> Round:
        """A round with the noise shares of a plan."""
        if len(clients) != plan.num_clients:
            raise ArgumentError(f"clients must be {plan.num_clients} names, as the plan says, got {len(clients)}")
        return cls(
            clients=clients,
            nodes=nodes,
            num_values=num_values,
            share_variance=plan.noise_variance_per_share(),
            max_unreliable=plan.max_unreliable,
        )

    def fingerprint(self) -> str:
        """A digest of everything above; it is authenticated with every message."""
        content = json.dumps(dataclasses.asdict(self), sort_keys=True).encode()
        return hashlib.sha256(content).hexdigest()

    def check_counted(self, counted: frozenset[str]) -> None:
        """Whether a sum over these clients may be revealed.

        :raises PrivacyError: a stranger among them, or more than T clients missing.
        """
        if not counted <= set(self.clients):
            raise PrivacyError("counted names a client that was not asked in this round")
        missing = len(self.clients) - len(counted)
        if missing > self.max_unreliable:
            raise PrivacyError(
                f"{missing} clients are missing and the noise covers {self.max_unreliable}: the sum stays secret. "
                "Start a new round with the clients that are left, or plan with a larger max_unreliable"
            )


@final
class Client:
    """One data holder.

    :param name: its name in the round.
    :param nodes: the registered public key of every compute node.
    :param source: where its noise share and masks come from; None takes the operating system's generator.
    """

    def __init__(self, name: str, nodes: Mapping[str, bytes], *, source: RandomSource | None = None) -> None:
        self.name = name
        self.key = ChannelKey()
        self._nodes = dict(nodes)
        self._source = SystemRandomSource() if source is None else source
        self._answered: set[str] = set()

    def messages(self, round_: Round, vector: np.ndarray) -> list[Envelope]:
        """Steps 1 and 2 of Algorithm 1: noise, shares, one encrypted message for each node.

        :param round_: the round.
        :param vector: int64 `[d]` on the round's grid; the client itself has clipped it.
        :raises ArgumentError: the vector has another length or type, or a node has no registered key.
        :raises PrivacyError: this client answered this round before; answering twice would average its noise out.
        """
        self._check(round_, vector)
        self._answered.add(round_.round_id)
        noise = sample_discrete_gaussian(round_.share_variance, round_.num_values, self._source)
        shares = split(vector + noise, len(round_.nodes), self._source)
        return [self._sealed(round_, node, share) for node, share in zip(round_.nodes, shares, strict=True)]

    def _check(self, round_: Round, vector: np.ndarray) -> None:
        if vector.dtype != np.int64 or vector.shape != (round_.num_values,):
            raise ArgumentError(f"vector must be int64 of length {round_.num_values}")
        if self.name not in round_.clients:
            raise ArgumentError(f"client {self.name!r} is not in the round's clients")
        missing = set(round_.nodes) - set(self._nodes)
        if missing:
            raise ArgumentError(f"no public key is registered for the nodes {sorted(missing)}")
        if round_.round_id in self._answered:
            raise PrivacyError("this client answered the round before: a second answer would average its noise out")

    def _sealed(self, round_: Round, node: str, share: np.ndarray) -> Envelope:
        context = _context(round_, self.name, node)
        ciphertext = self.key.seal(share.astype("<u8").tobytes(), self._nodes[node], context)
        return Envelope(round_id=round_.round_id, client=self.name, node=node, ciphertext=ciphertext)


@final
class ComputeNode:
    """One compute node in one round: it sees uniform ring vectors, and reveals one sum of them, once.

    :param name: its name in the round.
    :param key: its private key.
    :param clients: the registered public key of every client.
    :param round_: the round.
    """

    def __init__(self, name: str, key: ChannelKey, clients: Mapping[str, bytes], round_: Round) -> None:
        if name not in round_.nodes:
            raise ArgumentError(f"node {name!r} is not in the round's nodes")
        self.name, self._key, self._clients, self._round = name, key, dict(clients), round_
        self._shares: dict[str, np.ndarray] = {}
        self._revealed = False

    @property
    def received(self) -> frozenset[str]:
        """The clients whose messages are here: what the nodes tell each other before they add up."""
        return frozenset(self._shares)

    def receive(self, envelope: Envelope) -> None:
        """Decrypts a client's message and keeps it.

        :raises BackendError: it is for another round or node, from a stranger, changed, of another length, or a second
            one from the same client.
        """
        if (envelope.round_id, envelope.node) != (self._round.round_id, self.name):
            raise BackendError("a message is for another round or node")
        if envelope.client not in self._clients or envelope.client not in self._round.clients:
            raise BackendError("a message comes from a client that is not registered in this round")
        if envelope.client in self._shares or self._revealed:
            raise BackendError(f"client {envelope.client!r} sent a second message, or one after the sum")
        context = _context(self._round, envelope.client, self.name)
        plain = self._key.open(envelope.ciphertext, self._clients[envelope.client], context)
        if len(plain) != 8 * self._round.num_values:
            raise BackendError(f"the message of client {envelope.client!r} has another length than the round's")
        self._shares[envelope.client] = np.frombuffer(plain, "<u8")

    def reveal(self, counted: frozenset[str]) -> np.ndarray:
        """Step 3: this node's sum over the counted clients, uint64 `[d]`.

        :raises PrivacyError: too few clients, or a sum was revealed before: two sums over different clients would show
            what one client sent.
        :raises BackendError: a counted client's message is not here.
        """
        self._round.check_counted(counted)
        if self._revealed:
            raise PrivacyError("this node revealed its sum before: a second one over other clients would show a client")
        if not counted <= self.received:
            raise BackendError("counted names clients whose messages are not here: agree on the clients first")
        self._revealed = True
        total = np.zeros(self._round.num_values, np.uint64)
        for client in counted:
            total += self._shares[client]
        self._shares.clear()  # secret towards a later thief of this node
        return total


def agree(round_: Round, received: Sequence[frozenset[str]]) -> frozenset[str]:
    """The clients that every node heard from, which all nodes then count.

    :raises PrivacyError: more than T clients are missing; nothing is revealed.
    """
    counted = frozenset.intersection(*received)
    round_.check_counted(counted)
    return counted


def combine(round_: Round, sums: Sequence[np.ndarray]) -> np.ndarray:
    """The aggregator: the noisy sum on the round's grid, int64 `[d]`, modulo 2^64.

    :raises ArgumentError: a node's sum is missing; without it the others are uniform noise.
    """
    if len(sums) != len(round_.nodes):
        raise ArgumentError(f"sums must be {len(round_.nodes)}, one for each node, got {len(sums)}")
    return np.stack(sums).sum(axis=0, dtype=np.uint64).view(np.int64)


def _context(round_: Round, client: str, node: str) -> bytes:
    """What a message is bound to; lengths come first, so that no two triples have the same bytes."""
    parts = [part.encode() for part in (round_.fingerprint(), client, node)]
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
