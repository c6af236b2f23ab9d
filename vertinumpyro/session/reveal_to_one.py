"""What the parties tell one of them of each record, and nobody else: outside every plan, and not DP.

No ledger counts it, and no epsilon covers it. So it is not a starter's to ask for: every party's own task says what it
agreed to (`PrivateOutput`), the parties compare that by digest, and whoever asks for something else is refused.
"""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.files import replaced
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import DatasetInfo, Schema
from vertinumpyro.privacy import Plan
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.keystream import sum_to_one
from vertinumpyro.session.party_computation import Columns, PartyComputation
from vertinumpyro.transport import Communicator


@final
class Bands:
    """Public thresholds, by which one party is told how many of them a sum has reached, in the sum's place.

    :param thresholds: whole numbers on the vectors' grid, none of them falling.
    :param bits: so that |x - t| < 2^bits for every sum x and threshold t.
    """

    def __init__(self, thresholds: Sequence[int], bits: int) -> None:
        self.thresholds, self.bits = tuple(int(t) for t in thresholds), bits

    def of(self, total: np.ndarray) -> np.ndarray:
        """How many thresholds each sum has reached, int64 [n]."""
        return np.searchsorted(np.asarray(self.thresholds, np.int64), total, side="right").astype(np.int64)


class PrivateOutput(abc.ABC):
    """A `Method` that spends no plan: of each record, one party alone is told what all parties' vectors add up to.

    Abstract. NOT DP: what `receiver` is told is computed from single records, without noise.
    """

    @property
    @abc.abstractmethod
    def receiver(self) -> str:
        """The party that is told."""

    @property
    def told(self) -> str:
        """`receiver`, as it was called before."""
        return self.receiver

    @property
    @abc.abstractmethod
    def bands(self) -> Bands | None:
        """What it is told in the place of the sum; None tells the sum."""

    @abc.abstractmethod
    def described(self) -> Mapping[str, Any]:
        """All that is public about it, as plain data for JSON: two that differ in anything differ here."""

    @abc.abstractmethod
    def check_records(self, schema: Schema) -> None:
        """Refuses tables of other columns.

        :raises ArgumentError: names what differs.
        """

    @abc.abstractmethod
    def vector(self, party: str, columns: Columns) -> np.ndarray:
        """What a party adds up for each of its records, int64 [N]. Secret."""

    @abc.abstractmethod
    def answer(self, values: np.ndarray) -> pd.DataFrame:
        """What the sums or the bands say, int64 [N], a row each. For `told` alone."""

    @final
    def digest(self) -> str:
        """Of `described`, by which parties compare."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses every plan; see `Method`.

        :raises ArgumentError: always.
        """
        raise self._no_plan()

    def work(
        self, facts: DatasetInfo, party: str, columns: Columns, plan: Any, source: RandomSource
    ) -> PartyComputation:
        """There is none, as there is no plan; see `Method`.

        :raises ArgumentError: always.
        """
        raise self._no_plan()

    def _no_plan(self) -> ArgumentError:
        return ArgumentError(f"{type(self).__name__} spends no plan: it tells {self.receiver!r} what no plan covers")


def check_agreed(method: Any, digest: str) -> PrivateOutput:
    """A party's own method, if that is what everybody asks for.

    :raises ArgumentError: this party agreed to something else, or to nothing of the kind.
    """
    if not isinstance(method, PrivateOutput):
        raise ArgumentError(
            f"this party's task is a {type(method).__name__}, which tells nobody anything of single records; nothing "
            "was sent. Where the parties agree to it, give the task's build the prediction"
        )
    if method.digest() != digest:
        raise ArgumentError(
            "this party agreed to tell something else: other coefficients, another receiver, or more than it was "
            "asked for. Nothing was sent; give every task the same prediction"
        )
    return method


def reveal_to_one(
    communicator: Communicator, end: PartyProtocol, method: PrivateOutput, receiver: int, vector: np.ndarray
) -> np.ndarray | None:
    """What all parties' vectors say, int64 [N], at the party that is told; None at the others.

    :param receiver: that party's number.
    :param vector: this party's, int64 [N]. Secret.
    """
    bands = method.bands
    share = vector if bands is None else end.bands(vector, bands.thresholds, bands.bits)
    return sum_to_one(communicator.peers, communicator.rank, receiver, share)


def reveal_in_process(method: PrivateOutput, columns: Mapping[str, Columns]) -> np.ndarray:
    """The same, where one process holds every party's columns."""
    total = np.stack([method.vector(party, own) for party, own in columns.items()]).sum(axis=0)
    return total if method.bands is None else method.bands.of(total)


def identified(answer: pd.DataFrame, name: str, ids: Sequence[str]) -> pd.DataFrame:
    """With the records' ids as the first column."""
    answer.insert(0, name, list(ids))
    return answer


def write_answer(answer: pd.DataFrame, path: Path) -> None:
    """Writes what one party was told of each record, for its eyes alone."""
    with replaced(path, path.with_name(path.name + ".part"), private=True) as file:
        answer.to_csv(file, index=False)
