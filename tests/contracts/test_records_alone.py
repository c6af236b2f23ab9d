"""Every release adds up, over records, something that depends on that record alone and on public numbers.

So a sum moves by what one record's own vector moves, which is all that a sensitivity is about. A generator that runs
over a column, a mean over the records or a branch that a rare value takes would each make a stated epsilon false.
"""

import functools
import importlib
import pkgutil

import numpy as np
import pandas as pd
import pytest

import vertinumpyro
from tests.contracts import totals
from tests.contracts.record_tables import BASES, COLUMNS, complete, edge_values
from vertinumpyro.core import row_blocks
from vertinumpyro.core.errors import BackendError
from vertinumpyro.core.rng import InsecureSeededSource
from vertinumpyro.data import BinnedColumn, IntegerColumn
from vertinumpyro.data.schema_parsing import COLUMN_TYPES
from vertinumpyro.dpvi import horizontal
from vertinumpyro.mrf import contingency as exact_tables
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.encoders.randomized_response import ResponseDesign
from vertinumpyro.regression import bayesian_linear as linear_work
from vertinumpyro.regression.features import FeatureLayout
from vertinumpyro.session import PartyComputation

N = totals.NUM_RECORDS
CASES = list(totals.cases())


@pytest.fixture(autouse=True)
def no_noise(monkeypatch):
    totals.without_noise(monkeypatch)


@functools.cache
def total_of(name):
    """Made once: steps compile. Whatever a test patches is looked up when a sum is asked for."""
    return totals.cases()[name].over(seed=3)


def check(total, seed=0):
    """The sum over a table is the sum of what its records add alone, each beside others of every kind, in any order."""
    rng, table = np.random.default_rng(seed), np.arange(N)
    whole = total(table, np.ones(N, bool))
    alone = 0
    for place in table:
        beside = rng.choice(np.arange(N, totals.POOL), N, replace=False)
        beside[place] = place
        alone = alone + total(beside, table == place)
    assert whole.any()
    np.testing.assert_array_equal(whole, alone)
    for order in (table[::-1], rng.permutation(N)):
        np.testing.assert_array_equal(whole, total(order, np.ones(N, bool)))


@pytest.mark.parametrize("name", CASES)
def test_a_sum_is_of_each_record_alone(name):
    check(total_of(name))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(("steps of a", "steps of c"))])
def test_blocks_of_rows_change_no_sum(name, monkeypatch):
    total, table, everyone = total_of(name), np.arange(N), np.ones(N, bool)
    whole = total(table, everyone)
    for module in (row_blocks, exact_tables):
        monkeypatch.setattr(module, "rows_at_a_time", lambda *_: 5)
    monkeypatch.setattr(linear_work, "_ROWS", 5)
    monkeypatch.setattr(horizontal, "_BLOCK_VALUES", 5 * len(whole))
    np.testing.assert_array_equal(whole, total(table, everyone))


def test_blocks_of_a_batch_change_no_sum():
    table, everyone = np.arange(N), np.ones(N, bool)
    at_once, in_blocks = (total_of(f"steps of a regression, {how}") for how in ("clipped by parties", "in blocks"))
    np.testing.assert_array_equal(at_once(table, everyone), in_blocks(table, everyone))


def test_every_work_and_every_column_type_has_a_case():
    for module in pkgutil.walk_packages(vertinumpyro.__path__, "vertinumpyro."):
        if not module.name.endswith("__main__"):
            _import(module.name)
    works = {found for found in PartyComputation.__subclasses__() if found.__module__.startswith("vertinumpyro.")}
    assert works == {case.work for case in totals.cases().values()}
    types = {*COLUMN_TYPES.values(), BinnedColumn}
    assert types == {type(column) for column in BASES.values()}
    for name in ("tables across parties", "own tables", "steps of a mixture"):
        assert types == {type(column) for column in totals.cases()[name].schema.columns.values()}


def _import(name):
    try:
        importlib.import_module(name)
    except (ImportError, BackendError):  # an engine's own module, whose extra is not installed; works stand in none
        assert any(part in name for part in ("crypten", "spu", "arviz", "dask", "graphical_model")), name


# -- what is no sum: encoding, and reports of each record ------------------------------------------------


@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_is_encoded_alone(name):
    column, rng = COLUMNS[name], np.random.default_rng(5)
    inner = complete(column).decode(complete(column).example(N, rng), rng).tolist()
    values = pd.Series(edge_values(column) + inner)
    together = column.encode(values, party="", name=name)
    alone = np.concatenate([column.encode(values.iloc[[i]], party="", name=name) for i in range(len(values))])
    np.testing.assert_array_equal(together, alone)
    assert together.dtype == alone.dtype
    seen = [column.observed(values.iloc[[i]])[0] for i in range(len(values))]
    np.testing.assert_array_equal(column.observed(values), seen)


def test_a_response_follows_its_own_record():
    design = ResponseDesign(epsilon_per_column=0.5, cells=((7,),))
    for seed in range(5):
        table, others = np.random.default_rng(seed).integers(7, size=(2, N))
        reports = design.respond(table, 7, InsecureSeededSource(seed))
        for place in range(N):
            replaced = np.where(np.arange(N) == place, table, others)
            assert design.respond(replaced, 7, InsecureSeededSource(seed))[place] == reports[place]


# -- the check itself: faults that it must find ----------------------------------------------------------


def found(name):
    with pytest.raises(AssertionError):
        check(total_of(name))


def test_a_stream_over_a_column_is_found(monkeypatch):
    def drawn_within_groups(column, values):
        return column.decode(values, np.random.default_rng(0)).to_numpy(np.float64)

    monkeypatch.setattr(IntegerColumn, "numbers", drawn_within_groups)
    found("linear regression of holders")


def test_a_mean_over_records_is_found(monkeypatch):
    honest = FeatureLayout._encoded

    def centred(layout, *args):
        features = honest(layout, *args)
        return features - np.rint(features.mean(axis=0)).astype(features.dtype)

    monkeypatch.setattr(FeatureLayout, "_encoded", centred)
    found("functional mechanism")


@pytest.mark.parametrize("name", ["tables across parties", "own tables", "own tables of a workload"])
def test_a_branch_that_a_rare_value_takes_is_found(name, monkeypatch):
    honest = CellColumn.codes

    def shifted(column, arrays, *, fine=False):
        codes = honest(column, arrays, fine=fine)
        last = (column.num_fine if fine else column.num_cells) - 1
        return np.where(codes == last, codes, (codes + 1) % last) if (codes == last).any() else codes

    monkeypatch.setattr(CellColumn, "codes", shifted)
    found(name)
