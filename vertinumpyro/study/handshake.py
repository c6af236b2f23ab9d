"""How the organisations of an agreement meet: links to all of them, and everybody's approval, before anything runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from vertinumpyro.core.errors import ArgumentError, BackendError, PrivacyError
from vertinumpyro.study.agreement import Agreement
from vertinumpyro.study.approval import Approval, check_approvals
from vertinumpyro.transport import Address, Communicator, Identity, Peer, connect_all, connected

_APPROVAL_BYTES = 2**16


def connect_members(
    agreement: Agreement,
    name: str,
    identity: Identity,
    approval: Approval | None,
    *,
    listen: Address | None = None,
    wait_s: float = 600.0,
    timeout_s: float = 120.0,
    waiting: Callable[[str], None] = lambda text: None,
    carriers: bool = False,
) -> Communicator:
    """A member's communicator, once everybody is there and every party has shown its approval to every other.

    :param name: of this member.
    :param approval: this party's own; None for a helper.
    :param listen: the address that this machine binds, where it is not the one that others reach it by.
    :param wait_s: how long to wait for the others.
    :param timeout_s: how long a message may take.
    :param waiting: called with a line about who is awaited: at once, then as seldom as `connect_all` says.
    :param carriers: whether the backend's engine has links of its own (`BetweenProcesses.own_links`).
    :raises PrivacyError: an approval is missing or not valid; names it.
    :raises PeerError: somebody did not come.
    :raises ArgumentError: the address cannot be bound, or the certificate is not the one of the agreement.
    """
    if name in agreement.members:
        _check_own(agreement, name, approval)
    communicator = gather(
        agreement,
        name,
        identity,
        topic=agreement.digest,
        listen=listen,
        wait_s=wait_s,
        timeout_s=timeout_s,
        waiting=waiting,
    )
    if approval is not None:
        found = communicator.all_gather(json.dumps(approval.to_dict()).encode(), limit=_APPROVAL_BYTES)
        check_approvals(agreement, [_read(text) for text in found])
    if carriers:
        peers, listener = _peers(agreement, name, listen)
        topic = f"{agreement.digest} carriers".encode()
        communicator.carriers = connected(identity, peers, topic=topic, listener=listener, wait_s=wait_s)
    return communicator


def gather(
    agreement: Agreement,
    name: str,
    identity: Identity,
    *,
    topic: str,
    listen: Address | None = None,
    wait_s: float = 600.0,
    timeout_s: float = 120.0,
    waiting: Callable[[str], None] = lambda text: None,
) -> Communicator:
    """A member's communicator, once everybody has come for one topic; nobody has approved anything by that.

    :param topic: who comes for another one is refused.
    :raises PeerError: somebody did not come.
    :raises ArgumentError: the address cannot be bound, or the certificate is not the one of the agreement.
    """
    agreement.check_version()
    agreement.check_identity(name, identity)
    peers, listener = _peers(agreement, name, listen)
    links = connect_all(
        identity, peers, topic=topic.encode(), listener=listener, wait_s=wait_s, timeout_s=timeout_s, waiting=waiting
    )
    return Communicator(agreement.names.index(name), len(agreement.members), links, timeout_s)


def _peers(agreement: Agreement, name: str, listen: Address | None) -> tuple[dict[int, Peer], socket.socket | None]:
    """All others, and a socket for those that dial this member."""
    peers = {
        rank: Peer(
            name=other,
            certificate=agreement.member(other).certificate,
            dial=agreement.member(other).address if agreement.dials(name, other) else None,
        )
        for rank, other in enumerate(agreement.names)
        if other != name
    }
    dialled = any(peer.dial is None for peer in peers.values())
    return peers, bind_address(listen or agreement.member(name).address) if dialled else None


def _check_own(agreement: Agreement, name: str, approval: Approval | None) -> None:
    """A party that has not approved does not even call the others."""
    if approval is None:
        raise PrivacyError(f"{name!r} has not approved this agreement; nothing runs without every party's approval")
    if approval.member != name:
        raise ArgumentError(f"the approval is of {approval.member!r}, and this is {name!r}; approve as {name!r}")
    approval.check(agreement)


def _read(text: bytes) -> Approval:
    try:
        record: Any = json.loads(text)
        return Approval.from_dict(record if isinstance(record, dict) else {})
    except ValueError:  # ArgumentError is one
        raise BackendError("a party sent something else than its approval; run one version everywhere") from None


def bind_address(address: Address | None) -> socket.socket:
    """A socket that listens.

    :raises ArgumentError: there is no address, or it cannot be bound.
    """
    if address is None:
        raise ArgumentError("others dial this member, and it has no address to listen at; give listen")
    try:
        return socket.create_server((address.host, address.port))
    except OSError as error:
        raise ArgumentError(f"cannot listen at {address} ({error.strerror or error}); is the port taken?") from None
