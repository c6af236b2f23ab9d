"""Columns that nobody has observed: what a model takes in place of data to generate records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vertinumpyro.data import OBSERVED_SUFFIX

__all__ = ["UNOBSERVED"]


class _Unobserved(Mapping[str, Any]):
    """Every column is None, so its site is drawn; every `<column>_observed` mask is True."""

    def __getitem__(self, name: str) -> Any:
        return True if name.endswith(OBSERVED_SUFFIX) else None

    def get(self, name: str, default: Any = None) -> Any:
        """As indexing: there is no column that is absent."""
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "UNOBSERVED"


UNOBSERVED: Final = _Unobserved()
"""Pass it as `data` to `Predictive` to draw every column."""
