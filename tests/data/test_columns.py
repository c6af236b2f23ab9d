import ast
import dataclasses
import pathlib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vertinumpyro
from tests.data.strategies import binned, columns, integers, reals
from vertinumpyro.core.errors import ArgumentError, DataError, SchemaError
from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    CountColumn,
    IntegerColumn,
    RealColumn,
    binning,
)
from vertinumpyro.data.column import plain
from vertinumpyro.data.schema_parsing import COLUMN_TYPES
from vertinumpyro.evaluation.table_plots import cell_labels

# A value that no message may show: it is odd enough to be found wherever it leaks.
CANARY = 31337.625


def encode(column, values):
    return column.encode(pd.Series(values), party="clinic", name="age")


def rng(seed=0):
    return np.random.default_rng(seed)


@given(columns(), st.integers(0, 2**32 - 1))
def test_example_is_valid_and_survives_decode_then_encode(column, seed):
    encoded = column.example(20, rng(seed))
    again = encode(column, column.decode(encoded, rng(seed)))
    assert again.dtype == encoded.dtype == column.placeholder().dtype
    if column.kind == "real":
        # Scaling is affine up to rounding; sqrt stretches it near 0.
        np.testing.assert_allclose(again, encoded, atol=1e-4)
    else:
        np.testing.assert_array_equal(again, encoded)


@given(reals(), st.integers(0, 2**32 - 1))
def test_real_units_stay_inside_the_open_interval(column, seed):
    encoded = encode(column, [*column.bounds, *rng(seed).uniform(*column.bounds, size=20)])
    assert encoded.dtype == np.float32
    assert ((encoded >= np.float32(1e-6)) & (encoded <= np.float32(1 - 1e-6))).all()
    decoded = column.decode(encoded, rng(seed))
    assert decoded.between(*column.bounds).all()
    np.testing.assert_allclose(decoded[:2], column.bounds, atol=1e-4 * (column.bounds[1] + 1))


@given(binned() | integers(), st.integers(0, 2**32 - 1))
def test_every_bin_decodes_into_itself(column, seed):
    codes = np.repeat(np.arange(column.num_cells, dtype=np.int32), 5)
    decoded = column.decode(codes, rng(seed))
    np.testing.assert_array_equal(encode(column, decoded), codes)


@given(columns())
def test_missing_values_follow_the_rule(column):
    values = column.decode(column.example(6, rng()), rng()).astype(object)
    values[[1, 4]] = None
    if column.missing == "forbid":
        with pytest.raises(DataError, match="missing"):
            encode(column, values)
        return
    observed = column.observed(values)
    encoded = encode(column, values)
    filler = column.placeholder() if column.masked else column.num_categories - 1
    assert (~observed)[[1, 4]].all()
    assert (encoded[~observed] == filler).all()
    decoded = column.decode(encoded, rng(), observed=observed)
    np.testing.assert_array_equal(decoded.notna(), observed)


@given(columns(), st.integers(1, 20))
def test_discretise_covers_the_public_domain(column, max_bins):
    series = column.decode(column.example(30, rng()), rng())
    cells = column.discretise(series, max_bins)
    assert cells.codes.dtype == np.int32
    assert ((cells.codes >= 0) & (cells.codes < cells.num_cells)).all()
    if column.missing != "forbid":
        gone = column.discretise(pd.Series([None, None], dtype=object), max_bins)
        assert (gone.codes == cells.num_cells - 1).all()


@pytest.mark.parametrize(
    ("column", "kind", "num_categories"),
    [
        (BinnedColumn(bounds=(0, 60), bins=16), "categorical", 16),
        (BinnedColumn(edges=(0, 0, 1, 1), missing="category"), "categorical", 4),
        (IntegerColumn(bounds=(1, 16)), "categorical", 16),
        (CategoricalColumn(categories=("a", "b"), missing="category"), "categorical", 3),
        (BinaryColumn(), "binary", 2),
        (BinaryColumn(missing="category"), "categorical", 3),
    ],
)
def test_kind_and_num_categories(column, kind, num_categories):
    assert (column.kind, column.num_categories) == (kind, num_categories)


@pytest.mark.parametrize("column", [RealColumn(bounds=(0, 1)), CountColumn(upper=9)])
def test_unbounded_kinds_have_no_categories(column):
    with pytest.raises(SchemaError, match="no categories"):
        _ = column.num_categories


