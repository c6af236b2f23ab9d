import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vertinumpyro.core.errors import AlignmentError, ArgumentError, DataError
from vertinumpyro.data import (
    BinaryColumn,
    PartySchema,
    Schema,
    align,
    alignment_digest,
    check_digests,
    record_ids,
)

SCHEMA = Schema({"a": PartySchema({"x": BinaryColumn()}), "b": PartySchema({"y": BinaryColumn()})})
KEY = bytes(range(16))


def frames(ids_a, ids_b):
    return {
        "a": pd.DataFrame({"id": ids_a, "x": range(len(ids_a))}),
        "b": pd.DataFrame({"id": ids_b, "y": range(len(ids_b))}),
    }


@given(st.lists(st.integers(0, 10**6), unique=True, min_size=1), st.randoms())
def test_any_order_is_aligned(ids, random):
    shuffled = random.sample(ids, len(ids))
    aligned = align(frames(ids, shuffled), SCHEMA)
    assert aligned["a"]["id"].tolist() == aligned["b"]["id"].tolist() == sorted(ids, key=str)
    assert [ids[i] for i in aligned["a"]["x"]] == [shuffled[i] for i in aligned["b"]["y"]]


def test_integers_and_text_meet_as_text():
    aligned = align(frames([2, 10], ["10", "2"]), SCHEMA)
    assert aligned["a"]["x"].tolist() == [1, 0]
    assert aligned["b"]["y"].tolist() == [0, 1]


def test_duplicates_name_the_party_and_no_id():
    with pytest.raises(AlignmentError, match=r"'b'.*duplicate") as caught:
        align(frames(["31337", "2"], ["31337", "31337"]), SCHEMA)
    assert "31337" not in str(caught.value)


def test_unmatched_ids_are_counted_per_party():
    with pytest.raises(AlignmentError, match="2 of party 'a', 1 of party 'b'") as caught:
        align(frames(["31337", "31338", "2"], ["2", "31339"]), SCHEMA)
    assert "3133" not in str(caught.value)


@pytest.mark.parametrize("ids", [[1.0, 2.0], ["a", None], [True, False], [["x"], ["y"]]])
def test_unusable_ids(ids):
    with pytest.raises(DataError, match="party 'a', column 'id'"):
        align(frames(ids, ["1", "2"]), SCHEMA)


def test_missing_id_column():
    with pytest.raises(DataError, match="party 'a', column 'id'"):
        record_ids(pd.DataFrame({"x": [1]}), SCHEMA, "a")


@given(st.lists(st.text(max_size=4), max_size=5), st.lists(st.text(max_size=4), max_size=5))
def test_digests_agree_exactly_when_the_ordered_ids_do(one, two):
    encodable = [[i.encode("utf-8", "ignore").decode() for i in ids] for ids in (one, two)]
    same = alignment_digest(encodable[0], KEY) == alignment_digest(encodable[1], KEY)
    assert same == (encodable[0] == encodable[1])


def test_digest_depends_on_the_key_and_on_the_framing():
    assert alignment_digest(["a"], KEY) != alignment_digest(["a"], KEY[::-1])
    assert alignment_digest(["ab", "c"], KEY) != alignment_digest(["a", "bc"], KEY)


@pytest.mark.parametrize("size", [0, 15, 65])
def test_weak_keys_are_refused(size):
    with pytest.raises(ArgumentError, match=f"{size} bytes"):
        alignment_digest(["a"], bytes(size))


def test_check_digests():
    check_digests({})
    check_digests({"a": "12", "b": "12"})
    with pytest.raises(AlignmentError, match="'b' differ from those at 'a', 'c'"):
        check_digests({"a": "12", "b": "34", "c": "12"})
