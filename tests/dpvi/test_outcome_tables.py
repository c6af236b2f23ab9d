"""A survival's table of events: what it says of the baseline hazard, and the law of what is lived until an event."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from vertinumpyro.core import compat
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema, TableFacts, VerticalDataset
from vertinumpyro.dpvi import DPVI, SecondMoments, table_posterior
from vertinumpyro.dpvi.outcome_tables import EventTimes, HazardTable
from vertinumpyro.model import PiecewiseHazard, party_plate, party_sum

SCHEMA = Schema(
    {
        "clinic": PartySchema({"seen": BinaryColumn(), "time": RealColumn(bounds=(0.0, 6.0))}),
        "insurer": PartySchema({"visits": RealColumn(bounds=(0.0, 1.0))}),
    }
)
EVENTS = EventTimes("seen", "time", "intercept", "baseline", (1.0, 2.5))
LOG_RATIOS = np.log([0.7, 1.5])
pytestmark = pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning")


def lives(rng, num_records, spread):
    """Whether an event was seen, and the time, of hazards 1, .7 and 1.5 times exp(eta)."""
    needed = rng.exponential(size=num_records) * np.exp(0.5 - spread * rng.normal(size=num_records))
    late = 2.5 + (needed - 2.05) / 1.5
    event = np.where(needed < 1, needed, np.where(needed < 2.05, 1 + (needed - 1) / 0.7, late))
    left = np.minimum(rng.uniform(1, 9, num_records), 6.0)
    return (event <= left).astype(int), np.minimum(event, left)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_baseline_is_found_although_who_has_a_large_hazard_leaves_early(spread):
    rng, bins = np.random.default_rng(0), EVENTS.bins(SCHEMA)
    seen, time = lives(rng, 100_000, spread)
    cells = EVENTS.counts(SCHEMA, {"seen": seen, "time": time / 6})
    assert (EVENTS.cells(SCHEMA), cells.sum(), len(cells)) == ((bins.num_cells, 0), 100_000, bins.num_cells)
    assert cells[-1] == ((time >= 6) & (seen == 0)).sum(), "who stays until the end"
    with compat.x64():
        table = HazardTable(cells + rng.normal(0, 15, len(cells)), 15.0, 100_000, bins)
        found, crude = table.shape((spread,)), table.shape()
    np.testing.assert_allclose(found.log_ratios, LOG_RATIOS, atol=0.05)
    assert (np.abs(found.log_ratios - LOG_RATIOS) < 3 * np.sqrt(np.diag(found.covariance))).all()
    assert (np.abs(crude.log_ratios - LOG_RATIOS).max() > 0.4) == (spread > 0)
    assert (np.diag(found.covariance) > np.diag(found.without_noise)).all()
    if spread:
        with compat.x64():
            surer = table.shape((spread,), num_parts=3.0)  # a sum of several columns is nearer to a Gaussian
        assert (np.diag(surer.covariance) < np.diag(found.covariance) / 2).all()


def test_residuals_at_the_truth_have_mean_0_and_the_law_of_what_is_lived():
    seen, time = lives(np.random.default_rng(1), 50_000, 0.0)
    cells, bins = EVENTS.counts(SCHEMA, {"seen": seen, "time": time / 6}), EVENTS.bins(SCHEMA)
    with compat.x64():
        law = HazardTable(cells, 1.0, 50_000, bins).lifetimes(LOG_RATIOS, LOG_RATIOS)
        eta = jnp.array([-0.5, 1.0, 40.0])
        values, probabilities = law.support(eta)
        residual = jnp.clip(law.linked_residual(eta[:, None], values), -1.5, 1.5)
        np.testing.assert_allclose(probabilities.sum(-1), 1.0, atol=1e-6)
        np.testing.assert_allclose(
            (probabilities * law.linked_residual(eta[:, None], values)).sum(-1)[:2], 0.0, atol=1e-6
        )
    lived = np.exp(-0.5) * np.interp(time, [0, 1, 2.5, 6], np.cumsum([0, 1, 0.7 * 1.5, 1.5 * 3.5]))
    cut = np.clip(seen - lived, -1.5, 1.5)
    assert (probabilities * (values > 0)).sum(-1)[0] == pytest.approx(seen.mean(), abs=0.01)
    assert (probabilities * residual).sum(-1)[0] == pytest.approx(cut.mean(), abs=0.01)
    assert (probabilities * residual**2).sum(-1)[0] == pytest.approx((cut**2).mean(), abs=0.02)


def survival(data, num_records):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 0.6))
    baseline = numpyro.sample("baseline", dist.Normal(0.0, 0.6).expand([2]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0.0, 0.6))
    shape = jnp.concatenate([jnp.zeros(1), jax.lax.stop_gradient(baseline)])
    clinic = intercept + PiecewiseHazard((1.0, 2.5)).log_cumulative(shape, 6 * data["time"])
    eta = party_sum("eta", {"clinic": clinic, "insurer": slope * (2 * data["visits"] - 1)})
    with party_plate("clinic", num_records):
        numpyro.sample("seen", dist.Poisson(jnp.exp(eta)), obs=data["seen"])


def test_a_plan_of_a_survival_forecasts_its_baseline_which_no_step_learns_too():
    dpvi = DPVI(survival, warm_start=SecondMoments(events=EVENTS))
    few, many = (dpvi.plan(TableFacts(SCHEMA, number), epsilon=1.0).forecast for number in (2_000, 200_000))
    assert many.names == ("baseline[0]", "baseline[1]", "intercept", "slope")
    assert few.std_error[2] > few.std_error[0] / 4  # what no step says of the shape, the level has its part of
    assert (many.std_error < few.std_error / 5).all()
    assert (many.std_error > many.sampling).all()
    assert not many.little


def test_turns_between_coefficients_and_baseline_end_where_more_of_them_would(monkeypatch):
    """From a shape for predictors that are not spread they would end at spreads that are too small by percents."""
    rng, spreads = np.random.default_rng(1), []
    visits = rng.random(5000).astype(np.float32)
    needed = rng.exponential(size=5000) * np.exp(0.5 - 1.5 * (2 * visits - 1))
    left = np.minimum(rng.uniform(1, 9, 5000), 6.0)
    columns = {"seen": (needed <= left).astype(np.int32), "time": (np.minimum(needed, left) / 6).astype(np.float32)}
    dataset = VerticalDataset(SCHEMA, {"clinic": columns, "insurer": {"visits": visits}})
    found = table_posterior.predictor_spreads

    def seen(*given):
        spreads.append(found(*given))
        return spreads[-1]

    monkeypatch.setattr(table_posterior, "predictor_spreads", seen)
    dpvi = DPVI(survival, warm_start=SecondMoments(events=EVENTS))
    ends = []
    for turns in (table_posterior._TURNS, 9):
        monkeypatch.setattr(table_posterior, "_TURNS", turns)
        plan = dpvi.plan(dataset, epsilon=1.0)
        dpvi.fit(dataset, plan, jax.random.key(0), insecure_seed=1, progress_bar=False)
        ends.append(spreads[-1].stddevs.mean())
    assert ends[0] == pytest.approx(ends[1], rel=0.005)


MANY = Schema(
    {
        "clinic": SCHEMA.parties["clinic"],
        "insurer": PartySchema({name: RealColumn(bounds=(-1.0, 1.0)) for name in "abcd"}),
    }
)


def survival_by_many(data, num_records):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    baseline = numpyro.sample("baseline", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([4]).to_event(1))
    shape = jnp.concatenate([jnp.zeros(1), jax.lax.stop_gradient(baseline)])
    clinic = intercept + PiecewiseHazard((1.0, 2.5)).log_cumulative(shape, 6 * data["time"])
    insurer = sum(slopes[i] * (2 * data[name] - 1) for i, name in enumerate("abcd"))
    eta = party_sum("eta", {"clinic": clinic, "insurer": insurer})
    with party_plate("clinic", num_records):
        numpyro.sample("seen", dist.Poisson(jnp.exp(eta)), obs=data["seen"])


def pooled_survival(x, seen, time):
    """The likelihood's maximum and standard errors: baseline, intercept, slopes."""
    lived = np.asarray(PiecewiseHazard((1.0, 2.5)).exposure(time), float)
    person, interval = np.nonzero(lived)
    design = np.column_stack([interval == 1, interval == 2, np.ones(len(person)), x[person]]).astype(float)
    events, found = seen[person] * (interval == np.searchsorted((1.0, 2.5), time)[person]), np.zeros(7)
    for _ in range(15):
        rate = lived[person, interval] * np.exp(design @ found)
        precision = (design * rate[:, None]).T @ design
        found = found + np.linalg.solve(precision, design.T @ (events - rate))
    return found, np.sqrt(np.diag(np.linalg.inv(precision)))


