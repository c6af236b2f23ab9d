"""The correlated randomness that products, truncations and comparisons use up, as the dealer and a party see it.

Every party shares a key stream with the dealer and draws its own shares from it. What must be correlated (a
product, say) is corrected by party 0 alone: the dealer sends it the difference. So the dealer's messages go to
one party, and no message is needed for anybody else's share.

A request is plain data and public: it follows from the shapes of a computation, never from a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vertinumpyro.core.integer_product import pair_products
from vertinumpyro.secure.crypten.keystream import KeyStream

__all__ = ["Request", "correction_size", "deal", "draw"]

_LOW_63 = np.int64(2**63 - 1)


class Request(NamedTuple):
    """One correlation.

    kind: "product" (a, b, c = a op b), "square" (r, r^2), "and" (a, b, c = a & b), "bit" (a bit in both kinds of
        share), "truncation" (r, (r mod 2^63) >> shift, the top bit of r), "one_sided" (a held by all parties but
        `option`, b held by that party, c = a^T b) or "pairs" (a matrix m_p held by each party p, and the products
        m_i^T m_j of all i < j).
    shapes: of a and b, of r, or of each party's matrix.
    option: the operation, the shift, or the owner.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    option: Any = None


def draw(request: Request, stream: KeyStream, rank: int, correction: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """One party's shares: the drawn ones, then the corrected ones, which party 0 has from the dealer."""
    drawn = _drawn(request, stream, rank)
    shapes = _corrected_shapes(request)
    if rank > 0 or correction is None:
        return (*drawn, *_words(request, stream, shapes))
    pieces, start = [], 0
    for shape in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        pieces.append(correction[start : start + size].reshape(shape))
        start += size
    return (*drawn, *pieces)


def deal(request: Request, streams: Sequence[KeyStream]) -> np.ndarray:
    """The dealer's correction for party 0, int64 and flat; draws every party's shares as `draw` does."""
    drawn = [_drawn(request, stream, rank) for rank, stream in enumerate(streams)]
    combine = np.bitwise_xor if request.kind == "and" else np.add
    truth = _truth(request, drawn, combine)
    others = [_words(request, stream, _corrected_shapes(request)) for stream in streams[1:]]
    undo = np.bitwise_xor if request.kind == "and" else np.subtract
    pieces = []
    for index, value in enumerate(truth):
        for shares in others:
            value = undo(value, shares[index])
        pieces.append(np.ascontiguousarray(value, np.int64).ravel())
    return np.concatenate(pieces)


def correction_size(request: Request) -> int:
    """How many words `deal` sends."""
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in _corrected_shapes(request))


def _drawn(request: Request, stream: KeyStream, rank: int) -> tuple[np.ndarray, ...]:
    if request.kind == "bit":
        return (stream.bits(request.shapes[0]),)
    if request.kind == "one_sided":
        return (stream.words(request.shapes[1 if rank == request.option else 0]),)
    if request.kind == "pairs":
        return (stream.words(request.shapes[rank]),)
    return tuple(stream.words(shape) for shape in request.shapes)


def _words(request: Request, stream: KeyStream, shapes: Sequence[tuple[int, ...]]) -> tuple[np.ndarray, ...]:
    return tuple(stream.words(shape) for shape in shapes)


def _corrected_shapes(request: Request) -> list[tuple[int, ...]]:
    match request.kind:
        case "product" if request.option == "matmul":
            a, b = request.shapes
            return [(*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])]
        case "product" | "and":
            return [np.broadcast_shapes(*request.shapes)]
        case "truncation":
            return [request.shapes[0]] * 2
        case "one_sided":
            a, b = request.shapes
            return [(*a[:-2], a[-1], b[-1])]
        case "pairs":
            return [(sum(a[1] * b[1] for a, b in itertools.combinations(request.shapes, 2)),)]
    return [request.shapes[0]]


def _truth(request: Request, drawn: Sequence[tuple[np.ndarray, ...]], combine: np.ufunc) -> tuple[np.ndarray, ...]:
    """The values of what is corrected."""
    if request.kind == "one_sided":
        others = [shares[0] for rank, shares in enumerate(drawn) if rank != request.option]
        a = sum(others, start=np.zeros(request.shapes[0], np.int64))
        return (np.matmul(np.swapaxes(a, -1, -2), drawn[request.option][0]),)
    if request.kind == "pairs":
        return (pair_products([shares[0] for shares in drawn]),)
    if request.kind == "bit":
        return (np.bitwise_xor.reduce([shares[0] for shares in drawn]),)
    values = [combine.reduce([shares[index] for shares in drawn]) for index in range(len(request.shapes))]
    match request.kind:
        case "product":
            return ((np.matmul if request.option == "matmul" else np.multiply)(*values),)
        case "square":
            return (values[0] * values[0],)
        case "and":
            return (values[0] & values[1],)
    return (values[0] & _LOW_63) >> request.option, (values[0] >> 63) & 1
