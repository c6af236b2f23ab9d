"""Figures of peers' twins of public tables, in a file of the repository: a fit takes up to half an hour elsewhere."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vertinumpyro.data import VerticalDataset
from vertinumpyro.evaluation.marginals import draw_subsets

__all__ = [
    *("FIGURES", "Fit", "PeerFigures"),
    *("compared_on", "distance_of_tables", "draw_records", "draw_triples", "its_twin", "nearer"),
]

FIGURES = Path(__file__).with_name("fits.json")


class Fit(NamedTuple):
    """A twin's distance, or that of records drawn from its model where that is less, and what it took."""

    tvd: float
    seconds: float


def compared_on(dataset: VerticalDataset, sha256: str, num_triples: int, seed: int) -> dict[str, str]:
    """What a distance follows from beside the twin: digests of the file, of its codes and cells, and of the triples."""
    cells = _cells(dataset)
    return {
        "sha256": sha256,
        "codes": _digest(np.vstack([cells, dataset.to_frame().to_numpy()])),
        "triples": _digest(np.array(draw_triples(dataset, num_triples, seed))),
    }


def draw_triples(dataset: VerticalDataset, num_triples: int, seed: int) -> list[tuple[int, ...]]:
    """Of which `k_way_tvd` takes the distance, as places of columns."""
    return draw_subsets(len(dataset.schema.columns), 3, num_triples, np.random.default_rng(seed))


def distance_of_tables(dataset: VerticalDataset, triples: Sequence[Sequence[int]], shares: np.ndarray) -> float:
    """Mean TVD of a model's tables, one after another, from the records'. Not DP."""
    codes, cells, found = dataset.to_frame().to_numpy(), _cells(dataset), []
    for triple, table in zip(triples, _split(cells, triples, shares), strict=True):
        sides = tuple(cells[list(triple)].tolist())
        real = np.bincount(np.ravel_multi_index(codes[:, list(triple)].T, sides), minlength=len(table))
        found.append(0.5 * np.abs(real / len(codes) - table).sum())
    return float(np.mean(found))


def draw_records(
    dataset: VerticalDataset, triples: Sequence[Sequence[int]], shares: np.ndarray, seed: int
) -> np.ndarray:
    """The tables of as many independent records of a model, each by itself, as an exact sampler's twin has them."""
    rng, num_records = np.random.default_rng(seed), dataset.num_records
    tables = (np.maximum(table, 0) for table in _split(_cells(dataset), triples, shares))
    return np.concatenate([rng.multinomial(num_records, table / table.sum()) / num_records for table in tables])


def _split(cells: np.ndarray, triples: Sequence[Sequence[int]], shares: np.ndarray) -> list[np.ndarray]:
    """The tables of the triples, which stand one after another."""
    ends = np.cumsum([math.prod(cells[list(triple)].tolist()) for triple in triples])
    assert ends[-1] == len(shares)
    return np.split(shares, ends[:-1])


def _cells(dataset: VerticalDataset) -> np.ndarray:
    columns = dataset.schema.columns.values()
    return np.array([len(column.categories) for column in columns])  # pyright: ignore[reportAttributeAccessIssue]


def _digest(numbers: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers, np.int64).tobytes()).hexdigest()


def nearer(figures: Mapping[str, Any]) -> Fit:
    """A peer at its best: its twin, or records drawn from its model where its own sampler lost something of that.

    Of earlier fits the model itself, without a sample's chance, which flatters the peer.
    """
    of_model = figures.get("sampled_tvd", figures.get("model_tvd", 1.0))
    return Fit(min(figures["tvd"], of_model), figures["seconds"])


def its_twin(figures: Mapping[str, Any]) -> Fit:
    """What a peer's own code releases, whatever its sampler lost."""
    return Fit(figures["tvd"], figures["seconds"])


@dataclasses.dataclass(frozen=True)
class PeerFigures:
    """A JSON file: {table: {compared: see `compared_on`, mechanism: {epsilon: {seed: figures of one fit}}}}.

    Figures of public tables alone, and nothing of a record.
    """

    path: Path = FIGURES

    def fits(
        self,
        table: str,
        compared: Mapping[str, str],
        mechanism: str,
        epsilon: float,
        counted: Callable[[Mapping[str, Any]], Fit] = nearer,
    ) -> dict[int, Fit]:
        """By seed; an error where they are of another table, or were compared otherwise."""
        found = self._of(self._stored(), table, compared).get(mechanism, {}).get(f"{epsilon:g}", {})
        return {int(seed): counted(fit) for seed, fit in found.items()}

    def add(
        self,
        table: str,
        compared: Mapping[str, str],
        mechanism: str,
        epsilon: float,
        seed: int,
        figures: Mapping[str, Any],
    ) -> None:
        """Write one fit's, in the place of what is there of it."""
        stored = self._stored()
        of_table = self._of(stored, table, compared)
        by_seed = of_table.setdefault(mechanism, {}).setdefault(f"{epsilon:g}", {})
        by_seed[str(seed)] = {k: round(v, 6) if isinstance(v, float) else v for k, v in figures.items()}
        written = self.path.with_suffix(".part")
        written.write_text(json.dumps({**stored, table: of_table}, indent=1) + "\n")
        os.replace(written, self.path)

    def _stored(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def _of(self, stored: Mapping[str, Any], table: str, compared: Mapping[str, str]) -> dict[str, Any]:
        """What is there of a table, if it was compared like this."""
        found = stored.get(table, {"compared": dict(compared)})
        other = [key for key in compared if found["compared"].get(key) != compared[key]]
        if other:
            raise SystemExit(
                f"{self.path} has figures of {table} with other {' and '.join(other)} than this run has; to have "
                f"figures of this one, take {table} out of the file and run --only peers again"
            )
        return found
