"""Scores that are whitened by what was released of them: no record is longer than before, and noise hides less."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from tests.dpvi.test_second_moments import moments_plan
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import InsecureSeededSource
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema, TableFacts, VerticalDataset
from vertinumpyro.dpvi import DPVI, SecondMoments
from vertinumpyro.dpvi.outcome_tables import EventTimes
from vertinumpyro.dpvi.second_moments import SCORE_BITS, MomentsWork
from vertinumpyro.dpvi.whitening import Whitening, length_of, slope_by
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.privacy import Adversary, NeighbouringRelation, Plan
from vertinumpyro.session import Multiply, Publish, session_of

KEY = jax.random.key(0)
pytestmark = [
    pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning"),
    pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning"),
    pytest.mark.filterwarnings("ignore::vertinumpyro.core.errors.InferenceWarning"),
]
N = 4000
UNIT = RealColumn(bounds=(0, 1))
SCHEMA = Schema(
    {
        "bank": PartySchema({"late": BinaryColumn(), "income": UNIT, "wealth": UNIT}),
        "telco": PartySchema({"calls": UNIT, "usage": UNIT}),
    }
)
FACTS = TableFacts(schema=SCHEMA, num_records=N)


def people(seed=0):
    """Whose columns nearly repeat each other, and fill a fifth of their public bounds; and their coefficients."""
    rng = np.random.default_rng(seed)
    common, own = rng.normal(size=(2, N)), rng.normal(size=(4, N))
    parts = [0.2 + 0.06 * common[0] + 0.02 * own[0], 0.3 + 0.06 * common[0] + 0.02 * own[1],
             0.4 + 0.05 * common[1] + 0.02 * own[2], 0.5 + 0.05 * common[1] + 0.02 * own[3]]  # fmt: skip
    x = np.clip(parts, 0, 1).T.astype(np.float32)
    slopes = np.array([3.0, -3.0, 2.0, -2.0])
    late = rng.random(N) < 1 / (1 + np.exp(-((2 * x - 1) @ slopes)))
    columns = {"late": late.astype(np.int32), **dict(zip(("income", "wealth", "calls", "usage"), x.T, strict=True))}
    tables = {p: {n: columns[n] for n in SCHEMA.column_names(p)} for p in SCHEMA.parties}
    return VerticalDataset(SCHEMA, tables), slopes


def model(data, num_records):
    intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    own: Any = numpyro.sample("own", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    other: Any = numpyro.sample("other", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    eta = party_sum("eta", {
        "bank": intercept + own[0] * (2 * data["income"] - 1) + own[1] * (2 * data["wealth"] - 1),
        "telco": other[0] * (2 * data["calls"] - 1) + other[1] * (2 * data["usage"] - 1),
    })  # fmt: skip
    with party_plate("bank", num_records):
        numpyro.sample("late", dist.Bernoulli(logits=eta), obs=data["late"])


def method(whiten: bool | None, of=model, **settings):
    return DPVI(of, warm_start=SecondMoments(whiten=whiten), **settings)


def test_noise_hides_less_where_columns_repeat_each_other_and_intervals_are_true():
    errors, widths = {}, {}
    for whiten in (True, False):
        dpvi, scores = method(whiten), []
        for seed in range(4):
            dataset, slopes = people(seed)
            plan = dpvi.plan(dataset, epsilon=20.0)
            rows = dpvi.fit(dataset, plan, KEY, insecure_seed=seed, progress_bar=False).summary()
            rows = rows.loc[["own[0]", "own[1]", "other[0]", "other[1]"]]
            scores.append((rows["estimate"] - slopes) / rows["std_error"])
            widths.setdefault(whiten, []).append(rows["std_error"])
        errors[whiten] = np.sqrt(np.mean(np.square(scores)))
    assert np.median(widths[True]) < 0.75 * np.median(widths[False])
    assert errors[True] < 1.6


WAGES = Schema(
    {
        "bank": PartySchema({"wage": RealColumn(bounds=(-10, 10)), "age": UNIT, "schooling": UNIT}),
        "telco": PartySchema({"calls": UNIT}),
    }
)


def of_wages(data, num_records):
    intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slopes: Any = numpyro.sample("slopes", dist.Normal(0.0, 5.0).expand([3]).to_event(1))
    own = intercept + slopes[0] * (2 * data["age"] - 1) + slopes[1] * (2 * data["schooling"] - 1)
    eta = party_sum("eta", {"bank": own, "telco": slopes[2] * (2 * data["calls"] - 1)})
    with party_plate("bank", num_records):
        numpyro.sample("wage", dist.Normal(eta, 1.0), obs=data["wage"])


def test_intervals_hold_what_pooled_columns_say_where_the_model_is_not_quite_the_tables():
    """Of many records, a predictor that bends, and residuals whose spread and skew go with the columns, as of wages."""
    rng, number = np.random.default_rng(9), 60_000
    common, own = rng.normal(size=number), rng.normal(size=(3, number))
    x = np.clip([0.6 * own[0], 0.3 * common + 0.2 * own[1] - 0.1, 0.4 * common + 0.3 * own[2]], -1, 1).T
    skewed = (rng.gamma(9, size=number) - 9) / 3 * np.exp(0.3 * x[:, 1])
    wage = 0.4 * x[:, 0] + 1.5 * x[:, 1] - 0.3 * x[:, 2] + 0.2 * (x[:, 1] ** 2 - x[:, 0] ** 2) + skewed
    columns = dict(zip(("age", "schooling", "calls"), ((x + 1) / 2).T.astype(np.float32), strict=True))
    columns["wage"] = np.clip(wage, -10, 10).astype(np.float32)
    tables = {p: {n: columns[n] for n in WAGES.column_names(p)} for p in WAGES.parties}
    design = np.column_stack([np.ones(number), x])
    pooled = np.linalg.lstsq(design, columns["wage"], rcond=None)[0]
    dataset, dpvi, held = VerticalDataset(WAGES, tables), method(None, of_wages), []
    for seed in range(4):
        rows = dpvi.fit(dataset, dpvi.plan(dataset, epsilon=1.0), KEY, insecure_seed=seed, progress_bar=False).summary()
        held.append((rows["lower"] < pooled) & (pooled < rows["upper"]))
    assert np.mean(held) > 0.8


# -- what is released --------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(NeighbouringRelation))
def test_the_first_moments_and_all_others_of_the_worst_pair_of_records_move_by_what_is_stated(relation):
    plan = moments_plan(relation=relation, noise_multiplier=5.0, whitened=True)
    lengths = [np.sqrt(plan.longest(party)) for party in plan.parties]
    one, other = np.zeros(5), np.zeros(5)
    one[0], one[3], other[1], other[4] = lengths[0], lengths[1], lengths[0], lengths[1]
    other *= relation is NeighbouringRelation.REPLACE
    moved = np.outer(one, one) - np.outer(other, other)
    rows, columns = np.triu_indices(5)
    unknown = plan.own_variance * np.where(rows == columns, 2, 1)
    squared = moved[rows, columns] ** 2 / unknown
    of_a_party = (rows < 3) == (columns < 3)
    mu = np.sqrt(squared.sum() + squared[of_a_party].sum() / 4)  # as whatever follows may be, and the first moments
    stated = relation.sensitivity / plan.event(Adversary(name="outside analyst", colluders=0)).noise_multiplier
    assert 0.99 * stated < mu <= stated
    assert plan.stddev_before**2 == pytest.approx(4 * plan.own_variance * (plan.radius / 2**SCORE_BITS) ** 4)


@pytest.mark.parametrize("times", [1e-6, 1.0, 1e6])
def test_no_record_is_longer_than_its_partys_bound_however_scores_are_whitened(times):
    dpvi = method(True)
    plan: Any = dpvi.plan(FACTS, epsilon=1.0).start
    own = people()[0].arrays("bank")
    own = {**own, "income": np.where(np.arange(N) % 7 == 0, np.float32(np.nan), own["income"])}
    split, rng = dpvi.split(SCHEMA), np.random.default_rng(3)
    given = {"bank": (times * rng.normal(size=(3, 2))).tolist()}
    work = MomentsWork(split, plan, "bank", own, InsecureSeededSource(0))
    scores = np.asarray(work.factor(Multiply(2, "moments across parties", {"whitening": given})))
    assert (scores**2).sum(1).max() <= plan.longest("bank")
    assert times < 1 or scores[::7].any(axis=1).all(), "a score that is no number makes no other one so"


def test_a_party_refuses_what_is_no_whitening_and_what_comes_before_it():
    dpvi = method(True)
    plan: Any = dpvi.plan(FACTS, epsilon=1.0).start
    work = MomentsWork(dpvi.split(SCHEMA), plan, "telco", people()[0].arrays("telco"), InsecureSeededSource(0))
    work.check(Publish(0, "moments before whitening"))
    work.check(Publish(1, "own moments", {"whitening": {"telco": np.eye(2).tolist()}}))
    work.check(Multiply(2, "moments across parties", {"whitening": {"telco": np.eye(2).tolist()}}))
    matrices = [None, np.eye(3).tolist(), [[np.inf, 0.0], [0.0, 1.0]], "telco", [["a", "b"], ["c", "d"]]]
    wrong: list[Any] = [{"whitening": {"telco": matrix}} for matrix in matrices]
    for fields in ({}, {"whitening": {"bank": np.eye(2).tolist()}}, {"whitening": []}, *wrong):
        with pytest.raises(ArgumentError, match="not what the plan releases"):
            work.check(Publish(1, "own moments", fields))
    for request in (Publish(0, "own moments"), Publish(1, "moments before whitening")):
        with pytest.raises(ArgumentError, match="not what the plan releases"):
            work.check(request)


def test_moments_are_of_the_scores_that_steps_take_and_these_are_within_their_bound():
    tables, dpvi = {party: dict(people()[0].arrays(party)) for party in SCHEMA.parties}, method(True)
    tables["bank"]["income"] = np.where(np.arange(N) < 60, np.float32(1.0), tables["bank"]["income"])  # far out
    dataset = VerticalDataset(SCHEMA, tables)
    plan: Any = dpvi.plan(dataset, epsilon=5.0)
    split, start, session = dpvi.split(SCHEMA, plan), dpvi._moments, session_of(dataset, dpvi.backend)
    with session.open(dpvi, plan, run_dir=None, results="x.npz", insecure_seed=0) as run:
        found = start.release(session, run, split)
    whitening, before, after = Whitening.of(split, plan, found.whitening), [], []
    for place, party in enumerate(SCHEMA.parties):
        own = {name: jnp.asarray(column) for name, column in dataset.arrays(party).items()}
        raw = split.contribution(party, jnp.zeros(5), own)
        step = split.whitened(party, raw, jnp.asarray(whitening.to), jnp.asarray(whitening.bounds[place]))
        before.append(np.asarray(raw.shared_scores[:, 0], float))
        after.append(np.asarray(step.shared_scores[:, 0], float))
        longest = plan.start.radius**2 * plan.start.longest(party) / 4**SCORE_BITS
        assert np.square(after[-1]).sum(1).max() <= longest * (1 + 1e-5)
    long = np.linalg.norm(before[0][:, [1, 2, 0]] @ found.whitening[0], axis=1)
    assert 0.0 < (long > 1).mean() < 0.2
    np.testing.assert_array_equal(before[0][:, 0], after[0][:, 0])  # the intercept's
    x = np.concatenate(after, axis=1)
    assert np.abs(found.matrix - x.T @ x).max() < 6 * found.stddev + 1e-3 * np.abs(found.matrix).max()
    assert np.linalg.cond(after[0][:, 1:]) < 0.5 * np.linalg.cond(before[0][:, 1:]), "about as long in all directions"


def test_what_a_step_releases_is_taken_back_to_sums_of_scores():
    """With nothing scaled down and next to no noise it is the gradient, whatever the whitening."""
    dataset, dpvi = people()[0], method(True)
    plan: Any = dpvi.plan(dataset, epsilon=5000.0, residual_bound=1.0)
    kernel, state = dpvi.kernel(dataset, plan, KEY)
    rng = np.random.default_rng(5)
    to = np.eye(5)
    split = kernel.guide.split
    for party in SCHEMA.parties:
        places, constant = (split.places_of(party, of) for of in (split.numeric(party), split.constant(party)))
        to[np.ix_(places, places)] = np.eye(len(places)) * 0.5 + 0.1 * rng.normal(size=(len(places),) * 2)
        to[np.ix_(constant, places)] = 0.3 * rng.normal(size=(len(constant), len(places)))
    arrays = to, np.linalg.inv(to).T, np.full(2, np.inf)
    whitening = Whitening(*(jnp.asarray(of, jnp.float32) for of in arrays))
    changed = state._replace(optimizer_state=state.optimizer_state._replace(whitening=whitening))
    columns = {p: {n: jnp.asarray(c) for n, c in dataset.arrays(p).items()} for p in SCHEMA.parties}
    sums = []
    for one in (state, changed):
        found = []
        for contribution in kernel.local(one, columns, jnp.arange(N)):
            found.append(np.asarray(contribution.shared_scores[:, 0]).sum(0))
        after, _ = kernel.update(one, jnp.asarray(np.concatenate(found)))
        sums.append(np.asarray(after.optimizer_state.descents[0]))
    np.testing.assert_allclose(sums[1], sums[0], rtol=2e-3, atol=1e-4)


def test_lengths_are_the_identity_where_whitening_gains_nothing_and_machines_agree_on_them():
    rng = np.random.default_rng(6)
    far = rng.uniform(-1, 1, size=(64, 4))
    alike = length_of(np.eye(4) * 0.9, 1e-4, room=4.0, ratio=1e-3, num_records=N, far=far)
    assert np.array_equal(alike, np.eye(4) / 2)
    half = rng.normal(size=(4, 4))
    moments = half @ half.T / 40
    found, again = (length_of(times * moments, 1e-3, 4.0, 1.0, N, far) for times in (1.0, 1 + 1e-13))
    np.testing.assert_array_equal(found, again)
    assert 1 / 5 < np.trace(found.T @ moments @ found) < 1 / 1.4


def test_fewer_records_are_scaled_down_the_more_there_are_and_none_where_no_column_reaches_that_far():
    """What a model that is not quite the table's is moved by grows with N, and noise falls with it."""
    moments = np.diag([0.3, 0.02])
    far = np.random.default_rng(8).uniform(-1, 1, size=(512, 2))

    def shares(num_records, far=far):
        """The mean square over the bound."""
        found = length_of(moments, 1e-4, 2.0, 2_000 / num_records, num_records, far)
        return float(np.trace(found.T @ moments @ found))

    tried = [shares(number) for number in (2_000, 20_000, 200_000)]
    assert tried == sorted(tried, reverse=True)
    assert tried[0] > 2 * tried[-1]
    assert shares(20_000_000) == pytest.approx(moments.trace() / 2), "as they are"
    assert shares(20_000, 0.25 * far) > shares(20_000)