def test_steps_follow_the_baseline_so_that_slopes_are_the_pooled_ones_where_there_is_no_noise_to_speak_of():
    """By crude hazards, which leave out that who has a large hazard leaves early, they are tens of errors away."""
    rng, number = np.random.default_rng(5), 200_000
    x = rng.uniform(-1, 1, size=(number, 4))
    needed = rng.exponential(size=number) * np.exp(0.5 - x @ [1.2, -1.0, 0.8, 1.4])
    late = 2.5 + (needed - 2.05) / 1.5
    event = np.where(needed < 1, needed, np.where(needed < 2.05, 1 + (needed - 1) / 0.7, late))
    left = np.minimum(rng.uniform(1, 9, number), 6.0)
    seen, time = (event <= left).astype(np.int32), np.minimum(event, left)
    columns = {"seen": seen, "time": (time / 6).astype(np.float32)}
    scaled = {name: ((column + 1) / 2).astype(np.float32) for name, column in zip("abcd", x.T, strict=True)}
    dataset = VerticalDataset(MANY, {"clinic": columns, "insurer": scaled})
    dpvi = DPVI(survival_by_many, warm_start=SecondMoments(events=EVENTS))
    plan = dpvi.plan(dataset, epsilon=50.0)
    posterior = dpvi.fit(dataset, plan, jax.random.key(0), insecure_seed=1, progress_bar=False)
    pooled, spread = pooled_survival(x, seen, time)
    rows = posterior.summary()
    estimates, errors = rows["estimate"].to_numpy(), rows["std_error"].to_numpy()
    assert (np.abs(estimates[3:] - pooled[3:]) / spread[3:]).max() < 3
    assert (errors[3:] / spread[3:]).max() < 1.3
    assert (np.abs(estimates - pooled) / errors).max() < 3
