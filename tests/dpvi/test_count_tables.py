"""A table of how large counts are: what it says of predictors, and that noise then hides less."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinaryColumn, CountColumn, PartySchema, RealColumn, Schema, TableFacts, VerticalDataset
from vertinumpyro.dpvi import DPVI, SecondMoments
from vertinumpyro.dpvi.clipping import Budget, forecast_bound
from vertinumpyro.dpvi.outcome_tables import CountCells, Counted
from vertinumpyro.dpvi.second_moments import CELL, COUNT_CELL, moments_of
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.model.outcomes import NegativeBinomial, Poisson
from vertinumpyro.privacy import Plan
from vertinumpyro.secure.plaintext import FloatArithmetic
from vertinumpyro.secure.score_functions import link_of

KEY = jax.random.key(0)
pytestmark = [
    pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning"),
    pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning"),
    pytest.mark.filterwarnings("ignore::vertinumpyro.core.errors.InferenceWarning"),
]
N = 8000
SLOPES = np.array([1.0, -1.0, 0.5])
COUNTS = [Poisson(60.0), NegativeBinomial(60.0, 1.5), NegativeBinomial(4.0, 30.0), Poisson(3000.0)]


def regression(upper=60, law="poisson"):
    """A model of a count at the bank, and its schema."""
    schema = Schema(
        {
            "bank": PartySchema({"claims": CountColumn(upper=upper), "age": RealColumn(bounds=(0, 1))}),
            "telco": PartySchema({"calls": RealColumn(bounds=(0, 1)), "abroad": BinaryColumn()}),
        }
    )

    def model(data, num_records):
        intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
        slopes: Any = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
        bank, telco = intercept + slopes[0] * data["age"], slopes[1] * data["calls"] + slopes[2] * data["abroad"]
        rate = jnp.exp(party_sum("eta", {"bank": bank, "telco": telco}))
        with party_plate("bank", num_records):
            outcome = dist.Poisson(rate) if law == "poisson" else dist.NegativeBinomial2(rate, 1.5)
            numpyro.sample("claims", outcome, obs=data["claims"])

    return model, schema


def cells_of(upper):
    """What a table of its counts is of, and the schema."""
    model, schema = regression(upper)
    found = CountCells.of(DPVI(model).split(schema).structure.summed[0])
    assert found is not None
    return found, schema


def people(schema, usual, law="poisson", seed=0):
    """With rates about `usual`."""
    rng, upper = np.random.default_rng(seed), schema.columns["claims"].upper
    x = np.column_stack([rng.beta(2, 3, N), rng.beta(2, 2, N), rng.random(N) < 0.3]).astype(np.float32)
    rates = usual * np.exp((x - 0.4) @ SLOPES)
    rates = rates if law == "poisson" else rates * rng.gamma(1.5, 1 / 1.5, N)
    claims = np.minimum(rng.poisson(rates), upper).astype(np.int32)
    bank = {"claims": claims, "age": x[:, 0]}
    return VerticalDataset(schema, {"bank": bank, "telco": {"calls": x[:, 1], "abroad": x[:, 2].astype(np.int32)}})


def fitted(usual, law, counts, **settings):
    model, schema = regression(law=law)
    dpvi, dataset = DPVI(model, warm_start=SecondMoments(counts=counts)), people(schema, usual, law)
    plan = dpvi.plan(dataset, epsilon=2.0, **settings)
    return plan, dpvi.fit(dataset, plan, KEY, insecure_seed=3, progress_bar=False).summary().loc["slopes[0]":]


@pytest.mark.parametrize("law", ["poisson", "negative_binomial"])
def test_noise_hides_less_of_rare_counts_and_intervals_are_true(law):
    """Of which a bound for what is usual takes nearly all of the noise for nothing."""
    plan, known = fitted(0.08, law, counts=None)
    unknown_plan, unknown = fitted(0.08, law, counts=False)
    assert (known.std_error < 0.8 * unknown.std_error).all()
    for found in (known, unknown):
        assert (np.abs(found.estimate - SLOPES) < 3 * found.std_error).all()
    assert (plan.clip_norm, plan.residual_bound) == (unknown_plan.clip_norm, unknown_plan.residual_bound)
    assert plan.worst.epsilon <= 2.0
    assert plan.noise_multiplier == pytest.approx(unknown_plan.noise_multiplier, rel=1e-3), "it is paid by the moments"


@pytest.mark.parametrize("outcome", COUNTS, ids=repr)
@pytest.mark.parametrize("reach", [0.5, 1.0, 3.0])
def test_a_link_of_another_reach_has_the_same_residual_in_other_units(outcome, reach):
    reach = max(reach, outcome.least_reach)
    link, rng = link_of(outcome.described()), np.random.default_rng(0)
    value = jnp.asarray(rng.integers(0, int(outcome.most) + 1, 500))
    eta = jnp.asarray(rng.uniform(-6, np.log(outcome.most) + 3, 500))
    numbers = np.concatenate([eta[:, None] - outcome.offsets(value), outcome.own(value)], axis=1)
    made = outcome.reaching(jnp.asarray(numbers), reach)
    e = np.asarray(link.weights(FloatArithmetic(), link.bounded(made)))[:, 0]
    np.testing.assert_allclose(
        e * outcome.unit * reach, outcome.linked_residual(eta, value, reach), rtol=2e-4, atol=2e-5 * outcome.unit
    )
    assert (np.abs(e) <= 1).all()
    law = Counted(outcome, reach)
    known = law.support(jnp.asarray([-2.0, 0.5]))
    assert known is not None
    values, chances = known
    assert chances.shape == values.shape
    eta = jnp.asarray([[-2.0], [0.5]])
    np.testing.assert_allclose(law.linked_residual(eta, values), outcome.linked_residual(eta, values, reach))


@pytest.mark.parametrize("upper", [2, 9, 60, 5000])
def test_every_record_is_in_one_cell(upper):
    cells, schema = cells_of(upper)
    assert (cells.column, cells.owner, cells.least[0]) == ("claims", "bank", 0)
    assert list(cells.least) == sorted(set(cells.least))
    assert cells.least[-1] <= upper < 1.5 * cells.least[-1] + 2
    counts = cells.counts(schema, {"claims": np.arange(upper + 1)})
    assert counts.sum() == upper + 1
    assert counts.min() > 0
    assert cells.cells(schema) == (len(cells.least), 0)


@pytest.mark.parametrize("outcome", [Poisson(60.0), NegativeBinomial(60.0, 1.5), Poisson(4000.0)], ids=repr)
@pytest.mark.parametrize("mean", [-2.5, 0.0, 2.0])
def test_where_predictors_are_is_found_from_a_table_with_noise(outcome, mean):
    (cells, schema), rng = cells_of(int(outcome.most)), np.random.default_rng(1)
    rates = np.exp(rng.normal(mean, 0.5, 20_000))
    rates = rates if isinstance(outcome, Poisson) else rates * rng.gamma(1.5, 1 / 1.5, len(rates))
    counts = cells.counts(schema, {"claims": np.minimum(rng.poisson(rates), int(outcome.most))})
    middle, spread = cells.usual(outcome, counts + rng.normal(0, 40, len(counts)), 40.0)
    rate = np.exp(middle + spread**2 / 2)
    assert np.log(rate) == pytest.approx(mean + 0.5**2 / 2, abs=0.2)
    assert 0.1 < spread < 1.1
    for strange in (np.zeros(len(counts)), np.full(len(counts), -50.0), np.eye(len(counts))[-1] * 1e5):
        usual = cells.usual(outcome, strange, 40.0)
        assert np.isfinite(usual).all()
        assert 1e-3 < forecast_bound(outcome, Budget(20_000, 4.0), 9.0, usual) <= 1.0


def test_a_plan_says_that_there_is_such_a_table_and_what_was_supposed_of_counts():
    model, schema = regression()
    facts = TableFacts(schema, N)
    plan = DPVI(model).plan(facts, epsilon=1.0)
    start = moments_of(plan)
    assert (start.is_of_counts, start.cell) == (True, COUNT_CELL)
    assert "how large counts are" in next(iter(start.releases)).name
    assert Plan.from_dict(plan.to_dict()) == plan
    assert "counts are taken to be about" in " ".join(str(plan).split())
    assert max(map(len, str(plan).splitlines())) <= 80
    known_better: list[dict[str, Any]] = [{"residual_bound": 0.1}, {"clip_norm": 2.0}]
    for settings in known_better:
        assert not moments_of(DPVI(model).plan(facts, epsilon=1.0, **settings)).is_of_counts
    with pytest.raises(ArgumentError, match="counts=True is for"):
        DPVI(model, warm_start=SecondMoments(counts=True)).plan(facts, epsilon=1.0, residual_bound=0.1)
    other = DPVI(model, warm_start=SecondMoments(counts=False))
    without = other.plan(facts, epsilon=1.0)
    assert (moments_of(without).cells, moments_of(without).cell) == ((), CELL)
    for one in (plan, without):  # either is spent as it says
        other.check(facts, one)


def test_notes_say_where_the_table_has_other_counts_than_the_model():
    """Of claims that vary more than a Poisson's, whose standard errors are then too short."""
    model, schema = regression()
    dpvi = DPVI(model)
    for law, is_said in (("negative_binomial", True), ("poisson", False)):
        dataset = people(schema, 4.0, law)
        posterior = dpvi.fit(dataset, dpvi.plan(dataset, epsilon=2.0), KEY, insecure_seed=3, progress_bar=False)
        notes = " ".join(posterior.reading_notes)
        assert ("of the counts are elsewhere than the model has them" in notes) == is_said, notes


