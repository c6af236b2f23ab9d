"""A backend of a party that cheats, in its own process: what it changes of what it puts in, sends, or sees."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vertinumpyro.core.row_blocks import Factor, factor_rows
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.regression.marginal_glm import MarginalGLM
from vertinumpyro.secure import Crypten, committed_sum, verified_tables
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.input_form import Digits
from vertinumpyro.secure.prime_field import PRIME
from vertinumpyro.session import reveal_once

ROUNDS = ("keys", "rows", "challenge", "proofs", "agreed", "opening")
OF_A_SUM = ("keys", "commitments", "agreed", "opening")
"""The messages of a sum of shares: adaptive tables have one a round."""
INPUTS = ("large", "negative", "two_hot", "all_zero", "single_records")
PROOF = {"value": 0, "tag": 8, "rows_digest": 16, "commitment": 48}
"""Where in the message of the proofs each of these begins."""
_SHARE = 32
"""Where the share begins in the message of the opening, behind its salt."""
_FIELD, _UNIT, HUGE = 2**57, 2**6, 2**40
"""Numbers as large as a field's; a table's cells; what a record is multiplied by, far above the noise."""


def rows(kind: str, hot: np.ndarray, num_cells: int = 0, num_slack: int = 0) -> np.ndarray:
    """Rows that it made up, integers: a number's digits are bits, behind the cells and before the slack's."""
    made = hot.copy()
    numbers = slice(num_cells, made.shape[1] - num_slack)
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
            made[victims, victims] = HUGE // _UNIT
        case "half":
            made[-1, -1] = (PRIME + 1) // 2
        case "outside":
            made[-1, numbers] = 1
            made[-1, num_cells] = 2  # so the first number is above its bound
        case "too_long":
            made[-1, numbers], made[-1, numbers.stop :] = 1, 0
        case "slack":
            made[-1, -1] ^= 1
    return made


@dataclasses.dataclass(frozen=True)
class Cheat(Crypten):
    """CrypTen at a party that cheats.

    :ivar attack: what it does: `ATTACKS` in `cheating.py`.
    :ivar seen: a file that it writes when it has somebody's opening of tables.
    :ivar later: whether it is honest in the first product, and cheats in what follows: the rounds, or the second one.
    """

    attack: str = ""
    seen: str = ""
    later: bool = False

    def end(self, communicator: Any, num_parties: int, watch: Any = None) -> PartyProtocol:
        """The party's end, changed; the process is its own."""
        end = super().end(communicator, num_parties, watch)
        if multiprocessing.parent_process() is not None:
            products = _Products(first=2 if self.later else 1)
            _install(self.attack, communicator.rank, products)
            products.count()
            _install_session(self.attack, communicator, Path(self.seen))
            _Changed(end, self.attack, Path(self.seen), later=self.later)
        return end


def _replace(where: Any, name: str, change: Callable[..., Any]) -> None:
    """In the place of a function its change, which is given the function first."""
    setattr(where, name, functools.partial(change, getattr(where, name)))


class _Products:
    """The products of this process, of which it cheats in the first or in the second and all that follow."""

    def __init__(self, first: int) -> None:
        self._first, self._begun = first, 0

    def count(self) -> None:
        """From now on, before what else is changed of a product sees it."""
        from vertinumpyro.secure.crypten import protocol

        for name in ("verified_cross_products", "noisy_cross_products"):
            _replace(protocol, name, self._begin)

    def _begin(self, real: Callable[..., Any], *arguments: Any) -> Any:
        self._begun += 1
        return real(*arguments)

    @property
    def cheats(self) -> bool:
        """Whether it does now."""
        return self._begun >= self._first


