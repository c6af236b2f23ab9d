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


def test_records_of_one_party_are_dropped_where_asked():
    aligned = align(frames(list(range(10)), list(range(7, 20))), SCHEMA, unmatched="drop")
    assert aligned["a"]["id"].tolist() == aligned["b"]["id"].tolist() == [7, 8, 9]
    assert aligned["a"]["x"].tolist() == [7, 8, 9]
    assert aligned["b"]["y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (["p1", "p2"], ["q1", "q2"], "0 of 2 ids match"),
        (["007", "008", "9"], ["7", "8", "9"], "leading zeros: write ids alike"),
    ],
)
def test_nothing_is_dropped_that_may_be_the_same(a, b, message):
    with pytest.raises(AlignmentError, match=message):
        align(frames(a, b), SCHEMA, unmatched="drop")


def test_integers_and_text_meet_as_text():
    aligned = align(frames([2, 10], ["10", "2"]), SCHEMA)
    assert aligned["a"]["x"].tolist() == [1, 0]
    assert aligned["b"]["y"].tolist() == [0, 1]


def test_duplicates_name_the_party_and_no_id():
    with pytest.raises(AlignmentError, match=r"'b'.*duplicate") as caught:
        align(frames(["31337", "2"], ["31337", "31337"]), SCHEMA)
    assert "31337" not in str(caught.value)


def test_unmatched_ids_are_counted_per_party():
    with pytest.raises(AlignmentError, match=r"2 of party 'a', 1 of party 'b'.*keep the common records") as caught:
        align(frames(["31337", "31338", "2"], ["2", "31339"]), SCHEMA)
    assert "3133" not in str(caught.value)


NUMBERS = [str(number) for number in range(31337, 31377)]
SUSPECTED = {
    "leading zeros": (lambda i: i.zfill(8), r"'a' have leading zeros"),
    "of some": (lambda i: i.zfill(8) if int(i) % 2 else i, r"'a' have leading zeros"),
    "floats": (lambda i: f"{i}.0", r"'a' end in \.0"),
    "spaces": (lambda i: f" {i} ", r"'a' have spaces around them"),
    "tabs": (lambda i: f"{i}\t", r"'a' have spaces around them"),
    "two": (lambda i: f" {i.zfill(9)}", r"'a' have spaces around them.*'a' have leading zeros"),
}


@pytest.mark.parametrize("case", SUSPECTED)
def test_ids_that_are_written_otherwise_are_named_so(case):
    write, message = SUSPECTED[case]
    with pytest.raises(AlignmentError, match=message) as caught:
        align(frames([write(i) for i in NUMBERS], NUMBERS[::-1]), SCHEMA)
    assert "alike" in str(caught.value)
    assert "common records only" not in str(caught.value)
    assert "3133" not in str(caught.value)
    assert "'b' have" not in str(caught.value)


@pytest.mark.parametrize("first", [0, 1])
def test_a_number_that_is_zero_has_no_leading_zeros(first):
    plain = [str(number) for number in range(1000)]
    with pytest.raises(AlignmentError, match="'b' have leading zeros: write") as caught:
        align(frames(plain[first:], [i.zfill(4) for i in plain]), SCHEMA)
    assert "'a' have" not in str(caught.value)


def test_ids_that_match_as_they_are_blame_nobody():
    """007 is written so at both; the others are not."""
    with pytest.raises(AlignmentError, match="'b' have leading zeros: write") as caught:
        align(frames([*NUMBERS, "007"], [*(i.zfill(8) for i in NUMBERS), "007"]), SCHEMA)
    assert "'a' have" not in str(caught.value)


def test_letter_case_is_named():
    ids = [f"p{i}" for i in NUMBERS]
    with pytest.raises(AlignmentError, match=r"'b' have capital letters.*alike"):
        align(frames(ids, [i.upper() for i in ids]), SCHEMA)


def test_a_difference_at_both_parties_is_named_for_both():
    with pytest.raises(AlignmentError, match=r"'a' have spaces.*; .*'b' have leading zeros"):
        align(frames([f"{i} " for i in NUMBERS], [i.zfill(7) for i in NUMBERS]), SCHEMA)


def test_a_difference_that_explains_the_rest_is_named_beside_many_matches():
    with pytest.raises(AlignmentError, match=r"2 of party 'a', 2 of party 'b'.*'a' have spaces"):
        align(frames([*NUMBERS[:-2], *(f" {i}" for i in NUMBERS[-2:])], NUMBERS), SCHEMA)


def test_zeros_that_all_parties_have_are_not_blamed():
    ids = [i.zfill(8) for i in NUMBERS]
    with pytest.raises(AlignmentError) as caught:
        align(frames(ids[:-3], ids), SCHEMA)
    assert "zeros" not in str(caught.value)
    assert "keep the common records only" in str(caught.value)


@pytest.mark.parametrize("shared", [0, 5])
def test_hardly_any_match_is_no_reason_to_keep_those(shared):
    with pytest.raises(AlignmentError, match=f"{shared} of 40 ids match.*id column") as caught:
        align(frames(NUMBERS, [*NUMBERS[:shared], *(f"q{i}" for i in NUMBERS[shared:])]), SCHEMA)
    assert "common records only" not in str(caught.value)


def test_floating_point_ids_say_what_to_convert_them_to():
    with pytest.raises(DataError, match=r"party 'a', column 'id'.*floating-point.*integers or text"):
        align(frames([1.0, 2.0], ["1", "2"]), SCHEMA)


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
    with pytest.raises(AlignmentError, match=r"'b' differ from those at 'a', 'c'.*leading zeros"):
        check_digests({"a": "12", "b": "34", "c": "12"})
