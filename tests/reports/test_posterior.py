"""What a report says of a twin from gradients: how far tables drawn anew from the posterior lie apart."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema
from vertinumpyro.dpvi.posterior import GUIDES_OWN
from vertinumpyro.evaluation import ReportFigure, ReportTable
from vertinumpyro.reports.posterior import Predictive

SCHEMA = Schema(
    {
        "clinic": PartySchema({"ill": BinaryColumn(), "old": BinaryColumn()}),
        "insurer": PartySchema({"claims": BinaryColumn(), "cost": RealColumn(bounds=(0, 10))}),
    }
)
SPREAD = 0.02  # of the latent share of "ill"


class Known:
    """A posterior that knows "ill" up to its spread; "claims" is "ill" with a fifth of records redrawn."""

    split = SimpleNamespace(schema=SCHEMA)

    def sample_synthetic(self, num_records: int, *, rng_key: int, num_tables: int) -> list[pd.DataFrame]:
        rng = np.random.default_rng(rng_key)
        return [self.table(num_records, rng, rng.normal(0.3, SPREAD)) for _ in range(num_tables)]

    @staticmethod
    def table(n: int, rng: np.random.Generator, share: float) -> pd.DataFrame:
        ill = rng.random(n) < share
        claims = np.where(rng.random(n) < 0.2, rng.random(n) < share, ill)
        columns = {"ill": ill, "old": rng.random(n) < 0.5, "claims": claims, "cost": rng.uniform(0, 10, n)}
        return pd.DataFrame(columns).astype({"ill": int, "old": int, "claims": int})


@pytest.fixture(scope="module")
def predictive() -> Predictive:
    return Predictive(Known(), Known.table(4_000, np.random.default_rng(1), 0.3), 0)


def test_shares_spread_as_the_posterior_and_a_sample_do(predictive: Predictive):
    expected = np.sqrt(SPREAD**2 + 0.3 * 0.7 / 4_000)
    errors = predictive.share_errors()
    assert errors["ill"] == pytest.approx(expected, rel=0.5)  # an estimate from 40 tables
    assert errors["old"] == pytest.approx(np.sqrt(0.25 / 4_000), rel=0.5)
    assert errors["old"] < errors["ill"] / 1.5
    assert predictive.shares["ill"].mean(axis=0)[1] == pytest.approx(0.3, abs=5 * expected / np.sqrt(40))


def test_the_pairs_that_hang_together_have_their_interval(predictive: Predictive):
    *figures, table = predictive.items()
    assert all(isinstance(figure, ReportFigure) and not figure.not_dp for figure in figures)
    assert isinstance(table, ReportTable)
    assert not table.not_dp
    assert GUIDES_OWN in table.caption
    assert table.frame.index[0] == "ill and claims"
    low, high = (float(x) for x in re.findall(r"[\d.]+", table.frame["in 95 % of tables drawn anew"].iloc[0]))
    # 2 P(ill) P(not ill) 0.8 is its distance from independence
    assert low < 2 * 0.3 * 0.7 * 0.8 < high
    assert low < table.frame["dependence in the twin"].iloc[0] < high
    assert "is not in it" in table.caption


def test_one_column_has_no_pairs():
    one = Known.table(500, np.random.default_rng(2), 0.3)[["ill"]]

    class OfOne(Known):
        def sample_synthetic(self, num_records: int, *, rng_key: int, num_tables: int) -> list[pd.DataFrame]:
            return [t[["ill"]] for t in super().sample_synthetic(num_records, rng_key=rng_key, num_tables=num_tables)]

    assert not any(isinstance(item, ReportTable) for item in Predictive(OfOne(), one, 0).items())
