"""SDMetrics' own report takes a twin with the metadata of its schema."""

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.data import Schema, VerticalDataset

SCHEMA = Schema.from_toml("""
[parties.clinic.columns.age]
type = "integer"
bounds = [0, 99]

[parties.clinic.columns.ill]
type = "binary"

[parties.clinic.columns.admitted]
type = "date"
bounds = ["2020-01-01", "2021-12-31"]
unit = "month"
format = "%d.%m.%Y"

[parties.insurer.columns.plan]
type = "categorical"
categories = ["basic", "full"]
missing = "category"

[parties.insurer.columns.cost]
type = "real"
bounds = [0, 1000]
""")


def table(seed: int) -> pd.DataFrame:
    rng, n = np.random.default_rng(seed), 300
    days = pd.to_timedelta(rng.integers(0, 700, n), "D")
    return pd.DataFrame(
        {
            "age": rng.integers(0, 99, n),
            "ill": rng.random(n) < 0.3,
            "admitted": (pd.Timestamp("2020-01-01") + days).strftime("%d.%m.%Y"),
            "plan": rng.choice(["basic", "full", None], n),
            "cost": rng.uniform(0, 1000, n),
        }
    )


def test_metadata_say_what_each_column_is():
    found = VerticalDataset.from_pooled(SCHEMA, table(0)).schema.to_sdmetrics()["columns"]
    assert found == {
        "age": {"sdtype": "numerical"},
        "ill": {"sdtype": "boolean"},
        "admitted": {"sdtype": "datetime", "datetime_format": "%d.%m.%Y"},
        "plan": {"sdtype": "categorical"},
        "cost": {"sdtype": "numerical"},
    }


@pytest.mark.filterwarnings("ignore")
def test_a_quality_report():
    reports = pytest.importorskip("sdmetrics.reports.single_table", reason="extra `sdmetrics`")
    real = VerticalDataset.from_pooled(SCHEMA, table(0))
    report = reports.QualityReport()
    report.generate(real.to_frame(), real.to_frame(seed=1), real.schema.to_sdmetrics(), verbose=False)
    assert report.get_score() > 0.9
    details = report.get_details("Column Shapes")
    assert set(details["Column"]) == set(SCHEMA.columns)
    assert details["Score"].notna().all()
