"""DCA for more clients than one machine serves: blocks of clients are tasks on a Dask cluster.

Why Dask: it is the distributed engine that a NumPy user already has; a block is a NumPy array wherever it
lives (files, object store, the workers' own memory), the same code runs on a laptop's processes and on an
existing cluster (Kubernetes, SLURM, YARN), and it is pure Python. The paper used Spark, which wants a JVM and
moves NumPy arrays through serialised rows. What is distributed is the work of many simulated or proxied
clients: a task makes its clients' messages and adds them up for every node, and only M running sums travel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from vertinumpyro.core.errors import BackendError
from vertinumpyro.core.workers import connected
from vertinumpyro.privacy.noise_shares import ShareLaw
from vertinumpyro.secure.dca.backend import NodeSums, check_nodes

if TYPE_CHECKING:
    from distributed import Client as DaskClient


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
