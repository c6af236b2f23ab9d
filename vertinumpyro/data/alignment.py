"""Matching the parties' records by id, without showing an id to anyone.

On one machine `align` puts the parties' tables in a common order. Parties that run as separate
processes each sort their own table, exchange `alignment_digest` values, and call `check_digests`.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Literal, cast, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import AlignmentError, ArgumentError
from vertinumpyro.data.column import plain
from vertinumpyro.data.record_order import Words, matching_orders, texts_of
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.wording import Place

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

    Raises:
        DataError: there is no id column, an id is missing, or ids are neither text nor integers.
        AlignmentError: an id occurs twice.
    """
    ids = id_series(frame, schema, party).astype(str).tolist()
    if len(set(ids)) != len(ids):
        raise _duplicates(Place(party, schema.id_column))
    return ids


def id_series(frame: pd.DataFrame, schema: Schema, party: str) -> pd.Series:
    """Return a table's ids as they are stored, texts or integers.

    Raises:
        DataError: as `record_ids`.
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

    Args:
        frames: each party's table with the schema's id column, in any order of records.
        schema: the public schema; it names the id column.
        unmatched: "drop" keeps the records that all parties have, whose number is then the public N.

    Returns:
        The same tables, reordered, with a fresh index.

    Raises:
        DataError: an id column is missing or unusable.
        AlignmentError: ids occur twice at a party, or have no match at another; the message counts them,
            says whether they seem to be written in two ways, and shows none. Where unmatched ones are dropped: no id
            matches, or most would if they were written alike.
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

    Raises:
        AlignmentError: as `align`.
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

    Args:
        ids: the ids in their common order, as text.
        key: 16 to 64 random bytes, e.g. from ``secrets.token_bytes(32)``.

    Raises:
        ArgumentError: the key is too short or too long.
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

    Raises:
        AlignmentError: they differ; the message names the parties on each side.
    """
    parties = list(digests)
    different = [p for p in parties if not hmac.compare_digest(digests[p], digests[parties[0]])]
    if different:
        same = [p for p in parties if p not in different]
        raise AlignmentError(
            f"records at {_names(different)} differ from those at {_names(same)}, in ids or in order; "
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


def _names(parties: list[str]) -> str:
    return ", ".join(map(repr, parties))
