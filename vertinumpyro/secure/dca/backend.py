"""`noisy_sum` by the Distributed Compute Algorithm, in one process or on a cluster.

Additive shares over the whole ring Z_{2^64}, one client at a time and for blocks of clients.
A client's message to node k < M is r_k, uniform on the ring; its message to node M is z + η - Σ r_k. Any M - 1
of the M messages are jointly uniform, whatever z and η are: without node M's they are the masks themselves;
without node j's, the map from r_j to node M's message is a bijection of the ring, given the others.

DCA for more clients than one machine serves: blocks of clients are tasks on a Dask cluster.

Why Dask: it is the distributed engine that a NumPy user already has; a block is a NumPy array wherever it
lives (files, object store, the workers' own memory), the same code runs on a laptop's processes and on an
existing cluster (Kubernetes, SLURM, YARN), and it is pure Python. The paper used Spark, which wants a JVM and
moves NumPy arrays through serialised rows. What is distributed is the work of many simulated or proxied
clients: a task makes its clients' messages and adds them up for every node, and only M running sums travel.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.workers import connected
from vertinumpyro.privacy.noise_shares import ShareLaw
from vertinumpyro.secure.backend import AnyArray, BackendInfo

if TYPE_CHECKING:
    from distributed import Client as DaskClient


_KEY_BYTES = 32  # what a mask hides must stay hidden for good, so no 128-bit keys
_BYTES_PER_KEY = 2**32  # 2^28 blocks: AES-CTR differs from uniform by at most 2^(2 * 28 - 129) = 2^-73
_BYTES_PER_CALL = 2**28
_ZEROS = bytes(2**20)
SPARE_WORDS = 2
"""Words behind a buffer, as the cipher may ask for room for a block more than it writes."""


@final
class CipherSource(RandomSource):
    """The key stream of AES-256 in counter mode, keyed by `os.urandom`: about 20 times as fast as that alone.

    A fresh key for every source, replaced after 4 GiB. Secure as long as AES is a pseudo-random permutation:
    whoever sees any part of the stream learns nothing about the rest. Not for several threads at a time; after a
    fork, the child takes a key of its own.
    """

    secure = True

    def __init__(self) -> None:
        self._left, self._owner = 0, os.getpid()

    def refresh(self, words: np.ndarray) -> None:
        """Adds the stream (exclusive or) to all but the last two words of a contiguous uint64 array, in place.

        What comes out is uniform and independent of what was there, so a buffer serves again and again, and
        nothing but the buffer passes through the processor's cache.
        """
        self._add_into(memoryview(words.data).cast("B"), words.nbytes - 8 * SPARE_WORDS)

    def random_bytes(self, num_bytes: int) -> bytes:
        if num_bytes < 0:
            raise ArgumentError(f"num_bytes must not be negative, got {num_bytes}")
        if num_bytes > len(_ZEROS):
            return self.uint64(-(-num_bytes // 8)).tobytes()[:num_bytes]
        self._count(num_bytes)
        return self._encryptor.update(memoryview(_ZEROS)[:num_bytes])

    def uint64(self, size: int) -> np.ndarray:
        if size < 0:
            raise ArgumentError(f"size must not be negative, got {size}")
        words = words_buffer(size)
        self.refresh(words)
        return words[:size]

    def spawn(self, num_sources: int) -> tuple[CipherSource, ...]:
        return tuple(CipherSource() for _ in range(num_sources))

    def _add_into(self, data: memoryview, num_bytes: int) -> None:
        for start in range(0, num_bytes, _BYTES_PER_CALL):
            piece = min(num_bytes - start, _BYTES_PER_CALL)
            self._count(piece)
            self._encryptor.update_into(data[start : start + piece], data[start:])

    def _count(self, num_bytes: int) -> None:
        """Takes `num_bytes` off what the key may still give, or takes a new key."""
        if num_bytes > self._left or os.getpid() != self._owner:  # a forked child must not repeat the stream
            self._new_key()
        self._left -= num_bytes

    def _new_key(self) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(_KEY_BYTES)), modes.CTR(bytes(16)))
        self._encryptor = cipher.encryptor()
        self._left, self._owner = _BYTES_PER_KEY, os.getpid()


def words_buffer(size: int) -> np.ndarray:
    """uint64 `[size + 2]`: `CipherSource.refresh` makes the first `size` of them uniform."""
    return np.empty(size + SPARE_WORDS, np.uint64)


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

    :param num_nodes: M.
    :param num_values: d.
    """

    def __init__(self, num_nodes: int, num_values: int) -> None:
        check_nodes(num_nodes)
        if num_values < 1:
            raise ArgumentError(f"num_values must be at least 1, got {num_values}")
        self._source = CipherSource()
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

        :param vectors: `[n, d]`, one row a client: integers on the grid, or reals where `fractional_bits` is given.
        :param noise: the law of each client's noise share; None adds none, which is not private.
        :param fractional_bits: f; the client holds round(x 2^f), and the caller has bounded |x| 2^f below 2^62.
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