def test_a_column_whose_mean_is_near_its_end_has_few_far_values_and_these_are_not_scaled_down():
    """As nights in hospital, of which most people have none: a slope by fewer of them is another one."""
    rng = np.random.default_rng(0)
    nights = np.where(rng.random(20_000) < 0.07, rng.geometric(0.5, 20_000), 0).clip(0, 10) / 5 - 1.0
    usual = np.clip(rng.normal(-0.5, np.std(nights), 20_000), -1, 1)
    found = {}
    for name, column in (("nights", nights), ("usual", usual)):
        moments, far = np.array([[np.var(column)]]), np.linspace(-1, 1, 512)[:, None] - column.mean()
        found[name] = length_of(moments, 0.0005, 1.0, 0.01, len(column), far, is_centred=True)[0, 0]
    assert found["nights"] == pytest.approx(1.0)
    assert found["usual"] > 1.5


def test_the_slope_of_records_that_are_scaled_down_is_found_by_the_moments_of_all():
    """Of a rare value, which noise would be taken to hide more than it does, and of columns that are not rare."""
    rng = np.random.default_rng(7)
    x = np.column_stack([rng.random(20_000) < 0.01, rng.normal(size=(20_000, 2))]).astype(float)
    z = x / np.sqrt(np.square(x).mean(0))
    weights = np.minimum(1.0, 2.5 / np.linalg.norm(z, axis=1))[:, None]
    whole, slope, scaled = (z.T @ (weights**power * z) for power in (0, 1, 2))
    moved = slope_by(whole, scaled, noise=50.0)
    found = moved @ scaled @ moved.T
    assert scaled[0, 0] < 0.4 * slope[0, 0]
    np.testing.assert_allclose(np.diag(found), np.diag(slope), rtol=0.15)
    np.testing.assert_allclose(slope_by(scaled + 30.0, scaled, noise=50.0), np.eye(3), atol=1e-9)


