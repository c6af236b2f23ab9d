"""Links between processes, the processes themselves, and the one counter of what travels."""

from vertinumpyro.transport.group import Group, GroupSeat, Member
from vertinumpyro.transport.identity import Certificate, Identity, make_identity
from vertinumpyro.transport.link import Link, PeerError, SocketLink, everyones, exchange
from vertinumpyro.transport.messages import pack, unpack
from vertinumpyro.transport.nobody import Nobody
from vertinumpyro.transport.relay import Relay
from vertinumpyro.transport.seat import Seat
from vertinumpyro.transport.tls import Address, Peer, connected, joined
from vertinumpyro.transport.traffic import Line, Traffic

__all__ = [
    "Address",
    "Certificate",
    "Group",
    "GroupSeat",
    "Identity",
    "Line",
    "Link",
    "Member",
    "Nobody",
    "Peer",
    "PeerError",
    "Relay",
    "Seat",
    "SocketLink",
    "Traffic",
    "connected",
    "everyones",
    "exchange",
    "joined",
    "make_identity",
    "pack",
    "unpack",
]
