r"""What one party alone is shown: the sum of everybody's vectors, or of everybody's shares of something else.

Party p sends the receiver

    s_p = x_p + sum_q F(k_pq) - F(k_qp)    (modulo 2^64)

under keys that each two parties share, made for this one sum, and the receiver adds what it gets to its own s_p: the
pseudo-random terms add up to zero. Two rounds: keys, and one vector from each party to the receiver.

**What it reveals.** The receiver, together with any other parties, learns the sum of the remaining parties' vectors,
and nothing else, as long as AES-256 is a pseudo-random permutation (`ZeroSharing`): that is all that follows from the
sum itself and from what they hold. With two parties the remaining one is alone, so the receiver learns its vector.
Nobody else is sent anything. Semi-honest: who does not follow the protocol can spoil the sum. There is no noise, so
this is not DP.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.secure.keystream import ZeroSharing, exchanged_keys
from vertinumpyro.transport import Link, exchange

__all__ = ["sum_to_one"]


def sum_to_one(links: Mapping[int, Link], rank: int, receiver: int, vector: np.ndarray) -> np.ndarray | None:
    """The sum of all parties' vectors modulo 2^64, int64 [n], at the receiver; None at all others.

    Every party calls it with its own vector, of the same length. NOT DP: nothing is added to the sum.

    :param links: to all other parties, by number.
    :param rank: this party's number.
    :param receiver: the number of the party that is shown the sum.
    :param vector: this party's, int64 [n]. Secret.
    :raises ArgumentError: the vector is no int64, or there is no such receiver.
    :raises BackendError: a party is gone, or its vector has another length.
    """
    if vector.dtype != np.int64 or vector.ndim != 1:
        raise ArgumentError(f"vector must be int64 [n], got {vector.dtype} {list(vector.shape)}")
    if receiver != rank and receiver not in links:
        raise ArgumentError(f"receiver={receiver} must be a party's number, {sorted({rank, *links})}")
    share = vector + ZeroSharing(*exchanged_keys(links)).share(vector.shape)
    if rank != receiver:
        message = np.ascontiguousarray(share, "<i8").tobytes()
        exchange({receiver: links[receiver]}, {receiver: message}, {receiver: 0})
        return None
    for theirs in exchange(links, dict.fromkeys(links, b""), dict.fromkeys(links, share.nbytes)).values():
        share = share + np.frombuffer(theirs, "<i8")
    return share
