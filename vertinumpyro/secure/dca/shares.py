r"""Additive shares over the whole ring Z_{2^64}, one client at a time and for blocks of clients.

A client's message to node k < M is r_k, uniform on the ring; its message to node M is z + η - Σ r_k. Any M - 1
of the M messages are jointly uniform, whatever z and η are: without node M's they are the masks themselves;
without node j's, the map from r_j to node M's message is a bijection of the ring, given the others.
"""

from __future__ import annotations

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.privacy.noise_shares import ShareLaw
from vertinumpyro.secure.dca.streams import SPARE_WORDS, CipherSource, words_buffer

__all__ = ["NodeSums", "check_nodes", "split"]

_MESSAGES_AT_A_TIME = 2**18  # 2 MiB, so that messages stay in the processor's cache until they are added up
_TILE_COLUMNS = 1024
_NOISE_AT_A_TIME = 2**17  # so that the sampler's tables, evicted by the messages, are rarely read anew


def check_nodes(num_nodes: int) -> None:
    """Raises `ArgumentError` for fewer than two nodes, one of which would see everything."""
    if num_nodes < 2:
        raise ArgumentError(f"num_nodes must be at least 2, got {num_nodes}: a single node would see every vector")


def split(vector: np.ndarray, num_nodes: int, source: RandomSource) -> np.ndarray:
    """One client's shares uint64 `[M, d]` of an integer vector `[d]`; they add up to it modulo 2^64. Secret."""
    check_nodes(num_nodes)
    shares = np.empty((num_nodes, vector.size), np.uint64)
    shares[:-1] = source.uint64((num_nodes - 1) * vector.size).reshape(num_nodes - 1, vector.size)
    shares[-1] = vector.astype(np.int64).view(np.uint64) - shares[:-1].sum(axis=0, dtype=np.uint64)
    return shares


