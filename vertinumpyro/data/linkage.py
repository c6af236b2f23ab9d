"""Which records of a party's table are of people whom every party knows: found once, kept by the party, held to later.

Parties write ids in their own ways, so a linkage compares them by one rule, `normalised_id`. What a party keeps is the
numbers of its own rows, beside a keyed digest of the ids that it had, so that a table which has changed since is
noticed before it is used. That all parties use records of the same ids is compared at the start of every run.
"""

from __future__ import annotations

import dataclasses
import hmac
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import AlignmentError, ArgumentError
from vertinumpyro.core.stored_arrays import load_arrays, save_arrays
from vertinumpyro.data.alignment import AlignmentDigest, alignment_digest, record_ids
from vertinumpyro.data.schema import Schema

__all__ = ["ID_RULE", "Linkage", "normalised_id", "normalised_ids"]

ID_RULE = "compatibility forms unified (Unicode NFKC), no space around, runs of spaces as one, no capitals (casefolded)"
"""What `normalised_id` does, in words."""

_KEY_BYTES = 32


def normalised_id(identifier: str) -> str:
    """An id as all parties write it: see `ID_RULE`. Leading zeros stay, for they may be part of it."""
    return " ".join(unicodedata.normalize("NFKC", identifier).split()).casefold()


def normalised_ids(frame: pd.DataFrame, schema: Schema, party: str) -> list[str]:
    """A table's ids as all parties write them.

    :raises DataError: the id column is missing or unusable.
    :raises AlignmentError: two ids are one by the rule; counts them and shows none.
    """
    found = [normalised_id(identifier) for identifier in record_ids(frame, schema, party)]
    if twice := len(found) - len(set(found)):
        raise AlignmentError(
            f"party {party!r}, column {schema.id_column!r}: {twice} ids are another's by the rule that ids are "
            f"compared by ({ID_RULE}); keep one record per id"
        )
    return found


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Linkage:
    """One party's own result of a linkage. Secret: it says whom the others know.

    :ivar topic: digest of the agreement that it was made under.
    :ivar rows: numbers of the common records in this party's file, ascending, int64.
    :ivar key: of `ids`.
    :ivar ids: keyed digest of all ids of that file, in their order.
    """

    topic: str
    rows: np.ndarray = dataclasses.field(repr=False)
    key: bytes = dataclasses.field(repr=False)
    ids: str = dataclasses.field(repr=False)

    @classmethod
    def made(cls, topic: str, ids: Sequence[str], rows: np.ndarray) -> Linkage:
        """The linkage of a table with these ids, as the parties found it."""
        key = os.urandom(_KEY_BYTES)
        return cls(topic=topic, rows=rows, key=key, ids=alignment_digest(ids, key))

    @property
    def num_common(self) -> int:
        """N, public among the parties."""
        return len(self.rows)

    def applied(self, frame: pd.DataFrame, schema: Schema, party: str) -> pd.DataFrame:
        """The common records alone, under the ids that all parties write alike.

        :raises AlignmentError: the table's ids have changed since.
        """
        (kept,) = self.applied_to_blocks([frame], schema, party)
        return kept

    def applied_to_blocks(self, frames: Iterable[pd.DataFrame], schema: Schema, party: str) -> Iterator[pd.DataFrame]:
        """As `applied`, of a table that comes in blocks; all of them have come before an error is certain to."""
        digest, start = AlignmentDigest(self.key), 0
        for frame in frames:
            ids = normalised_ids(frame, schema, party)
            digest.update(ids)
            first, last = np.searchsorted(self.rows, (start, start + len(ids)))
            picked = self.rows[first:last] - start
            kept = frame.iloc[picked].reset_index(drop=True)
            kept[schema.id_column] = [ids[row] for row in picked]
            yield kept
            start += len(ids)
        if not hmac.compare_digest(digest.hexdigest(), self.ids):
            raise AlignmentError(
                f"party {party!r}: the ids of the table have changed since its records were linked; put that table "
                "back, or link again"
            )

    def save(self, path: str | Path) -> None:
        """Write it to an `.npz` file, for its owner's eyes alone."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"topic": self.topic, "key": self.key.hex(), "ids": self.ids}
        save_arrays(path, {"rows": self.rows}, metadata, private=True)

    @classmethod
    def load(cls, path: str | Path) -> Linkage:
        """What `save` wrote.

        :raises ArgumentError: it is no linkage.
        """
        metadata, arrays = load_arrays(path)
        try:
            return cls(
                topic=metadata["topic"], rows=arrays["rows"], key=bytes.fromhex(metadata["key"]), ids=metadata["ids"]
            )
        except (KeyError, TypeError, ValueError):
            raise ArgumentError(f"{str(path)!r} is no linkage; make one: vertinumpyro link") from None