@runtime_checkable
class SumBackend(Protocol):
    """What a sum over data holders needs of a backend; every `InProcess` has it, and so has DCA."""

    def info(self) -> BackendInfo:
        """Security model, who learns what, dealer, ring, precision."""
        ...

    def noisy_sum(self, vectors: AnyArray, noise_shares: AnyArray) -> AnyArray:
        """The sum of the holders' integer vectors `[holders, D]` and of all noise shares, modulo 2^64."""
        ...


@dataclasses.dataclass(frozen=True)
class DistributedCompute:
    """Algorithm 1 with M compute nodes, every client and node simulated in this process.

    Formal guarantee of the arithmetic: what is revealed equals the sum of the clients' vectors and noise shares
    modulo 2^64, bit for bit; any M - 1 nodes' views are uniform and independent of the vectors. Privacy is the
    plan's (`privacy.ClientPlan`), towards any adversary that lacks one node. `Client` and `ComputeNode` are the
    same arithmetic where clients are real.

    :ivar num_nodes: M.
    """

    num_nodes: int = 3

    def __post_init__(self) -> None:
        check_nodes(self.num_nodes)

    def info(self) -> BackendInfo:
        """What a real deployment guarantees, and what this process sees."""
        return BackendInfo(
            name="dca",
            security_model=(
                "none (simulates every client and node in one process); with real clients, semi-honest, secure while "
                f"one of the {self.num_nodes} compute nodes does not collude"
            ),
            who_learns_what=(
                "whoever runs it learns everything; with real clients, a node sees uniform ring vectors and who sent "
                "them, the aggregator the noisy sum, a client nothing"
            ),
            dealer="none",
            ring="integers modulo 2^64",
            precision="exact",
        )

    def noisy_sum(self, vectors: AnyArray, noise_shares: AnyArray) -> np.ndarray:
        """See `InProcess.noisy_sum`: int64 `[D]`. Holder i sends row i of each; whoever has one, sends that."""
        vectors, noise_shares = np.asarray(vectors), np.asarray(noise_shares)
        if noise_shares.dtype != np.int64:
            raise ArgumentError(f"noise_shares must be int64, got {noise_shares.dtype}; call under core.compat.x64()")
        if vectors.ndim != 2 or noise_shares.ndim != 2 or vectors.shape[1] != noise_shares.shape[1]:
            raise ArgumentError(f"vectors and noise_shares must be [., D], got {vectors.shape}, {noise_shares.shape}")
        sums = NodeSums(self.num_nodes, vectors.shape[1])
        both = min(len(vectors), len(noise_shares))
        sums.add(vectors[:both].astype(np.int64) + noise_shares[:both], noise=None)
        sums.add(vectors[both:], noise=None)
        sums.add(noise_shares[both:], noise=None)
        return sums.total()

    def noisy_sum_of_blocks(
        self, blocks: Iterable[np.ndarray], *, num_values: int, share_variance: int, fractional_bits: int | None = None
    ) -> np.ndarray:
        """The noisy sum over any number of clients, int64 `[D]`, a block in memory at a time.

        :param blocks: arrays `[n, D]`, a row for each client: integers on the grid, or reals within the caller's
            bounds where `fractional_bits` is given.
        :param num_values: D.
        :param share_variance: the variance of the noise share that every client adds, in grid units².
        :param fractional_bits: f; clients hold round(x 2^f).
        """
        law = ShareLaw.of(share_variance)
        sums = NodeSums(self.num_nodes, num_values)
        for block in blocks:
            sums.add(block, noise=law, fractional_bits=fractional_bits)
        return sums.total()


