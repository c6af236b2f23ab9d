r"""The VertiMRF paper's own sketches, in which all columns share each hash key. **Rows can be reconstructed.**

The paper takes the sketches of different columns for independent (Theorem 2). They are not: a record with a large
hash is the maximum of one sketch in every column at once, and those ties spell out its row. No finite Rényi bound of
order 2 exists; at the paper's parameters the δ at the claimed ε is 0.2 to 0.6. Kept for comparison, behind
`allow_unproven=True`.

Parameters, from the paper's code: ε' = ε_in / (4 √(m ln 1/δ)) with ε_in = ε / √d for d columns,
k_p = ⌈1 / (e^ε' − 1)⌉, α_min = ⌈−ln(1 − e^-ε') / ln 2⌉, γ = 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np
from scipy import integrate

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.encoders.base import Budget, Encoding, Estimator, Observed, Reporting
from vertinumpyro.mrf.encoders.sketch import KEY_BYTES, SketchDesign, sketch_columns
from vertinumpyro.privacy import GaussianEvent, NeighbouringRelation

UNPROVEN = "all columns share the sketches' hash keys: rows of the table can be reconstructed from them"
_LAST_LEVEL = 32  # the paper has no upper cut; a hash reaches this level once in 2^31


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedKeyDesign(Encoding):
    """The public parameters of the paper's sketches.

    :ivar num_keys: m.
    :ivar claimed_epsilon: the ε that the paper claims for all sketches together. It does not hold.
    :ivar delta: δ in the paper's formulas.
    :ivar num_columns: d.
    """

    name: ClassVar[str] = "sketch_shared_key"
    holds_against_parties: ClassVar[bool] = False
    unproven: ClassVar[tuple[str, ...]] = (UNPROVEN,)

    num_keys: int
    claimed_epsilon: float
    delta: float
    num_columns: int

    def __post_init__(self) -> None:
        """Refuses values outside the documented ranges."""
        if self.num_keys < 1 or not 0 < self.claimed_epsilon < math.inf:
            raise ArgumentError("num_keys must be at least 1, and claimed_epsilon positive and finite")

    @property
    def sketch(self) -> SketchDesign:
        """Phantoms and levels."""
        spread = 4 * math.sqrt(self.num_keys * math.log(1 / self.delta))
        each = self.claimed_epsilon / math.sqrt(self.num_columns) / spread
        return SketchDesign(
            num_keys=self.num_keys,
            phantoms=math.ceil(1 / math.expm1(each)),
            lower=min(max(1, math.ceil(-math.log2(-math.expm1(-each)))), _LAST_LEVEL - 1),
            upper=_LAST_LEVEL,
        )

    @classmethod
    def calibrated(cls, budget: Budget) -> SharedKeyDesign:
        """By the paper's formulas."""
        return cls(
            num_keys=budget.num_keys,
            claimed_epsilon=budget.epsilon,
            delta=budget.delta,
            num_columns=len(budget.columns),
        )

    def delta_at(self, epsilon: float, relation: NeighbouringRelation, observed: Observed) -> float:
        """What the paper claims, beside the exact δ of the tables. It does not hold."""
        rest = epsilon - self.claimed_epsilon
        tables = GaussianEvent(noise_multiplier=relation.sensitivity / max(observed.mu, 1e-12), count=1)
        return 1.0 if rest < 0 else tables.delta(rest, relation)

    def estimator(self, reporting: Reporting) -> Estimator:
        """All columns under the same keys. Rows can be reconstructed."""
        columns, num_records = reporting.columns, reporting.num_records
        shared, *sources = reporting.source.spawn(1 + len(columns))
        codes, sizes = [reporting.codes[c.name] for c in columns], [c.num_cells for c in columns]
        sketches = sketch_columns(codes, sizes, self.sketch, shared.random_bytes(KEY_BYTES), sources)
        by_name = {c.name: sketch for c, sketch in zip(columns, sketches, strict=True)}
        return lambda a, b: harmonic_pair((by_name[a.name], by_name[b.name]), num_records, self.sketch)

    def reported_bytes(self, columns: Sequence[CellColumn], num_records: int) -> dict[str, int]:
        """A byte for a level."""
        sent = dict.fromkeys((c.party for c in columns), 0)
        for c in columns:
            sent[c.party] += self.num_keys * c.num_cells
        return sent

    def estimator_bytes(self, columns: Sequence[CellColumn]) -> int:
        """Of the sketches of all columns, then of two columns' complements as floats."""
        return self.num_keys * (sum(c.num_cells for c in columns) + 4 * 8 * max(c.num_cells for c in columns))

    def secrets(self, owner: str) -> str:
        """See `Encoding.secrets`."""
        return f"the hash keys of {owner} sketches"


def harmonic_pair(
    sketches: tuple[np.ndarray, np.ndarray], num_records: int, design: SketchDesign
) -> tuple[np.ndarray, float]:
    """The paper's estimate (Algorithm 4): N less the harmonic mean's estimate of the union of complements.

    :return: The contingency table, and a standard deviation of its cells from that estimator's relative error 0.78/√m.
    """
    first, second = (_complements(sketch) for sketch in sketches)
    unions = (np.maximum(cell[:, None], second).astype(np.float64) for cell in first.T)  # a row of the table at a time
    estimate = _correction(design.num_keys) * design.num_keys / np.stack([np.exp2(-u).sum(axis=0) for u in unions])
    phantoms = design.phantoms * (first.shape[1] + second.shape[1] - 2)
    table = np.clip(num_records - (estimate - phantoms), 0.0, num_records)
    return table, float(0.78 / math.sqrt(design.num_keys) * estimate.mean())


def _complements(sketch: np.ndarray) -> np.ndarray:
    """For every cell the largest level of all other cells, `[num_keys, cells]`."""
    if sketch.shape[1] == 1:
        return np.zeros_like(sketch)
    ordered = np.sort(sketch, axis=1)
    largest, second = ordered[:, -1:], ordered[:, -2:-1]
    alone = (sketch == largest) & ((sketch == largest).sum(axis=1, keepdims=True) == 1)
    return np.where(alone, second, largest)


@functools.lru_cache(maxsize=8)
def _correction(num_keys: int) -> float:
    """C_m with C_m⁻¹ = ∫₀^∞ m [log₂((u + 2)/(u + 1))]^m du."""
    value, _ = integrate.quad(lambda u: num_keys * math.log2((u + 2) / (u + 1)) ** num_keys, 0, math.inf)
    return 1 / value
