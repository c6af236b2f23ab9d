"""Tables of column pairs at different parties, from the secure cross product of one-hot columns.

Party a's columns as one-hot integers A `[N, cells_a]` and party b's B: all their pair tables are blocks of AᵀB. A
backend's `noisy_cross_product` reveals AᵀB + noise for two parties, and all pairs of parties run side by side.

Kept secret-shared instead, for rounds that reveal chosen tables only: the first party's "noise" is then a uniform
element of Z_{2^64} for every cell, which only it knows. What the protocol reveals to the second party is the sum, a
one-time pad: uniform whatever the tables hold. The two hold additive shares, and `noisy_sum` of shares and noise
shares reveals a table with noise, never without.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from vertinumpyro.core import compat
from vertinumpyro.core.errors import RangeError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.release import GRID_BITS, Measurement, TableRelease
from vertinumpyro.secure import SecureBackend

__all__ = ["Pair", "SharedTables", "cross_pairs", "reveal_all", "share_all"]

Pair = tuple[str, str]


def cross_pairs(columns: Sequence[CellColumn], parties: Sequence[str]) -> list[Pair]:
    """Every pair of columns at different parties, in the order of their tables."""
    return [pair for own, other in _party_pairs(columns, parties) for pair, _ in _blocks(own, other)]


def reveal_all(
    dataset: VerticalDataset,
    columns: Sequence[CellColumn],
    release: TableRelease,
    backend: SecureBackend,
    source: RandomSource,
) -> list[Measurement]:
    """Every cross-party pair table with noise; nothing else is revealed.

    Raises:
        RangeError: N is so large that a count could wrap around the ring.
    """
    _check_range(dataset.num_records, release)
    found = []
    for own, other in _party_pairs(columns, dataset.parties):
        shape = (sum(c.num_cells for c in own), sum(c.num_cells for c in other))
        noise = release.draw_shares(shape[0] * shape[1], source).reshape(-1, *shape)
        product = _cross_product(dataset, own, other, backend, noise)
        found += [release.measured(pair, product[block]) for pair, block in _blocks(own, other)]
    return found


@final
class SharedTables(NamedTuple):
    """All cross-party pair tables as additive shares modulo 2^64. Each share alone is uniform; both are secret.

    Attributes:
        shares: for every pair the first and the second party's share, int64 `[2, cells_a, cells_b]`.
    """

    shares: dict[Pair, np.ndarray]

    def __repr__(self) -> str:
        """Shows nothing secret."""
        return f"SharedTables({len(self.shares)} tables)"

    def reveal(
        self, pairs: Sequence[Pair], release: TableRelease, backend: SecureBackend, source: RandomSource
    ) -> list[Measurement]:
        """Chosen tables with fresh noise from all parties, in one `noisy_sum`.

        Raises:
            ArgumentError: more tables than the release pays for.
        """
        release.check_count(len(pairs))
        shares = [self.shares[pair] for pair in pairs]
        vectors = np.concatenate([share.reshape(2, -1) for share in shares], axis=1)
        noise = release.draw_shares(vectors.shape[1], source)
        with compat.x64():
            revealed = np.asarray(backend.noisy_sum(vectors, noise), np.int64)
        cuts = np.split(revealed, np.cumsum([share[0].size for share in shares])[:-1])
        return [
            release.measured(pair, cut.reshape(share.shape[1:]))
            for pair, share, cut in zip(pairs, shares, cuts, strict=True)
        ]


def share_all(
    dataset: VerticalDataset,
    columns: Sequence[CellColumn],
    release: TableRelease,
    backend: SecureBackend,
    source: RandomSource,
) -> SharedTables:
    """Every cross-party pair table, shared between the two parties that hold its columns. Reveals nothing.

    Args:
        dataset: all parties' columns, in a simulation.
        columns: the columns in cells.
        release: the first release of these tables; fixes the grid.
        backend: computes the cross products.
        source: the one-time pads; each party's from its own generator.
    """
    _check_range(dataset.num_records, release)
    shares: dict[Pair, np.ndarray] = {}
    for own, other in _party_pairs(columns, dataset.parties):
        shape = (sum(c.num_cells for c in own), sum(c.num_cells for c in other))
        (own_source,) = source.spawn(1)
        pad = own_source.uint64(shape[0] * shape[1]).astype("<u8").view(np.int64).reshape(shape)
        product = _cross_product(dataset, own, other, backend, pad[None])
        for pair, block in _blocks(own, other):
            shares[pair] = np.stack([-pad[block], product[block]])  # -2^63 wraps to itself, as in the ring
    return SharedTables(shares)


def _cross_product(
    dataset: VerticalDataset,
    own: Sequence[CellColumn],
    other: Sequence[CellColumn],
    backend: SecureBackend,
    noise: np.ndarray,
) -> np.ndarray:
    """2^f AᵀB + noise modulo 2^64; the grid's factor sits on the first party's ones."""
    a = _one_hot(own, dataset) << GRID_BITS
    with compat.x64():
        return np.asarray(backend.noisy_cross_product(a, _one_hot(other, dataset), noise), np.int64)


def _one_hot(columns: Sequence[CellColumn], dataset: VerticalDataset) -> np.ndarray:
    """One party's columns side by side as one-hot integers, int32 `[N, cells]`. Secret."""
    arrays = dataset.arrays(columns[0].party)
    parts = [np.arange(c.num_cells) == c.codes(arrays)[:, None] for c in columns]
    return np.concatenate(parts, axis=1).astype(np.int32)


def _party_pairs(
    columns: Sequence[CellColumn], parties: Sequence[str]
) -> list[tuple[list[CellColumn], list[CellColumn]]]:
    held = [[c for c in columns if c.party == party] for party in parties]
    return list(itertools.combinations(held, 2))


def _blocks(own: Sequence[CellColumn], other: Sequence[CellColumn]) -> list[tuple[Pair, tuple[slice, slice]]]:
    """Where the table of every pair of columns stands in AᵀB."""
    rows, cols = _slices(own), _slices(other)
    return [
        ((a.name, b.name), (row, col))
        for a, row in zip(own, rows, strict=True)
        for b, col in zip(other, cols, strict=True)
    ]


def _slices(columns: Sequence[CellColumn]) -> list[slice]:
    ends = np.cumsum([c.num_cells for c in columns]).tolist()
    return [slice(end - c.num_cells, end) for c, end in zip(columns, ends, strict=True)]


def _check_range(num_records: int, release: TableRelease) -> None:
    """A count plus twelve standard deviations of noise stays below 2^62 grid units."""
    if (num_records + 12 * release.stddev) * 2**GRID_BITS >= 2**62:
        raise RangeError(f"{num_records} records with this noise could wrap around the ring; raise epsilon")
