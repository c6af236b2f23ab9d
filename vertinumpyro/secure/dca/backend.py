"""`noisy_sum` by the Distributed Compute Algorithm, in one process or on a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.privacy.noise_shares import ShareLaw
from vertinumpyro.secure.backend import AnyArray, BackendInfo
from vertinumpyro.secure.dca.shares import NodeSums, check_nodes

__all__ = ["DistributedCompute", "SumBackend"]


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
        """Checks the settings."""
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