# -- plans -------------------------------------------------------------------------------------------


def test_a_plan_says_what_scores_are_whitened_by_and_earlier_plans_are_spent_as_they_were_made():
    plan, before = (method(whiten).plan(FACTS, epsilon=1.0) for whiten in (None, False))
    assert plan.num_steps == before.num_steps + 1 == 23
    assert plan.worst.epsilon <= 1.0
    assert "before whitening" in plan.step_names[0]
    assert Plan.from_dict(plan.to_dict()) == plan
    assert "whitened" not in before.to_dict()["start"], "an earlier plan keeps its fingerprint"
    for accepted in (plan, before):
        method(None).check(FACTS, accepted)
    with pytest.raises(ArgumentError, match="another whitened"):
        method(False).check(FACTS, plan)


def test_forecasts_know_of_it():
    forecasts: Any = [method(whiten).plan(FACTS, epsilon=1.0).forecast for whiten in (True, False)]
    with_it, without = (dict(zip(of.names, of.std_error, strict=True)) for of in forecasts)
    assert all(with_it[name] < 1.02 * without[name] for name in with_it)
    assert np.mean([with_it[name] / without[name] for name in with_it]) < 0.95


def shared(data, num_records):
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    eta = party_sum("eta", {"bank": slope * data["income"], "telco": slope * data["usage"]})
    with party_plate("bank", num_records):
        numpyro.sample("late", dist.Bernoulli(logits=eta), obs=data["late"])


