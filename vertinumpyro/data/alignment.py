"""Matching the parties' records by id, without showing an id to anyone.

On one machine `align` puts the parties' tables in a common order. Parties that run as separate
processes each sort their own table, exchange `alignment_digest` values, and call `check_digests`.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import AlignmentError, ArgumentError
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.wording import Place

_KEY_BYTES = (16, 64)


def record_ids(frame: pd.DataFrame, schema: Schema, party: str) -> list[str]:
    """Return a table's ids as text.

    Raises:
        DataError: there is no id column, an id is missing, or ids are neither text nor integers.
        AlignmentError: an id occurs twice.
    """
    place = Place(party, schema.id_column)
    if schema.id_column not in frame.columns:
        place.fail("is the id column and is not in the table; add it, or set id_column in the schema")
    series = cast(pd.Series, frame[schema.id_column])
    if series.isna().any():
        place.fail("has missing ids; give every record one")
    # 7 and 7.0 would read as different texts at two parties, so a float is no id.
    if len(series) and pd.api.types.infer_dtype(series) not in ("string", "integer"):
        place.fail("holds ids that are neither text nor integers; convert the column")
    ids = series.astype(str).tolist()
    if len(set(ids)) != len(ids):
        raise AlignmentError(f"{place}: has duplicate ids; keep one record per id")
    return ids


def align(frames: Mapping[str, pd.DataFrame], schema: Schema) -> dict[str, pd.DataFrame]:
    """Put the parties' tables in one common order: ascending ids, compared as text.

    Args:
        frames: each party's table with the schema's id column, in any order of records.
        schema: the public schema; it names the id column.

    Returns:
        The same tables, reordered, with a fresh index.

    Raises:
        DataError: an id column is missing or unusable.
        AlignmentError: ids occur twice at a party, or have no match at another; the message counts them
            and shows none.
    """
    ids = {party: record_ids(frame, schema, party) for party, frame in frames.items()}
    if ids:
        _check_matches({party: set(listed) for party, listed in ids.items()})
    return {party: frame.iloc[_ascending(ids[party])].reset_index(drop=True) for party, frame in frames.items()}


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
    if not _KEY_BYTES[0] <= len(key) <= _KEY_BYTES[1]:
        raise ArgumentError(f"key has {len(key)} bytes; give {_KEY_BYTES[0]} to {_KEY_BYTES[1]} random ones")
    digest = hashlib.blake2b(key=key, digest_size=32)
    for identifier in ids:
        encoded = identifier.encode()
        # The length first: ("ab", "c") and ("a", "bc") must differ.
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


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
            "sort every table by id, keep the common ids only, and use one key"
        )


def _check_matches(ids: Mapping[str, set[str]]) -> None:
    common = set.intersection(*ids.values())
    unmatched = {party: len(listed) - len(common) for party, listed in ids.items()}
    counts = [f"{count} of party {party!r}" for party, count in unmatched.items() if count]
    if counts:
        raise AlignmentError(
            f"ids without a match at every other party: {', '.join(counts)}; keep the common records only"
        )


def _ascending(ids: list[str]) -> np.ndarray:
    return np.asarray(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)


def _names(parties: list[str]) -> str:
    return ", ".join(map(repr, parties))
