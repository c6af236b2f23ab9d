"""Figures of peers' twins of public tables, in a file of the repository: a fit takes up to half an hour elsewhere."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vertinumpyro.data import VerticalDataset
from vertinumpyro.evaluation.marginals import draw_subsets

__all__ = ["FIGURES", "Fit", "PeerFigures", "compared_on"]

FIGURES = Path(__file__).with_name("fits.json")


class Fit(NamedTuple):
    """A twin's distance, and what it took."""

    tvd: float
    seconds: float


def compared_on(dataset: VerticalDataset, sha256: str, num_triples: int, seed: int) -> dict[str, str]:
    """What a distance follows from beside the twin: digests of the file, of its codes and cells, and of the triples."""
    frame, columns = dataset.to_frame(), dataset.schema.columns.values()
    cells = np.array([len(column.categories) for column in columns])  # pyright: ignore[reportAttributeAccessIssue]
    triples = draw_subsets(len(cells), 3, num_triples, np.random.default_rng(seed))
    return {
        "sha256": sha256,
        "codes": _digest(np.vstack([cells, frame.to_numpy()])),
        "triples": _digest(np.array(triples)),
    }


def _digest(numbers: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers, np.int64).tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True)
class PeerFigures:
    """A JSON file: {table: {compared: see `compared_on`, mechanism: {epsilon: {seed: figures of one fit}}}}.

    Figures of public tables alone, and nothing of a record.
    """

    path: Path = FIGURES

    def fits(self, table: str, compared: Mapping[str, str], mechanism: str, epsilon: float) -> dict[int, Fit]:
        """By seed; an error where they are of another table, or were compared otherwise."""
        found = self._of(self._stored(), table, compared).get(mechanism, {}).get(f"{epsilon:g}", {})
        return {int(seed): Fit(fit["tvd"], fit["seconds"]) for seed, fit in found.items()}

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
