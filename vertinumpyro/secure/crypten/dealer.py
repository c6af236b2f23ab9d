"""The dealer: a process of its own that knows no data, and a party's side of it.

Party 0 asks. The first time that a computation runs, it asks for one correlation after another, and the dealer
keeps the list. From then on one message asks for the whole list, and it is sent a step ahead: while step t runs,
the dealer prepares step t + 1. So a step waits for the dealer once at most, not at every product; and not before it
needs what the dealer knows.

**Correlations.** The randomness that products, truncations and comparisons use up, as the dealer and a party see it.
Every party shares a key stream with the dealer and draws its own shares from it. What must be correlated (a
product, say) is corrected by party 0 alone: the dealer sends it the difference. So the dealer's messages go to
one party, and no message is needed for anybody else's share.

A request is plain data and public: it follows from the shapes of a computation, never from a value. Numbers are
shared by addition modulo 2^64, bits by exclusive or.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

from vertinumpyro.core.errors import BackendError
from vertinumpyro.core.row_blocks import pair_products
from vertinumpyro.secure.computation import computation_of
from vertinumpyro.secure.crypten.number_formats import (
    NUM_WAVES,
    POWER_STEP_BITS,
    POWER_STEPS,
    packed,
    plane_words,
    power_of,
    unpacked,
    waves_of,
)
from vertinumpyro.secure.keystream import KEY_BYTES, KeyStream, derived_key, fresh_key
from vertinumpyro.secure.verified_tables import deal as deal_tables
from vertinumpyro.secure.verified_tables import statement_of
from vertinumpyro.transport import Link, LoopbackLink, Traffic

CHUNK_BITS = 6
"""A word has a bit for each value of so many bits of a mask."""

_LOW_63 = np.int64(2**63 - 1)


class Request(NamedTuple):
    """One correlation.

    kind:

    - "product": a, b; c = a op b. `option` is the operation.
    - "square": r; r^2.
    - "truncation": r; (r mod 2^63) >> shift and the top bit of r. `option` is the shift.
    - "one_sided": a, held by all parties but `option`, or b, held by that party; c = a^T b.
    - "pairs": a matrix m_p, held by party p; the products m_i^T m_j of all i < j.
    - "comparison": r; for each `CHUNK_BITS` of its lowest bits the word with one bit, at their value; the bit above
      them. `option` is how many lowest bits, and what there is besides: True for powers, exp of r's low digits, see
      `_powers`; "waves" for `waves_of`.
    - "conjunctions": bits [V, words]; the conjunctions of all `subsets`. `option` is the terms.
    - "integers": bits; the same as integers.
    - "selection": bits b, and a number a for each; b as an integer, and b a.

    shapes: of a and b, of r, of each party's matrix, or of the array of bits.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    option: Any = None


class _Part(NamedTuple):
    shape: tuple[int, ...]
    bits: bool = False


def drawn(request: Request, stream: KeyStream, rank: int) -> tuple[np.ndarray, ...]:
    """One party's shares that are uniform."""
    return _words(stream, _drawn(request, rank))


