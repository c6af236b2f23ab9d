"""Floor 3b: links between processes, the processes themselves, and the one counter of what travels."""

from vertinumpyro.transport.group import Group, Member, Seat
from vertinumpyro.transport.link import Link, PeerError, SocketLink, everyones, exchange
from vertinumpyro.transport.messages import pack, unpack
from vertinumpyro.transport.nobody import Nobody
from vertinumpyro.transport.traffic import Traffic

__all__ = [
    "Group",
    "Link",
    "Member",
    "Nobody",
    "PeerError",
    "Seat",
    "SocketLink",
    "Traffic",
    "everyones",
    "exchange",
    "pack",
    "unpack",
]
