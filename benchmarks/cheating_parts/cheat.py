"""A backend of a party that cheats, in its own process: what it changes of what it puts in, sends, or sees."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vertinumpyro.mrf import VertiMRF
from vertinumpyro.secure import Crypten, input_form, verified_tables
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.prime_field import PRIME

ROUNDS = ("keys", "rows", "challenge", "proofs", "agreed", "opening")
CHEAT = 1
"""The cheat's number."""


def rows(kind: str, hot: np.ndarray) -> np.ndarray:
    """Rows that it made up, integers."""
    made = hot.copy()
    match kind:
        case "large":
            made *= 4096
        case "negative":
            made *= -1
        case "two_hot":
            made[-1, :2] = 1
        case "all_zero":
            made[-1] = 0
        case "single_records":
            made[:] = 0
            victims = np.arange(min(made.shape))
            made[victims, victims] = 2**20
    return made


INPUTS = ("large", "negative", "two_hot", "all_zero", "single_records")
PROOF = {"value": 0, "tag": 8, "rows_digest": 16, "commitment": 48}
"""Where in the message of the proofs each of these begins."""


@dataclasses.dataclass(frozen=True)
class Cheat(Crypten):
    """CrypTen at a party that cheats.

    :ivar attack: what it does: `ATTACKS` in `cheating.py`.
    :ivar seen: a file that it writes when it has somebody's opening.
    """

    attack: str = ""
    seen: str = ""

    def end(self, communicator: Any, num_parties: int, watch: Any = None) -> PartyProtocol:
        """The party's end, changed; the process is its own."""
        end = super().end(communicator, num_parties, watch)
        if multiprocessing.parent_process() is not None:
            _Changed(end, self.attack, Path(self.seen)).install()
        return end


class _Changed:
    def __init__(self, end: Any, attack: str, seen: Path) -> None:
        self._engine, self._seen = end._engine, seen
        self._what, _, self._where = attack.partition(" ")
        self._send: Callable[..., dict[int, bytearray]] = self._engine.swap_bytes
        self._last: Mapping[int, bytes] = {}
        self._engine.swap_bytes = self.swap_bytes

    def install(self) -> None:
        """Inputs and noise."""
        real_rows, real_codes, real_follow = (
            verified_tables.one_hot,
            input_form.codes_of,
            verified_tables.Party.follow,
        )
        if self._what == "rows":
            made = self._where
            verified_tables.one_hot = lambda codes, sizes: rows(made, real_rows(codes, sizes)) % PRIME
        if self._what == "order":
            from vertinumpyro.secure.crypten import verified

            verified.codes_of = lambda *arguments: real_codes(*arguments)[::-1]
        if self._what == "noise":
            size = 2**57 if self._where == "absurd" else 0

            def follow(party: Any, codes: Any, noise: np.ndarray) -> Any:
                return real_follow(party, codes, np.full_like(noise, size))

            setattr(verified_tables.Party, "follow", follow)  # noqa: B010 (a method of another's class)

    def swap_bytes(self, why: str, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, bytearray]:
        """What it sends in the place of its messages."""
        sent = {other: self._changed(why, other, message) for other, message in outgoing.items()}
        if self._what == "swapped" and self._where == why and len(sent) > 1:
            first, second = sorted(sent)
            sent[first], sent[second] = sent[second], sent[first]
        self._last = outgoing
        found = self._send(why, sent, sizes)
        if why == "opening":
            self._seen.write_text("opened")
        return found

    def _changed(self, why: str, other: int, message: bytes) -> bytes:
        place = PROOF.get(self._where)
        if self._what == "altered" and (why == "proofs" if place is not None else why == self._where):
            return _flipped(message, place or 0)
        if self._where != why:
            return message
        match self._what:
            case "stop":
                os._exit(1)
            case "delayed":
                time.sleep(1.0)
            case "short":
                return message[:-8]
            case "repeated":
                return (self._last.get(other, b"") + bytes(len(message)))[: len(message)]
            case "different" if other == max(self._engine.links):
                return _flipped(message, PROOF["commitment"] if why == "proofs" else 0)
        return message


def _flipped(message: bytes, place: int) -> bytes:
    return bytes([*message[:place], message[place] ^ 1, *message[place + 1 :]])


def honest() -> VertiMRF:
    """The method as everybody else runs it."""
    return VertiMRF(backend=Crypten(), iterations=20)


def cheating(attack: str, seen: str) -> VertiMRF:
    """The method as the cheat runs it."""
    return VertiMRF(backend=Cheat(attack=attack, seen=seen), iterations=20)
