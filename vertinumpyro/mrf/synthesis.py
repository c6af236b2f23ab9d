"""Records drawn from a Markov random field, clique by clique along its junction tree.

Draws are stratified: among the records that agree on the columns drawn so far, every value comes up as often as its
probability says, up to one record. So tables of the twin are closer to the model's than those of independent draws.
"""

from __future__ import annotations

import math

import numpy as np

from vertinumpyro.mrf.graphical_model import GraphicalModel

__all__ = ["draw_cells"]


def draw_cells(model: GraphicalModel, num_records: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Cells of synthetic records, int64 `[num_records]` for every column.

    Args:
        model: the fitted field.
        num_records: how many.
        rng: public randomness; the model is released, so draws protect nothing.
    """
    drawn: dict[str, np.ndarray] = {}
    for clique, table in zip(model.cliques, model.tables, strict=True):
        known = [name for name in clique if name in drawn]
        fresh = [name for name in clique if name not in drawn]
        table = np.transpose(table, [clique.index(name) for name in known + fresh])
        given = _flat([drawn[n] for n in known], table.shape[: len(known)], num_records)
        for position, name in enumerate(fresh):
            axis = len(known) + position
            counts = table.sum(axis=tuple(range(axis + 1, table.ndim))).reshape(-1, table.shape[axis])
            drawn[name] = _stratified(counts, given, rng)
            given = given * table.shape[axis] + drawn[name]
    return drawn


def _flat(codes: list[np.ndarray], shape: tuple[int, ...], num_records: int) -> np.ndarray:
    return np.ravel_multi_index(tuple(codes), shape) if codes else np.zeros(num_records, np.int64)


def _stratified(weights: np.ndarray, given: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One cell for each record from its row of weights `[rows, cells]`, by systematic draws within each row."""
    order = np.lexsort((rng.random(len(given)), given))
    rows, first, counts = np.unique(given[order], return_index=True, return_counts=True)
    rank = np.arange(len(given)) - np.repeat(first, counts)
    unit = (rank + rng.random(len(given))) / np.repeat(counts, counts)
    cumulative = _cumulative(weights[rows])
    # rows as consecutive intervals of length one, so that a single search serves all of them
    edges = (cumulative[:, :-1] + np.arange(len(rows))[:, None]).ravel()
    index = np.repeat(np.arange(len(rows)), counts)
    below = np.searchsorted(edges, index + unit, side="right") - index * (weights.shape[1] - 1)
    cells = np.empty(len(given), np.int64)
    cells[order] = np.clip(below, 0, weights.shape[1] - 1)
    return cells


def _cumulative(weights: np.ndarray) -> np.ndarray:
    """Distribution functions `[rows, cells]`; uniform where a row has no weight."""
    mass = weights.sum(axis=1, keepdims=True)
    share = np.divide(weights, mass, out=np.full_like(weights, 1 / weights.shape[1]), where=mass > math.ulp(0.0))
    return np.minimum(np.cumsum(share, axis=1), 1.0)
