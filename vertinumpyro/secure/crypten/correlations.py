"""The correlated randomness that products, truncations and comparisons use up, as the dealer and a party see it.

Every party shares a key stream with the dealer and draws its own shares from it. What must be correlated (a
product, say) is corrected by party 0 alone: the dealer sends it the difference. So the dealer's messages go to
one party, and no message is needed for anybody else's share.

A request is plain data and public: it follows from the shapes of a computation, never from a value. Numbers are
shared by addition modulo 2^64, bits by exclusive or.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vertinumpyro.core.integer_product import pair_products
from vertinumpyro.secure.crypten.formats import POWER_STEP_BITS, POWER_STEPS, power_of
from vertinumpyro.secure.crypten.planes import packed, plane_words, unpacked
from vertinumpyro.secure.crypten.wave_table import NUM_WAVES, waves_of
from vertinumpyro.secure.keystream import KeyStream

__all__ = ["CHUNK_BITS", "Request", "corrected", "correction_size", "deal", "drawn", "num_chunks", "subsets"]

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
      `_powers`; "waves" for `wave_table.waves_of`.
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
