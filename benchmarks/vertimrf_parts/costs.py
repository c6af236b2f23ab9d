"""What cross-party tables cost in bytes and rounds, counted from the messages and not measured."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from vertimrf_parts.arms import ARMS, Arm

from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.encoded_tables import reported_bytes
from vertinumpyro.privacy import PrivacyWarning

__all__ = ["counted_cost", "time_and_bytes"]

LATENCY, BITS_PER_SECOND = 0.05, 100e6

Cost = dict[str, float]


def counted_cost(dataset: VerticalDataset, epsilon: float) -> dict[str, Cost]:
    """Bytes and rounds of the cross-party tables of every arm that has some, by its plan; nothing is computed."""
    fields = {name: arm for name, arm in ARMS.items() if arm.kind == "field" and not (arm.plan or arm.pooled)}
    return {name: _cost_of(dataset, arm, epsilon) for name, arm in fields.items()}


def _cost_of(dataset: VerticalDataset, arm: Arm, epsilon: float) -> Cost:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the papers' delta is 1/n; one encoder is not private
        system = VertiMRF(**arm.system)
        plan = system.plan(dataset, epsilon=epsilon, delta=1 / dataset.num_records)
    if plan.encoding is None:
        return _protocol_cost(dataset, plan.num_rounds)
    sent = reported_bytes(system.columns(dataset.schema), plan.encoding, dataset.num_records)
    return _cost(max(sent.values()), sum(sent.values()), rounds=1)


def _protocol_cost(dataset: VerticalDataset, later_rounds: int) -> Cost:
    """One cross product of all one-hot columns: what the busiest party sends.

    Two parties and a dealer that colludes with neither: it hands one party U, the other V, as seeds of 32 bytes, and
    both a share of UᵀV. Each sends its masked matrix, A − U or B − V (round 1), and then its share of the noisy product
    (round 2). Ring elements have 8 bytes. With more parties every pair of them does so side by side. The dealer sends
    one share of UᵀV to each. The server gets the noisy tables. Each round of an adaptive selection adds a round, whose
    tables count in full.
    """
    columns = VertiMRF().columns(dataset.schema)
    cells = {p: sum(c.num_cells for c in columns if c.party == p) for p in dataset.parties}
    sent = {
        p: sum(
            8 * (dataset.num_records * own + (1 + later_rounds) * own * other) for q, other in cells.items() if q != p
        )
        for p, own in cells.items()
    }
    revealed = sum(8 * own * other for p, own in cells.items() for q, other in cells.items() if p < q)
    return _cost(max(sent.values()), (1 + later_rounds) * revealed, rounds=2 + later_rounds)


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
