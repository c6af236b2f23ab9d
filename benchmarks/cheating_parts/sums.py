"""Sums between holders of whole records, one of whom cheats: a Bayesian linear regression of three of them."""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import VertinumpyroError
from vertinumpyro.data import PartySchema, RealColumn, Schema, TableFacts
from vertinumpyro.regression import BayesianLinearRegression
from vertinumpyro.regression.bayesian_linear_plan import GRID_BITS, encode, scaled, statistic_vectors
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.secure.keystream import KEY_BYTES, ZeroSharing
from vertinumpyro.session import PartyTask, ProcessSession

HOLDERS, CHEAT = ("north", "south", "west"), 1
NUM_RECORDS = 200
_CHOSEN = 7 << GRID_BITS
_COLUMNS = {name: RealColumn(bounds=(-1.0, 1.0)) for name in ("x0", "x1", "y")}
_SCHEMA = Schema({"people": PartySchema(_COLUMNS)})
_ROUNDS = ("keys", "commitments", "agreed", "opening")
_HARMLESS = {
    "shifted": "it spoils the sum, by numbers that it chose before it saw it",
    "no noise": "it narrows nothing that the cheater learns; others' rows are then those of one more colluder",
    "altered keys": "its share of zero no longer cancels: the sum is spoilt, by numbers that it knows",
    "second start": "what was committed to is opened, as it was; nothing is drawn anew",
}
ATTACKS = [
    *(f"altered {name}" for name in _ROUNDS),
    *(f"different {name}" for name in _ROUNDS[1:]),
    *(f"repeated {name}" for name in _ROUNDS[1:]),
    *(f"stop {name}" for name in _ROUNDS),
    "last word",
    "no records",
    "shifted",
    "no noise",
    "second start",
]
"""no records: it gives a number below 0 for that of its records; last word: it opens by the others' openings, so that
the sum is 7; second start: after an opening that was refused all start again."""


@dataclasses.dataclass(frozen=True)
class _Cheat(SecureAggregation):
    """Sums at a holder that cheats."""

    attack: str = ""
    seen: str = ""

    def end(self, communicator: Any, num_parties: int, watch: Any = None) -> PartyProtocol:
        """The holder's end, changed; the process is its own."""
        end = super().end(communicator, num_parties, watch)
        if multiprocessing.parent_process() is not None and communicator.rank == CHEAT:
            _Changed(end, self.attack, Path(self.seen))
        return end


