"""Two ends of one wire in this process."""

import socket

from vertinumpyro.transport import SocketLink


def wired(left="party 'a'", right="party 'b'", timeout_s=5.0):
    """(the left one's link to the right one, the right one's to the left one)."""
    ours, theirs = socket.socketpair()
    return SocketLink(ours, right, timeout_s), SocketLink(theirs, left, timeout_s)
