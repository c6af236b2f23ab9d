"""Sums of everybody's shares: nobody opens one before all have committed to theirs, and know the same commitments.

Modulo 2^61 - 1 of shares of what is verified, modulo 2^64 of vectors that the parties made of their own records. In a
sum a party that cheats can choose its own summand, which it could have done with records of its own, and nothing else:
it sees the sum of all others' vectors and noise once, and chose its summand before. So a row that counts the others'
noise holds against it. Section 13 of docs/proofs.md has the proof.

A party is a generator without a link or a clock: it yields what it sends and expects, and is sent what came.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import numpy as np

from vertinumpyro.core.errors import BackendError, CheckFailedError
from vertinumpyro.secure import prime_field as field
from vertinumpyro.secure.keystream import KEY_BYTES, ZeroSharing, fresh_key
from vertinumpyro.secure.prime_field import PRIME, ZeroSums

RING = 2**64
HASH_BYTES = 32
_WORD = 8
_MARKS = {PRIME: b"an opening of verified tables   ", RING: b"an opening of committed vectors "}
"""How a record of an opening begins, by the modulus; no share of another sum begins so but one in 2^256."""

_Step = TypeVar("_Step")


class Exchange(NamedTuple):
    """Bytes for each other party; sent back are theirs, by number.

    sizes: how many bytes each of them sends: a message of another length is no message.
    """

    name: str
    outgoing: Mapping[int, bytes]
    sizes: Mapping[int, int]


class Opening(NamedTuple):
    """The message by which this party opens the result; sent back are the others', as long.

    Nothing noisy is open before, and all parties have found the others' rows and commitments right. With `digest` and
    everybody's `commitments`, `result` checks and adds up the messages, now or after a crash.
    """

    message: bytes
    rank: int
    digest: bytes
    commitments: Mapping[int, bytes]
    modulus: int

    def record(self) -> bytes:
        """All that `open_again` needs."""
        everybodys = (self.commitments[rank] for rank in sorted(self.commitments))
        return b"".join([_MARKS[self.modulus], self.digest, *everybodys, self.message])


SumStep: TypeAlias = Exchange | Opening
Send: TypeAlias = Callable[[str, Mapping[int, bytes], Mapping[int, int]], Mapping[int, bytes | bytearray]]
"""(a round's name, the messages, the sizes of the others') -> theirs."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifiedSum:
    """What the parties agree on before they begin.

    :ivar modulus: of the shares, `PRIME` or `RING`.
    """

    num_parties: int
    num_values: int
    modulus: int = PRIME

    def others(self, rank: int) -> list[int]:
        """All parties but one."""
        return [other for other in range(self.num_parties) if other != rank]

    def digest(self) -> bytes:
        """Of all of it."""
        return hash_of(json.dumps(dataclasses.astuple(self)).encode())

    def padded(self, share: np.ndarray, sent: Mapping[int, bytes], received: Mapping[int, bytes]) -> np.ndarray:
        """The share and one of zero: who lacks a key of two others cannot tell theirs from uniform."""
        if self.modulus == RING:
            return share + ZeroSharing(sent, received).share(share.shape)
        return field.add(field.from_integers(share), ZeroSums(dict(sent), dict(received)).share(share.shape))


def add_up(statement: VerifiedSum, rank: int, noisy_share: np.ndarray) -> Generator[SumStep, Any, np.ndarray]:
    """A party: the sum of everybody's shares, int64; modulo p within p / 2.

    :param noisy_share: int64 [num_values], this party's noise in it. Secret.
    :raises BackendError: the parties' statements differ; nothing was opened.
    :raises CheckFailedError: another party did not open what it had committed to, or told others of another commitment.
    """
    others, digest = statement.others(rank), statement.digest()
    sent = {other: fresh_key() for other in others}
    messages = {other: digest + key for other, key in sent.items()}
    found = yield Exchange("keys", messages, dict.fromkeys(others, HASH_BYTES + KEY_BYTES))
    check_public([digest, *(bytes(theirs[:HASH_BYTES]) for theirs in found.values())])
    received = {other: bytes(theirs[HASH_BYTES:]) for other, theirs in found.items()}
    opening = fresh_key() + field.to_bytes(statement.padded(noisy_share, sent, received))
    own = commitment(digest, rank, opening)
    found = yield Exchange("commitments", dict.fromkeys(others, own), dict.fromkeys(others, HASH_BYTES))
    commitments = {**{other: bytes(theirs) for other, theirs in found.items()}, rank: own}
    return (yield from open_committed(digest, statement.modulus, rank, opening, commitments))


def open_committed(
    digest: bytes, modulus: int, rank: int, opening: bytes, commitments: Mapping[int, bytes]
) -> Generator[SumStep, Any, np.ndarray]:
    """Nobody opens before all have the same commitments.

    :param digest: of what all agreed on.
    :param opening: a salt and this party's share, to which its commitment is.
    """
    others = [other for other in sorted(commitments) if other != rank]
    everybodys = hash_of(*(commitments[q] for q in sorted(commitments)))
    theirs = yield Exchange("agreed", dict.fromkeys(others, everybodys), dict.fromkeys(others, HASH_BYTES))
    for other in others:
        check_same(other, "commitments", everybodys, bytes(theirs[other]))
    messages = yield Opening(opening, rank, digest, commitments, modulus)
    return result(digest, commitments, {**messages, rank: opening}, modulus)


