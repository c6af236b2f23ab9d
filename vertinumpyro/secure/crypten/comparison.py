"""Comparisons on shares, in a number of rounds that does not depend on how many parties there are.

**[x < t], |x - t| < 2^k.** The dealer draws a uniform r, and y = x - t + r is opened. Bit k of x - t = y - r, which
all bits above it equal, is 1 where x < t. It is y_k xor r_k xor the borrow, [y mod 2^k < r mod 2^k]. The dealer
cuts the lowest k bits of r into chunks of six and shares, by exclusive or, for each chunk the word of 64 bits of which
only the one at the chunk's value is set. Bit y_i of a word is [r_i = y_i] for the public chunk y_i, and the parity of
the bits above it is [r_i > y_i]: sums of shares, so every party finds its own share of both by itself. The borrow is 1
if r_i > y_i for some i and all chunks above it are equal; no two i can have that, so "some" is an exclusive or.

**Conjunctions.** The dealer shares a bit v_i for each variable b_i, and the conjunction of each set of v_i that a term
has. The c_i = b_i xor v_i are opened, all at once. A term is the product of the c_i xor v_i; multiplied out it is a sum
of the dealer's conjunctions with public coefficients. So terms of up to `_FAN_IN` variables take one round.

**Nothing is revealed.** What is opened is x - t + r and b_i xor v_i. r and every v_i are uniform, each is used for one
opening, and a party's shares of whatever follows from them (words, conjunctions, a bit as an integer, its product with
a mask) are uniform and independent of everything that it has seen but for the sum that all parties' shares make. So
whatever P - 1 parties see can be drawn without knowing x: uniform words for what is opened, uniform words for their own
shares. Only as many low bytes of y are sent as matter: modulo 2^8m, r is as uniform.

**Bands.** In which of public bands a sum of the parties' numbers lies, as shares: every threshold's [x < t] comes from
one opening of x under a uniform mask (`comparison`), and the number of thresholds that x has reached is a sum of the
bits as integers. Both are exact. What is opened is uniform; each party ends with a share of the band, uniform without
all others'.

Every function takes and returns this party's shares, NumPy's int64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vertinumpyro.secure.crypten.dealer import CHUNK_BITS, Request, num_chunks, subsets
from vertinumpyro.secure.crypten.number_formats import Bits, Hidden, packed, unpacked

if TYPE_CHECKING:
    from vertinumpyro.secure.crypten.engine import Engine


_FAN_IN = 6
"""Terms of one round: a term of m variables takes 2^m conjunctions."""

_GROUP = 5
"""Numbers whose maximum is found at once: each of ten pairs is compared."""


def below(engine: Engine, x: np.ndarray, bits: int, thresholds: Sequence[int] | np.ndarray = (0,)) -> Bits:
    """[x < t] for each threshold t: [*x.shape, thresholds]; needs |x - t| < 2^bits.

    :param thresholds: the same for all, or with x's last axis before them.
    """
    request = Request("comparison", (x.shape,), (bits, False))
    mask, words, above = engine.dealer.draw(request)
    (opened,) = engine.open_hidden(Hidden(x + mask, num_bytes=opened_bytes(bits)))
    return borrowed(engine, opened[..., None] - np.asarray(thresholds, np.int64), bits, words, above)


def opened_bytes(bits: int) -> int:
    """How many low bytes of a masked number a comparison reads."""
    return min(8, bits // 8 + 1)


def borrowed(engine: Engine, opened: np.ndarray, bits: int, words: np.ndarray, above: np.ndarray) -> Bits:
    """Bit `bits` of opened - r [..., T], for the dealer's words of r [..., chunks] and the plane of its bit `bits`."""
    size = math.prod(opened.shape)
    less, equal = [], []
    for index in range(num_chunks(bits)):
        start = CHUNK_BITS * index
        chunk = ((opened >> start) & ((1 << min(CHUNK_BITS, bits - start)) - 1)).astype(np.uint64)
        shifted = words[..., None, index].view(np.uint64) >> chunk
        equal.append(packed((shifted & np.uint64(1)).reshape(1, size))[0])
        less.append(packed(_parity(shifted >> np.uint64(1)).reshape(1, size))[0])
    top = unpacked(above, (*opened.shape[:-1], 1))
    if engine.rank == 0:
        top = top ^ ((opened >> bits) & 1).astype(np.uint8)
    top = np.broadcast_to(top, opened.shape)
    return Bits(_any_above(engine, less, equal) ^ packed(top.reshape(1, size))[0], opened.shape)


