"""The Distributed Compute Algorithm (DCA): many clients, a few compute nodes, one noisy sum (Algorithm 1).

`DistributedCompute` runs it in one process, streamed over blocks of clients; `SecureAggregation` between a few holders,
each in its own process; `Client`, `ComputeNode` and `combine` are its roles where there are many clients;
`distributed_sum_on_dask` runs it on a Dask cluster (extra `dask`).
"""

from vertinumpyro.secure.dca.aggregation import SecureAggregation
from vertinumpyro.secure.dca.backend import CipherSource, DistributedCompute, SumBackend, distributed_sum_on_dask
from vertinumpyro.secure.dca.roles import ChannelKey, Client, ComputeNode, Envelope, Round, agree, combine

__all__ = [
    "ChannelKey",
    "CipherSource",
    "Client",
    "ComputeNode",
    "DistributedCompute",
    "Envelope",
    "Round",
    "SecureAggregation",
    "SumBackend",
    "agree",
    "combine",
    "distributed_sum_on_dask",
]
