"""What the processes of a group do: deal, or sit at a party's end of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import numpy as np

from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.computation import CrossProducts, VectorSum
from vertinumpyro.secure.crypten.dealer import Correlations, DealerClient, FirstPartyDealer, serve
from vertinumpyro.secure.inputs import Layout, PartyInputs, PriorInputs
from vertinumpyro.secure.keystream import KEY_BYTES, fresh_key
from vertinumpyro.secure.party_end import OnRecord, PartyEnd, Watch
from vertinumpyro.transport import Link, Seat, Traffic, everyones

__all__ = ["CryptenEnd", "first_party_dealer", "run_dealer"]


def run_dealer(seat: Seat) -> None:
    """The dealer's process: sees shapes and its own randomness, nothing else."""
    links = [seat.links[rank] for rank in sorted(seat.links)]
    for link in links:
        link.wait_forever()  # between two computations nobody asks; a party that dies breaks its link
    serve(links)


def first_party_dealer(seat: Seat) -> FirstPartyDealer:
    """NOT secure: party 0 deals, so it could read everything."""
    key = fresh_key()
    if seat.rank > 0:
        seat.links[0].send(key)
        return FirstPartyDealer(key, seat.rank, [])
    others = [bytes(link.receive(size=KEY_BYTES)) for link in seat.peers.values()]
    return FirstPartyDealer(key, seat.rank, [key, *others])


def third_party_dealer(seat: Seat, *, prefetch: bool = True) -> DealerClient:
    """This party's side of the dealer, who sits behind the parties."""
    return DealerClient(fresh_key(), seat.rank, seat.links[seat.num_parties], prefetch=prefetch)


@final
class CryptenEnd(PartyEnd):
    """A party's end, in its own process.

    :param links: to the other parties.
    :param watch: called with every opened array and why it was opened; for tests.
    """

    def __init__(
        self,
        rank: int,
        links: Mapping[int, Link],
        dealer: Correlations,
        *,
        watch: Watch | None = None,
    ) -> None:
        from vertinumpyro.secure.crypten.engine import Engine

        self.rank, self.num_parties = rank, len(links) + 1
        self._engine = Engine(rank, links, dealer, watch)

    @property
    def traffic(self) -> Traffic:
        """Between the parties."""
        return self._engine.traffic

    @property
    def dealer_traffic(self) -> Traffic:
        """With the dealer."""
        return self._engine.dealer.traffic

    def close(self) -> None:
        """The dealer may go."""
        if isinstance(self._engine.dealer, DealerClient):
            self._engine.dealer.close()

    def _set_on_record(self, on_record: OnRecord | None) -> None:
        self._engine.on_record = on_record

    def open(self, message: bytes) -> np.ndarray:
        """See `PartyEnd.open`."""
        return self._engine.open(message).numpy()

    def _everyones(self, digest: bytes) -> Sequence[bytes]:
        found = everyones(self._engine.links, self.rank, digest)
        for theirs in (*found[: self.rank], *found[self.rank + 1 :]):
            self._engine.observed("digest", np.frombuffer(theirs, "<i8"))
        return found

    def _clipped_noisy_sum(
        self,
        shape: BatchShape,
        layout: Layout,
        own: Iterable[PartyInputs],
        prior: PriorInputs,
        mask: np.ndarray,
        noise_share: np.ndarray,
    ) -> np.ndarray:
        from vertinumpyro.secure.crypten import protocol

        return protocol.clipped_noisy_sum(self._engine, shape, layout, own, prior, mask, noise_share)

    def _noisy_cross_products(self, computation: CrossProducts, matrix: Factor, noise_share: np.ndarray) -> np.ndarray:
        from vertinumpyro.secure.crypten import protocol

        return protocol.noisy_cross_products(self._engine, computation, matrix, noise_share)

    def _noisy_sum(self, computation: VectorSum, noisy_vector: np.ndarray) -> np.ndarray:
        from vertinumpyro.secure.crypten import protocol

        return protocol.noisy_sum(self._engine, noisy_vector)

    def bands(self, vector: np.ndarray, thresholds: Sequence[int], bits: int) -> np.ndarray:
        """See `PartyEnd.bands`."""
        from vertinumpyro.secure.crypten import bands

        return bands.bands(self._engine, vector, thresholds, bits)
