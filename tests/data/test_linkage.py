"""One rule for ids, and a party's own result of a linkage."""

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.core.errors import AlignmentError, ArgumentError
from vertinumpyro.core.files import save_arrays
from vertinumpyro.data import BinaryColumn, Linkage, PartySchema, Schema, normalised_ids

SCHEMA = Schema({"clinic": PartySchema({"ill": BinaryColumn()})}, id_column="person")


def table(ids):
    return pd.DataFrame({"person": ids, "ill": np.arange(len(ids)) % 2})


@pytest.mark.parametrize(
    ("written", "meant"),
    [(" A-7 ", "a-7"), ("\uff21\uff0d\uff17", "a-7"), ("STRASSE", "straße"), ("a\u00a0 b", "A B"), ("007", "007")],
)
def test_ids_are_compared_by_one_rule(written, meant):
    one, other = (normalised_ids(table([text]), SCHEMA, "clinic") for text in (written, meant))
    assert one == other


def test_leading_zeros_are_part_of_an_id():
    assert normalised_ids(table(["007", "7"]), SCHEMA, "clinic") == ["007", "7"]


def test_ids_that_become_one_are_refused_without_being_shown():
    with pytest.raises(AlignmentError, match="2 ids are another's by the rule") as caught:
        normalised_ids(table(["a1", "A1", "b", " a1"]), SCHEMA, "clinic")
    assert "a1" not in str(caught.value)


def test_a_linkage_keeps_the_common_records_under_their_common_ids(tmp_path):
    frame = table([" X1", "x2", "X3 "])
    ids = normalised_ids(frame, SCHEMA, "clinic")
    made = Linkage.made("topic", ids, np.array([0, 2]))
    made.save(tmp_path / "own" / "linkage.npz")
    assert (tmp_path / "own" / "linkage.npz").stat().st_mode & 0o77 == 0
    again = Linkage.load(tmp_path / "own" / "linkage.npz")
    kept = again.applied(frame, SCHEMA, "clinic")
    assert kept["person"].tolist() == ["x1", "x3"]
    assert kept["ill"].tolist() == [0, 0]
    assert (again.topic, again.num_common) == ("topic", 2)
    assert frame["person"].tolist() == [" X1", "x2", "X3 "]
    assert "x1" not in repr(again)
    assert again.key.hex() not in repr(again)


def test_a_table_that_has_changed_since_is_refused():
    frame = table(["a", "b", "c"])
    made = Linkage.made("topic", normalised_ids(frame, SCHEMA, "clinic"), np.array([0, 2]))
    made.applied(frame, SCHEMA, "clinic")
    for changed in (frame.iloc[::-1], frame.iloc[:2], table(["a", "b", "d"])):
        with pytest.raises(AlignmentError, match="have changed since"):
            made.applied(changed, SCHEMA, "clinic")


def test_what_is_no_linkage_is_refused(tmp_path):
    save_arrays(tmp_path / "other.npz", {"rows": np.arange(2)}, {"topic": "t"})
    with pytest.raises(ArgumentError, match="is no linkage"):
        Linkage.load(tmp_path / "other.npz")
