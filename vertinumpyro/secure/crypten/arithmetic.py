"""Arithmetic on shares: exact truncation, maximum, exponential, reciprocal square root, one-sided products.

Every function takes and returns this party's shares, int64 tensors. Where a format is given, a value x stands for
x 2^-bits.

**Truncation never fails.** CrypTen truncates each share by itself, which is wrong by 2^64 with probability
|x| / 2^63: far more often than a privacy statement's delta allows. Here the dealer gives r, (r mod 2^63) >> s and
the top bit of r; x + 2^62 + r is opened, which is uniform. For |x| < 2^62 the sum x + 2^62 has no top bit, so the
carry into it is known from the top bits of r and of the opened value, and the result is x 2^-s with an error
below 1. No term of delta is needed for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vertinumpyro.secure.crypten.comparison import (
    as_integers,
    below,
    borrowed,
    complement,
    largest,
    opened_bytes,
    selected,
)
from vertinumpyro.secure.crypten.dealer import Request
from vertinumpyro.secure.crypten.engine import Engine, beaver, shared_integer, torch
from vertinumpyro.secure.crypten.number_formats import (
    EXP_BITS,
    EXP_REACH,
    EXP_ROUNDING,
    FACTOR_BITS,
    INVERSE_SQRT_BITS,
    LARGEST_BIT,
    LOG_BITS,
    MANTISSA_BITS,
    POWER_BITS,
    POWER_STEP_BITS,
    POWER_STEPS,
    ROOT_COEFFICIENTS,
    WEIGHT_BITS,
    Bits,
    Hidden,
    depth_bits,
    factor_of,
    packed,
    unpacked,
)

_LOW_63 = 2**63 - 1
_HALF = 1 << 62


def multiply(x: Any, y: Any) -> Any:
    """x y on the ring, elementwise with broadcasting."""
    return beaver.mul(shared_integer(x), shared_integer(y)).share


def matmul(x: Any, y: Any) -> Any:
    """x @ y on the ring."""
    return beaver.matmul(shared_integer(x), shared_integer(y)).share


def square(x: Any) -> Any:
    """x^2 on the ring."""
    return beaver.square(shared_integer(x)).share


def truncate(engine: Engine, x: Any, shift: int) -> Any:
    """x 2^-shift with an error below 1, exact for multiples of 2^shift; see the module. Needs |x| < 2^62."""
    drawn = engine.dealer.draw(Request("truncation", (tuple(x.shape),), shift))
    mask, high, top = (torch.from_numpy(np.array(share)) for share in drawn)
    opened = engine.open_masked(public(engine, x + mask, _HALF))
    sign = (opened < 0).long()
    carry = 1 << (63 - shift)
    share = carry * (1 - 2 * sign) * top - high
    return public(engine, share, ((opened & _LOW_63) >> shift) + carry * sign - (_HALF >> shift))


def public(engine: Engine, share: Any, value: Any) -> Any:
    """Add a public value: one party does."""
    return share + value if engine.rank == 0 else share


def maximum(engine: Engine, x: Any) -> Any:
    """The maximum over the last axis, kept, of numbers that the link's z may be."""
    components = np.moveaxis(_array(x), -1, 0)
    return torch.from_numpy(largest(engine, components, depth_bits(engine.num_parties))).unsqueeze(-1)


def larger(engine: Engine, x: Any, y: Any) -> Any:
    """max(x, y) elementwise; needs |x - y| < 2^62."""
    return torch.from_numpy(largest(engine, np.stack([_array(x), _array(y)]), LARGEST_BIT + 1))


def exp_nonpositive(engine: Engine, x: Any) -> Any:
    """exp(x) for x <= 0 with `LOG_BITS`, in `EXP_BITS`; at 0 it is 1 or a unit more, 0 below -`EXP_REACH`.

    u = -x is opened as y = u + r, r uniform. Cut at steps of 2, u modulo 16 is 2 (y_s - r_s mod 8) + y_f - r_f with
    0 <= y_f, r_f < 2, and where u < 14 it is that number itself, which is not negative then. So exp(-u) is exp(r_f)
    times exp(-y_f - 2 (y_s - r_s mod 8)), one of 8 public numbers. The dealer shares exp(r_f) at place r_s of 8
    numbers, zeros elsewhere; the sum over all eight, each times its public number, is exp(-u) with 57 fractional bits.
    It is below exp(2) whatever u is, so `truncate` is right, and [u < 14], by the same mask, is exactly 0 where
    something else came out. Four rounds.
    """
    reached, power = _exponential(engine, x, (EXP_REACH << LOG_BITS,))
    return torch.from_numpy(selected(engine, reached._replace(shape=tuple(x.shape)), power))


