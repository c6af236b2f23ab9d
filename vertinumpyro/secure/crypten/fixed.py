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
from typing import Any

import numpy as np

from vertinumpyro.secure.crypten.correlations import Request
from vertinumpyro.secure.crypten.engine import (
    BinarySharedTensor,
    Engine,
    beaver,
    bits_of,
    is_negative,
    shared_integer,
    torch,
)
from vertinumpyro.secure.crypten.formats import (
    EXP_BITS,
    EXP_REACH,
    EXP_SQUARINGS,
    INVERSE_SQRT_BITS,
    LARGEST_BIT,
    LOG_BITS,
    MANTISSA_BITS,
    ROOT_COEFFICIENTS,
    WEIGHT_BITS,
)

__all__ = ["exp_nonpositive", "inverse_sqrt", "matmul", "maximum", "multiply", "one_sided", "square", "truncate"]

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


def maximum(x: Any) -> Any:
    """The maximum over the last axis, kept, by a tournament of ceil(log2 K) rounds of comparisons."""
    while (size := x.shape[-1]) > 1:
        half = size // 2
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        x = torch.cat([larger(a, b), rest], dim=-1)
    return x


def larger(x: Any, y: Any) -> Any:
    """max(x, y) elementwise; needs |x - y| < 2^63."""
    return x + multiply(is_negative(x - y), y - x)


def exp_nonpositive(engine: Engine, x: Any) -> Any:
    """exp(x) for x <= 0 with `LOG_BITS`, in `EXP_BITS`; between 0 and 1, 1 at 0, 0 below -`EXP_REACH`.

    exp(x) = (1 + t + t^2 / 2)^512 with t = x / 512, so 1 + t + t^2 / 2 = ((1 + t)^2 + 1) / 2 and nine squarings.
    `formats.EXP_ERROR` bounds the error. x in `LOG_BITS` and t in 30 bits are the same integer. Below -`EXP_REACH` a
    square may be too large for `truncate` and the power any word of the ring: `reached` is exactly 0 there.
    """
    reached = public(engine, -is_negative(public(engine, x, EXP_REACH << LOG_BITS)), 1)
    one = 1 << WEIGHT_BITS
    power = truncate(engine, square(public(engine, x, one)), WEIGHT_BITS + 1)
    power = public(engine, power, one // 2)
    for _ in range(EXP_SQUARINGS - 1):
        power = truncate(engine, square(power), WEIGHT_BITS)
    power = truncate(engine, square(power), 2 * WEIGHT_BITS - EXP_BITS)
    return multiply(reached, power)


def inverse_sqrt(engine: Engine, value: Any, bits: int) -> Any:
    """1 / sqrt(value), at most, for 1 <= value in `bits`, below 2^62 as an integer; in `WEIGHT_BITS`.

    The position j of the leading bit scales the value into [1, 2): value = m 2^(j - bits). A quadratic and one
    step of Newton give 1 / sqrt(m), and 2^-((j - bits) / 2) comes from the bits, rounded down.
    """
    leading = _leading_bit(value, bits)
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


def _leading_bit(value: Any, bits: int) -> Any:
    """[..., bits .. LARGEST_BIT]: shares of 1 at the value's leading bit and 0 elsewhere."""
    x = bits_of(value)
    for shift in (1, 2, 4, 8, 16, 32):
        lower = x.clone()
        lower.share = x.share >> shift
        x = x ^ lower ^ (x & lower)
    above = x.clone()
    above.share = x.share >> 1
    leading = x ^ above
    planes = [leading.share >> j & 1 for j in range(bits, LARGEST_BIT + 1)]
    stacked = BinarySharedTensor.from_shares(torch.stack(planes, dim=-1), precision=0)
    return beaver.B2A_single_bit(stacked).share


def one_sided(engine: Engine, weights: list[Any], matrices: list[Any | None], shapes: list[tuple[int, ...]]) -> list:
    """Shares of weights_p^T matrices_p for every party p, whose matrix nobody else knows; one round.

    :param weights: for each p, this party's share of weights_p [..., n, a]; party p's own part stays with it.
    :param matrices: for each p, the matrix [..., n, b] if this party is p, otherwise None.
    :param shapes: the shape of each matrix, public.
    """
    requests = [
        Request("one_sided", (tuple(weight.shape), shape), owner)
        for owner, (weight, shape) in enumerate(zip(weights, shapes, strict=True))
    ]
    drawn = [tuple(torch.from_numpy(np.array(s)) for s in engine.dealer.draw(request)) for request in requests]
    me = engine.rank
    hidden = matrices[me] - drawn[me][0]
    outgoing = {
        rank: torch.cat([hidden.reshape(-1), (weights[rank] - drawn[rank][0]).reshape(-1)])
        for rank in range(engine.num_parties)
        if rank != me
    }
    expected = {rank: math.prod(shapes[rank]) + weights[me].numel() for rank in outgoing}
    received = {rank: torch.from_numpy(words) for rank, words in engine.swap(outgoing, expected).items()}
    own, theirs = weights[me], {}
    for rank, words in received.items():
        engine.observed("masked", words)
        size = math.prod(shapes[rank])
        theirs[rank] = words[:size].view(shapes[rank])
        own = own + words[size:].view(own.shape)
    return [
        corrected + (own.mT @ matrices[me] if owner == me else mask.mT @ theirs[owner])
        for owner, (mask, corrected) in enumerate(drawn)
    ]
