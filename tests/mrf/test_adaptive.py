import itertools

import numpy as np
import pytest

from vertinumpyro.mrf.field import GraphicalModel
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.table_selection import merged, run_rounds, worst_fitted

N = 1000
UNIFORM = GraphicalModel((("a", "b", "c", "d"),), (np.full((2, 2, 2, 2), 1 / 16),), None)
PAIRS = list(itertools.product("ab", "cd"))


def table(columns, skew, stddev=1.0):
    return Measurement(columns=columns, values=N * (0.25 + skew * np.array([[1, -1], [-1, 1]])), stddev=stddev)


def test_tables_that_the_model_misses_come_first_but_not_for_their_noise():
    tables = [table(PAIRS[0], 0.0), table(PAIRS[1], 0.1), table(PAIRS[2], 0.2), table(PAIRS[3], 0.1, stddev=200.0)]
    assert worst_fitted(UNIFORM, tables, PAIRS, N) == [PAIRS[2], PAIRS[1], PAIRS[0], PAIRS[3]]


def test_rounds_choose_on_what_is_released_and_no_more():
    log = []

    def reveal(index, choose):
        chosen = choose()
        log.append((index, tuple(chosen)))
        return [table(pair, 0.0, stddev=0.1) for pair in chosen]  # looks independent after all: not chosen again

    first = [table(pair, skew) for pair, skew in zip(PAIRS, (0.05, 0.2, 0.1, 0.0), strict=True)]
    found = run_rounds(first, [1, 2], lambda tables: UNIFORM, reveal, PAIRS, N)
    assert log == [(0, (PAIRS[1],)), (1, (PAIRS[2], PAIRS[0]))]
    assert len(found) == 7


def test_a_round_that_was_spent_before_fits_nothing_and_pairs_without_a_table_come_first():
    def estimate(tables):
        raise AssertionError("a stored round needs no model")

    first, *others = [table(pair, 0.1) for pair in PAIRS]
    assert len(run_rounds([first], [1], estimate, lambda index, choose: others, PAIRS, N)) == 4
    assert worst_fitted(UNIFORM, [table(PAIRS[0], 0.3), table(PAIRS[1], 0.2)], PAIRS, N) == [*PAIRS[2:], *PAIRS[:2]]


def test_merging_is_the_inverse_variance_mean():
    both = [table(PAIRS[0], 0.1, 1.0), table(PAIRS[0], 0.2, 2.0), table(PAIRS[1], 0.0)]
    one, other = merged(both)
    np.testing.assert_allclose(one.values, 0.8 * both[0].values + 0.2 * both[1].values)
    assert one.stddev == pytest.approx(1 / np.sqrt(1 + 1 / 4))
    assert other.columns == PAIRS[1]
