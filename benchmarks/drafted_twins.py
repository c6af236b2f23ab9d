"""Twins by drafted schemas, confirmed as they stand: what they keep of rank correlations, and whether plans foresaw it.

    VERTINUMPYRO_DATA=... python benchmarks/drafted_twins.py --quick
    python benchmarks/drafted_twins.py --json results/drafted_twins.json [--only twins forecast marginals]

Twins: tables of money, dates and categories, invented with the shapes of loans, motor claims and hospital stays, 13 and
23 columns, half at each of two parties; `schema draft` of each party, a Markov field at epsilon = 1 for everyone,
delta = 1e-5, N = 10,000; with --files the same of so many random records of CSV files. Forecast: these tables and five
public ones, in how many pairs of columns the plan says that a release would show an association of medium size, from
public numbers alone, and in how many it would; how many will show one, with an earlier release, of as many other
records where they are invented, and of a random half of the public ones, and by the records, not DP, and how many do;
with --files of all records of CSV files, too. Marginals: repeated ids, coded missing values, money and a zoned date,
N = 20,000. What is said of real records here is not DP.

Keys: twins      {table: {kept: share of the sizes of all rank correlations beyond .1 that the twin has, with their
                  sign; near: share of these pairs that are within .1; pairs: how many; foreseen: the share by what the
                  plan says of rank correlations of such sizes; seconds: of the fit}}
      forecast   {table: {forecast, held, by_release and its range, by_records, showing, pairs}}: pairs of columns
      forecast_error  {of forecast beside held, of by_release and by_records beside showing: median of |it / found - 1|
                  over the tables; near: tables where it is .2 at most; largest}
      forecast_range  tables that show no fewer and no more than the range by release
      marginals  {column: {median: how far, in shares of records, the twin's median is from the records'; zero, missing:
                  the difference in shares}}
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from common import environment, finish, parser
from drafted_parts.tables import PUBLIC, SHAPES, split
from tqdm.auto import tqdm

from vertinumpyro.data import Schema, VerticalDataset, draft_schema
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.forecast import held

EPSILON, DELTA = 1.0, 1e-5
WIDTHS = (13, 23)


def drafted(parts: dict[str, pd.DataFrame]) -> Schema:
    """Each party's draft, confirmed as it stands; the second knows how many columns the first has."""
    num_columns, texts = sum(part.shape[1] - 1 for part in parts.values()), []
    for party, part in parts.items():
        texts.append(draft_schema(part, party, num_columns=num_columns).to_toml(with_id=not texts))
    return Schema.from_toml("\n".join(texts).replace("confirmed = false", "confirmed = true"))


def ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations of the columns that have an order: numbers and dates."""
    numbers = {name: _as_numbers(pd.Series(frame[name])) for name in frame}
    return pd.DataFrame({name: own for name, own in numbers.items() if own is not None}).corr("spearman")


def _as_numbers(series: pd.Series) -> np.ndarray | None:
    if pd.api.types.is_numeric_dtype(series):
        return series.to_numpy(np.float64, na_value=np.nan)
    dates = pd.Series(pd.to_datetime(series, errors="coerce", utc=True, format="ISO8601"))
    dates = dates.astype("datetime64[ns, UTC]")  # of texts and of dates alike
    return dates.to_numpy(np.int64).astype(np.float64) if dates.notna().all() else None


def kept(real: pd.DataFrame, twin: pd.DataFrame, left: Mapping[float, float]) -> dict[str, float]:
    """What a twin has of the rank correlations beyond .1; by the plan a part is left of such and such."""
    of_real = ranks(real)
    of_twin = ranks(twin).reindex(index=of_real.index, columns=of_real.columns).fillna(0.0).to_numpy()
    upper = np.triu_indices(len(of_real), 1)
    true, found = of_real.to_numpy()[upper], of_twin[upper]
    true, found = true[np.abs(true) > 0.1], found[np.abs(true) > 0.1]
    if not len(true):
        return {"pairs": 0}
    size = np.abs(true)
    foreseen = np.interp(size, list(left), list(left.values()))
    return {
        "kept": float(np.clip(found * np.sign(true), 0, size).sum() / size.sum()),
        "near": float((np.abs(found - true) < 0.1).mean()),
        "pairs": len(true),
        "foreseen": float(foreseen @ size / size.sum()),
    }


def without_codes(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Missing where a column has a code for it: what a code has to do with numbers is no correlation."""
    codes = {name: column.missing_codes for name, column in schema.columns.items()}
    return pd.DataFrame({name: pd.Series(frame[name]).mask(frame[name].isin(codes[name])) for name in frame})