class _Changed:
    """Its messages in all sums but the first, which is of the numbers of records."""

    def __init__(self, end: Any, attack: str, seen: Path) -> None:
        self._end, self._attack, self._seen, self._begun = end, attack, seen, 0
        self._last: Mapping[int, bytes] = {}
        self._what, _, self._where = attack.partition(" ")
        self._send, self._sum = end._send, end._noisy_sum
        end._send, end._noisy_sum = self.send, self.noisy_sum

    def noisy_sum(self, computation: Any, vector: np.ndarray) -> np.ndarray:
        """What it puts in."""
        if self._attack == "no records" and not self._begun:
            return self._sum(computation, vector - 10 * NUM_RECORDS)
        if self._attack == "shifted" and self._begun:
            vector = vector + 2**57
        if self._attack == "no noise" and self._begun:
            vector = np.zeros_like(vector)
        return self._sum(computation, vector)

    def send(self, name: str, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> Any:
        """What it sends in the place of its messages, and what it takes from those of the others."""
        self._begun += name == "keys"
        if self._begun < 2:
            return self._send(name, outgoing, sizes)
        if name == "opening" and self._attack == "last word":
            return self._last_word(outgoing, sizes)
        sent = {other: self._changed(name, other, message) for other, message in outgoing.items()}
        self._last = outgoing
        found = self._send(name, sent, sizes)
        if name == "keys":
            keys = [{other: bytes(data[-KEY_BYTES:]) for other, data in of.items()} for of in (sent, found)]
            self._pads = ZeroSharing(*keys)
        if name == "opening":
            self._keep(found)
        return found

    def _changed(self, name: str, other: int, message: bytes) -> bytes:
        if self._where not in (name, "start") or (self._where == "start" and name != "opening"):
            return message
        match self._what:
            case "stop":
                os._exit(1)
            case "altered" | "second":
                return bytes([*message[:-1], message[-1] ^ 1])
            case "different" if other == max(self._end._links):
                return bytes([*message[:-1], message[-1] ^ 1])
            case "repeated":
                return (self._last.get(other, b"") + bytes(len(message)))[: len(message)]
        return message

    def _last_word(self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, bytearray]:
        found = {other: link.receive(size=sizes[other]) for other, link in self._end._links.items()}
        self._keep(found)
        shares = _sum(found)
        for other, link in self._end._links.items():
            link.send(outgoing[other][:KEY_BYTES] + (_CHOSEN - shares).tobytes())
        return found

    def _keep(self, found: Mapping[int, Any]) -> None:
        """The others' sum: their openings, without the pads, which add up to zero with its own."""
        shares = _sum(found)
        np.save(self._seen, shares + self._pads.share(shares.shape))


def _sum(found: Mapping[int, Any]) -> np.ndarray:
    return np.add.reduce([np.frombuffer(bytes(data[KEY_BYTES:]), "<i8") for data in found.values()])


def regression(attack: str = "", seen: str = "") -> BayesianLinearRegression:
    """What every holder runs."""
    backend = _Cheat(attack=attack, seen=seen) if attack else SecureAggregation()
    return BayesianLinearRegression(epsilon=1.0, target="y", projection=False, backend=backend)


def attacked(attack: str, folder: Path) -> dict[str, Any]:
    """One attack on one plan: see the keys of `cheating.py`."""
    rng, seen = np.random.default_rng(0), folder / "seen.npy"
    tables = [pd.DataFrame(rng.uniform(-1, 1, (NUM_RECORDS, 3)).round(3), columns=list(_COLUMNS)) for _ in HOLDERS]
    for name, table in zip(HOLDERS, tables, strict=True):
        table.assign(id=[f"{name}{i}" for i in range(NUM_RECORDS)]).to_csv(folder / f"{name}.csv", index=False)
    plan = regression().plan(TableFacts(_SCHEMA, len(HOLDERS) * NUM_RECORDS, HOLDERS))
    for start in (attack, "shifted") if attack == "second start" else (attack,):
        found, why = _run(functools.partial(regression, start, str(seen)), folder, plan)
    ledgers = [json.loads(path.read_text()) for path in folder.glob("north*/*/privacy.json")]
    return {
        "refused": found is None,
        "opened": seen.exists() or found is not None,
        "read": _read(seen, [table for rank, table in enumerate(tables) if rank != CHEAT]),
        "spent": min((ledger["steps_spent"] for ledger in ledgers), default=0),
        "why": why if found is None else _HARMLESS[attack],
    }


def _run(build: Any, folder: Path, plan: Any) -> tuple[Any, str]:
    fields = {"schema": _SCHEMA.to_dict(), "build": build, "holders": HOLDERS}
    tasks = [PartyTask(party=name, table=folder / f"{name}.csv", **fields) for name in HOLDERS]
    run = folder / "run"
    try:
        with ProcessSession(tasks, timeout_s=30.0) as session:
            return build().fit(session, plan=plan, run_dir=run, resume=run.exists()), ""
    except VertinumpyroError as error:
        return None, str(error)


def _read(seen: Path, others: list[pd.DataFrame]) -> int:
    """Of the others' sums those that the cheat saw without noise."""
    if not seen.exists():
        return 0
    exact = encode(statistic_vectors(scaled(pd.concat(others).to_numpy(np.float32), np.ones(3)))).sum(axis=0)
    return int((np.abs(np.load(seen) - exact) < 2.0**GRID_BITS / 100).sum())
