"""The one release of the functional mechanism: the noisy matrix of all products of a record's coordinates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vertinumpyro.core.integer_product import integer_product
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.secure.backend import SecureBackend

__all__ = ["NoisyMoments", "noisy_moments"]


class NoisyMoments(NamedTuple):
    """What is released, and the variance of its noise; public.

    matrix: Σ v v' + noise `[D, D]`, symmetric, in units where features and label lie in [-1, 1]; the coordinates are
        the plan's layout's. Entries that are public stand as they are.
    variance: of the noise of each entry `[D, D]`. A one-hot coordinate's square is a copy of its product with the
        intercept, with the same noise; its variance here is 0.
    """

    matrix: np.ndarray
    variance: np.ndarray


def noisy_moments(
    dataset: VerticalDataset, plan: FunctionalMechanismPlan, backend: SecureBackend, source: RandomSource
) -> NoisyMoments:
    """Release the matrix: own products from their owners, cross products from the backend, noise in all of them.

    On one machine this plays every party. What it returns satisfies the plan's privacy table; nothing else leaves.

    Args:
        dataset: the parties' columns.
        plan: the plan being spent.
        backend: computes the cross products with noise.
        source: random bits; every party gets its own stream of them.
    """
    layout = plan.layout
    sources = dict(zip(plan.parties, source.spawn(len(plan.parties)), strict=True))
    features = {party: layout.encode(dataset, party) for party in plan.parties}
    out = np.zeros((layout.size, layout.size), np.int64)
    out[0, 0] = plan.num_records * layout.scale**2
    for party in plan.parties:
        span = layout.span(party)
        first, square = _own_products(features[party], plan, party, sources[party])
        out[0, span] = out[span, 0] = first
        out[span, span] = square
    for a, b in plan.blocks:
        if a != b:
            rows, columns = layout.span(a), layout.span(b)
            times = plan.multipliers[rows, columns]
            shares = np.stack([plan.draw_noise((a, b), times, sources[party]) for party in plan.parties])
            product = np.asarray(backend.noisy_cross_product(features[a], features[b], shares))
            out[rows, columns], out[columns, rows] = product, product.T
    return NoisyMoments(_with_public_entries(out, plan) / float(layout.scale) ** 2, plan.noise_variance)


def _own_products(
    features: np.ndarray, plan: FunctionalMechanismPlan, party: str, source: RandomSource
) -> tuple[np.ndarray, np.ndarray]:
    """A party's noisy column sums and products, in grid units; float64 holds them exactly, as the plan checked."""
    span, scale = plan.layout.span(party), plan.layout.scale
    products = integer_product(features, features)
    sums = features.sum(axis=0, dtype=np.int64) * scale
    times = plan.multipliers[span, span]
    noise = plan.draw_noise((party, party), np.triu(times), source)
    products += noise + np.triu(noise, 1).T
    return sums + plan.draw_noise((party, party), plan.multipliers[0, span], source), products


def _with_public_entries(matrix: np.ndarray, plan: FunctionalMechanismPlan) -> np.ndarray:
    """Entries that were not released, from what is public or released beside them; the exact sums are overwritten."""
    layout = plan.layout
    if plan.sensitivity == "paper":
        return matrix
    for group in layout.groups:
        own = slice(layout.starts[group.column], layout.starts[group.column] + group.size)
        if group.shape == "sign":
            matrix[own, own] = plan.num_records * layout.scale**2
        elif group.shape == "one_hot":
            matrix[own, own] = np.diag(matrix[0, own])
    return matrix
