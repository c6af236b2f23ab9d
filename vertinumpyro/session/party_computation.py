"""A method's part at one party: what it computes from that party's own columns, with that party's own noise."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vertinumpyro.core.rng import InsecureSeededSource, RandomSource, SystemRandomSource
from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.data import DatasetInfo
from vertinumpyro.privacy import Batches, Plan
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.input_form import InputForm
from vertinumpyro.session.requests import Multiply, Publish, ReleaseRequest, Sum
from vertinumpyro.session.run import Payload

Columns = Mapping[str, np.ndarray]
"""One party's encoded columns, each [N]. Secret."""


class PartyComputation(abc.ABC):
    """One party's local computation for one plan. It never meets a socket, nor another party's columns.

    Every kind of release has a name. A method overrides what it uses: `publish` for releases of a party's own
    columns, `factor` and `noise` for cross products, `summand` and `noise` for sums.
    """

    verified: bool = False
    """Whether products of factors with an `input_form` are verified; who runs it says so."""

    @abc.abstractmethod
    def check(self, request: ReleaseRequest) -> None:
        """Refuses what is not what the plan releases at a step. A party asks before it computes anything.

        :raises ArgumentError: it is something else.
        """

    def publish(self, request: Publish) -> Payload:
        """A release of the party's own columns, its noise included."""
        raise NotImplementedError(request.name)

    def factor(self, request: Multiply) -> Factor:
        """The party's integer matrix [N, d] in a product with every other party's, or blocks of it. Secret."""
        raise NotImplementedError(request.name)

    def widths(self, request: Multiply) -> tuple[int, ...]:
        """d of every party's `factor`, public."""
        raise NotImplementedError(request.name)

    def input_form(self, request: Multiply) -> InputForm | None:
        """What every party's `factor` is, public, where a party that cheats is to be held to it."""
        return None

    def adds_shares(self, request: Sum) -> bool:
        """Whether summands are shares of such products, which are integers modulo 2^61 - 1 where `verified`."""
        return False

    def summand(self, request: Sum) -> np.ndarray:
        """The party's integer vector int64 [D] in a sum. Secret."""
        raise NotImplementedError(request.name)

    def noise(self, request: Multiply | Sum, size: int) -> np.ndarray:
        """The party's noise on such a product or sum, int64 [size]. Secret."""
        raise NotImplementedError(request.name)

    def iterate(self, end: PartyProtocol, batches: Batches, arrays: Mapping[str, np.ndarray]) -> Payload:
        """Steps of an iterative method, a batch each, with the other parties; the public state that they reach.

        :param end: this party's end of the protocols.
        :param arrays: the state to begin from; empty where the party has it.
        """
        raise NotImplementedError

    def opened(self, request: Multiply | Sum, values: np.ndarray) -> None:  # noqa: B027 (most need not know)
        """Told what a product or sum came to, int64 flat; everybody knows it."""


@runtime_checkable
class Method(Protocol):
    """What a session runs: an inference with public settings, which makes each party's part."""

    @property
    def backend(self) -> Any:
        """Computes across parties."""
        ...

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses a plan that was not made for this method on such tables: its privacy table could be false for them.

        :raises ArgumentError: names what differs.
        """
        ...

    def work(
        self, facts: DatasetInfo, party: str, columns: Columns, plan: Any, source: RandomSource
    ) -> PartyComputation:
        """The party's part under a plan; `source` is the party's own randomness."""
        ...


class HorizontalMethod:
    """A method whose parties hold whole records, each other ones. Every other method's hold columns of the same."""


def party_sources(num_parties: int, insecure_seed: int | None, first_step: int = 0) -> tuple[RandomSource, ...]:
    """Each party's source of noise: the operating system's, or for tests and paired benchmarks one from a seed.

    :param first_step: a seeded run that goes on must not draw the noise of its first steps again.
    """
    if insecure_seed is None:
        return tuple(SystemRandomSource() for _ in range(num_parties))
    return InsecureSeededSource(insecure_seed + (first_step << 64)).spawn(num_parties)