def complement(engine: Engine, bits: Bits) -> Bits:
    """The other bits: one party turns its shares over."""
    return Bits(~bits.planes, bits.shape) if engine.rank == 0 else bits


def as_integers(engine: Engine, bits: Bits) -> np.ndarray:
    """The bits as integers of the ring; one round."""
    mask, integer = engine.dealer.draw(Request("integers", (bits.shape,)))
    (opened,) = engine.open_hidden(Hidden(bits.planes ^ mask, bits=True))
    public = unpacked(opened, bits.shape).astype(np.int64)
    return (1 - 2 * public) * integer + (public if engine.rank == 0 else 0)


def selected(engine: Engine, bits: Bits, values: np.ndarray) -> np.ndarray:
    """b x for bits and values of one shape; one round.

    b = c + (1 - 2c) v with the opened c = b xor v, x = D + a with the opened D = x - a; the dealer shares v and v a.
    """
    mask, shift, integer, product = engine.dealer.draw(Request("selection", (bits.shape,)))
    planes, opened = engine.open_hidden(Hidden(bits.planes ^ mask, bits=True), Hidden(values - shift))
    public = unpacked(planes, bits.shape).astype(np.int64)
    whole = shift + opened if engine.rank == 0 else shift
    return public * whole + (1 - 2 * public) * (integer * opened + product)


