"""How this package words its errors: the place first, then the problem, then the fix, never a value."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import NoReturn

from vertinumpyro.core.errors import DataError

NO_DATASET = (
    'is no VerticalDataset; make one: VerticalDataset.from_files(Schema.from_toml("schema.toml"), '
    "{party: file, ...}), or from_frames; or give a session"
)


@dataclasses.dataclass(frozen=True)
class Place:
    """A party's column (or a party's whole table, when `column` is empty), as errors name it."""

    party: str
    column: str = ""

    def __str__(self) -> str:
        """Return e.g. ``party 'clinic', column 'age'``."""
        return f"party {self.party!r}" + (f", column {self.column!r}" if self.column else "")

    def fail(self, problem: str) -> NoReturn:
        """Raise a `DataError` that names this place.

        Call it outside any ``except`` block: an exception raised inside one keeps the caught exception
        as its context, and NumPy, pandas and the CSV parser put cell values in theirs.
        """
        raise DataError(f"{self}: {problem}")


def suggest(word: object, known: Iterable[str]) -> str:
    """Return a hint that ends an error about an unknown name: the closest known name, or all of them."""
    options = list(known)
    close = difflib.get_close_matches(str(word), options, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(map(repr, options)) or 'none'}"


def closest(word: str, known: Iterable[str]) -> str:
    """Return the closest known name in brackets, to end an error with; nothing where none is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
