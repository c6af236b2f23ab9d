"""Parties of the protocols on shares as threads of one process, with a dealer at hand: no CrypTen, no sockets."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vertinumpyro.secure.crypten.dealer import corrected, deal, drawn
from vertinumpyro.secure.crypten.number_formats import Hidden, low_bytes, opened
from vertinumpyro.secure.keystream import KeyStream, fresh_key


class ThreadParty:
    """What the modules below CrypTen ask of an engine and of its dealer."""

    def __init__(self, group, rank):
        self.group, self.rank, self.num_parties, self.dealer = group, rank, group.num_parties, self
        self.rounds, self.seen = 0, []

    @property
    def __class__(self):
        """An engine's, once there is one: modules above it have their arguments checked."""
        module = sys.modules.get("vertinumpyro.secure.crypten.engine")
        return ThreadParty if module is None else module.Engine

    def draw(self, request):
        stream = self.group.streams[self.rank]
        correction = deal(request, self.group.dealers) if self.rank == 0 else None
        return (*drawn(request, stream, self.rank), *corrected(request, stream, correction))

    def open_hidden(self, *hidden):
        self.rounds += 1
        self.group.box[self.rank] = b"".join(array.message() for array in hidden)
        self.group.barrier.wait()
        others = [message for rank, message in enumerate(self.group.box) if rank != self.rank]
        self.group.barrier.wait()
        totals = opened(hidden, others)
        self.seen += [low_bytes(total, array.num_bytes).ravel() for array, total in zip(hidden, totals, strict=True)]
        return totals

    def open_masked(self, share):
        """What modules above CrypTen ask for, in its tensors."""
        import torch

        (total,) = self.open_hidden(Hidden(share.contiguous().numpy()))
        return torch.from_numpy(total)


class ThreadGroup:
    """:ivar rounds: of the last computation. :ivar seen: all bytes that were opened in it."""

    def __init__(self, num_parties):
        keys = [fresh_key() for _ in range(num_parties)]
        self.num_parties = num_parties
        self.streams, self.dealers = ([KeyStream(key) for key in keys] for _ in range(2))
        self.barrier, self.box = threading.Barrier(num_parties, timeout=60), [b""] * num_parties
        self.rounds, self.seen = 0, np.zeros(0, np.uint8)

    def run(self, function, *secrets):
        """What `function(party, *shares)` returns at every party."""
        parties = [ThreadParty(self, rank) for rank in range(self.num_parties)]
        shared = [shares_of(secret, self.num_parties) for secret in secrets]

        def at(party):
            try:
                return function(party, *(shares[party.rank] for shares in shared))
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(self.num_parties) as pool:
            results = list(pool.map(at, parties))
        self.rounds = parties[0].rounds
        self.seen = np.concatenate([np.zeros(0, np.uint8), *parties[0].seen])
        return results


def shares_of(secret, num_parties):
    """Uniform summands of it modulo 2^64."""
    words = np.random.default_rng().integers(-(2**63), 2**63, (num_parties - 1, *secret.shape))
    return [*words, secret - words.sum(axis=0, dtype=np.int64)]