def tables(num_records: int) -> dict[str, pd.DataFrame]:
    """The invented ones, by shape and width."""
    return {f"{name} {width}": make(num_records).iloc[:, :width] for width in WIDTHS for name, make in SHAPES.items()}


def public_tables(num_records: int, files: list[Path]) -> dict[str, pd.DataFrame]:
    """As many random records of each file, by width, or all columns where there are fewer."""
    found = {}
    for path in files:
        frame = of_file(path)
        frame = frame.sample(min(num_records, len(frame)), random_state=0).reset_index(drop=True)
        widths = sorted({min(width, frame.shape[1]) for width in WIDTHS})
        found |= {f"{path.stem} {width}": frame.iloc[:, :width] for width in widths}
    return found


def twins(num_records: int, files: list[Path]) -> dict[str, Any]:
    """Draft, fit, compare."""
    found = {}
    both = tables(num_records) | public_tables(num_records, files)
    for name, frame in tqdm(both.items(), desc="twins", disable=None):
        parts = split(frame)
        schema = drafted(parts)
        dataset = VerticalDataset.from_frames(schema, parts)
        system, started = VertiMRF(), time.perf_counter()
        plan = system.plan(dataset, epsilon=EPSILON, delta=DELTA)
        left = system.forecast(schema, plan).kept
        twin = system.fit(dataset, plan, allow_long=True).sample_synthetic(rng_key=jax.random.key(0))
        seconds = time.perf_counter() - started
        own = without_codes(frame, schema)
        found[name] = {**kept(own, pd.DataFrame(twin[frame.columns]), left), "seconds": seconds}
    return found


def of_file(path: Path) -> pd.DataFrame:
    """Its columns of numbers and of few texts; records without a missing value."""
    frame = pd.read_csv(path).dropna()
    few = [pd.api.types.is_numeric_dtype(frame[name]) or frame[name].nunique() <= 60 for name in frame]
    frame = pd.DataFrame(frame.loc[:, few])
    return frame.loc[:, frame.nunique() > 1]


