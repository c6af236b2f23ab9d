"""What the processes of a group do: deal, or sit at a party's end of the engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.crypten.dealer import DealerClient, FirstPartyDealer, serve
from vertinumpyro.secure.crypten.group import Seat
from vertinumpyro.secure.crypten.inputs import Layout, PartyInputs, PriorInputs
from vertinumpyro.secure.crypten.keystream import fresh_key

__all__ = ["joined_engine", "run_dealer", "run_worker", "wires", "wires_without_dealer"]


def wires(num_parties: int) -> list[tuple[int, int]]:
    """Every two parties, and the dealer (number P) with each of them."""
    return _pairs(num_parties + 1)


def wires_without_dealer(num_parties: int) -> list[tuple[int, int]]:
    """Every two parties."""
    return _pairs(num_parties)


def _pairs(num_members: int) -> list[tuple[int, int]]:
    return [(i, j) for j in range(num_members) for i in range(j)]


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
        seen = {f"{index}_{why}": value for index, (why, value) in enumerate(opened)}
        seat.reply(stats, result=result, **seen)


def _clipped_noisy_sum(engine: Any, words: dict[str, Any], arrays: dict[str, np.ndarray]) -> np.ndarray:
    from vertinumpyro.secure.crypten import paper, protocol

    shape, layout = BatchShape(**words["shape"]), Layout(**_tuples(words["layout"]))
    if words["formulation"] != "fused":
        product = paper.mult if words["formulation"] == "paper" else paper.signed_mult
        return paper.clipped_noisy_sum(engine, shape, layout, arrays, arrays["mask"], arrays["noise"], product)
    own = PartyInputs(*(arrays[name] for name in PartyInputs._fields))
    prior = PriorInputs(*(arrays[f"prior_{name}"] for name in PriorInputs._fields))
    return protocol.clipped_noisy_sum(engine, shape, layout, own, prior, arrays["mask"], arrays["noise"])


def describe(shape: BatchShape, layout: Layout) -> dict[str, Any]:
    """Shape and layout as plain data."""
    return {"shape": dataclasses.asdict(shape), "layout": dataclasses.asdict(layout)}


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