@pytest.mark.parametrize(
    ("column", "values", "codes"),
    [
        (BinnedColumn(edges=(0, 0, 10, 60)), [0, 0.1, 9.9, 10, 60], [0, 1, 1, 2, 2]),
        (BinnedColumn(edges=(0, 0, 1, 1)), [0, 0.5, 1], [0, 1, 2]),
        (BinnedColumn(bounds=(0, 4), bins=4), [0, 0.9, 1, 4], [0, 0, 1, 3]),
        (BinnedColumn(bounds=(0, 9), bins=3, transform="sqrt"), [0.9, 1, 3.9, 4, 9], [0, 1, 1, 2, 2]),
        (IntegerColumn(bounds=(0, 9), bins=2), [0, 4, 5, 9], [0, 0, 1, 1]),
        (IntegerColumn(edges=(0, 1, 5, 77)), [0, 1, 4, 5, 77], [0, 1, 1, 2, 2]),
        (IntegerColumn(bounds=(1, 3), out_of_bounds="clip"), [-5, 2, 9], [0, 1, 2]),
        (CountColumn(upper=10, out_of_bounds="clip"), [-1, 3, 99], [0, 3, 10]),
        (CategoricalColumn(categories=("a", "b"), unknown="b"), ["a", "zzz"], [0, 1]),
        (CategoricalColumn(categories=(3, 5)), [5.0, 3.0], [1, 0]),
        (CategoricalColumn(categories=("a", "b")), pd.Categorical(["b", "a"]), [1, 0]),
        (BinaryColumn(), [True, False], [1, 0]),
        (BinaryColumn(), [1.0, 0.0], [1, 0]),
        (BinaryColumn(categories=("no", "yes")), ["yes", "no"], [1, 0]),
        (BinaryColumn(missing="category"), [1, None, 0], [1, 2, 0]),
        (CountColumn(upper=9), pd.array([1, 2], dtype="Int64"), [1, 2]),
    ],
)
def test_codes(column, values, codes):
    encoded = encode(column, values)
    assert encoded.dtype == np.int32
    np.testing.assert_array_equal(encoded, codes)


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (RealColumn(bounds=(0, 9)), "float64"),
        (BinnedColumn(bounds=(0, 9), bins=3), "float64"),
        (IntegerColumn(bounds=(0, 9)), "int64"),
        (IntegerColumn(bounds=(0, 9), missing="mask"), "Int64"),
        (CountColumn(upper=9), "int64"),
        (BinaryColumn(), "int64"),
        (BinaryColumn(categories=(False, True)), "bool"),
        (CategoricalColumn(categories=(3, 5)), "int64"),
        (CategoricalColumn(categories=(3, 5), missing="category"), "Int64"),
        (CategoricalColumn(categories=(0.5, 5)), "float64"),
        (CategoricalColumn(categories=("a", "b")), str(pd.Series(["a"]).dtype)),
    ],
)
def test_decoded_type_depends_on_the_schema_alone(column, dtype):
    for n in (0, 5):
        assert str(column.decode(column.example(n, rng()), rng()).dtype) == dtype