def earlier_tables(num_records: int, real: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Other records of the invented tables, and half of the real ones."""
    own = {
        f"{name} {width}": make(num_records, seed=100 + i).iloc[:, :width]
        for width in WIDTHS
        for i, (name, make) in enumerate(SHAPES.items())
    }
    return own | {name: frame.sample(frac=0.5, random_state=0) for name, frame in real.items()}


def forecast(num_records: int, files: list[Path]) -> dict[str, Any]:
    """Pairs that are held, and that show something: foreseen, and found."""
    real = {name: make() for name, make in PUBLIC.items()} | {path.stem: of_file(path) for path in files}
    found, before = {}, earlier_tables(num_records, real)
    for name, frame in tqdm((tables(num_records) | real).items(), desc="forecast", disable=None):
        parts, system = split(frame), VertiMRF()
        schema = drafted(parts)
        dataset, last = (
            VerticalDataset.from_frames(schema, split(one)) for one in (frame, _clipped(before[name], frame))
        )
        earlier = system.release(last, system.plan(last, epsilon=EPSILON, delta=DELTA))
        plan = system.plan(dataset, epsilon=EPSILON, delta=DELTA)
        usual, learned = system.forecast(schema, plan), system.forecast(schema, plan, earlier)
        counted = held(system.release(dataset, plan))
        found[name] = {
            "forecast": usual.expected.num_held,
            "held": counted.num_held,
            "by_release": learned.expected.num_showing,
            "range": (learned.fewest, learned.most),
            "by_records": sum(system.forecast_by_records(dataset, plan).values()),
            "showing": counted.num_showing,
            "pairs": counted.num_pairs,
        }
    return {"forecast": found, **_foreseen(list(found.values()))}


def _clipped(other: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Other records within the domains that were drafted of the first ones."""
    return pd.DataFrame({name: _within(pd.Series(other[name]), pd.Series(frame[name])) for name in frame}).reset_index(
        drop=True
    )


def _within(other: pd.Series, own: pd.Series) -> pd.Series:
    low, high = own.dropna().min(), own.dropna().max()
    return other.where(other.isna() | (other >= low), low).where(other.isna() | (other <= high), high)


def _foreseen(found: list[dict[str, Any]]) -> dict[str, Any]:
    errors = {}
    for way, of in {"forecast": "held", "by_release": "showing", "by_records": "showing"}.items():
        off = [abs(one[way] / max(one[of], 1) - 1) for one in found]
        errors[way] = {
            "median": float(np.median(off)),
            "near": sum(error <= 0.2 for error in off),
            "largest": float(max(off)),
        }
    inside = sum(one["range"][0] <= one["showing"] <= one["range"][1] for one in found)
    return {"forecast_error": errors, "forecast_range": inside}


def claims_of_people(num_people: int) -> dict[str, pd.DataFrame]:
    """Claims of people, several rows of an id, and what a registry knows of each of them."""
    rng = np.random.default_rng(3)
    ids, rows = [f"p{i:06d}" for i in range(num_people)], 1 + rng.poisson(0.8, num_people)
    age = rng.normal(52, 17, num_people).clip(0, 99).round()
    income = np.where(rng.random(num_people) < 0.1, -999, np.exp(rng.normal(10.2, 0.6, num_people)).round(2))
    person = np.repeat(np.arange(num_people), rows)
    paid = np.where(rng.random(len(person)) < 0.4, 0, np.exp(4 + age[person] / 50 + rng.normal(size=len(person))))
    hours = pd.to_timedelta(rng.integers(0, 1000, len(person)) * 24 + 9, "h")
    start = pd.DatetimeIndex(pd.Timestamp("2021-01-01") + hours)
    zone = np.where(start.month.isin(range(4, 10)), "+03:00", "+02:00")
    seen = start.strftime("%Y-%m-%dT%H:%M:%S") + zone
    id_of = np.array(ids)[person]
    return {
        "insurer": pd.DataFrame({"id": id_of, "paid": paid.round(2), "seen": seen}),
        "registry": pd.DataFrame({"id": ids, "age": age, "income": income, "sex": rng.choice(["f", "m"], num_people)}),
    }


def marginals(num_people: int) -> dict[str, Any]:
    """Medians, zeros and missing values of a twin beside the records."""
    parts = claims_of_people(num_people)
    texts = [draft_schema(part, party).to_toml(with_id=party == "insurer") for party, part in parts.items()]
    schema = Schema.from_toml("\n".join(texts).replace("confirmed = false", "confirmed = true"))
    dataset, system = VerticalDataset.from_frames(schema, parts), VertiMRF()
    fitted = system.fit(dataset, system.plan(dataset, epsilon=EPSILON, delta=DELTA))
    twin = fitted.sample_synthetic(rng_key=jax.random.key(0))
    rows, people = parts["insurer"].groupby("id"), parts["registry"].set_index("id")
    real = {
        "num_rows": rows.size(),
        "paid": pd.Series(rows["paid"].sum()).round(2),
        "seen": pd.Series(rows["seen"].max()).str[:10],
        "age": people["age"],
        "income": people["income"].mask(people["income"] < 0),
    }
    return {"marginals": {name: _beside(pd.Series(own), pd.Series(twin[name])) for name, own in real.items()}}


def _beside(real: pd.Series, twin: pd.Series) -> dict[str, float]:
    own, other = (_numbers_of(pd.Series(series.dropna())) for series in (real, twin))
    middle = np.median(other)
    below, up_to = (own < middle).mean(), (own <= middle).mean()  # of the records: many may have one value
    return {
        "median": float(max(below - 0.5, 0.5 - up_to, 0.0)),
        "zero": float(abs((own == 0).mean() - (other == 0).mean())),
        "missing": float(abs(real.isna().mean() - twin.isna().mean())),
    }


def _numbers_of(series: pd.Series) -> np.ndarray:
    found = _as_numbers(series)
    assert found is not None
    return found


def main() -> None:
    """Run the chosen parts."""
    made = parser(__doc__)
    parts = ("twins", "forecast", "marginals")
    made.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    made.add_argument("--files", nargs="*", type=Path, default=[], help="CSV files that are tried, too")
    args = made.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    num_records = 2_000 if args.quick else 10_000
    results: dict[str, Any] = {"environment": environment()}
    if "twins" in args.only:
        results["twins"] = twins(num_records, args.files)
    if "forecast" in args.only:
        results |= forecast(num_records, args.files)
    if "marginals" in args.only:
        results |= marginals(2 * num_records)
    finish(results, args, {})


if __name__ == "__main__":
    main()
