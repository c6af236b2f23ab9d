"""Links between processes, the processes themselves, and the one counter of what travels.

Short because it says what others may use, and nothing else.
"""

from vertinumpyro.transport.communicator import Communicator, LoopbackLink
from vertinumpyro.transport.identity import Certificate, Identity, make_identity
from vertinumpyro.transport.links import (
    Link,
    NetworkProfile,
    PeerError,
    SocketLink,
    Traffic,
    all_gather,
    exchange,
    pack,
    unpack,
)
from vertinumpyro.transport.process_group import GroupCommunicator, Member, ProcessGroup
from vertinumpyro.transport.relay import Relay
from vertinumpyro.transport.tls import Address, Peer, connect_all, connected

Group, Seat, joined = ProcessGroup, Communicator, connect_all  # as they were called before

__all__ = [
    "Address",
    "Certificate",
    "Communicator",
    "Group",
    "GroupCommunicator",
    "Identity",
    "Link",
    "LoopbackLink",
    "Member",
    "NetworkProfile",
    "Peer",
    "PeerError",
    "ProcessGroup",
    "Relay",
    "Seat",
    "SocketLink",
    "Traffic",
    "all_gather",
    "connect_all",
    "connected",
    "exchange",
    "joined",
    "make_identity",
    "pack",
    "unpack",
]
