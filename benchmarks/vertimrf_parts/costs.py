"""What cross-party tables cost in bytes and rounds, counted from the messages and not measured."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

from vertimrf_parts.arms import ARMS, Arm

from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy import OUTSIDE_ANALYST, PrivacyWarning
from vertinumpyro.secure import Computation, CrossProducts, Crypten, VectorSum
from vertinumpyro.transport import Traffic

__all__ = ["counted_cost", "time_and_bytes"]

LATENCY, BITS_PER_SECOND = 0.05, 100e6

Cost = dict[str, float]


def counted_cost(dataset: VerticalDataset, epsilon: float) -> dict[str, Cost]:
    """Bytes and rounds of the cross-party tables of every arm that has some, by its plan; nothing is computed on data.

    Without the extra `crypten` the arms with a secure product are left out.
    """
    fields = {name: arm for name, arm in ARMS.items() if arm.kind == "field" and not (arm.plan or arm.pooled)}
    found = {name: _cost_of(dataset, arm, epsilon) for name, arm in fields.items()}
    return {name: cost for name, cost in found.items() if cost is not None}


def _cost_of(dataset: VerticalDataset, arm: Arm, epsilon: float) -> Cost | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the papers' delta is 1/n; one encoder is not private
        system = VertiMRF(**arm.system)
        plan = system.plan(dataset, epsilon=epsilon, delta=1 / dataset.num_records, adversary=OUTSIDE_ANALYST)
    if plan.encoding is None:
        return None if Crypten().missing() else _protocol_cost(dataset, plan.num_rounds)
    sent = plan.encoding.reported_bytes(system.columns(dataset.schema), dataset.num_records)
    return _cost(max(sent.values()), sum(sent.values()), rounds=1)


def _protocol_cost(dataset: VerticalDataset, later_rounds: int) -> Cost:
    """Products of all parties' one-hot columns, by a dry run of the protocol: what the busiest party sends.

    Each round of an adaptive selection adds a sum that reveals its tables, which count in full. The server gets the
    noisy tables.
    """
    columns = VertiMRF().columns(dataset.schema)
    cells = tuple(sum(c.num_cells for c in columns if c.party == p) for p in dataset.parties)
    products = CrossProducts(num_records=dataset.num_records, widths=cells)
    tables = VectorSum(num_parties=len(cells), num_values=products.num_values)
    parties = [_traffic(products, rank) for rank in range(len(cells))]
    busiest = max(parties, key=lambda traffic: traffic.bytes_sent)
    each = _traffic(tables, 0)
    sent, rounds = busiest.bytes_sent + later_rounds * each.bytes_sent, busiest.rounds + later_rounds * each.rounds
    return _cost(sent, (1 + later_rounds) * 8 * products.num_values, rounds=rounds)


def _traffic(computation: Computation, rank: int) -> Traffic:
    cost = Crypten().cost(computation, rank=rank)
    return cost.traffic + dataclasses.replace(cost.dealer_traffic, rounds=0)  # the dealer answers beside the parties


def _cost(sent: float, to_server: float, rounds: int) -> Cost:
    seconds = rounds * LATENCY + sent * 8 / BITS_PER_SECOND
    return {"bytes_per_party": sent, "bytes_to_server": to_server, "rounds": rounds, "seconds_wan": seconds}


def time_and_bytes(results: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Table 2 of the paper: the measured times beside the counted bytes, where there are any."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for table, seconds in results.get("seconds", {}).items():
        parties, costs = results["party_seconds"][table], results.get("cost", {}).get(table, {})
        found[table] = {
            arm: {
                "party_seconds": parties[arm],
                "server_seconds": total - (parties[arm] or 0.0),
                "bytes_per_party": costs.get(arm, {}).get("bytes_per_party"),
                "bytes_to_server": costs.get(arm, {}).get("bytes_to_server"),
            }
            for arm, total in seconds.items()
        }
    return found