Block = Callable[[], np.ndarray]
"""Loads one block of clients, `[n, D]`, on the worker that runs it."""


def distributed_sum_on_dask(
    blocks: Iterable[Block],
    *,
    cluster: DaskClient | str,
    num_values: int,
    share_variance: int,
    num_nodes: int = 3,
    fractional_bits: int | None = None,
    tasks_at_a_time: int | None = None,
) -> np.ndarray:
    """The noisy sum over all clients of all blocks, int64 `[D]`, as `DistributedCompute.noisy_sum_of_blocks`.

    A block whose worker is lost runs again elsewhere, with fresh masks and noise. Only one of its results enters
    the sum and the other is seen by nobody, so every client's noise is there once.

    :param blocks: loaders of blocks of clients; they are sent to the workers, the blocks are not.
    :param cluster: a `distributed.Client`, or the address of a scheduler ("tcp://scheduler:8786").
    :param num_values: D.
    :param share_variance: the variance of every client's noise share, in grid units².
    :param num_nodes: M.
    :param fractional_bits: f, where blocks hold reals.
    :param tasks_at_a_time: how many blocks may wait or run at once; None takes four for each worker thread.
    :raises ArgumentError: Dask is not installed (extra `dask`), or an argument is wrong.
    :raises BackendError: a block could not be computed; nothing is revealed.
    """
    check_nodes(num_nodes)
    ShareLaw.of(share_variance)  # refuses a bad variance here rather than on a worker
    client, owned = connected(cluster, "cluster")
    try:
        waiting = tasks_at_a_time or 4 * max(1, sum(client.nthreads().values()))
        totals = np.zeros((num_nodes, num_values), np.uint64)
        settings = (num_nodes, num_values, share_variance, fractional_bits)
        for sums in _run(client, blocks, settings, waiting):
            totals += sums
        return totals.sum(axis=0, dtype=np.uint64).view(np.int64)
    finally:
        if owned:
            client.close()


def _run(client: Any, blocks: Iterable[Block], settings: tuple, waiting: int) -> Iterator[np.ndarray]:
    """The node sums of all blocks in any order; never more than `waiting` tasks at once."""
    from distributed import as_completed

    loaders = iter(blocks)

    def submit() -> Any:
        for load in loaders:
            # pure=False: a task draws fresh randomness, so two tasks are never the same one
            return client.submit(_node_sums, load, *settings, pure=False)
        return None

    first = [task for task in (submit() for _ in range(waiting)) if task is not None]
    running = as_completed(first, loop=client.loop)  # without it, the process's default client would be taken
    for done in running:
        try:
            sums = done.result()
        except Exception:
            raise BackendError(
                "a block of clients failed on the cluster, so nothing is revealed; its worker's log says why"
            ) from None
        done.release()
        following = submit()
        if following is not None:
            running.add(following)
        yield sums


def _node_sums(
    load: Block, num_nodes: int, num_values: int, share_variance: int, fractional_bits: int | None
) -> np.ndarray:
    """One task: what the M nodes hold after one block of clients, uint64 `[M, D]`."""
    sums = NodeSums(num_nodes, num_values)
    sums.add(load(), noise=ShareLaw.of(share_variance), fractional_bits=fractional_bits)
    return sums.sums