def capped_exp(engine: Engine, x: Any) -> Any:
    """exp(min(x, 0)) as `exp_nonpositive` has it, 1 from 0 on, for any x that a link's z may be. Four rounds."""
    reached, power = _exponential(engine, x, (0, EXP_REACH << LOG_BITS))
    above, reaching = np.moveaxis(unpacked(reached.planes, reached.shape), -1, 0)
    one = np.full_like(power, (1 << EXP_BITS) if engine.rank == 0 else 0)
    return torch.from_numpy(chosen(engine, [above ^ reaching, above], [power, one]))


def clipped(engine: Engine, x: Any) -> Any:
    """clip(x, -1, 1), of `LOG_BITS` in `EXP_BITS`, for any x that a link's z may be. Four rounds."""
    return truncate(engine, cut(engine, x, 1 << LOG_BITS, depth_bits(engine.num_parties)), LOG_BITS - EXP_BITS)


def cut(engine: Engine, x: Any, largest: int | np.ndarray, bits: int) -> Any:
    """clip(x, -largest, largest), exactly, for any x within 2^bits of both; three rounds.

    It is -largest, and x + largest from there on, less x - largest from the other end on.

    :param largest: a number, or one for each place on the last axis.
    """
    ends = np.stack([-np.asarray(largest, np.int64), np.asarray(largest, np.int64)], axis=-1)
    less = complement(engine, below(engine, _array(x), bits, ends))
    above, beyond = np.moveaxis(unpacked(less.planes, less.shape), -1, 0)
    low, high = (_array(public(engine, x, torch.from_numpy(np.array(ends[..., side])))) for side in (1, 0))
    found = torch.from_numpy(chosen(engine, [above, beyond], [low, -high]))
    return public(engine, found, torch.from_numpy(np.array(ends[..., 0])))