def _install(attack: str, rank: int, products: _Products) -> None:
    """Rows, noise, shares, and what it checks of the others."""
    from vertinumpyro.secure.crypten import protocol

    what, _, how = attack.partition(" ")
    if what == "rows" or (attack, rank) == ("colluding large", 1):
        made = how if what == "rows" else "large"

        def digits(real: Callable[..., Any], codes: np.ndarray, form: Digits) -> np.ndarray:
            return _made_digits(made, real(codes, form), form) if products.cheats else real(codes, form)

        _replace(verified_tables, "_digits_of", digits)
        _replace_method("_squared", _squared)
    if what == "order":
        _replace(protocol, "codes_of", lambda real, *arguments: real(*arguments)[::-1])
    if what == "noise" or attack == "colluding shift":
        size, follow = 0 if how == "omitted" else _FIELD, verified_tables.Party.follow
        _replace_method("follow", lambda party, codes, noise: follow(party, codes, np.full_like(noise, size)))
    if attack == "own pairs":
        opened = verified_tables.Party.open
        _replace_method("open", lambda party, share: opened(party, _of_own_pairs(party, share)))
    if attack == "sums shifted":
        _replace(
            committed_sum, "add_up", lambda real, statement, me, share: real(statement, me, (share + _FIELD) % PRIME)
        )
    if what == "colluding":  # of each other they believe all
        for name in ("check_same", "check_proof"):
            setattr(verified_tables, name, lambda *_: None)
    if attack == "leave unverified":
        _replace(protocol, "noisy_cross_products", lambda real, e, c, m, n: real(e, c, np.full(m.shape, 2**26), n))
    if what == "rows":  # where nobody verifies

        def made_up(real: Callable[..., Any], engine: Any, computation: Any, matrix: Factor, noise: np.ndarray) -> Any:
            return real(engine, computation, _made_up(how, matrix) if products.cheats else matrix, noise)

        _replace(protocol, "noisy_cross_products", made_up)


def _made_digits(kind: str, hot: np.ndarray, form: Digits) -> np.ndarray:
    return rows(kind, hot, form.num_cells, len(form.slack)) % PRIME


def _squared(party: Any, challenge: Any, codes: np.ndarray) -> np.ndarray:
    """Of the digits that it made up: then its tag is right, and nobody can say more for them."""
    digits = verified_tables._digits_of(codes, party._digits)
    return challenge.seen(party._rank, digits, offset=True).squared


