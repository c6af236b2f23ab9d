"""The paper's formulation between CrypTen's processes: Eqs. 20-30 with Algorithms 2 and 3 on shares, at scale 2^32.

Kept as the reference that the fused protocol is compared with. Engine, dealer and truncation are the same; what
differs is what is computed: every coordinate of every record's gradient, four times through Algorithm 2. As in
`formulation`, Newton's step is corrected and Algorithm 4 is max-subtraction. What a 64-bit ring takes besides:

- Algorithm 2's product of fractions reaches 2^64, so it is taken of 30 bits each, and a product is off by less than
  10 units of 2^-32;
- Algorithm 2's signs are there (`mult`), though an exact truncation does not need them (`signed_mult`, for what
  benchmarks call lean);
- the clip factor comes from one reciprocal square root instead of a root (the paper does not say how) and Algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any

import numpy as np

from paper_protocol.ring import NEWTON_STEPS, PAPER_BITS
from vertinumpyro.secure.crypten import arithmetic, comparison
from vertinumpyro.secure.crypten.engine import Engine, torch
from vertinumpyro.secure.crypten.number_formats import EXP_BITS, LARGEST_BIT, LOG_BITS, WEIGHT_BITS
from vertinumpyro.secure.input_encoding import Layout, PartyInputs, PriorInputs
from vertinumpyro.secure.shape import BatchShape

Product = Callable[[Engine, Any, Any], Any]

_FRACTION_BITS = 30  # of each factor in the product of fractions
_RATIO_BITS = 24  # of ||g||^2 / C^2
_THREE_E = math.floor(3 * math.e * 2**20)
_OFFSET = math.floor(0.003 * 2**PAPER_BITS)


def clipped_noisy_sum(
    engine: Engine,
    shape: BatchShape,
    layout: Layout,
    own: Iterable[PartyInputs],
    prior: PriorInputs,
    mask: np.ndarray,
    noise_share: np.ndarray,
    product: Product,
) -> np.ndarray:
    """The noisy clipped sum at scale 2^32, int64 [D].

    :param product: `mult` or `signed_mult`.
    :param own: `CryptenPaper.encode_party` at this party, block by block.
    """
    share = _tensor(noise_share)
    for block, rows in zip(own, mask, strict=True):
        engine.dealer.begin(f"paper {product.__name__} {shape} {layout}")
        share = share + _clipped_sum(engine, shape, layout, block, prior, rows, product)
    return engine.reveal(share).numpy()


def _clipped_sum(
    engine: Engine,
    shape: BatchShape,
    layout: Layout,
    own: PartyInputs,
    prior: PriorInputs,
    mask: np.ndarray,
    product: Product,
) -> Any:
    """This party's share of the clipped sum over one block."""
    mult = partial(product, engine)
    n, K = shape.batch_size, shape.num_components
    pi, prior_scores = (_held_by(engine, 0, known) for known in (prior.log_weights, prior.scores))
    mats = [_input(engine, rank, own.log_density, (n, K)) for rank in range(engine.num_parties)]
    joint = mult(pi.expand(n, K), reduce(mult, mats))
    q = reciprocal(engine, mult, joint.sum(-1))
    r = mult(q[:, None], joint)
    g = [mult(r[..., None], prior_scores[None]).sum(1)]
    for rank, (d, s) in enumerate(zip(layout.plated, layout.shared, strict=True)):
        plated = mult(joint[..., None], _input(engine, rank, own.plated, (n, K, d)))
        shared = mult(joint[..., None], _input(engine, rank, own.shared, (n, K, s)))
        g += [mult(q[:, None, None], plated).reshape(n, -1), mult(q[:, None], shared.sum(1))]
    records = torch.cat(g, dim=1)
    factor = _clip_factor(engine, mult, records, shape.clip_norm) * _tensor(mask).long()
    return mult(records, factor[:, None]).sum(0)


def is_negative(engine: Engine, x: Any) -> Any:
    """[x < 0]; needs |x| < 2^62."""
    bits = comparison.below(engine, x.contiguous().numpy(), LARGEST_BIT + 1)
    return torch.from_numpy(comparison.as_integers(engine, bits._replace(shape=tuple(x.shape))))