BAD_VALUES = {
    "text in a real": (RealColumn(bounds=(0, 1)), ["31337.625"]),
    "mixed in a real": (RealColumn(bounds=(0, 1)), [0.5, "31337.625"]),
    "bool in a real": (RealColumn(bounds=(0, 1)), [True, False]),
    "NaN in a real": (RealColumn(bounds=(0, 1e9)), [CANARY, np.nan]),
    "inf in a real": (RealColumn(bounds=(0, 1e9)), [CANARY, np.inf]),
    "huge in a real": (RealColumn(bounds=(0, 1)), pd.Series([10**400 + 31337, 1], dtype=object)),
    "above a real": (RealColumn(bounds=(0, 1)), [0.5, CANARY]),
    "below a real": (RealColumn(bounds=(0, 1)), [-CANARY]),
    "complex in a real": (RealColumn(bounds=(0, 1)), [CANARY + 1j]),
    "list in a real": (RealColumn(bounds=(0, 1)), [[CANARY], [CANARY]]),
    "outside the bins": (BinnedColumn(bounds=(0, 1), bins=3), [CANARY]),
    "fraction in a count": (CountColumn(upper=10**6), [CANARY]),
    "negative count": (CountColumn(upper=10), [-31337]),
    "large count": (CountColumn(upper=10), [31337]),
    "text in a count": (CountColumn(upper=10), ["31337"]),
    "fraction in an integer": (IntegerColumn(bounds=(0, 9)), [CANARY]),
    "outside an integer": (IntegerColumn(bounds=(0, 9)), [31337]),
    "unknown category": (CategoricalColumn(categories=("a", "b")), ["a", "31337.625"]),
    "unknown number": (CategoricalColumn(categories=(1, 2)), [31337]),
    "numbers for text": (CategoricalColumn(categories=("1", "2")), [31337]),
    "text for numbers": (CategoricalColumn(categories=(1, 2)), ["31337"]),
    "lists for text": (CategoricalColumn(categories=("1", "2")), [["31337"]]),
    "third of a binary": (BinaryColumn(), [0, 1, 31337]),
    "text in a binary": (BinaryColumn(), ["31337"]),
    "unknown of a binary": (BinaryColumn(categories=("no", "yes")), ["no", "31337"]),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_bad_values_name_the_place_and_never_the_value(case):
    column, values = BAD_VALUES[case]
    with pytest.raises(DataError) as caught:
        encode(column, values)
    assert "party 'clinic', column 'age'" in str(caught.value)
    assert "31337" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


# What else a domain may have wrong is in tests/first_week/test_schemas.py, with file, line and column.
BAD_DOMAINS = {
    "nan": (BinnedColumn, {"bounds": (0, float("nan")), "bins": 3}, "finite"),
    "log of -1": (RealColumn, {"bounds": (-1, 1), "transform": "log1p"}, "log1p"),
    "root of -1": (RealColumn, {"bounds": (-1, 1), "transform": "sqrt"}, "sqrt"),
    "decimals": (RealColumn, {"bounds": (0, 1), "decimals": 0.5}, "decimals"),
    "real missing": (RealColumn, {"bounds": (0, 1), "missing": "learn"}, "missing"),
    "count missing": (CountColumn, {"upper": 3, "missing": True}, "missing"),
    "one bin": (BinnedColumn, {"bounds": (0, 1), "bins": 1}, "bins"),
    "no bins": (BinnedColumn, {"bounds": (0, 1)}, "bins"),
    "descending": (BinnedColumn, {"edges": (0, 2, 1)}, "less than|ascending"),
    "triple edge": (BinnedColumn, {"edges": (0, 1, 1, 1, 2)}, "atom"),
    "two edges": (BinnedColumn, {"edges": (0, 1)}, "three"),
    "thin bins": (BinnedColumn, {"bounds": (1e9, 1e9 + 1e-6), "bins": 9}, "narrow|ascending"),
    "more bins than integers": (IntegerColumn, {"bounds": (0, 3), "bins": 5}, "bins"),
    "equal integer edges": (IntegerColumn, {"edges": (0, 0, 5)}, "ascending"),
    "upper": (CountColumn, {"upper": 0}, "upper"),
    "single, masked": (CategoricalColumn, {"categories": ("a",), "missing": "mask"}, "single category"),
    "bool and int": (CategoricalColumn, {"categories": (True, 2)}, "mix"),
}


@pytest.mark.parametrize("case", BAD_DOMAINS)
def test_bad_domains_are_schema_errors(case):
    column_class, arguments, message = BAD_DOMAINS[case]
    with pytest.raises(SchemaError, match=message):
        column_class(**arguments)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (IntegerColumn(bounds=(0, 3)), [4]),
        (IntegerColumn(bounds=(0, 3)), [-1]),
        (IntegerColumn(bounds=(0, 3)), [0.5]),
        (BinaryColumn(), [[0, 1]]),
        (RealColumn(bounds=(0, 1)), [np.nan]),
        (CountColumn(upper=3), [np.inf]),
    ],
)
def test_decode_refuses_what_no_table_encodes_to(column, values):
    with pytest.raises(ArgumentError):
        column.decode(np.asarray(values), rng())


def test_a_poisson_draw_above_upper_is_clipped():
    assert CountColumn(upper=5).decode(np.array([2, 500]), rng()).tolist() == [2, 5]


def test_decimals_round_inside_the_bounds():
    column = RealColumn(bounds=(17.4, 90), decimals=0)
    decoded = column.decode(column.example(200, rng()), rng())
    assert decoded.between(17.4, 90).all()
    assert (decoded[decoded > 18] % 1 == 0).all()


