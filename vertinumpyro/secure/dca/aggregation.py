"""The secure sum between holders of whole records, each in a process of its own: DCA with the holders as its nodes.

In Algorithm 1 a client sends each of M nodes a share, and the nodes' sums are opened. Where H holders are clients and
nodes at once, all but the opening can be had without messages: each two of them share a key, and holder i sends

    s_i = x_i + sum_j F(k_ij) - F(k_ji)    (modulo 2^64)

to all others, F being AES-256 in counter mode. That is x_i's sum of shares as the nodes would have opened it; the
pseudo-random terms add up to zero over all holders.

Holders may cheat, all but one of them: before anybody sends its s_i, all have committed to theirs and compared what the
others committed to (`secure.committed_sum`). Four rounds, of which the last has the D words to each other holder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, final

import numpy as np

from vertinumpyro.core.errors import BackendError
from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.secure.backend import BackendInfo
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost, OnRecord, PartyProtocol, Watch, dry_run
from vertinumpyro.secure.committed_sum import RING, VerifiedSum, open_again, sum_of_all
from vertinumpyro.secure.computation import ClippedSum, Computation, CrossProducts, VectorSum
from vertinumpyro.secure.input_encoding import PartyInputs, PriorInputs
from vertinumpyro.secure.number_formats import fixed_point_format
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.transport import Communicator, Link, LoopbackLink, Member, Traffic, all_gather, exchange

_ONLY_SUMS = "SecureAggregation() adds up what holders of whole records computed; parties with columns need Crypten()"


@dataclasses.dataclass(frozen=True)
class SecureAggregation(BetweenProcesses):
    """Sums of the holders' integer vectors, every holder in its own process; nothing to install, no helper.

    Formal guarantee: what is revealed equals the sum of the holders' vectors and noise shares modulo 2^64, bit for
    bit. A coalition of holders learns that sum, so the noisy sum of the others' vectors, and nothing else, as long as
    AES-256 is a pseudo-random permutation: what the others send is uniform among all that have their sum. That is so
    whatever the coalition sends: it can choose its own summand, before it sees the sum, and stop the run, and nothing
    else. Who gets a result gets the same one. Whoever stays away stops it.
    """

    option: ClassVar[str] = "dca"

    @property
    def verifies_tables(self) -> bool:
        """Sums are all that it has, and those are committed to."""
        return True

    def info(self) -> BackendInfo:
        return BackendInfo(
            name="dca",
            security_model="holders that may do anything, all but one of them, and collude; one process each",
            who_learns_what="every holder learns the noisy sum; links within one machine are not encrypted, those "
            "between organisations are",
            dealer="none",
            ring="integers modulo 2^64",
            precision="exact",
        )

    def missing(self) -> str | None:
        return None

    def rehearsal_only(self) -> str | None:
        return None

    def helpers(self, num_parties: int) -> list[Member]:
        return []

    def end(self, communicator: Communicator, num_parties: int, watch: Watch | None = None) -> PartyProtocol:
        return _SumEnd(communicator.rank, communicator.peers, watch)

    def cost(self, computation: Computation, *, rank: int = 0) -> Cost:
        """Counted by running the protocol with nobody at the other end."""
        links = {other: LoopbackLink(Traffic()) for other in range(computation.num_parties) if other != rank}
        return dry_run(_SumEnd(rank, links), computation)

    def grid_bits(self, shape: BatchShape) -> int:
        """The grid of `FixedPoint`, whose integers each holder adds up by itself."""
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape: BatchShape, *, score_norm: float) -> float:
        """Nothing is lost here.

        :raises BackendError: the clipped sum is no protocol of this backend.
        """
        raise BackendError(_ONLY_SUMS)


@final
class _SumEnd(PartyProtocol):
    """A holder's end, in its own process."""

    verifies_tables = True

    def __init__(self, rank: int, links: Mapping[int, Link], watch: Watch | None = None) -> None:
        self.rank, self.num_parties = rank, len(links) + 1
        self._links, self._watch, self._on_record = links, watch, None
        self._traffic = Traffic()
        for link in links.values():
            link.traffic = self._traffic

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    @property
    def dealer_traffic(self) -> Traffic:
        return Traffic()

    def _set_on_record(self, on_record: OnRecord | None) -> None:
        self._on_record = on_record

    def open(self, message: bytes) -> np.ndarray:
        return self._watched(open_again(message, self.rank, self.num_parties, self._send))

    def _everyones(self, digest: bytes) -> Sequence[bytes]:
        return all_gather(self._links, self.rank, digest)

    def _noisy_sum(self, computation: VectorSum, noisy_vector: np.ndarray) -> np.ndarray:
        statement = VerifiedSum(num_parties=self.num_parties, num_values=computation.num_values, modulus=RING)
        dry_run = all(isinstance(link, LoopbackLink) for link in self._links.values())
        summed = sum_of_all(statement, self.rank, noisy_vector, self._send, self._on_record, is_dry_run=dry_run)
        return self._watched(summed)

    def _send(self, name: str, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, bytearray]:
        return exchange(self._links, outgoing, sizes)

    def _watched(self, total: np.ndarray) -> np.ndarray:
        if self._watch is not None:
            self._watch("reveal", total)
        return total

    def _clipped_noisy_sum(
        self, clipped: ClippedSum, own: Iterable[PartyInputs], prior: PriorInputs, mask: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        raise BackendError(_ONLY_SUMS)

    def _noisy_cross_products(self, computation: CrossProducts, matrix: Factor, noise_share: np.ndarray) -> np.ndarray:
        raise BackendError(_ONLY_SUMS)
