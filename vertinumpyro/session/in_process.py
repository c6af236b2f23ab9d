"""All parties in this process: for research, planning and tests; whoever runs it sees every column."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from vertinumpyro.core import compat
from vertinumpyro.core.arguments import shown
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource, SystemRandomSource
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.data.wording import NO_DATASET
from vertinumpyro.privacy import Plan
from vertinumpyro.secure import Backend, in_process
from vertinumpyro.session.party_computation import Method, PartyComputation, party_sources
from vertinumpyro.session.reveal_to_one import PrivateOutput, reveal_in_process
from vertinumpyro.session.run import Payload, Run
from vertinumpyro.session.session import Session

__all__ = ["InProcessSession", "by_pair", "pair_blocks"]


@final
class InProcessSession(Session):
    """The parties' parts, one after the other, and the sums over them by an in-process backend.

    It is the oracle of the other kinds of session: what it reveals equals, bit for bit, what parties with the same
    noise reveal between processes.

    :ivar dataset: every party's columns.
    :ivar spare_source: randomness of nobody in particular, for what only a simulation has.
    :raises ArgumentError: the dataset is none, or the backend works between processes.
    """

    def __init__(self, dataset: VerticalDataset, backend: Backend) -> None:
        if not isinstance(dataset, VerticalDataset):
            raise ArgumentError(f"dataset={shown(dataset)} {NO_DATASET}")
        self.dataset, self.backend = dataset, in_process(backend)
        self.spare_source: RandomSource = SystemRandomSource()
        self._works: Sequence[PartyComputation] = ()

    @property
    def schema(self) -> Schema:
        """The public schema."""
        return self.dataset.schema

    @property
    def num_records(self) -> int:
        """N, public."""
        return self.dataset.num_records

    def open(
        self,
        method: Method,
        plan: Plan,
        *,
        run_dir: str | Path | None,
        results: str,
        resume: bool = False,
        facts: Mapping[str, Any] | None = None,
        insecure_seed: int | None = None,
    ) -> Run:
        """See `Session.open`."""
        secure = insecure_seed is None
        run = Run.opened(plan, run_dir, results=results, resume=resume, secure_noise=secure, facts=facts)
        self.engage(method, plan, party_sources(1 + len(self.parties), insecure_seed, run.first_step))
        return run

    def engage(self, method: Method, plan: Plan, sources: Sequence[RandomSource]) -> None:
        """Makes every party's part, without a record: `open` does this once it has one.

        :param sources: the parties', and the spare one.
        """
        *own, self.spare_source = sources
        self._works = [
            method.work(self, party, self.dataset.arrays(party), plan, source)
            for party, source in zip(self.parties, own, strict=True)
        ]

    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        """See `Session.step`. Nobody sees anything before the step is on record, so it is computed first."""
        return run.step(index, compute)

    def publish(self, index: int, what: str, words: Mapping[str, Any]) -> list[Payload]:
        """See `Session.publish`."""
        return [work.publish(what, words) for work in self._works]

    def cross_products(
        self, index: int | None, what: str, words: Mapping[str, Any]
    ) -> dict[tuple[int, int], np.ndarray]:
        """See `Session.cross_products`."""
        factors = [work.factor(what, words) for work in self._works]
        widths = self._works[0].widths(what, words)
        size = sum(rows * columns for _, (rows, columns) in pair_blocks(widths).values())
        noise = np.stack([work.noise(what, words, size) for work in self._works])
        with compat.x64():
            flat = np.asarray(self.backend.noisy_cross_products(factors, noise), np.int64)
        for work in self._works:
            work.opened(what, words, flat)
        return by_pair(flat, widths)

    def sum(self, index: int, what: str, words: Mapping[str, Any]) -> np.ndarray:
        """See `Session.sum`."""
        vectors = np.stack([work.summand(what, words) for work in self._works])
        noise = np.stack([work.noise(what, words, vectors.shape[1]) for work in self._works])
        with compat.x64():
            return np.asarray(self.backend.noisy_sum(vectors, noise), np.int64)

    def tell(self, method: PrivateOutput) -> pd.DataFrame:
        """See `Session.tell`; whoever runs this process holds every column anyway."""
        method.check_records(self.schema)
        return method.answer(reveal_in_process(method, {party: self.dataset.arrays(party) for party in self.parties}))

    def __repr__(self) -> str:
        """Public facts alone."""
        return f"InProcessSession({self.num_records} records at {', '.join(self.parties)})"


def pair_blocks(widths: Sequence[int]) -> dict[tuple[int, int], tuple[int, tuple[int, int]]]:
    """Where each two parties' product stands in the flat vector of all of them: (start, shape)."""
    blocks, start = {}, 0
    for i, j in itertools.combinations(range(len(widths)), 2):
        blocks[i, j] = start, (widths[i], widths[j])
        start += widths[i] * widths[j]
    return blocks


def by_pair(flat: np.ndarray, widths: Sequence[int]) -> dict[tuple[int, int], np.ndarray]:
    """All products of two parties' factors, out of one flat array.

    :param widths: columns of each party's factor.
    """
    blocks = pair_blocks(widths)
    return {pair: flat[start : start + a * b].reshape(a, b) for pair, (start, (a, b)) in blocks.items()}