def test_where_it_cannot_be_it_is_left_out_or_refused():
    assert method(None, shared).plan(FACTS, epsilon=1.0).num_steps == 22
    with pytest.raises(ArgumentError, match="each read by one party"):
        method(True, shared).plan(FACTS, epsilon=1.0)
    with pytest.raises(ArgumentError, match="without a table of events"):
        SecondMoments(whiten=True, events=EventTimes("late", "income", "intercept", "baseline", ()))


def test_a_run_that_died_before_or_after_it_goes_on(tmp_path, monkeypatch):
    dataset, dpvi = people()[0], method(True)
    for dies_at in ("own moments", "moments across parties"):
        plan = dpvi.plan(dataset, epsilon=20.0)
        folder = tmp_path / dies_at.split()[0]
        whole = MomentsWork._scores_on_grid

        def dying(self, request, dies_at=dies_at, whole=whole):
            if request.name == dies_at:
                raise RuntimeError("died")
            return whole(self, request)

        with monkeypatch.context() as patched:
            patched.setattr(MomentsWork, "_scores_on_grid", dying)
            with pytest.raises(RuntimeError, match="died"):
                dpvi.fit(dataset, plan, KEY, run_dir=folder, insecure_seed=0, progress_bar=False)
        if dies_at == "own moments":
            posterior = dpvi.fit(dataset, plan, KEY, run_dir=folder, resume=True, insecure_seed=0, progress_bar=False)
            assert posterior.is_interval
