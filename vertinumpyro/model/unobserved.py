"""Data in which nothing is observed: draws every column from the model under `numpyro.infer.Predictive`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

from vertinumpyro.data import OBSERVED_SUFFIX

__all__ = ["UNOBSERVED", "Unobserved"]


@final
class Unobserved(Mapping[str, Any]):
    """Stands for every column at once, without a value: `data["age"]` is None, so the site is drawn.

    A mask `data["age_observed"]` is True: what is drawn has no missing values. Columns are not listed,
    because it has no schema; a model that indexes a column (`data["age"][batch]`) cannot run on it.

    >>> UNOBSERVED["age"] is None, UNOBSERVED["age_observed"]
    (True, True)
    """

    def __getitem__(self, column: str) -> bool | None:
        """None for a column, True for the mask of one."""
        return True if column.endswith(OBSERVED_SUFFIX) else None

    def __iter__(self) -> Iterator[str]:
        """Nothing to iterate over."""
        return iter(())

    def __len__(self) -> int:
        """Number of observed columns: none."""
        return 0

    def __bool__(self) -> bool:
        """True, so that `data or {}` keeps it."""
        return True

    def __repr__(self) -> str:
        """Its public name."""
        return "UNOBSERVED"


UNOBSERVED = Unobserved()
"""Pass it as `data` to draw records: `Predictive(model, posterior)(rng_key, UNOBSERVED, num_records)`."""