def test_a_run_that_died_after_the_table_goes_on_with_the_same_reach(tmp_path):
    model, schema = regression()
    dpvi, dataset = DPVI(model), people(schema, 0.3)
    plan = dpvi.plan(dataset, epsilon=2.0)
    whole = dpvi.fit(dataset, plan, KEY, insecure_seed=3, progress_bar=False)
    again = dpvi.plan(dataset, epsilon=2.0)

    def dies(count, params):
        if count >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpvi.fit(dataset, again, KEY, insecure_seed=3, progress_bar=False, run_dir=tmp_path, after_chunk=dies)
    ended = dpvi.fit(dataset, again, KEY, insecure_seed=4, progress_bar=False, run_dir=tmp_path, resume=True).summary()
    assert (np.abs(ended.estimate - whole.summary().estimate) < 4 * ended.std_error).all()


@pytest.mark.parametrize("law", ["poisson", "negative_binomial"])
def test_predictors_go_no_further_than_a_table_has_room_for(law):
    """Of predictors that are no Gaussian's, an integral over one has rates that no record has."""
    cells, _ = cells_of(60)
    outcome = Poisson(60.0) if law == "poisson" else NegativeBinomial(60.0, 1.5)
    rng, shares = np.random.default_rng(2), np.array([0.9, 0.1, 0.0014])
    eta = rng.uniform(-2.0, 2.0, 400_000)
    rates = np.exp(eta) * (1.0 if law == "poisson" else rng.gamma(1.5, 1 / 1.5, len(eta)))
    counts = np.minimum(rng.poisson(rates), 60)
    table = np.bincount(np.searchsorted(cells.least, counts, side="right") - 1, minlength=len(cells.least))
    ends = cells.ends(outcome, table.astype(float), 1.0, shares)
    assert (ends >= np.quantile(eta, 1 - shares)).all(), "it is a bound"
    assert ends[2] < 3.0, "and not far from what there is"
    assert (cells.ends(outcome, table.astype(float), 1e5, shares) > 50).all(), "noise that hides all says nothing"