def chosen(engine: Engine, bits: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of b x over pairs of arrays: shares by exclusive or of bits 0 or 1, and of numbers; one round."""
    planes = packed(np.stack(bits).reshape(1, -1))[0]
    return selected(engine, Bits(planes, (len(bits), *values[0].shape)), np.stack(values)).sum(axis=0)


def _exponential(engine: Engine, x: Any, thresholds: Sequence[int]) -> tuple[Bits, np.ndarray]:
    """[-x < t] for each threshold [..., T], and exp(x) in `EXP_BITS` where 0 <= -x < `EXP_REACH`."""
    bits = depth_bits(engine.num_parties)
    depth = _array(-x)
    mask, words, above, powers = engine.dealer.draw(Request("comparison", (depth.shape,), (bits, True)))
    (opened,) = engine.open_hidden(Hidden(depth + mask, num_bytes=opened_bytes(bits)))
    reached = borrowed(engine, opened[..., None] - np.asarray(thresholds, np.int64), bits, words, above)
    steps = (opened[..., None] >> POWER_STEP_BITS) - np.arange(POWER_STEPS)
    low = opened[..., None] & ((1 << POWER_STEP_BITS) - 1)
    factors = factor_of((steps & (POWER_STEPS - 1)) << POWER_STEP_BITS | low)
    product = public(engine, (factors * powers).sum(-1), round(EXP_ROUNDING * 2.0 ** (POWER_BITS + FACTOR_BITS)))
    return reached, truncate(engine, torch.from_numpy(product), POWER_BITS + FACTOR_BITS - EXP_BITS).numpy()


def inverse_sqrt(engine: Engine, value: Any, bits: int) -> Any:
    """1 / sqrt(value), at most, for 1 <= value in `bits`, below 2^62 as an integer; in `WEIGHT_BITS`.

    The position j of the leading bit scales the value into [1, 2): value = m 2^(j - bits). A quadratic and one
    step of Newton give 1 / sqrt(m), and 2^-((j - bits) / 2) comes from the bits, rounded down.
    """
    leading = _leading_bit(engine, value, bits)
    positions = range(bits, LARGEST_BIT + 1)
    up = torch.tensor([1 << (LARGEST_BIT - j) for j in positions])
    down = torch.tensor([math.floor(2.0 ** (WEIGHT_BITS - (j - bits) / 2)) for j in positions])
    m = truncate(engine, multiply(value, leading @ up), LARGEST_BIT - MANTISSA_BITS)
    root = _root_of_mantissa(engine, m)
    w = truncate(engine, multiply(root, leading @ down), INVERSE_SQRT_BITS)
    return public(engine, w, -4)  # whatever truncation added, above all errors of `root`


def _root_of_mantissa(engine: Engine, m: Any) -> Any:
    """1 / sqrt(m) for m in [1, 2] with `MANTISSA_BITS`, in `INVERSE_SQRT_BITS`."""
    c0, c1, c2 = (round(c * 2.0**MANTISSA_BITS) for c in ROOT_COEFFICIENTS)
    m2 = truncate(engine, square(m), MANTISSA_BITS)
    scale = 1 << (INVERSE_SQRT_BITS - MANTISSA_BITS)
    guess = public(engine, truncate(engine, c1 * m + c2 * m2, MANTISSA_BITS), c0) * scale
    squared = truncate(engine, square(guess), INVERSE_SQRT_BITS)
    near_one = truncate(engine, multiply(m, squared), MANTISSA_BITS)
    return truncate(engine, multiply(guess, public(engine, -near_one, 3 << INVERSE_SQRT_BITS)), INVERSE_SQRT_BITS + 1)


def _leading_bit(engine: Engine, value: Any, bits: int) -> Any:
    """[..., bits .. LARGEST_BIT]: shares of 1 at the value's leading bit and 0 elsewhere, for a value >= 2^bits.

    The differences of [value >= 2^j], all from one masked opening.
    """
    powers = [1 << j for j in range(bits + 1, LARGEST_BIT + 1)]
    reached = as_integers(engine, complement(engine, below(engine, _array(value), LARGEST_BIT + 1, powers)))
    ends = [np.zeros((*value.shape, 1), np.int64)] * 2
    if engine.rank == 0:
        ends[0] = ends[0] + 1
    return torch.from_numpy(-np.diff(np.concatenate([ends[0], reached, ends[1]], axis=-1)))


class OneSided(NamedTuple):
    """A product weights^T matrix of which the matrix is one party's own.

    owner:   whose it is.
    weights: this party's share of them [..., n, a].
    matrix:  the matrix [..., n, b] at its owner; never looked at elsewhere.
    shape:   of the matrix, public.
    """

    owner: int
    weights: Any
    matrix: Any
    shape: tuple[int, ...]


def one_sided(engine: Engine, products: Sequence[OneSided]) -> list[Any]:
    """Shares of all these products; one round. The owner's own part of the weights stays with it.

    A matrix without columns has nothing to multiply: nothing is sent for it.
    """
    wanted = [p for p in products if p.shape[-1]]
    requests = [Request("one_sided", (tuple(p.weights.shape), p.shape), p.owner) for p in wanted]
    drawn = [tuple(torch.from_numpy(np.array(s)) for s in engine.dealer.draw(request)) for request in requests]
    me, others = engine.rank, [rank for rank in range(engine.num_parties) if rank != engine.rank]
    hidden = [
        p.matrix - mask if p.owner == me else p.weights - mask for p, (mask, _) in zip(wanted, drawn, strict=True)
    ]
    outgoing, sizes = {}, {}
    for rank in others:  # a matrix goes to all others, weights go to the matrix's owner
        masked = [h.reshape(-1) for p, h in zip(wanted, hidden, strict=True) if p.owner in (me, rank)]
        outgoing[rank] = torch.cat([torch.zeros(0, dtype=torch.long), *masked])
        sizes[rank] = [_size(p, me) for p in wanted if p.owner in (me, rank)]
    received = engine.swap(outgoing, {rank: sum(size) for rank, size in sizes.items()}) if wanted else {}
    pieces = {}
    for rank, words in received.items():
        engine.observed("masked", words)
        pieces[rank] = iter(torch.from_numpy(words).split(sizes[rank]))
    masks = iter(drawn)
    found = []
    for p in products:
        if not p.shape[-1]:
            found.append(torch.zeros((*p.weights.mT.shape[:-1], 0), dtype=torch.long))
            continue
        mask, corrected = next(masks)
        if p.owner == me:
            weights = p.weights.clone()
            for rank in others:
                weights += next(pieces[rank]).view(p.weights.shape)
            found.append(corrected + weights.mT @ p.matrix)
        else:
            found.append(corrected + mask.mT @ next(pieces[p.owner]).view(p.shape))
    return found


def _size(product: OneSided, me: int) -> int:
    """How many words a peer sends: its part of the weights to the owner, its matrix to all others."""
    return product.weights.numel() if product.owner == me else math.prod(product.shape)


def _array(tensor: Any) -> np.ndarray:
    return tensor.contiguous().numpy()
