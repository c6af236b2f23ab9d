"""The score of a twin by tables that it was not learned from: unbiased, with intervals that hold."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.marginals import release_marginals
from vertinumpyro.mrf import Marginals, VertiMRF, twin_quality
from vertinumpyro.mrf.measurements import Measurement, count_table

LETTERS = tuple("abcdefgh")
SCHEMA = Schema(
    {
        "clinic": PartySchema({"ward": CategoricalColumn(categories=LETTERS), "ill": BinaryColumn()}),
        "insurer": PartySchema({"plan": CategoricalColumn(categories=LETTERS), "late": BinaryColumn()}),
    }
)
N = 2_000


def drawn(n: int, rng: np.random.Generator, link: float) -> pd.DataFrame:
    """All columns follow one letter with probability `link`, and are uniform otherwise."""
    letter = rng.integers(8, size=n)

    def follows(values: np.ndarray, size: int) -> np.ndarray:
        return np.where(rng.random(n) < link, values, rng.integers(size, size=n))

    letters = np.array(LETTERS)
    return pd.DataFrame(
        {
            "ward": letters[follows(letter, 8)],
            "ill": follows(letter // 4, 2),
            "plan": letters[follows(letter, 8)],
            "late": follows(letter % 2, 2),
        }
    )


@pytest.fixture(scope="module")
def records() -> pd.DataFrame:
    return drawn(N, np.random.default_rng(0), 0.6)


@pytest.fixture(scope="module")
def released(records: pd.DataFrame) -> Marginals:
    dataset, settings = VerticalDataset.from_pooled(SCHEMA, records), VertiMRF()
    return release_marginals(dataset, settings.plan(dataset, epsilon=5.0, delta=1e-5), settings, insecure_seed=0)


def noisy(released: Marginals, records: pd.DataFrame, stddev: float, rng: np.random.Generator) -> Marginals:
    """The same release with noise of this standard deviation."""
    arrays = VerticalDataset.from_pooled(SCHEMA, records).pooled()
    cells = {column.name: column.codes(arrays) for column in released.columns}
    sizes = {column.name: column.num_cells for column in released.columns}
    made = []
    for columns in {m.columns for m in released.measurements if len(m.columns) == 2}:
        exact = count_table([cells[name] for name in columns], [sizes[name] for name in columns])
        values = exact + rng.normal(0, stddev, exact.shape)
        made.append(Measurement(columns=columns, values=values, stddev=stddev))
    return dataclasses.replace(released, measurements=tuple(made))


def test_intervals_hold_the_truth(released, records):
    rng = np.random.default_rng(1)
    twin = drawn(N, rng, 0.45)
    truth = twin_quality(noisy(released, records, 1e-6, rng), twin)
    found = [twin_quality(noisy(released, records, 12.0, rng), twin) for _ in range(200)]
    for which in ("all", "across"):
        exact, estimates = getattr(truth, which), [getattr(one, which) for one in found]
        assert 0.3 < exact.share < 0.95
        shares = np.array([kept.share for kept in estimates])
        assert shares.mean() == pytest.approx(exact.share, abs=5 * shares.std() / math.sqrt(len(shares)) + 0.003)
        held = np.mean([kept.low <= exact.share <= kept.high for kept in estimates])
        assert 0.89 <= held <= 0.99  # of 200, four standard deviations around 95 %


def test_the_records_keep_all_of_it_and_shuffled_columns_nothing(released, records):
    same = twin_quality(released, records)
    assert same.all.low < 1 < same.all.high
    assert same.all.share == pytest.approx(1, abs=0.1)
    assert same.all.num_tables == 6
    assert same.across.num_tables == 4
    assert not same.differing
    shuffled = pd.DataFrame(
        {name: records[name].sample(frac=1, random_state=i).to_numpy() for i, name in enumerate(records)}
    )
    none = twin_quality(released, shuffled)
    assert none.all.share == pytest.approx(0, abs=0.1)
    assert next(iter(none.differing)) == ("ward", "plan")


def test_noise_that_hides_the_dependence_gives_no_number(released, records):
    score = twin_quality(noisy(released, records, 1_000.0, np.random.default_rng(2)), records)
    assert math.isnan(score.all.share)
    assert (score.all.low, score.all.high) == (-math.inf, math.inf)


def test_a_twin_of_some_columns_is_compared_on_these(released, records):
    score = twin_quality(released, records[["ward", "plan"]])
    assert (score.all.num_tables, score.across.num_tables) == (1, 1)
    with pytest.raises(ArgumentError, match="no table of two of the twin's columns"):
        twin_quality(released, records[["ward"]])
