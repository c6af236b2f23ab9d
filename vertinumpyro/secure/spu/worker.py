"""What the processes of a simulation do, and the helper of every run."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.processes.backend import StepCost
from vertinumpyro.secure.processes.group import Seat
from vertinumpyro.secure.processes.inputs import Layout, PartyInputs, PriorInputs, describe, layout_of
from vertinumpyro.secure.processes.messages import unpack
from vertinumpyro.secure.processes.simulation import Simulation
from vertinumpyro.secure.spu.node import Node, PartyComputer, helped

__all__ = ["rehearsed", "run_helper", "run_worker"]


def run_helper(seat: Seat, num_parties: int, num_nodes: int, protocol: str, timeout_s: float) -> None:
    """A node without data: learns from party 0 what is computed, and holds masked shares alone."""
    node = Node(seat, num_parties, num_nodes, protocol, timeout_s)
    while True:
        seat.links[0].wait_forever()  # between two computations nobody asks; a party that dies breaks its link
        words, _ = unpack(seat.links[0].receive())
        helped(node, words)


def run_worker(seat: Seat, num_parties: int, num_nodes: int, protocol: str, timeout_s: float) -> None:
    """A simulated party: gets its numbers from the process that started it, which therefore knows everything."""
    computer = PartyComputer(seat, num_parties, num_nodes, protocol, timeout_s)
    seat.reply({"ready": True})
    while True:
        words, arrays = seat.command()
        if words.get("run") == "clipped_noisy_sum":
            result = _clipped_noisy_sum(computer, words, arrays)
        elif words.get("run") in ("noisy_cross_product", "noisy_sum"):
            result = computer.integers(words["run"], words["inputs"], arrays)
        else:
            return
        opened = {f"opened_{i}_reveal": value for i, value in enumerate(computer.node.opened)}
        seat.reply({"bytes": computer.bytes_sent, "rounds": computer.rounds}, result=result, **opened)


def _clipped_noisy_sum(computer: PartyComputer, words: dict[str, Any], arrays: dict[str, np.ndarray]) -> np.ndarray:
    own = PartyInputs(*(arrays[name] for name in PartyInputs._fields))
    prior = PriorInputs(*(arrays[f"prior_{name}"] for name in PriorInputs._fields))
    shape, layout = BatchShape(**words["shape"]), layout_of(words["layout"])
    return computer.clipped_noisy_sum(shape, layout, own, prior, arrays["mask"], arrays["noise"])


def rehearsed(simulation: Simulation, shape: BatchShape, layout: Layout) -> StepCost:
    """What a step on zeros costs, the second time."""
    words = {"run": "clipped_noisy_sum", **describe(shape, layout)}
    inputs = [_zeros(shape, layout, party) for party in range(shape.num_parties)]
    simulation.run(words, inputs)
    before, started = simulation.counts, simulation.seconds
    simulation.run(words, inputs)
    counts = simulation.counts - before
    seconds = simulation.seconds - started
    return StepCost(rounds=counts["rounds"], bytes_per_party=counts["bytes"], dealer_bytes=0, seconds=seconds)


def _zeros(shape: BatchShape, layout: Layout, party: int) -> dict[str, np.ndarray]:
    n, K, plated, shared = shape.batch_size, shape.num_components, layout.plated[party], layout.shared[party]
    sizes = {
        "log_density": (n, K),
        "plated": (K, n, plated),
        "shared": (n * K, shared),
        "squared_norm": (n, K),
        "gram": (n, K, K),
        "prior_log_weights": (K,),
        "prior_scores": (K, layout.prior),
        "prior_gram": (K, K),
        "mask": (n,),
        "noise": (shape.num_values,),
    }
    return {name: np.zeros(size, np.int64) for name, size in sizes.items()}
