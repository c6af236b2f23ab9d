"""The three protocols from one party's side. Every party calls the same function with its own inputs.

Only the last line of each opens anything but uniformly masked values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.crypten import fixed
from vertinumpyro.secure.crypten.engine import Engine, torch
from vertinumpyro.secure.crypten.formats import EXP_BITS, norm_bits
from vertinumpyro.secure.processes.inputs import Layout, PartyInputs, PriorInputs

__all__ = ["clipped_noisy_sum", "noisy_cross_product", "noisy_sum"]


def clipped_noisy_sum(
    engine: Engine,
    shape: BatchShape,
    layout: Layout,
    own: PartyInputs,
    prior: PriorInputs,
    mask: np.ndarray,
    noise_share: np.ndarray,
) -> np.ndarray:
    """The noisy clipped sum on its grid, int64 [D].

    :param own: this party's numbers.
    :param mask: [n], False for padding; every party knows it.
    :param noise_share: this party's noise, int64 [D].
    """
    engine.dealer.begin(f"clipped_noisy_sum {shape} {layout}")
    own = PartyInputs(*(_tensor(array) for array in own))
    e = _responsibilities(engine, own, prior)
    norms = _squared_norm(engine, shape, layout, e, own, prior)
    W = _weights(engine, shape, e, norms) * _tensor(mask).long()[:, None]
    share = _weighted_scores(engine, layout, W, own, prior)
    return engine.reveal(share + _tensor(noise_share)).numpy()


def noisy_cross_product(
    engine: Engine, matrix: np.ndarray, shapes: tuple[tuple[int, int], tuple[int, int]], noise_share: np.ndarray
) -> np.ndarray:
    """a^T b + noise modulo 2^64; party 0 gives a [n, da], party 1 b [n, db], others give an empty matrix.

    :param shapes: of a and b, public.
    """
    engine.dealer.begin(f"noisy_cross_product {shapes}")
    own = _tensor(matrix)
    weights = [torch.zeros(shapes[0], dtype=torch.long) for _ in range(engine.num_parties)]
    others = [(shapes[0][0], 0)] * engine.num_parties
    owned: list[Any] = [own[:, :0] if rank == engine.rank else None for rank in range(engine.num_parties)]
    if engine.rank == 0:
        weights[1] = own
    if engine.rank == 1:
        owned[1] = own
    share = fixed.one_sided(engine, weights, owned, [others[0], shapes[1], *others[2:]])[1]
    return engine.reveal(share + _tensor(noise_share)).numpy()


def noisy_sum(engine: Engine, vector: np.ndarray) -> np.ndarray:
    """The sum of every party's vector, its noise already added by the party itself; modulo 2^64."""
    engine.dealer.begin(f"noisy_sum {vector.shape}")
    return engine.reveal(_tensor(vector)).numpy()


def _responsibilities(engine: Engine, own: PartyInputs, prior: PriorInputs) -> Any:
    """Shares of e = exp(z - max z) [n, K]: each party's log densities are its share of z."""
    z = fixed.public(engine, own.log_density, _tensor(prior.log_weights))
    return fixed.exp_nonpositive(engine, z - fixed.maximum(z))


def _squared_norm(
    engine: Engine, shape: BatchShape, layout: Layout, e: Any, own: PartyInputs, prior: PriorInputs
) -> Any:
    """Shares of nn / C'^2, never too small, with `EXP_BITS` + `norm_bits`: sum_k e_k (sum_l G_kl e_l).

    A party's squared norms are its share of the diagonal of G; the prior's Gram matrix is public.
    """
    weighted = e @ _tensor(prior.gram)
    if any(layout.shared):
        gram = own.gram + torch.diag_embed(own.squared_norm)
        weighted = weighted + fixed.matmul(gram, e.unsqueeze(-1)).squeeze(-1)
    else:
        weighted = weighted + fixed.multiply(e, own.squared_norm)
    rounded_up = fixed.public(engine, fixed.truncate(engine, weighted, EXP_BITS), 1)
    return fixed.multiply(e, rounded_up).sum(-1)


def _weights(engine: Engine, shape: BatchShape, e: Any, squared_norm: Any) -> Any:
    """Shares of W = w e with 30 fractional bits, w = 1 / sqrt(max(den^2, nn / C'^2))."""
    bits = EXP_BITS + norm_bits(shape)
    den = fixed.truncate(engine, fixed.square(e.sum(-1)), EXP_BITS - norm_bits(shape))
    value = fixed.larger(fixed.public(engine, den, 1), squared_norm)
    w = fixed.inverse_sqrt(engine, value, bits)
    return fixed.truncate(engine, fixed.multiply(w[:, None], e), EXP_BITS)


def _weighted_scores(engine: Engine, layout: Layout, W: Any, own: PartyInputs, prior: PriorInputs) -> Any:
    """Shares of the released vector without its noise: W times scores that only their party knows."""
    n, K = W.shape
    parties = range(engine.num_parties)
    plated, shared = ([m if rank == engine.rank else None for rank in parties] for m in (own.plated, own.shared))
    by_component, flat = W.T.reshape(K, n, 1), W.reshape(n * K, 1)
    plated_sums = fixed.one_sided(engine, [by_component] * len(parties), plated, [(K, n, d) for d in layout.plated])
    blocks = [W.sum(0) @ _tensor(prior.scores)]
    shared_sums = [torch.zeros(0, dtype=torch.long) for _ in parties]
    if any(layout.shared):
        shared_sums = fixed.one_sided(engine, [flat] * len(parties), shared, [(n * K, s) for s in layout.shared])
    for plated_sum, shared_sum in zip(plated_sums, shared_sums, strict=True):
        blocks += [plated_sum.reshape(-1), shared_sum.reshape(-1)]
    return torch.cat(blocks)


def _tensor(array: Any) -> Any:
    """A writable tensor: arrays that come from JAX are read-only."""
    return torch.from_numpy(np.array(array))