def largest(engine: Engine, x: np.ndarray, bits: int) -> np.ndarray:
    """The maximum over the first axis [K, ...]; needs |x_k - x_l| < 2^bits. Four rounds for every factor of five."""
    while (size := len(x)) > 1:
        groups = -(-size // _GROUP)
        width = -(-size // groups)
        whole = np.concatenate([x, x[: groups * width - size]])  # some twice, where the last group is short
        x = _largest_of_few(engine, whole.reshape(groups, width, *x.shape[1:]).swapaxes(0, 1), bits)
    return x[0]


def _largest_of_few(engine: Engine, x: np.ndarray, bits: int) -> np.ndarray:
    """Of all pairs i < j the bit [x_i < x_j]; the winner has won against all, and at a tie the earlier one wins."""
    pairs = list(itertools.combinations(range(len(x)), 2))
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    less = below(engine, x[first] - x[second], bits)
    number = {pair: index for index, pair in enumerate(pairs)}
    terms = [[number[j, i] if j < i else ~number[i, j] for j in range(len(x)) if j != i] for i in range(1, len(x))]
    wins = _conjunctions(engine, less.rows(), terms)
    shape = (len(terms), *x.shape[1:])
    bits_of_wins = packed(np.stack([unpacked(row, shape[1:]).reshape(-1) for row in wins]).reshape(1, -1))[0]
    return x[0] + selected(engine, Bits(bits_of_wins, shape), x[1:] - x[0]).sum(axis=0)


def _any_above(engine: Engine, less: list[np.ndarray], equal: list[np.ndarray]) -> np.ndarray:
    """Planes of [a < b] for numbers in chunks, lowest chunk first, from the planes of each chunk."""
    while (size := len(less)) > 1:
        num_groups = -(-size // _FAN_IN)
        groups = [group.tolist() for group in np.array_split(np.arange(size), num_groups)]
        less_terms = [[[i, *(size + j for j in group if j > i)] for i in group] for group in groups]
        equal_terms = [[size + j for j in group] for group in groups[1:]]
        terms = [*(term for group in less_terms for term in group), *equal_terms]
        found = _conjunctions(engine, np.stack([*less, *equal]), terms)
        ends = np.cumsum([0, *(len(group) for group in groups)])
        less = [np.bitwise_xor.reduce(found[start:end]) for start, end in itertools.pairwise(ends)]
        equal = [equal[0], *found[size:]]  # that of the lowest group is never asked for
    return less[0]


def _conjunctions(engine: Engine, planes: np.ndarray, terms: Sequence[Sequence[int]]) -> np.ndarray:
    """Shares of each term [terms, words] over variables [V, words]; ~i stands for the complement of variable i."""
    variables = sorted({max(i, ~i) for term in terms if len(term) > 1 for i in term})
    number = {variable: index for index, variable in enumerate(variables)}
    literals = [[number[i] if i >= 0 else ~number[~i] for i in term] if len(term) > 1 else [] for term in terms]
    opened, known = np.zeros((0, planes.shape[1]), np.int64), {}
    if variables:
        request = Request("conjunctions", ((len(variables), planes.shape[1]),), [term for term in literals if term])
        masks, products = engine.dealer.draw(request)
        (opened,) = engine.open_hidden(Hidden(planes[variables] ^ masks, bits=True))
        known = {(index,): mask for index, mask in enumerate(masks)}
        known |= dict(zip(subsets(request.option), products, strict=True))
    found = []
    for term, literal in zip(terms, literals, strict=True):
        if literal:
            found.append(_multiplied_out(engine, opened, known, literal))
        else:
            (i,) = term
            found.append(planes[i] if i >= 0 else ~planes[~i] if engine.rank == 0 else planes[~i])
    return np.stack(found)


def _multiplied_out(
    engine: Engine, opened: np.ndarray, known: dict[tuple[int, ...], np.ndarray], literals: Sequence[int]
) -> np.ndarray:
    """The product of (c_i xor v_i): one variable after the other, with or without its v_i."""
    variables = sorted(max(i, ~i) for i in literals)
    one = np.full(opened.shape[1], -1 if engine.rank == 0 else 0, np.int64)
    chosen = itertools.product((0, 1), repeat=len(variables))
    sums = np.stack([known.get(tuple(itertools.compress(variables, c)), one) for c in chosen])
    for variable in reversed(variables):
        public = opened[variable] if variable in literals else ~opened[variable]
        sums = (public & sums[0::2]) ^ sums[1::2]
    return sums[0]


def _parity(words: np.ndarray) -> np.ndarray:
    """The exclusive or of a word's bits."""
    for shift in (32, 16, 8, 4, 2, 1):
        words = words ^ (words >> np.uint64(shift))
    return words & np.uint64(1)


_AT_A_TIME = 2**16
"""Comparisons of one block, so that memory holds some hundred megabytes of the dealer's words at most."""


def bands(engine: Engine, vector: np.ndarray, thresholds: Sequence[int], bits: int) -> np.ndarray:
    """This party's share, int64 [n], of how many thresholds t the sum x of all vectors has reached: x >= t.

    Four rounds for each block of 2^16 comparisons, where `bits` are more than 36, and one less up to that.

    :param vector: this party's numbers, int64 [n]. Secret.
    :param thresholds: public.
    :param bits: so that |x - t| < 2^bits for every x and t that there may be.
    """
    size = max(1, _AT_A_TIME // len(thresholds))
    shares = [np.zeros(0, np.int64)]
    for start in range(0, len(vector), size):
        block = vector[start : start + size]
        engine.dealer.begin(f"bands of {len(block)} in {bits} bits by {len(thresholds)}")
        less = as_integers(engine, below(engine, block, bits, thresholds)).sum(axis=-1)
        shares.append((len(thresholds) if engine.rank == 0 else 0) - less)
    return np.concatenate(shares)