@given(binned(), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_decimals_of_a_bin_stay_in_it(column, decimals, seed):
    edges = column.bin_edges if column.edges is not None else binning.to_decimals(column.bin_edges, decimals)
    if not binning.have_decimals(edges, decimals):
        with pytest.raises(SchemaError, match="a bin holds no such number"):
            dataclasses.replace(column, decimals=decimals)
        return
    column = dataclasses.replace(column, decimals=decimals, missing_codes=())  # one may be all that a bin holds
    codes = column.example(100, rng(seed))
    decoded = column.decode(codes, rng(seed), observed=codes < column.num_cells)
    np.testing.assert_array_equal(encode(column, decoded), codes)
    values, edges = decoded.dropna().to_numpy(), set(column.bin_edges)
    assert all(value in edges or value == round(value, decimals) for value in values)


@pytest.mark.parametrize("missing", ["forbid", "mask", "category"])
@pytest.mark.parametrize(
    "column", [IntegerColumn(bounds=(0, 99), bins=10), BinnedColumn(bounds=(0, 99), bins=9, decimals=0)]
)
def test_a_code_for_a_missing_value_is_never_drawn(column, missing):
    column = dataclasses.replace(column, missing=missing, missing_codes=(99,))
    codes = np.full(1000, column.num_cells - 1 - (missing == "category"))
    decoded = column.decode(codes, rng())
    assert not decoded.isna().any()
    np.testing.assert_array_equal(encode(column, decoded), codes)


def test_equal_bins_as_wide_as_a_decimal_hold_one_number_each():
    column = BinnedColumn(bounds=(0, 1), bins=10, decimals=1)
    tenths = np.round(np.arange(10) / 10, 1)
    assert encode(column, pd.Series(tenths)).tolist() == list(range(10))
    assert set(column.decode(np.repeat(np.arange(10), 50), rng())) <= {*tenths, 1.0}
    assert encode(dataclasses.replace(column, decimals=None), pd.Series(tenths)).tolist()[:3] == [0, 1, 2]


def test_decimals_leave_the_zeros_to_their_bin():
    column = BinnedColumn(edges=(0, 0, 0.02, 5), decimals=2)
    decoded = column.decode(np.repeat([0, 1, 2], 300), rng())
    assert (decoded[:300] == 0).all()
    assert (decoded[300:600] == 0.01).all()
    assert decoded[600:].between(0.02, 5).all()
    assert decoded[600:].nunique() > 200
    narrow = dataclasses.replace(column, dtype="float32")
    codes = np.repeat([0, 1, 2], 300)
    np.testing.assert_array_equal(encode(narrow, narrow.decode(codes, rng())), codes)


def test_two_equal_last_edges_are_an_integer_of_its_own():
    column = IntegerColumn(edges=(0, 50, 100, 100))
    assert encode(column, [0, 49, 50, 99, 100]).tolist() == [0, 0, 1, 1, 2]
    assert set(column.decode(np.repeat(2, 50), rng())) == {100}
    assert column.decode(np.repeat(1, 500), rng()).between(50, 99).all()


CODES = (-999, 99.5, "n.d.")
CODED = {
    "real": (RealColumn, {"bounds": (0, 10)}, [2.5, -999, 99.5, 7.5]),
    "bins": (BinnedColumn, {"bounds": (0, 10), "bins": 4, "out_of_bounds": "clip"}, [2.5, -999, 99.5, 7.5]),
    "integer": (IntegerColumn, {"bounds": (-1000, 10), "bins": 4}, [2, -999, None, 7]),
    "count": (CountColumn, {"upper": 10}, [2, -999, -999, 7]),
    "text": (CategoricalColumn, {"categories": ("a", "b")}, ["a", "n.d.", " -999 ", "b"]),
    "numbers": (CategoricalColumn, {"categories": (1, 2)}, [1, -999, np.nan, 2]),
    "binary": (BinaryColumn, {}, [0, -999, 99.5, 1]),
    "objects": (CountColumn, {"upper": 10}, pd.Series([2, "n.d.", "-999", 7], dtype=object)),
    "a category": (IntegerColumn, {"bounds": (0, 9)}, pd.Categorical([2, -999, None, 7])),
    "nullable": (IntegerColumn, {"bounds": (0, 9)}, pd.array([2, -999, None, 7], "Int64")),
    "arrow": (IntegerColumn, {"bounds": (0, 9)}, pd.Series([2, -999, None, 7], dtype="int64[pyarrow]")),
}  # fmt: skip


@pytest.mark.parametrize("missing", ["category", "mask", "forbid"])
@pytest.mark.parametrize(("column_class", "domain", "values"), CODED.values(), ids=CODED.keys())
def test_codes_for_missing_are_what_the_rule_for_missing_says(column_class, domain, values, missing):
    column = column_class(**domain, missing=missing, missing_codes=CODES)
    series = pd.Series(values)
    assert column.observed(series).tolist() == [True, False, False, True]
    if missing == "forbid":
        with pytest.raises(DataError, match="has missing values"):
            encode(column, series)
        return
    plainly = dataclasses.replace(column, missing_codes=())
    blank = series.astype(object).where(pd.Series([True, False, False, True]), None).infer_objects()
    np.testing.assert_array_equal(encode(column, series), encode(plainly, blank))
    assert column.discretise(series, 4).codes.tolist()[1:3] == [column.discretise(series, 4).num_cells - 1] * 2
    assert column.describe().endswith("(-999, 99.5, n.d.)")
    decoded = column.decode(encode(column, series), rng(), observed=column.observed(series))
    assert decoded.isna().tolist() == [False, True, True, False]  # missing, never the code
    if column_class is IntegerColumn:
        drawn = column.decode(np.repeat(0, 3000), rng())
        assert not drawn.isin(CODES).any()


def test_codes_for_missing_are_checked():
    for codes, why in (((np.inf,), "finite"), (("",), "texts"), ((None,), "texts"), (-999, "give a list")):
        with pytest.raises(SchemaError, match=why):
            RealColumn(bounds=(0, 1), missing_codes=codes)
    with pytest.raises(SchemaError, match="missing_codes holds 9, a category"):
        CategoricalColumn(categories=(1, 9), missing_codes=(9,))
    assert RealColumn(bounds=(0, 1), missing_codes=(np.float64(-9.0), 1.5)).missing_codes == (-9, 1.5)


DESCRIBED = [
    (CategoricalColumn(categories=("a", "b")), "a, b"),
    (CategoricalColumn(categories=(0.5, 2.0), missing="category"), "0.5, 2, missing is a category"),
    (CategoricalColumn(categories=tuple(f"{i:020}" for i in range(5))), f"{0:020}, {1:020}, … (5 categories)"),
    (BinaryColumn(), "0, 1"),
    (BinaryColumn(categories=("no", "yes"), missing="mask"), "no, yes, may be missing"),
    (IntegerColumn(bounds=(1, 16)), "1 to 16"),
    (IntegerColumn(bounds=(0, 9), bins=2), "0 to 9 in 2 groups"),
    (IntegerColumn(edges=(0, 1, 5, 77)), "0 to 77 in 3 groups"),
    (CountColumn(upper=80), "0 to 80"),
    (BinnedColumn(edges=(0, 0, 10, 60)), "0 to 60 in 3 bins"),
    (BinnedColumn(bounds=(0, 60), bins=15, transform="sqrt"), "0 to 60 in 15 bins"),
    (RealColumn(bounds=(0.25, 1e6), missing="mask"), "0.25 to 1e+06, may be missing"),
    (CountColumn(upper=80, missing="category"), "0 to 80, missing is learned"),
]


@pytest.mark.parametrize(("column", "words"), DESCRIBED)
def test_a_column_describes_its_public_domain(column, words):
    assert column.describe() == words


@given(columns(), st.integers(1, 20))
def test_every_column_has_words_limits_and_cells(column, max_bins):
    assert column.describe()
    example = column.decode(column.example(50, rng()), rng())
    cells = column.discretise(example, max_bins)
    labels = cell_labels(column, cells.num_cells, max_bins)
    assert len(labels) == cells.num_cells
    if column.limits is not None:
        present = plain(example.dropna()).to_numpy(float)
        assert ((present >= column.limits[0]) & (present <= column.limits[1])).all()
    else:
        assert labels[: len(column.labels)] == [str(label) for label in column.labels]


@given(columns(), st.integers(0, 2**32 - 1))
def test_encoded_values_lie_in_their_range(column, seed):
    low, high = column.encoded_range
    encoded = column.example(50, rng(seed))
    assert np.float32(low) <= encoded.min()
    assert encoded.max() <= np.float32(high)
    if column.num_values is not None:
        assert (low, high + 1) == (0, column.num_values + (column.missing == "category" and not column.masked))


def test_only_columns_ask_which_column_they_are():
    """Elsewhere a new type of column would be forgotten: what differs between columns is theirs to say."""
    root = pathlib.Path(vertinumpyro.__file__).parent
    concrete = {kind.__name__ for kind in (*COLUMN_TYPES.values(), BinnedColumn)}
    asked = []
    for path in root.rglob("*.py"):
        if "data" in path.relative_to(root).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_question = isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
            if is_question or isinstance(node, ast.MatchClass):
                names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                asked += [f"{path.name}: {name}" for name in sorted(names & concrete)]
    assert asked == []