def corrected(request: Request, stream: KeyStream, correction: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """One party's shares that depend on the others', after `drawn`.

    :param correction: from the dealer, for party 0; None at all others, which draw these, too.
    """
    parts = _corrected(request)
    if correction is None:
        return _words(stream, parts)
    pieces, start = [], 0
    for part in parts:
        size = math.prod(part.shape)
        pieces.append(correction[start : start + size].reshape(part.shape))
        start += size
    return tuple(pieces)


def deal(request: Request, streams: Sequence[KeyStream]) -> np.ndarray:
    """The dealer's correction for party 0, int64 and flat; draws every party's shares as the parties do."""
    shares = [drawn(request, stream, rank) for rank, stream in enumerate(streams)]
    parts = _corrected(request)
    others = [_words(stream, parts) for stream in streams[1:]]
    pieces = []
    for index, (value, part) in enumerate(zip(_truth(request, shares), parts, strict=True)):
        for other in others:
            value = value ^ other[index] if part.bits else value - other[index]
        pieces.append(np.ascontiguousarray(value, np.int64).ravel())
    return np.concatenate(pieces)


def correction_size(request: Request) -> int:
    """How many words `deal` sends."""
    return sum(math.prod(part.shape) for part in _corrected(request))


def num_chunks(bits: int) -> int:
    """Into how many chunks so many bits are cut."""
    return -(-bits // CHUNK_BITS)


def subsets(terms: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Of each term's variables, all sets of two or more; a set comes after those of its first members.

    A term is the numbers of variables; the complement of variable i is ~i.
    """
    return _subsets(tuple(tuple(term) for term in terms))


@functools.cache
def _subsets(terms: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    variables = [sorted(max(i, ~i) for i in term) for term in terms]
    found = {c for v in variables for size in range(2, len(v) + 1) for c in itertools.combinations(v, size)}
    return sorted(found, key=lambda subset: (len(subset), subset))


def _words(stream: KeyStream, parts: Sequence[_Part]) -> tuple[np.ndarray, ...]:
    return tuple(stream.words(part.shape) for part in parts)


def _drawn(request: Request, rank: int) -> list[_Part]:
    shape = request.shapes[0]
    match request.kind:
        case "one_sided":
            return [_Part(request.shapes[1 if rank == request.option else 0])]
        case "pairs":
            return [_Part(request.shapes[rank])]
        case "conjunctions":
            return [_Part(shape, bits=True)]
        case "integers":
            return [_plane(shape)]
        case "selection":
            return [_plane(shape), _Part(shape)]
    return [_Part(shape) for shape in request.shapes]


def _corrected(request: Request) -> list[_Part]:
    shape = request.shapes[0]
    match request.kind:
        case "product" if request.option == "matmul":
            a, b = request.shapes
            return [_Part((*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]))]
        case "product":
            return [_Part(np.broadcast_shapes(*request.shapes))]
        case "truncation" | "selection":
            return [_Part(shape)] * 2
        case "one_sided":
            a, b = request.shapes
            return [_Part((*a[:-2], a[-1], b[-1]))]
        case "pairs":
            return [_Part((sum(a[1] * b[1] for a, b in itertools.combinations(request.shapes, 2)),))]
        case "comparison":
            bits, beside = request.option
            parts = [_Part((*shape, num_chunks(bits)), bits=True), _plane(shape)]
            if not beside:
                return parts
            return [*parts, _Part((*shape, 2, NUM_WAVES) if beside == "waves" else (*shape, POWER_STEPS))]
        case "conjunctions":
            return [_Part((len(subsets(request.option)), shape[1]), bits=True)]
    return [_Part(shape)]


def _plane(shape: tuple[int, ...]) -> _Part:
    return _Part((plane_words(math.prod(shape)),), bits=True)


def _truth(request: Request, drawn: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The values of what is corrected."""
    shape = request.shapes[0]
    if request.kind == "one_sided":
        others = [shares[0] for rank, shares in enumerate(drawn) if rank != request.option]
        a = sum(others, start=np.zeros(shape, np.int64))
        return (np.matmul(np.swapaxes(a, -1, -2), drawn[request.option][0]),)
    if request.kind == "pairs":
        return (pair_products([shares[0] for shares in drawn]),)
    parts = enumerate(_drawn(request, 0))
    values = [
        (np.bitwise_xor if part.bits else np.add).reduce([shares[index] for shares in drawn]) for index, part in parts
    ]
    match request.kind:
        case "product":
            return ((np.matmul if request.option == "matmul" else np.multiply)(*values),)
        case "square":
            return (values[0] * values[0],)
        case "truncation":
            return (values[0] & _LOW_63) >> request.option, (values[0] >> 63) & 1
        case "comparison":
            bits, beside = request.option
            known = (_chunks(values[0], bits), packed((values[0][None] >> bits) & 1)[0])
            if not beside:
                return known
            return (*known, waves_of(values[0]) if beside == "waves" else _powers(values[0]))
        case "conjunctions":
            return (_conjunctions(values[0], subsets(request.option)),)
    integer = unpacked(values[0], shape).astype(np.int64)
    return (integer,) if request.kind == "integers" else (integer, integer * values[1])


def _chunks(r: np.ndarray, bits: int) -> np.ndarray:
    """[..., chunks]: words with one bit, at the value of each chunk of r's lowest bits."""
    starts = range(0, bits, CHUNK_BITS)
    values = [(r >> start) & ((1 << min(CHUNK_BITS, bits - start)) - 1) for start in starts]
    return (np.uint64(1) << np.stack(values, axis=-1).astype(np.uint64)).view(np.int64)


def _powers(r: np.ndarray) -> np.ndarray:
    """[..., POWER_STEPS]: exp of r's low digits at the place of its next ones, zeros elsewhere."""
    place = (r >> POWER_STEP_BITS) & (POWER_STEPS - 1)
    return np.where(np.arange(POWER_STEPS) == place[..., None], power_of(r)[..., None], 0)


def _conjunctions(planes: np.ndarray, wanted: Sequence[tuple[int, ...]]) -> np.ndarray:
    found: dict[tuple[int, ...], np.ndarray] = {(index,): plane for index, plane in enumerate(planes)}
    for subset in wanted:
        found[subset] = found[subset[:-1]] & planes[subset[-1]]
    return np.stack([found[subset] for subset in wanted])


_ALIKE, _DIFFERENT = b"\1", b"\0"
_REQUEST_BYTES = 2**20  # the largest request: the name of a computation, or shapes, or all columns' cells


@runtime_checkable
class Correlations(Protocol):
    """What a computation needs of a dealer: this party's shares, in the order of the computation.

    traffic: between this party and the dealer.
    """

    traffic: Traffic

    def begin(self, program: str) -> None:
        """Start a computation; `program` names all that its requests depend on."""
        ...

    def drawn(self, request: Request) -> tuple[np.ndarray, ...]:
        """This party's shares of the next correlation that nobody else need know; the dealer begins with the others."""
        ...

    def corrected(self, request: Request) -> tuple[np.ndarray, ...]:
        """This party's shares of the same that the dealer corrects."""
        ...

    def draw(self, request: Request) -> tuple[np.ndarray, ...]:
        """Both at once."""
        return (*self.drawn(request), *self.corrected(request))


def serve(links: list[Link]) -> None:
    """Deal until party 0 says that it is over. `links` are in the parties' order.

    Each party's first message is the key that it shares with the dealer.
    """
    keys = [bytes(link.receive(size=KEY_BYTES)) for link in links]
    programs: dict[str, list[Request]] = {}
    streams: list[KeyStream] = []
    recording: list[Request] = []
    while message := json.loads(links[0].receive(limit=_REQUEST_BYTES)):
        match message["ask"]:
            case "record":
                streams = _streams(keys, int(message["call"]), message["program"])
                recording = programs[message["program"]] = []
            case "one":
                request = _request(message["request"])
                recording.append(request)
                links[0].send(deal(request, streams).tobytes())
            case "tables":
                _deal_tables(links, message)
            case "compare":
                _compare(links, message)
            case "all":
                streams = _streams(keys, int(message["call"]), message["program"])
                dealt = [deal(request, streams) for request in programs[message["program"]]]
                links[0].send(np.concatenate([np.zeros(0, np.int64), *dealt]).tobytes())


def _compare(links: Sequence[Link], asked: dict[str, Any]) -> None:
    """Tells all whether they gave the same digest, and nothing else of it."""
    others = [json.loads(link.receive(limit=_REQUEST_BYTES)) for link in links[1:]]
    for link in links:
        link.send(_ALIKE if all(other == asked for other in others) else _DIFFERENT)


def _deal_tables(links: Sequence[Link], asked: dict[str, Any]) -> None:
    """Masks of tables that are verified, under keys for them alone. Every party asks, as none is trusted to.

    :raises BackendError: they asked for different things.
    """
    others = [json.loads(link.receive(limit=_REQUEST_BYTES)) for link in links[1:]]
    if any(other != asked for other in others):
        raise BackendError("the parties asked the dealer for different tables; nothing was dealt")
    for messages in deal_tables(statement_of(computation_of(asked["tables"])), [fresh_key() for _ in links]):
        for link, message in zip(links, messages, strict=True):
            link.send(message)


@final
class DealerClient(Correlations):
    """One party's side: its shares of every correlation, in the order of the computation.

    :param key: shared with the dealer.
    :param link: to the dealer; only party 0 uses it.
    :param prefetch: False asks for every correlation when it is needed, as CrypTen does; to measure the gain.
    """

    def __init__(self, key: bytes, rank: int, link: Link, *, prefetch: bool = True) -> None:
        self._key, self._rank, self._link, self._prefetch = key, rank, link, prefetch
        self.traffic = link.traffic = Traffic()
        link.send(key)
        self._call = 0
        self._program = ""
        self._words: dict[str, int] = {}  # that the dealer corrects, by program
        self._ahead: tuple[int, str] | None = None
        self._due: int | None = None  # words of this call that are on their way
        self._corrections: np.ndarray | None = None
        self._next = 0
        self._stream: KeyStream | None = None

    def begin(self, program: str) -> None:
        self._read_due()  # of a computation that needed none of it
        self._call, self._program = self._call + 1, program
        self._stream = _stream(self._key, self._call, program)
        self._corrections, self._next = None, 0
        if self._rank > 0:
            return
        if self._ahead != (self._call, program):
            self._drop_ahead()
        ahead, self._ahead = self._ahead, None
        if program not in self._words or not self._prefetch:
            self._words[program] = 0
            self._ask("record", self._call)
            return
        if ahead is None:
            self._ask("all", self._call)
        self._ask("all", self._call + 1)
        self._ahead = (self._call + 1, program)
        self._due = self._words[program]

    def drawn(self, request: Request) -> tuple[np.ndarray, ...]:
        assert self._stream is not None
        if self._rank == 0 and self._due is None and self._corrections is None:
            self._words[self._program] += correction_size(request)
            self._send(ask="one", request=request)
        return drawn(request, self._stream, self._rank)

    def corrected(self, request: Request) -> tuple[np.ndarray, ...]:
        assert self._stream is not None
        return corrected(request, self._stream, self._correction(request) if self._rank == 0 else None)

    def ask_tables(self, fields: Mapping[str, Any]) -> None:
        """Ask for the masks of tables that are verified. All parties ask for the same: `computation.described`."""
        self._read_due()
        self._drop_ahead()
        self._send(ask="tables", tables=fields)

    def all_hold(self, digest: bytes) -> bool:
        """Whether all parties ask with the same digest; in a dry run they do."""
        self._send(ask="compare", digest=digest.hex())
        return self._link.receive(size=len(_ALIKE)) == _ALIKE or self.is_dry_run

    def next_of_tables(self, size: int) -> bytearray:
        """What the dealer says next about them; only its first word is waited for."""
        self.traffic.rounds -= size != KEY_BYTES
        return self._link.receive(size=size)

    @property
    def is_dry_run(self) -> bool:
        """Whether there is no dealer."""
        return isinstance(self._link, LoopbackLink)

    def _drop_ahead(self) -> None:
        """What was prepared for a computation that does not come: its keys are never used again."""
        if self._ahead is not None:
            self._receive(self._words[self._ahead[1]])
            self.traffic.rounds -= 1  # sent long ago, nobody waits for it
            self._ahead = None

    def close(self) -> None:
        """Let the dealer go."""
        if self._rank == 0:
            self._link.send(b"null")

    def _correction(self, request: Request) -> np.ndarray:
        self._read_due()
        if self._corrections is None:
            return self._receive(correction_size(request))
        start, self._next = self._next, self._next + correction_size(request)
        if self._next > len(self._corrections):
            raise BackendError("the computation asks for more than it did the first time")
        return self._corrections[start : self._next]

    def _read_due(self) -> None:
        if self._due is not None:
            self._corrections, self._due = self._receive(self._due), None

    def _ask(self, what: str, call: int) -> None:
        self._send(ask=what, call=f"{call:020d}", program=self._program)  # as many bytes at every call

    def _send(self, **message: object) -> None:
        self._link.send(json.dumps(message).encode())

    def _receive(self, words: int) -> np.ndarray:
        return np.frombuffer(self._link.receive(size=8 * words), "<i8")


@final
class FirstPartyDealer(Correlations):
    """Party 0 deals to everyone, so it can read everything: NOT secure, and without a third process's cost.

    :param key: shared with party 0; party 0's own, at party 0.
    :param keys: every party's key, in order, at party 0; empty elsewhere.
    """

    def __init__(self, key: bytes, rank: int, keys: list[bytes]) -> None:
        self.traffic = Traffic()  # there is nobody to talk to
        self._key, self._rank, self._keys = key, rank, keys
        self._call = 0
        self._stream: KeyStream | None = None
        self._streams: list[KeyStream] = []

    def begin(self, program: str) -> None:
        self._call += 1
        self._stream = _stream(self._key, self._call, program)
        self._streams = _streams(self._keys, self._call, program)

    def drawn(self, request: Request) -> tuple[np.ndarray, ...]:
        assert self._stream is not None
        return drawn(request, self._stream, self._rank)

    def corrected(self, request: Request) -> tuple[np.ndarray, ...]:
        assert self._stream is not None
        return corrected(request, self._stream, deal(request, self._streams) if self._rank == 0 else None)


def _request(fields: list) -> Request:
    kind, shapes, option = fields
    return Request(kind, tuple(tuple(shape) for shape in shapes), option)


def _stream(key: bytes, call: int, program: str) -> KeyStream:
    """A stream for one call of one computation: what was dealt for a call that never came is never used again."""
    return KeyStream(derived_key(key, f"{call} {program}"))


def _streams(keys: list[bytes], call: int, program: str) -> list[KeyStream]:
    return [_stream(key, call, program) for key in keys]
