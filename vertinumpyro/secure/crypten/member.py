"""What the processes of a group do: deal, or sit at a party's end of the engine."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.crypten.dealer import DealerClient, FirstPartyDealer, serve
from vertinumpyro.secure.crypten.keystream import fresh_key
from vertinumpyro.secure.processes.group import Seat
from vertinumpyro.secure.processes.inputs import Layout, PartyInputs, PriorInputs, layout_of

__all__ = ["PartyComputer", "joined_engine", "run_dealer", "run_worker"]


def run_dealer(seat: Seat) -> None:
    """The dealer's process: sees shapes and its own randomness, nothing else."""
    links = [seat.links[rank] for rank in sorted(seat.links)]
    for link in links:
        link.wait_forever()  # between two computations nobody asks; a party that dies breaks its link
    serve(links)


def joined_engine(seat: Seat, *, prefetch: bool = True, watch: Any = None) -> Any:
    """This party's engine, once the group stands; the last of the group deals."""
    from vertinumpyro.secure.crypten.engine import Engine

    dealer_rank = max(seat.links)
    dealer = DealerClient(fresh_key(), seat.rank, seat.links[dealer_rank], prefetch=prefetch)
    peers = {rank: link for rank, link in seat.links.items() if rank != dealer_rank}
    return Engine(seat.rank, peers, dealer, watch)


@final
class PartyComputer:
    """A party's end of the protocol, in its own process."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @property
    def bytes_sent(self) -> int:
        """To the other parties."""
        return self._engine.bytes_sent

    @property
    def rounds(self) -> int:
        """Between the parties."""
        return self._engine.rounds

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        layout: Layout,
        own: PartyInputs,
        prior: PriorInputs,
        mask: np.ndarray,
        noise_share: np.ndarray,
    ) -> np.ndarray:
        """See `processes.Computer`."""
        from vertinumpyro.secure.crypten import protocol

        return protocol.clipped_noisy_sum(self._engine, shape, layout, own, prior, mask, noise_share)


def _engine_without_dealer(seat: Seat, watch: Any) -> Any:
    """NOT secure: party 0 deals, so it could read everything."""
    from vertinumpyro.secure.crypten.engine import Engine

    key = fresh_key()
    if seat.rank > 0:
        seat.links[0].send(key)
    keys = [key, *(seat.links[rank].receive() for rank in sorted(seat.links))] if seat.rank == 0 else []
    return Engine(seat.rank, seat.links, FirstPartyDealer(key, seat.rank, keys), watch)


def run_worker(seat: Seat, third_party: bool, prefetch: bool, watched: bool) -> None:
    """A simulated party: gets its numbers from the process that started it, which therefore knows everything."""
    from vertinumpyro.secure.crypten import protocol

    opened: list[tuple[str, np.ndarray]] = []

    def remember(why: str, value: np.ndarray) -> None:
        opened.append((why, value.reshape(-1).copy()))

    watch = remember if watched else None
    engine = joined_engine(seat, prefetch=prefetch, watch=watch) if third_party else _engine_without_dealer(seat, watch)
    seat.reply({"ready": True})
    while True:
        words, arrays = seat.command()
        opened.clear()
        match words.get("run"):
            case "clipped_noisy_sum":
                result = _clipped_noisy_sum(engine, words, arrays)
            case "noisy_cross_product":
                a, b = words["shapes"]
                shapes = ((a[0], a[1]), (b[0], b[1]))
                result = protocol.noisy_cross_product(engine, arrays["matrix"], shapes, arrays["noise"])
            case "noisy_sum":
                result = protocol.noisy_sum(engine, arrays["vector"])
            case _:
                return
        stats = {
            "bytes": engine.bytes_sent,
            "received": engine.bytes_received,
            "rounds": engine.rounds,
            "dealer_rounds": engine.dealer.rounds,
        }
        seen = {f"opened_{index}_{why}": value for index, (why, value) in enumerate(opened)}
        seat.reply(stats, result=result, **seen)


def _clipped_noisy_sum(engine: Any, words: dict[str, Any], arrays: dict[str, np.ndarray]) -> np.ndarray:
    from vertinumpyro.secure.crypten import paper, protocol

    shape, layout = BatchShape(**words["shape"]), layout_of(words["layout"])
    if words["formulation"] != "fused":
        product = paper.mult if words["formulation"] == "paper" else paper.signed_mult
        return paper.clipped_noisy_sum(engine, shape, layout, arrays, arrays["mask"], arrays["noise"], product)
    own = PartyInputs(*(arrays[name] for name in PartyInputs._fields))
    prior = PriorInputs(*(arrays[f"prior_{name}"] for name in PriorInputs._fields))
    return protocol.clipped_noisy_sum(engine, shape, layout, own, prior, arrays["mask"], arrays["noise"])