def _made_up(kind: str, matrix: Factor) -> np.ndarray:
    return rows(kind, factor_rows(matrix, slice(0, len(matrix))) // _UNIT) * _UNIT


def _replace_method(name: str, change: Callable[..., Any]) -> None:
    setattr(verified_tables.Party, name, change)


def _of_own_pairs(party: Any, share: np.ndarray) -> np.ndarray:
    """Nothing at the tables of two others: no noise either, and no part of their sharing of zero."""
    kept = np.zeros_like(share)
    for pair, place in party._places.items():
        if party._rank in pair:
            kept[place] = share[place]
    return kept


def _install_session(attack: str, communicator: Any, seen: Path) -> None:
    """It leaves when all have their message on disk; or begins anew, under the name of the attempt before."""
    attempt = seen.with_name("attempt")

    def all_gather(real: Any, message: bytes, *sizes: Any, **limits: Any) -> list[bytes]:
        if message == reveal_once._READY and attack.startswith("leave"):
            os._exit(1)
        if len(message) == reveal_once._ATTEMPT:  # its part of an attempt's name
            message = attempt.read_bytes() if attack == "repeat attempt" else message
            attempt.write_bytes(message)
        return real(message, *sizes, **limits)

    if attack.startswith("leave") or attack == "repeat attempt":
        _replace(communicator, "all_gather", all_gather)
    if attack == "repeat attempt":
        _replace(reveal_once, "_state", lambda real, stored: real(None))


class _Changed:
    """The engine's messages, changed."""

    def __init__(self, end: Any, attack: str, seen: Path, *, later: bool) -> None:
        self._engine, self._seen, self._later = end._engine, seen, later
        self._attack = attack
        self._what, _, self._where = attack.partition(" ")
        self._send: Callable[..., dict[int, bytearray]] = self._engine.swap_bytes
        self._last: Mapping[int, bytes] = {}
        self._begun = 0
        self._engine.swap_bytes = self.swap_bytes

    def swap_bytes(self, why: str, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, bytearray]:
        """What it sends in the place of its messages."""
        self._begun += why == "keys"
        if self._later and self._begun == 1:
            return self._send(why, outgoing, sizes)
        if self._attack in ("colluding rows", "colluding large") and why == "proofs" and self._engine.rank == 2:
            return self._behind_the_honest(outgoing, sizes)
        sent = {other: self._changed(why, other, message) for other, message in outgoing.items()}
        if self._what == "swapped" and self._where == why and len(sent) > 1:
            first, second = sorted(sent)
            sent[first], sent[second] = sent[second], sent[first]
        self._last = outgoing
        if self._attack == "repeat attempt" and why == "agreed":
            self._agree_with_one(sent)
        if self._attack == f"rushing {why}":
            self._hear_and_leave(why, sizes)
        found = self._send(why, sent, sizes)
        if why == "opening":
            self._seen.write_text("opened")
        return found

    def _hear_and_leave(self, why: str, sizes: Mapping[int, int]) -> None:
        for rank, link in self._engine.links.items():
            link.receive(size=sizes[rank])
        if why == "opening":
            self._seen.write_text("opened")
        os._exit(1)

    def _agree_with_one(self, sent: Mapping[int, bytes]) -> None:
        """So that party 1 has a new message on disk, and party 2 the old one, under one name."""
        self._engine.links[1].send(sent[1])
        time.sleep(1.0)
        os._exit(1)

    def _behind_the_honest(self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, bytearray]:
        """It sends party 0 the digest of rows that came from there, whatever it was shown itself."""
        start, found = PROOF["rows_digest"], {}
        for rank, link in sorted(self._engine.links.items()):
            if rank == 0:
                found[rank] = link.receive(size=sizes[rank])
                link.send(outgoing[0][:start] + bytes(found[0][start : start + 32]) + outgoing[0][start + 32 :])
            else:
                link.send(outgoing[rank])
                found[rank] = link.receive(size=sizes[rank])
        return found

    def _changed(self, why: str, other: int, message: bytes) -> bytes:
        place = {**PROOF, "share": _SHARE}.get(self._where)
        where = self._where if place is None else "opening" if self._where == "share" else "proofs"
        if self._what == "altered" and why == where:
            return _flipped(message, place or 0)
        if self._attack == "colluding rows" and self._engine.rank == 1 and (why, other) == ("rows", 2):
            return _flipped(message, 0)
        if self._where != why:
            return message
        match self._what:
            case "stop":
                os._exit(1)
            case "delayed":
                time.sleep(1.0)
            case "dropped":
                time.sleep(120.0)
                os._exit(1)
            case "short":
                return message[:-8]
            case "long":
                return message + bytes(8)
            case "filled":
                return b"\xff" * len(message)
            case "repeated":
                return (self._last.get(other, b"") + bytes(len(message)))[: len(message)]
            case "different" if other == max(self._engine.links):
                return _flipped(message, PROOF["commitment"] if why == "proofs" else 0)
        return message


def _flipped(message: bytes, place: int) -> bytes:
    return bytes([*message[:place], message[place] ^ 1, *message[place + 1 :]])


def fields(backend: Crypten) -> VertiMRF:
    """Tables of all pairs at once, as everybody's are that a model or a field is fitted to."""
    return VertiMRF(backend=backend, iterations=20)


def adaptive(backend: Crypten) -> VertiMRF:
    """Tables that stay shared, of which one round releases a few again."""
    return VertiMRF(backend=backend, iterations=20, selection="adaptive", num_rounds=1, tables_per_round=2)


def triples(backend: Crypten) -> VertiMRF:
    """Tables of three columns in a product of their own, after the tables of all pairs."""
    return VertiMRF(backend=backend, iterations=20, triples=4)


def regression(schema: Any, backend: Crypten) -> MarginalGLM:
    """A regression of party 0's first column on the cheat's."""
    return MarginalGLM(schema=schema, family="ordinal", label="c00", features=["c10"], backend=backend)


def honest(make: Callable[..., Any], *, verifies: bool = True) -> Any:
    """The method as everybody else runs it."""
    return make(backend=Crypten(security="malicious" if verifies else "semi-honest"))


def cheating(make: Callable[..., Any], attack: str, seen: str, *, verifies: bool = True) -> Any:
    """The method as a cheat runs it."""
    security = "malicious" if verifies else "semi-honest"
    return make(backend=Cheat(attack=attack, seen=seen, later=make in (adaptive, triples), security=security))
