"""The Dask path gives the same sums, on a local cluster of real worker processes."""

import functools
import math

import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.secure.dca import distributed_sum_on_dask

distributed = pytest.importorskip("distributed", reason="dask is not installed (extra: dask)")

SETTINGS = {"num_values": 20, "share_variance": 100, "fractional_bits": 20}


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as made, distributed.Client(made, set_as_default=False) as client:
        yield client


def broken(path):
    raise OSError(f"secret of {path}")


@pytest.mark.parametrize("by_address", [False, True])
def test_the_sum_over_blocks_plus_every_clients_noise(cluster, by_address):
    loaders = [functools.partial(np.full, (500, 20), value) for value in (0.25, -1.0, 3.0, 0.5, 0.125)]
    where = cluster.scheduler.address if by_address else cluster
    total = distributed_sum_on_dask(loaders, cluster=where, tasks_at_a_time=2, **SETTINGS)
    noise = (total - 500 * 2.875 * 2**20) / math.sqrt(2500 * 100)
    assert np.abs(noise).max() < 7  # 20 values: 5e-11
    # chi-square with 20 degrees of freedom: below 2 with probability 1e-7, above 75 with 3e-8
    assert 2 < (noise**2).sum() < 75


def test_no_block_no_clients(cluster):
    assert distributed_sum_on_dask([], cluster=cluster, **SETTINGS).tolist() == [0] * 20


def test_a_failed_block_reveals_nothing(cluster):
    loaders = [functools.partial(np.zeros, (5, 20)), functools.partial(broken, "alice")]
    with pytest.raises(BackendError, match="nothing is revealed") as caught:
        distributed_sum_on_dask(loaders, cluster=cluster, **SETTINGS)
    assert "alice" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_bad_arguments(cluster):
    with pytest.raises(ArgumentError, match="cluster"):
        distributed_sum_on_dask([], cluster=3, **SETTINGS)
    with pytest.raises(ArgumentError, match="variance"):
        distributed_sum_on_dask([], cluster=cluster, **{**SETTINGS, "share_variance": 3})
    with pytest.raises(ArgumentError, match="num_nodes"):
        distributed_sum_on_dask([], cluster=cluster, num_nodes=1, **SETTINGS)
