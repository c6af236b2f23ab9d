import dataclasses

import numpy as np
import pytest

from tests.mrf.conftest import SCHEMA, frame
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import CountColumn, PartySchema, Schema
from vertinumpyro.mrf.cells import cell_columns
from vertinumpyro.mrf.marginals import columns_from_list


@pytest.mark.parametrize("column", cell_columns(SCHEMA), ids=lambda c: c.name)
def test_cells_are_those_that_evaluation_compares(column, dataset):
    codes = column.codes(dataset.arrays(column.party))
    expected = SCHEMA.columns[column.name].discretise(frame()[column.name], max_bins=16)
    assert column.num_cells == expected.num_cells
    np.testing.assert_array_equal(codes, expected.codes)


@pytest.mark.parametrize("bins", [{}, {"smoker": 2, "age": 3, "visits": 5, "income": 4, "children": 2, "plan": 2}])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_lie_in_the_cells_they_were_drawn_from(bins, weighted):
    rng = np.random.default_rng(0)
    for column in cell_columns(SCHEMA, bins):
        codes = rng.integers(column.num_cells, size=2000)
        weights = rng.random(column.num_fine) * (rng.random(column.num_fine) < 0.5) if weighted else None
        np.testing.assert_array_equal(column.codes(column.values(codes, rng, weights)), codes)


def test_a_bin_is_decoded_as_its_finer_histogram_says(dataset):
    (column,) = (c for c in cell_columns(SCHEMA, {"visits": 4}) if c.name == "visits")
    arrays = dataset.arrays("insurer")
    fine = np.bincount(column.codes(arrays, fine=True), minlength=column.num_fine)
    assert column.num_fine == 41
    drawn = column.values(column.codes(arrays), np.random.default_rng(0), fine)["visits"]
    found = np.bincount(drawn, minlength=41)
    # a multinomial in every bin: 5 standard deviations for each of 41 cells, false failure 2e-5
    assert np.all(np.abs(found - fine) <= 5 * np.sqrt(fine) + 1)
    uniform = column.values(column.codes(arrays), np.random.default_rng(0))["visits"]
    assert np.abs(np.bincount(uniform, minlength=41) - fine).sum() > 5 * np.abs(found - fine).sum()


@pytest.mark.parametrize("upper", [1024, 1500, 20_000])
def test_of_more_values_than_a_histogram_has_cells_those_at_the_ends_stay_apart(upper):
    """Zeros of a long tail, and what counts as the bound, were spread over their neighbours."""
    (column,) = cell_columns(Schema({"bank": PartySchema({"amount": CountColumn(upper=upper)})}))
    assert column.ends_apart
    rng = np.random.default_rng(0)
    values = rng.choice([0, upper, -1], 20_000, p=[0.6, 0.2, 0.2])
    values = np.where(values < 0, rng.integers(0, upper + 1, 20_000), values)
    fine = np.bincount(column.codes({"amount": values}, fine=True), minlength=column.num_fine)
    assert (len(fine), fine.sum()) == (1026, 20_000)
    assert [fine[0], fine[-1]] == [np.sum(values == 0), np.sum(values == upper)]
    drawn = column.values(column.codes({"amount": values}), rng, fine)
    assert set(np.unique(drawn["amount"])) <= set(range(upper + 1))
    # in the cells in which records are, 5 standard deviations of each
    again = np.bincount(column.codes(drawn, fine=True), minlength=column.num_fine)
    assert np.all(np.abs(again - fine) <= 5 * np.sqrt(fine) + 6)


def test_a_column_of_an_earlier_release_has_no_cells_for_ends():
    (column,) = cell_columns(Schema({"bank": PartySchema({"amount": CountColumn(upper=5000)})}))
    stored = {name: value for name, value in dataclasses.asdict(column).items() if name != "ends_apart"}
    (before,) = columns_from_list([stored])
    assert (before.num_fine, column.num_fine) == (1024, 1026)
    drawn = before.values(np.zeros(1000, int), np.random.default_rng(0), np.ones(1024))["amount"]
    assert before.codes({"amount": drawn}).max() == 0


def test_only_binned_columns_need_a_finer_histogram():
    assert {c.name for c in cell_columns(SCHEMA) if c.binned} == {"age", "visits", "income"}
    assert {c.name for c in cell_columns(SCHEMA, {"smoker": 2}) if c.binned} >= {"smoker"}


@pytest.mark.parametrize("bins", [{"nobody": 3}, {"age": 1}])
def test_bad_bins_name_the_column(bins):
    with pytest.raises(ArgumentError, match=next(iter(bins))):
        cell_columns(SCHEMA, bins)