def mult(engine: Engine, a: Any, b: Any) -> Any:
    """Algorithm 2, elementwise with broadcasting: signs, then magnitudes."""
    both = torch.cat([a.reshape(-1), b.reshape(-1)])
    signs = arithmetic.public(engine, -2 * is_negative(engine, both), 1)
    s_a, s_b = _apart(signs, a, b)
    magnitude = signed_mult(engine, *_apart(arithmetic.multiply(signs, both), a, b))
    return arithmetic.multiply(arithmetic.multiply(s_a, s_b), magnitude)


def signed_mult(engine: Engine, a: Any, b: Any) -> Any:
    """Lines 10-12 of Algorithm 2 on numbers with their signs, which an exact truncation takes as well as any."""
    both = torch.cat([a.reshape(-1), b.reshape(-1)])
    whole = arithmetic.truncate(engine, both, PAPER_BITS)
    fraction = both - (whole << PAPER_BITS)
    high = arithmetic.truncate(engine, both, PAPER_BITS - _FRACTION_BITS) - (whole << _FRACTION_BITS)
    (a_int, b_int), (a_frac, b_frac), (a_high, b_high) = (_apart(x, a, b) for x in (whole, fraction, high))
    left = torch.stack(torch.broadcast_tensors(a_int << PAPER_BITS, a_int, a_frac, a_high))
    right = torch.stack(torch.broadcast_tensors(b_int, b_frac, b_int, b_high))
    *wholes, fractions = arithmetic.multiply(left, right)
    return sum(wholes) + arithmetic.truncate(engine, fractions, 2 * _FRACTION_BITS - PAPER_BITS)


def _apart(both: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """What was computed on both at once, in their shapes."""
    first, second = both.split([a.numel(), b.numel()])
    return first.view(a.shape), second.view(b.shape)


def reciprocal(engine: Engine, mult: Callable[[Any, Any], Any], b: Any) -> Any:
    """Algorithm 3's q, about 1 / b: Newton's iteration from 3 exp(1 - 2b) + 0.003."""
    exponential = arithmetic.exp_nonpositive(engine, arithmetic.truncate(engine, -2 * b, PAPER_BITS - LOG_BITS))
    q = arithmetic.truncate(engine, exponential * _THREE_E, EXP_BITS + 20 - PAPER_BITS)
    q = arithmetic.public(engine, q, _OFFSET)
    for _ in range(NEWTON_STEPS):
        q = 2 * q - mult(q, mult(q, b))
    return q


def _clip_factor(engine: Engine, mult: Callable[[Any, Any], Any], g: Any, clip_norm: float) -> Any:
    """1 / max(1, ||g|| / C) (Eq. 28). With C^2 between 2^e and 2^(e + 2), ||g||^2 / C^2 gets `_RATIO_BITS`."""
    e = 2 * (math.frexp(clip_norm)[1] - 1)
    squares, shift = mult(g, g).sum(-1), PAPER_BITS + e - _RATIO_BITS
    scaled = arithmetic.truncate(engine, squares, shift) if shift > 0 else squares << -shift
    ratio = arithmetic.truncate(engine, scaled * math.ceil(2.0 ** (16 + e) / clip_norm**2), 16)
    one = arithmetic.public(engine, torch.zeros_like(ratio), 1 << _RATIO_BITS)
    return arithmetic.inverse_sqrt(engine, arithmetic.larger(engine, ratio, one), _RATIO_BITS) << (
        PAPER_BITS - WEIGHT_BITS
    )


def _held_by(engine: Engine, owner: int, array: np.ndarray) -> Any:
    """This party's share of what one party puts in: all of it there, zeros elsewhere."""
    tensor = _tensor(array)
    return tensor if engine.rank == owner else torch.zeros_like(tensor)


def _input(engine: Engine, owner: int, array: np.ndarray, dims: tuple[int, ...]) -> Any:
    return _held_by(engine, owner, array if engine.rank == owner else np.zeros(dims, np.int64))


def _tensor(array: np.ndarray) -> Any:
    return torch.from_numpy(np.array(array))
