"""Matching the parties' records by id without showing an id to anyone; which records everybody has is found once, kept
by each party, and held to later. Ids of many records are machine words, which sort as their texts do.

Parties write ids in their own ways, so a linkage compares them by one rule, `normalised_id`. What a party keeps is the
numbers of its own rows, beside a keyed digest of the ids that it had, so that a table which has changed since is
noticed before it is used. That all parties use records of the same ids is compared at the start of every run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias, cast, final, overload

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import AlignmentError, ArgumentError
from vertinumpyro.core.files import load_arrays, save_arrays
from vertinumpyro.core.row_blocks import slices
from vertinumpyro.data.column import plain
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.schema_checks import Place

Words: TypeAlias = np.ndarray
"""uint64 [n, k], the most significant word first. Secret."""

_BYTES = 8
_TOLD = 2**14


def words_of(ids: pd.Series, place: Place) -> Words:
    """The words of ids that `record_ids` accepts.

    :raises DataError: an id holds the character NUL, with which it would read as a shorter one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = plain(ids)
    if isinstance(ids.dtype, np.dtype) and ids.dtype.kind in "iu":
        texts = pc.cast(pa.array(ids.to_numpy()), pa.large_string())
    else:
        texts = pa.array(ids.astype(str).to_numpy(object), pa.large_string())
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    if not content.all():
        place.fail("holds ids with the character NUL; write them without it")
    lengths = np.diff(ends)
    padded = np.zeros((len(texts), -(-max(int(lengths.max(initial=1)), 1) // _BYTES) * _BYTES), np.uint8)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = content
    return padded.view(">u8").astype(np.uint64)


def as_words(content: np.ndarray) -> Words:
    """What `bytes_of` made, as words again."""
    width = -(-content.dtype.itemsize // _BYTES) * _BYTES
    return content.astype(f"S{width}").view(">u8").reshape(len(content), -1).astype(np.uint64)


def joined(blocks: Sequence[Words]) -> Words:
    """Blocks one after the other, as wide as the widest."""
    width = max(block.shape[1] for block in blocks)
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate([_as_wide(block, width) for block in blocks])


def texts_of(words: Words) -> list[str]:
    """The ids again."""
    return [identifier.decode() for identifier in bytes_of(words).tolist()]


def bytes_of(words: Words) -> np.ndarray:
    """The ids in UTF-8, of a type by which NumPy compares sets of them."""
    return words.astype(">u8").view(f"S{_BYTES * words.shape[1]}").ravel()


@final
class Ids(Sequence[str]):
    """Ids in ascending order, kept as words and told as texts, a block at a time. Secret."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def __len__(self) -> int:
        return len(self._words)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return texts_of(self._words[index]) if isinstance(index, slice) else texts_of(self._words[index][None])[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _TOLD):
            yield from texts_of(self._words[start : start + _TOLD])

    def __repr__(self) -> str:
        """Shows no id."""
        return f"Ids({len(self)})"


def ascending(words: Words) -> np.ndarray | None:
    """Record numbers in ascending order of their ids, int64 [n]; None where they stand so."""
    if _steps(words).all():
        return None
    if words.shape[1] == 1:
        return np.argsort(words[:, 0])
    return np.lexsort(words.T[::-1])


def matching_orders(ids: Mapping[str, Words]) -> dict[str, np.ndarray | None] | None:
    """Each party's order, where all have the same ids and none twice; None otherwise."""
    with ThreadPoolExecutor(min(len(ids), os.cpu_count() or 1)) as pool:  # sorting lets go of Python's lock
        orders = dict(zip(ids, pool.map(ascending, ids.values()), strict=True))
    width, (length, *others) = max(words.shape[1] for words in ids.values()), (len(words) for words in ids.values())
    if any(other != length for other in others):
        return None
    for rows in slices(length):
        rows = slice(max(rows.start - 1, 0), rows.stop)  # with the last id of those before
        first, *found = (_as_wide(_some(words, orders[party], rows), width) for party, words in ids.items())
        if not _steps(first).all() or not all(np.array_equal(own, first) for own in found):
            return None
    return orders


def _some(words: Words, order: np.ndarray | None, rows: slice) -> Words:
    return words[rows] if order is None else np.take(words, order[rows], axis=0)


def _steps(words: Words) -> np.ndarray:
    """Whether each id is greater than the one before it, bool [n - 1]."""
    greater = np.zeros(len(words) - 1, bool)
    for word in words.T[::-1]:
        greater = (word[1:] > word[:-1]) | ((word[1:] == word[:-1]) & greater)
    return greater


def _as_wide(words: Words, width: int) -> Words:
    return np.pad(words, ((0, 0), (0, width - words.shape[1]))) if words.shape[1] < width else words


_KEY_BYTES = (16, 64)
_KEEP = 'keep the common records only, or set unmatched = "drop"'

_LEADING_ZEROS = re.compile(r"^0+(?=[^\W_])")  # a number that is 0 has none

#: How one id may be written in two ways, and what makes it one again, in the order in which to do it.
_WRITING: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "have spaces around them": str.strip,
        "end in .0": lambda identifier: identifier.removesuffix(".0"),
        "have leading zeros": lambda identifier: _LEADING_ZEROS.sub("", identifier),
        "have capital letters": str.lower,
    }
)


def record_ids(frame: pd.DataFrame, schema: Schema, party: str) -> list[str]:
    """Return a table's ids as text.

    :raises DataError: there is no id column, an id is missing, or ids are neither text nor integers.
    :raises AlignmentError: an id occurs twice.
    """
    ids = id_series(frame, schema, party).astype(str).tolist()
    if len(set(ids)) != len(ids):
        raise _duplicates(Place(party, schema.id_column))
    return ids


def id_series(frame: pd.DataFrame, schema: Schema, party: str) -> pd.Series:
    """Return a table's ids as they are stored, texts or integers.

    :raises DataError: as `record_ids`.
    """
    place = Place(party, schema.id_column)
    if schema.id_column not in frame.columns:
        place.fail("is the id column and is not in the table; add it, or set id_column in the schema")
    series = cast(pd.Series, frame[schema.id_column])
    if series.isna().any():
        place.fail("has missing ids; give every record one")
    series = plain(series)
    # 7 and 7.0 would read as different texts at two parties, so a float is no id.
    if pd.api.types.is_float_dtype(series.dtype):
        place.fail("holds ids stored as floating-point numbers; convert them to integers or text")
    if len(series) and pd.api.types.infer_dtype(series) not in ("string", "integer"):
        place.fail("holds ids that are neither text nor integers; convert the column")
    return series


def _duplicates(place: Place) -> AlignmentError:
    return AlignmentError(f"{place}: has duplicate ids; keep one record per id")


def align(
    frames: Mapping[str, pd.DataFrame], schema: Schema, *, unmatched: Literal["refuse", "drop"] = "refuse"
) -> dict[str, pd.DataFrame]:
    """Put the parties' tables in one common order: ascending ids, compared as text.

    :param frames: each party's table with the schema's id column, in any order of records.
    :param schema: the public schema; it names the id column.
    :param unmatched: "drop" keeps the records that all parties have, whose number is then the public N.
    :return: The same tables, reordered, with a fresh index.
    :raises DataError: an id column is missing or unusable.
    :raises AlignmentError: ids occur twice at a party, or have no match at another; the message counts them, says
        whether they seem to be written in two ways, and shows none. Where unmatched ones are dropped: no id matches, or
        most would if they were written alike.
    """
    ids = {party: record_ids(frame, schema, party) for party, frame in frames.items()}
    orders = _orders(ids, unmatched) if ids else {}
    return {party: frame.iloc[orders[party]].reset_index(drop=True) for party, frame in frames.items()}


def orders_of_words(
    ids: Mapping[str, Words], schema: Schema, *, unmatched: Literal["refuse", "drop"] = "refuse"
) -> dict[str, np.ndarray | None]:
    """The record numbers that `align` takes at each party, from ids as words; None takes all as they stand.

    Ids that match at all parties take a few words each. Where they do not, their texts are compared, which takes a
    hundred bytes each.

    :raises AlignmentError: as `align`.
    """
    orders = matching_orders(ids)
    if orders is not None:
        return orders
    texts = {party: texts_of(words) for party, words in ids.items()}
    for party, listed in texts.items():
        if len(set(listed)) != len(listed):
            raise _duplicates(Place(party, schema.id_column))
    return dict(_orders(texts, unmatched))


def _orders(ids: Mapping[str, list[str]], unmatched: Literal["refuse", "drop"]) -> dict[str, np.ndarray]:
    sets = {party: set(listed) for party, listed in ids.items()}
    common = set.intersection(*sets.values())
    if unmatched == "refuse" or not common or _written_otherwise(sets, common):
        _check_matches(sets)
    return {party: _ascending(listed, common) for party, listed in ids.items()}


def alignment_digest(ids: Iterable[str], key: bytes) -> str:
    """Return a keyed BLAKE2b digest (64 hexadecimal digits) of ordered ids.

    Equal digests mean the same ids in the same order. `key` must be a secret that the parties share and
    nobody else knows, fresh for each session: ids such as customer numbers are guessable, and without a
    key anyone who sees a digest could test guesses of the whole list against it. The parties themselves
    hold the key, so a digest hides nothing from a party that can guess another's complete list.

    :param ids: the ids in their common order, as text.
    :param key: 16 to 64 random bytes, e.g. from ``secrets.token_bytes(32)``.
    :raises ArgumentError: the key is too short or too long.
    """
    digest = AlignmentDigest(key)
    digest.update(ids)
    return digest.hexdigest()


@final
class AlignmentDigest:
    """`alignment_digest` of ids that come a few at a time."""

    def __init__(self, key: bytes) -> None:
        if not _KEY_BYTES[0] <= len(key) <= _KEY_BYTES[1]:
            raise ArgumentError(f"key has {len(key)} bytes; give {_KEY_BYTES[0]} to {_KEY_BYTES[1]} random ones")
        self._digest = hashlib.blake2b(key=key, digest_size=32)

    def update(self, ids: Iterable[str]) -> None:
        """More of them."""
        for identifier in ids:
            encoded = identifier.encode()
            # The length first: ("ab", "c") and ("a", "bc") must differ.
            self._digest.update(len(encoded).to_bytes(8, "big") + encoded)

    def hexdigest(self) -> str:
        """Of all so far."""
        return self._digest.hexdigest()


def check_digests(digests: Mapping[str, str]) -> None:
    """Compare the parties' digests.

    :raises AlignmentError: they differ; the message names the parties on each side.
    """
    parties = list(digests)
    different = [p for p in parties if not hmac.compare_digest(digests[p], digests[parties[0]])]
    if different:
        same = [p for p in parties if p not in different]
        raise records_differ(different, same)


def records_differ(some: Sequence[str], others: Sequence[str] = ()) -> AlignmentError:
    """The error of parties whose records are not the same.

    :param others: from whose they differ; empty where only all of them are known not to be alike.
    """
    how = f"differ from those at {_names(others)}" if others else "are not the same at all of them"
    return AlignmentError(
        f"records at {_names(some)} {how}, in ids or in order; "
        "sort every table by id, keep the common ids only, write them alike (leading zeros, spaces, capital "
        "letters), and use one key"
    )


def _check_matches(ids: Mapping[str, set[str]]) -> None:
    common = set.intersection(*ids.values())
    unmatched = {party: len(listed) - len(common) for party, listed in ids.items()}
    counts = [f"{count} of party {party!r}" for party, count in unmatched.items() if count]
    if counts:
        raise AlignmentError(f"ids without a match at every other party: {', '.join(counts)}; {_advice(ids, common)}")


def _advice(ids: Mapping[str, set[str]], common: set[str]) -> str:
    """What to do about unmatched ids; names differences of writing that explain at least half of them."""
    fewest = min(map(len, ids.values()))
    if _written_otherwise(ids, common):
        differences = [difference for difference in _WRITING if _matters(ids, difference)] or list(_WRITING)
        named = [(difference, _with(ids, difference)) for difference in differences]
        told = "; ".join(f"ids at {_names(parties)} {difference}" for difference, parties in named if parties)
        return f"{told}: write ids alike at every party, as text"
    if len(common) * 2 >= fewest:
        return _KEEP
    return f"{len(common)} of {fewest} ids match; does the id column name the same records at every party?"


def _written_otherwise(ids: Mapping[str, set[str]], common: set[str]) -> bool:
    """Whether differences of writing explain at least half of the unmatched ids."""
    fewest = min(map(len, ids.values()))
    return (len(_common(ids, _WRITING)) - len(common)) * 2 >= max(1, fewest - len(common))


def _common(ids: Mapping[str, set[str]], differences: Iterable[str]) -> set[str]:
    """The ids that all parties share where these differences of writing are overlooked."""
    listed = list(differences)
    return set.intersection(*({_repaired(i, listed) for i in own} for own in ids.values()))


def _repaired(identifier: str, differences: Iterable[str]) -> str:
    return reduce(lambda written, difference: _WRITING[difference](written), differences, identifier)


def _matters(ids: Mapping[str, set[str]], difference: str) -> bool:
    others = [other for other in _WRITING if other != difference]
    return len(_common(ids, others)) < len(_common(ids, _WRITING))


def _with(ids: Mapping[str, set[str]], difference: str) -> list[str]:
    """The parties where ids without a match have a difference, once those before it are overlooked."""
    order = list(_WRITING)
    before = order[: order.index(difference)]
    so_far = {party: {_repaired(i, before) for i in own} for party, own in ids.items()}
    common = set.intersection(*so_far.values())
    return [party for party, own in so_far.items() if any(_WRITING[difference](i) != i for i in own - common)]


def _ascending(ids: list[str], kept: set[str]) -> np.ndarray:
    places = [place for place, identifier in enumerate(ids) if identifier in kept]
    return np.asarray(sorted(places, key=ids.__getitem__), dtype=np.int64)


def _names(parties: Sequence[str]) -> str:
    return ", ".join(map(repr, parties))


ID_RULE = "compatibility forms unified (Unicode NFKC), no space around, runs of spaces as one, no capitals (casefolded)"
"""What `normalised_id` does, in words."""


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
        key = os.urandom(32)
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