def commitment(digest: bytes, rank: int, opening: bytes) -> bytes:
    """To a salt and a share of this statement, which only the party of this number can open."""
    return hash_of(digest, b"%d" % rank, opening)


def result(
    digest: bytes, commitments: Mapping[int, bytes], messages: Mapping[int, bytes], modulus: int = PRIME
) -> np.ndarray:
    """The opened sum of what was committed to, int64.

    :raises CheckFailedError: a party opened something else.
    """
    for rank, message in sorted(messages.items()):
        if commitment(digest, rank, message) != commitments[rank]:
            raise CheckFailedError("opened another share than it had committed to; the release is spent", rank)
    shares = {rank: memoryview(message)[KEY_BYTES:] for rank, message in messages.items()}
    if modulus == RING:
        return np.add.reduce([np.frombuffer(share, "<i8") for share in shares.values()])
    return field.to_integers(functools.reduce(field.add, [_elements(shares[rank], rank) for rank in sorted(shares)]))


def _elements(share: memoryview, rank: int) -> np.ndarray:
    try:
        return field.from_bytes(share, (len(share) // _WORD,))
    except CheckFailedError as error:
        raise CheckFailedError("opened a share that is none; the release is spent", rank) from error


# -- over links, and over none --------------------------------------------------------------------------


def driven(steps: Generator[_Step, Any, np.ndarray], hear: Callable[[_Step], Any]) -> np.ndarray:
    """What the steps come to.

    :param hear: what is sent back for each.
    """
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return end.value
        answer = hear(step)


def answered(
    step: SumStep, send: Send, on_record: Callable[[bytes], None] | None = None
) -> Mapping[int, bytes | bytearray]:
    """What the others say to a step; an opening is on record before it is sent."""
    if isinstance(step, Exchange):
        return send(step.name, step.outgoing, step.sizes)
    if on_record is not None:
        on_record(step.record())
    return _opened(send, step.message, [rank for rank in step.commitments if rank != step.rank])


def sum_of_all(
    statement: VerifiedSum,
    rank: int,
    noisy_share: np.ndarray,
    send: Send,
    on_record: Callable[[bytes], None] | None,
    *,
    is_dry_run: bool,
) -> np.ndarray:
    """`add_up` with the other parties, or with nobody."""

    def hear(step: SumStep) -> Mapping[int, bytes | bytearray]:
        heard = answered(step, send, on_record)
        return nobodys_answer(statement.digest(), statement.num_values, step) if is_dry_run else heard

    return driven(add_up(statement, rank, noisy_share), hear)


def nobodys_answer(digest: bytes, num_values: int, step: SumStep) -> dict[int, bytes]:
    """What a party of a dry run hears in the place of the others' words: all of it passes.

    :param digest: of what all agreed on.
    """
    opening = bytes(KEY_BYTES + _WORD * num_values)
    if isinstance(step, Opening):
        return {other: opening for other in step.commitments if other != step.rank}
    if step.name == "agreed":
        return dict(step.outgoing)
    if step.name == "keys":
        return {other: step.outgoing[other][:-KEY_BYTES] + bytes(KEY_BYTES) for other in step.sizes}
    if step.name == "commitments":
        return {other: commitment(digest, other, opening) for other in step.sizes}
    return {other: bytes(size) for other, size in step.sizes.items()}


def is_opening(record: bytes) -> bool:
    """Whether `open_again` is for it."""
    return record.startswith(tuple(_MARKS.values()))


def open_again(record: bytes, rank: int, num_parties: int, send: Send) -> np.ndarray:
    """The result, by the message that was on record before any party sent one.

    :raises CheckFailedError: a party opened something else than it had committed to.
    """
    sizes = [HASH_BYTES] * (num_parties + 2)  # a mark is as long
    (mark, digest, *commitments), message = cut(record, sizes), record[sum(sizes) :]
    modulus = next(modulus for modulus, of in _MARKS.items() if of == mark)
    messages = _opened(send, message, [other for other in range(num_parties) if other != rank])
    everybodys = {rank: message, **{other: bytes(theirs) for other, theirs in messages.items()}}
    return result(digest, dict(enumerate(commitments)), everybodys, modulus)


def _opened(send: Send, message: bytes, others: Sequence[int]) -> Mapping[int, bytes | bytearray]:
    return send("opening", dict.fromkeys(others, message), dict.fromkeys(others, len(message)))


# -- what parties check of each other --------------------------------------------------------------------


def check_public(digests: Sequence[bytes]) -> None:
    """What all hold for public is the same.

    :raises BackendError: it differs.
    """
    if len(set(digests)) > 1:
        raise BackendError(
            "the parties' public numbers differ: shapes, prior or batch mask. Nothing was opened; run the same "
            "versions on the same kind of processor"
        )


def check_same(party: int, what: str, own: bytes, theirs: bytes) -> None:
    """What must be the same everywhere is.

    :raises CheckFailedError: it is not.
    """
    if own != theirs:
        raise cheated(party, what)


def cheated(party: int, what: str) -> CheckFailedError:
    """The error of a check that fails before anything is open."""
    return CheckFailedError(f"failed a check, or was cheated itself: {what}; nothing was opened", party)


def hash_of(*parts: bytes) -> bytes:
    """SHA-256 of parts, each behind its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Parts of these sizes, one after the other."""
    ends = list(itertools.accumulate(sizes))
    return [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