class NodeSums:
    """What the M compute nodes hold while blocks of clients send their shares: a running sum each.

    Simulates every client of a block: its fixed-point vector, its own noise share, its M - 1 masks and its
    M-th message are all formed, and each node adds its messages up. What a simulation leaves out is the
    transport, and keys: one cipher serves a block, disjoint parts of its stream being the clients' masks.

    Args:
        num_nodes: M.
        num_values: d.
        source: where masks and noise come from; None takes a `CipherSource`.
    """

    def __init__(self, num_nodes: int, num_values: int, source: CipherSource | None = None) -> None:
        check_nodes(num_nodes)
        if num_values < 1:
            raise ArgumentError(f"num_values must be at least 1, got {num_values}")
        self._source = CipherSource() if source is None else source
        # Short vectors stand side by side, long ones are cut: NumPy is fast on rows of about _TILE_COLUMNS.
        self._beside = max(1, _TILE_COLUMNS // num_values)
        width = self._beside * num_values
        self._columns = -(-width // -(-width // _TILE_COLUMNS))
        self._rows = max(1, _MESSAGES_AT_A_TIME // (num_nodes * self._columns))
        size = self._rows * self._columns
        self._messages, self._real = words_buffer(num_nodes * size), np.empty(size)
        self._last = np.empty(size, np.uint64)
        self.num_clients = 0
        self.sums = np.zeros((num_nodes, num_values), np.uint64)
        """Each node's sum of messages, uint64 `[M, d]`; any M - 1 of them are uniform."""

    def add(self, vectors: np.ndarray, *, noise: ShareLaw | None, fractional_bits: int | None = None) -> None:
        """Lets a block of clients take part.

        Args:
            vectors: `[n, d]`, one row a client: integers on the grid, or reals where `fractional_bits` is given.
            noise: the law of each client's noise share; None adds none, which is not private.
            fractional_bits: f; the client holds round(x 2^f), and the caller has bounded |x| 2^f below 2^62.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.sums.shape[1]:
            raise ArgumentError(f"vectors must have {self.sums.shape[1]} columns, got shape {vectors.shape}")
        if (fractional_bits is None) != np.issubdtype(vectors.dtype, np.integer):
            raise ArgumentError("vectors must be integers, or reals with fractional_bits")
        noise_shares = None if noise is None else _NoiseShares(noise, vectors.size, self._source)
        nodes, length = self.sums.shape
        whole = len(vectors) - len(vectors) % self._beside
        wide = np.zeros((nodes, self._beside * length), np.uint64)
        self._add_rows(vectors[:whole].reshape(-1, self._beside * length), noise_shares, fractional_bits, wide)
        self.sums += wide.reshape(nodes, self._beside, length).sum(axis=1, dtype=np.uint64)
        self._add_rows(vectors[whole:], noise_shares, fractional_bits, self.sums)
        self.num_clients += len(vectors)

    def _add_rows(
        self, vectors: np.ndarray, noise: _NoiseShares | None, fractional_bits: int | None, sums: np.ndarray
    ) -> None:
        for top in range(0, len(vectors), self._rows):
            for left in range(0, vectors.shape[1], self._columns):
                columns = slice(left, left + self._columns)
                tile = vectors[top : top + self._rows, columns]
                self._add_tile(tile, noise, fractional_bits, sums[:, columns])

    def _add_tile(
        self, vectors: np.ndarray, noise: _NoiseShares | None, fractional_bits: int | None, sums: np.ndarray
    ) -> None:
        """Every message of some clients in some coordinates, and their sums at the nodes.

        The masks stand in the rows of M - 1 nodes and -(z + η) in the last: their sum is minus the message to
        node M.
        """
        num_nodes, size = len(sums), vectors.size
        self._source.refresh(self._messages[: (num_nodes - 1) * size + SPARE_WORDS])
        messages = self._messages[: num_nodes * size].reshape(num_nodes, size)
        negative = messages[-1].view(np.int64)
        self._encode(vectors, fractional_bits, negative.reshape(vectors.shape))
        # The law of the noise is symmetric: minus a share is a share, and one pass makes -(z + η).
        np.subtract(np.int64(0) if noise is None else noise.next(size), negative, out=negative)
        last = np.add.reduce(messages, axis=0, out=self._last[:size])
        sums[:-1] += np.add.reduce(messages[:-1].reshape(num_nodes - 1, *vectors.shape), axis=1)
        sums[-1] -= np.add.reduce(last.reshape(vectors.shape), axis=0)

    def _encode(self, vectors: np.ndarray, fractional_bits: int | None, out: np.ndarray) -> None:
        """The clients' vectors on the grid, rounded to even."""
        if fractional_bits is None:
            np.copyto(out, vectors, casting="same_kind")
            return
        real = self._real[: vectors.size].reshape(vectors.shape)
        np.multiply(vectors, 2.0**fractional_bits, out=real)
        np.rint(real, out=out, casting="unsafe")

    def mask_buffer(self) -> np.ndarray:
        """The buffer of one tile's masks, with the cipher's spare words: what a benchmark's floor fills."""
        nodes = len(self.sums)
        return self._messages[: (self._messages.size - SPARE_WORDS) // nodes * (nodes - 1) + SPARE_WORDS]

    def total(self) -> np.ndarray:
        """The aggregator's result: the sum of all vectors and noise shares, int64 `[d]`, modulo 2^64."""
        return self.sums.sum(axis=0, dtype=np.uint64).view(np.int64)

    def __repr__(self) -> str:
        """Public sizes alone."""
        nodes, values = self.sums.shape
        return f"NodeSums(num_nodes={nodes}, num_values={values}, num_clients={self.num_clients})"


class _NoiseShares:
    """Noise drawn ahead in large pieces; every variate is handed out once."""

    def __init__(self, law: ShareLaw, size: int, source: RandomSource) -> None:
        self._law, self._left, self._source = law, size, source
        self._drawn = np.empty(0, np.int64)

    def next(self, size: int) -> np.ndarray:
        """The next `size` shares."""
        if size > self._drawn.size:
            # A whole number of further tiles, so that nothing has to be copied to the front for most of them.
            wanted = size * max(1, _NOISE_AT_A_TIME // size) - self._drawn.size
            fresh = self._law.draw(max(size - self._drawn.size, min(self._left, wanted)), self._source)
            self._left -= fresh.size
            self._drawn = np.concatenate([self._drawn, fresh]) if self._drawn.size else fresh
        taken, self._drawn = self._drawn[:size], self._drawn[size:]
        return taken
