"""Steps by second moments of the scores: their bound, their noise, what they are for, and how far few steps come."""

import json
import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoDelta

from tests.dpvi.test_regression import NUM_RECORDS as N
from tests.dpvi.test_regression import OUTCOMES, TRUTH, dataset_of, model_of, schema_of
from vertinumpyro.core.errors import ArgumentError, BackendError, ModelContractError, PlanSpentError
from vertinumpyro.core.rng import InsecureSeededSource
from vertinumpyro.data import TableFacts
from vertinumpyro.dpvi import DPVI, SecondMoments, inference, second_moments
from vertinumpyro.dpvi.accelerated_newton import accelerated_newton, noise_gain, steep
from vertinumpyro.dpvi.second_moments import CELL, SCORE_BITS, MomentsPlan, MomentsWork, on_grid
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.model.outcomes import (
    BernoulliLogit,
    BernoulliProbit,
    Gamma,
    NegativeBinomial,
    Normal,
    OrderedLogit,
    Poisson,
)
from vertinumpyro.model.split import Offset
from vertinumpyro.privacy import Adversary, NeighbouringRelation, NoiseSource, Plan
from vertinumpyro.secure import Crypten
from vertinumpyro.session import Multiply, Payload, Publish, session_of

KEY = jax.random.key(0)
TRUTHS = np.concatenate([TRUTH["bank"], TRUTH["telco"]])
pytestmark = [
    pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning"),
    pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning"),
    pytest.mark.filterwarnings("ignore::vertinumpyro.core.errors.InferenceWarning"),
]


def few(outcome="logit", *, whiten=None, **settings):
    return DPVI(model_of(outcome), warm_start=SecondMoments(whiten=whiten), **settings)


def facts_of(outcome="logit"):
    return TableFacts(schema=schema_of(outcome), num_records=N)


def moments_plan(**changes) -> Any:
    settings = {"noise_multiplier": 10.0, "num_records": 100, "parties": ("a", "b"), "widths": (3, 2), "radius": 2.0,
                "clip_parts": (2, 1), "delta": 1e-5, "noise": NoiseSource(num_parties=2)}  # fmt: skip
    return MomentsPlan(**{**settings, **changes})


def test_a_table_of_events_costs_what_as_many_moments_do():
    for relation in NeighbouringRelation:
        plain, table = (moments_plan(cells=cells, relation=relation) for cells in ((), (5, 0)))
        assert table.share_variance == pytest.approx(2 * plain.share_variance, rel=1e-9)
        for one, other in zip(plain.adversaries, table.adversaries, strict=True):
            assert other.epsilon == pytest.approx(one.epsilon, rel=1e-6)
    assert 2 * CELL**2 <= 2 ** (4 * SCORE_BITS)
    assert Plan.from_dict(table.to_dict()) == table
    assert "cells" not in plain.to_dict(), "an earlier plan keeps its fingerprint"


# -- the steps -------------------------------------------------------------------------------------


def test_accelerated_steps_reach_the_minimum_of_an_ill_conditioned_quadratic():
    steeper, target = np.diag([1.0, 1e3]), np.array([2.0, -1.0])
    params: Any = {"theta": jnp.zeros(2)}
    optimizer = accelerated_newton(20)
    state: Any = optimizer.init(params)
    state = state._replace(inverse=jnp.asarray(np.linalg.inv(2 * steeper)))  # twice as steep
    for _ in range(20):
        descent = {"theta": jnp.asarray(steeper @ (np.asarray(params["theta"]) - target))}
        updates, state = optimizer.update(descent, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params["theta"], target, atol=1e-2)
    assert np.array_equal(params["theta"], state.before)  # the last one does not extrapolate


def test_the_gain_is_what_noise_alone_comes_to():
    optimizer, ends = accelerated_newton(8), []
    for step in range(8):  # of a unit at one step, and nothing at the others
        params: Any = {"theta": jnp.zeros(1)}
        state = optimizer.init(params)
        for count in range(8):
            updates, state = optimizer.update({"theta": jnp.full(1, float(count == step))}, state, params)
            params = optax.apply_updates(params, updates)
        ends.append(float(params["theta"][0]))
    assert noise_gain(8) == pytest.approx(np.linalg.norm(ends), rel=1e-5)


def test_h_is_above_the_noisy_moments_and_small_budgets_are_stepped_along_with_care():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(500, 4))
    exact, noise = rows.T @ rows, 3.0
    noisy = exact + np.triu(rng.normal(size=(4, 4))) * noise
    kwargs: Any = {"noise": noise, "num_steps": 20}
    found = steep(np.triu(noisy) + np.triu(noisy, 1).T, 0.25, np.eye(4), gradient_noise=np.zeros(4), **kwargs)
    assert np.linalg.eigvalsh(found - 0.25 * exact - np.eye(4)).min() > 0
    careful = steep(np.triu(noisy) + np.triu(noisy, 1).T, 0.25, np.eye(4), gradient_noise=np.full(4, 1e3), **kwargs)
    assert noise_gain(20) * 1e3 / np.diag(careful).max() < 0.51  # of a prior's standard deviation


def test_a_residual_that_is_cut_falls_no_faster_over_a_unit_where_its_derivative_has_no_bound():
    outcome, eta = Poisson(most=30.0), jnp.linspace(-6.0, 3.4, 941)
    for cut in (0.5, 5.0, 30.0):
        for count in (0.0, 3.0, 30.0):
            found = np.asarray(jnp.clip(outcome.residual(eta, jnp.asarray(count)), -cut, cut))
            falls = found[:-100] - found[100:]  # over a unit of eta
            assert falls.max() <= outcome.curvature(cut) * (1 + 1e-5)


@pytest.mark.parametrize(
    "outcome",
    [BernoulliLogit(), BernoulliProbit(), OrderedLogit((-1.0, 0.5)), Normal(0.5), Poisson(30.0), Poisson(2000.0),
     Poisson(8.0, events=True), NegativeBinomial(30.0, 1.5), NegativeBinomial(5.0, 40.0), Gamma(2.0)],
    ids=repr,
)  # fmt: skip
def test_what_nothing_cuts_has_a_mean_of_0_where_outcomes_follow_the_model(outcome):
    """Rates near the column's largest count and above it, too: else a bias is put back that no epsilon cures."""
    eta = jnp.linspace(-5.0, 5.0, 41)
    values, probabilities = outcome.support(eta)
    residual = outcome.linked_residual(eta[:, None], values)
    assert jnp.abs(residual).max() > 0.5
    scale = jnp.maximum(1.0, (probabilities * jnp.abs(residual)).sum(-1))
    np.testing.assert_allclose((probabilities * residual).sum(-1) / scale, 0.0, atol=2e-5)


def test_no_cut_residual_of_a_dispersed_count_falls_faster_than_said():
    eta = jnp.linspace(-6.0, 6.0, 2401)
    for most, size, cut in ((30.0, 1.5, 4.5), (30.0, 1.5, 20.0), (30.0, 60.0, 10.0), (4.0, 0.5, 1.0)):
        outcome = NegativeBinomial(most, size)
        for count in (0.0, 0.4 * most, most):
            found = np.asarray(jnp.clip(outcome.residual(eta, jnp.asarray(count)), -cut, cut), float)
            slope = outcome.curvature(cut) if outcome.curvature(cut) < 2 * cut else np.inf
            assert -np.diff(found).min() / 0.005 <= slope * (1 + 1e-3)


def test_steps_by_a_loose_bound_arrive_and_where_noise_hides_the_slope_they_are_as_before():
    """Of counts about 1, whose bound is 30 times as steep as they are; beside a number that no gradient moves."""
    rng, num_steps, cut, outcome = np.random.default_rng(3), 20, 15.0, Poisson(30.0)
    x = np.column_stack([np.ones(2000), rng.uniform(-1, 1, (2000, 2))])
    y = rng.poisson(np.exp(x @ [0.2, -0.5, 0.6]))
    steps = accelerated_newton(num_steps)

    def end(loose, noise):
        params = {"theta": jnp.zeros(4)}
        inverse = np.zeros((4, 4))
        inverse[:3, :3] = np.linalg.inv(x.T @ x / 2000 * outcome.curvature(cut))
        state = steps.init(params)._replace(
            inverse=jnp.asarray(inverse), noise=jnp.full(4, noise), loose=jnp.asarray(loose)
        )
        for _ in range(num_steps):
            residual = np.clip(y - np.exp(x @ np.asarray(params["theta"])[:3]), -cut, cut)
            descent = np.append(-x.T @ residual / 2000, 0.3)
            updates, state = steps.update({"theta": jnp.asarray(descent)}, state, params)
            params = optax.apply_updates(params, updates)
        assert params["theta"][3] == 0
        return np.asarray(params["theta"])[:3]

    pooled = np.zeros(3)
    for _ in range(30):
        rate = np.exp(x @ pooled)
        pooled += np.linalg.solve((x * rate[:, None]).T @ x, x.T @ (y - rate))
    spread = np.sqrt(np.diag(np.linalg.inv((x * rate[:, None]).T @ x)))
    before = end(0.0, 0.0)
    assert np.abs((before - pooled) / spread).max() > 1
    assert np.abs((end(outcome.curvature(cut), 0.0) - pooled) / spread).max() < 0.2
    np.testing.assert_array_equal(end(outcome.curvature(cut), 10.0), before)


# -- the release -----------------------------------------------------------------------------------


def added_to(data, num_records):
    """Half a unit for all at the bank; at the telco the logarithm of a column, beside a coefficient."""
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    usage: Any = numpyro.sample("usage_slope", dist.Normal(0.0, 1.0))
    parts = {"bank": slope * data["income"] + 0.5}
    parts["telco"] = usage * data["usage"] + jnp.log(0.05 + data["calls"])
    with party_plate("bank", num_records):
        numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])


def test_an_offset_is_one_score_more_and_no_longer_than_a_plan_has_it():
    dataset, dpvi = dataset_of("logit"), DPVI(added_to, warm_start=SecondMoments(whiten=False))
    plan: Any = dpvi.plan(dataset, epsilon=1.0).start
    assert plan.widths == (1, 2)  # nothing is to know of what is the same for all
    assert plan.offsets[0] == Offset(0.5, 0.0)
    split, own = dpvi.split(dataset.schema), dataset.arrays("telco")
    work = MomentsWork(split, plan, "telco", own, InsecureSeededSource(0))
    scores = np.asarray(work.factor(Multiply(1, "moments across parties")))
    known = np.clip((np.log(0.05 + own["calls"]) - plan.offsets[1].middle) / plan.offsets[1].half, -1, 1)
    expected = np.column_stack([own["usage"], known]) * 2**SCORE_BITS / plan.radius
    assert np.abs(scores - expected).max() < 1.5
    assert (np.abs(known) == 1).any()
    far = {**own, "calls": np.full_like(own["calls"], 1e30), "usage": np.full_like(own["usage"], -1e30)}
    scores = np.asarray(MomentsWork(split, plan, "telco", far, InsecureSeededSource(0)).factor(Multiply(1, "x")))
    assert (scores**2).sum(1).max() <= plan.longest("telco")


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ([Offset(0.0, 1.0)], "one for each party"),
        ([Offset(0.0, -1.0), Offset()], "half not negative"),
        ([Offset(np.nan, 1.0), Offset()], "finite"),
    ],
)
def test_a_plan_refuses_offsets_that_are_none(offsets, why):
    with pytest.raises(ArgumentError, match=why):
        moments_plan(offsets=tuple(offsets))


def test_scores_on_the_grid_are_never_longer_than_a_plan_has_it():
    plan, rng = moments_plan(), np.random.default_rng(2)
    assert sum(plan.longest(party) for party in plan.parties) <= 4**SCORE_BITS
    scores = rng.normal(size=(2000, 3)) * 10.0 ** rng.integers(-3, 30, (2000, 1))
    scores[:3] = [[np.nan, np.inf, 1.0], [0.0, 0.0, 0.0], [2.0, -2.0, 2.0]]
    for party, factor in (("a", 2 / 3), ("b", 1 / 3)):
        found = on_grid(scores, plan.radius, plan.longest(party))
        assert (found**2).sum(1).max() <= plan.longest(party)
        short = np.linalg.norm(scores, axis=1) < plan.radius * np.sqrt(factor)
        np.testing.assert_allclose(found[short] * plan.radius / 2**SCORE_BITS, scores[short], atol=2e-4)


def test_a_release_is_the_moments_of_the_scores_and_noise_as_large_as_the_plan_says():
    dataset, dpvi = dataset_of("logit"), few(whiten=False)
    plan = dpvi.plan(dataset, epsilon=1.0)
    moments: Any = plan.start
    start: Any = dpvi._moments
    found = []
    for seed in range(3):
        fresh = dpvi.plan(dataset, epsilon=1.0)
        session = session_of(dataset, dpvi.backend)
        with session.open(dpvi, fresh, run_dir=None, results="x.npz", insecure_seed=seed) as run:
            found.append(start.release(session, run, dpvi.split(dataset.schema, plan)))
    data = dataset.pooled()
    centres, scales, _ = plan.standardisation
    x = (np.column_stack([np.ones(N), data["income"], data["usage"], data["calls"]]) - centres) / scales
    errors = np.concatenate([(one.matrix - x.T @ x)[np.triu_indices(4, 1)] for one in found])
    assert 0.5 < np.sqrt(np.mean(errors**2)) / found[0].stddev < 1.6
    assert all(np.array_equal(one.matrix, one.matrix.T) for one in found)
    assert moments.widths == (2, 2)


@pytest.mark.parametrize("relation", list(NeighbouringRelation))
def test_the_stated_parameter_is_that_of_the_worst_pair_of_records(relation):
    plan = moments_plan(relation=relation, noise_multiplier=5.0)
    lengths = [np.sqrt(plan.longest(party)) for party in plan.parties]
    one, other = np.zeros(5), np.zeros(5)
    one[0], one[3], other[1], other[4] = lengths[0], lengths[1], lengths[0], lengths[1]
    other *= relation is NeighbouringRelation.REPLACE
    moved = np.outer(one, one) - np.outer(other, other)
    entries = np.triu_indices(5)
    squares = entries[0] == entries[1]
    for colluders, name in ((0, "outside analyst"), (1, "a")):
        unknown = plan.own_variance * np.where(squares, 2, 1)
        mu = np.sqrt(np.sum(moved[entries] ** 2 / unknown))
        stated = relation.sensitivity / plan.event(Adversary(name=name, colluders=colluders)).noise_multiplier
        assert 0.99 * stated < mu <= stated
        assert stated <= relation.sensitivity / 5.0 * (1 + 1e-12)


def test_coalitions_that_know_more_noise_get_more_and_all_others_the_same():
    plan = moments_plan(
        parties=("a", "b", "c"), widths=(1, 1, 1), clip_parts=(1, 1, 1), noise=NoiseSource(num_parties=3)
    )
    rows = {row.adversary: row.epsilon for row in plan.adversaries}
    assert rows["outside analyst"] == rows["a"] == rows["c"] < rows["any 2 colluding parties"]
    more = moments_plan(**{name: getattr(plan, name) for name in ("parties", "widths", "clip_parts")},
                        noise=NoiseSource(num_parties=3, collusion_threshold=2))  # fmt: skip
    assert len({row.epsilon for row in more.adversaries}) == 1
    assert more.share_variance > plan.share_variance


def test_a_party_refuses_what_its_plan_does_not_release():
    dpvi, facts = few(whiten=False), facts_of()
    plan: Any = dpvi.plan(facts, epsilon=1.0)
    own = dataset_of("logit").arrays("telco")
    work = MomentsWork(dpvi.split(facts.schema), plan.start, "telco", own, InsecureSeededSource(0))
    work.check(Publish(0, "own moments"))
    for request in (Publish(1, "own moments"), Multiply(None, "moments across parties")):
        with pytest.raises(ArgumentError, match="not what the plan releases"):
            work.check(request)


@pytest.mark.parametrize("sent", [{}, {"products": np.zeros((2, 2), np.int64)}, {"products": np.zeros((3, 3))}])
def test_what_a_party_made_up_in_the_place_of_its_moments_is_refused_by_its_name(sent):
    class Sent:
        def publish(self, request):
            return [Payload({}, arrays) for arrays in ({"products": np.zeros((3, 3), np.int64)}, sent)]

    session: Any = Sent()
    with pytest.raises(BackendError, match="party 'b' published something else than its products"):
        second_moments._own(session, moments_plan(), Publish(0, "own moments"))


# -- the plan --------------------------------------------------------------------------------------


def test_everything_is_in_one_budget_and_a_plan_is_read_as_it_was_written():
    plan = few().plan(facts_of(), epsilon=1.0)
    assert isinstance(plan.start, MomentsPlan)
    assert (plan.num_gradients, plan.num_steps) == (20, 23)
    assert 0.99 < plan.worst.epsilon <= 1.0
    spent = [(2 / plan.start.event(o).noise_multiplier) ** 2 for o in plan.observers]
    whole = [(2 / plan.event(o).noise_multiplier) ** 2 for o in plan.observers]
    np.testing.assert_allclose(np.array(spent)[1:] / np.array(whole)[1:], 0.1, rtol=1e-2)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert few().plan(facts_of(), epsilon=1.0, num_steps=30).num_gradients == 30


def test_between_organisations_one_product_comes_before_the_steps():
    dpvi = few(backend=Crypten())
    plan = dpvi.plan(facts_of(), epsilon=1.0)
    (product, once), (summed, times) = dpvi.computations(facts_of(), plan)
    assert (type(product).__name__, product.widths, once) == ("CrossProducts", (2, 2), 1)
    assert (type(summed).__name__, times) == ("ClippedSum", 20)


@pytest.mark.parametrize(
    ("dpvi", "settings", "why"),
    [
        ({}, {"epsilon": None, "noise_multiplier": 5.0}, "it needs epsilon"),
        ({}, {"batch_size": 100}, "take all records"),
        ({}, {"clip": "joint"}, 'give clip="local"'),
        ({"learning_rate": 0.1}, {}, "leave optimizer and learning_rate out"),
        ({"optimizer": optax.adam(0.1)}, {}, "leave optimizer and learning_rate out"),
        ({"guide": numpyro.infer.autoguide.AutoNormal}, {}, "give guide=AutoDelta"),
    ],
)
def test_what_they_are_not_for_is_refused_before_anything_is_spent(dpvi, settings, why):
    with pytest.raises(ArgumentError, match=why):
        few(**dpvi).plan(facts_of(), **{"epsilon": 1.0, **settings})


def test_a_plan_that_begins_otherwise_is_another_methods():
    with pytest.raises(ArgumentError, match="do not begin with second moments"):
        few().check(facts_of(), DPVI(model_of("logit"), warm_start=False).plan(facts_of(), epsilon=1.0))
    with pytest.raises(ArgumentError, match="do not begin with tables"):
        DPVI(model_of("logit"), warm_start=True).check(facts_of(), few().plan(facts_of(), epsilon=1.0))
    longer = few().plan(facts_of(), epsilon=1.0, clip_norm=3.0)
    few().check(facts_of(), DPVI(model_of("logit")).plan(facts_of(), epsilon=1.0))  # which is the default
    with pytest.raises(ArgumentError, match="planned for another radius"):
        few().check(facts_of(), replace(longer, start=few().plan(facts_of(), epsilon=1.0).start))
    with pytest.raises(ArgumentError, match="share must lie between"):
        SecondMoments(share=1.0)


def bent(data, num_records):
    bank = numpyro.sample("bank", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    telco = numpyro.sample("telco", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    parts = {"bank": bank[0] + bank[1] * data["income"], "telco": scale * telco * data["usage"]}
    with party_plate("bank", num_records):
        numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])


def test_a_part_that_is_not_linear_is_refused_by_name():
    message = r"party_sum 'eta': the part of party 'telco' is not linear in latents \['scale', 'telco'\]"
    with pytest.raises(ModelContractError, match=message):
        DPVI(bent, warm_start=SecondMoments()).plan(facts_of(), epsilon=1.0)


# -- the fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", list(OUTCOMES))
def test_few_steps_find_the_coefficients_of_all_parties(outcome, tmp_path):
    dataset, dpvi = dataset_of(outcome), few(outcome)
    plan = dpvi.plan(dataset, epsilon=200.0, residual_bound={"counts": 0.5, "probit": 0.6}.get(outcome, 1.0))
    posterior = dpvi.fit(dataset, plan, KEY, insecure_seed=1, progress_bar=False)
    found = posterior.split.constrain(posterior.centre())
    point = np.concatenate([found["bank"], found["telco"]])
    np.testing.assert_allclose(point, TRUTHS, atol=0.3)
    posterior.save(tmp_path / "posterior.npz")
    assert dpvi.load(tmp_path / "posterior.npz").held_out_nll(dataset) == posterior.held_out_nll(dataset)


def splines(data, num_records):
    """Products and powers of a party's own columns, a prior with heavy tails, and a part that nobody learns."""
    bank = numpyro.sample("bank", dist.StudentT(4.0, 0.0, 1.0).expand([4]).to_event(1))
    telco = numpyro.sample("telco", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    x, u, c = data["income"], data["usage"], data["calls"]
    parts = {"bank": bank[0] + bank[1] * x + bank[2] * x**2 + bank[3] * jnp.maximum(x, 0.0)}
    parts["telco"] = telco[0] * u + telco[1] * c + telco[2] * u * c
    with party_plate("bank", num_records):
        numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])


def test_splines_and_products_of_own_columns_are_linear_in_their_coefficients():
    dataset = dataset_of("logit")
    dpvi = DPVI(splines, guide=AutoDelta, warm_start=SecondMoments())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = dpvi.plan(dataset, epsilon=100.0, residual_bound=1.0)
        posterior = dpvi.fit(dataset, plan, KEY, insecure_seed=1, progress_bar=False)
    assert isinstance(plan.start, MomentsPlan)
    assert plan.start.widths == (4, 3)
    telco = posterior.split.constrain(posterior.centre())["telco"]
    np.testing.assert_allclose(telco, [*TRUTH["telco"], 0.0], atol=0.35)


def test_moments_that_a_crash_lost_are_spent_and_a_run_goes_on_with_those_it_stored(tmp_path, monkeypatch):
    dataset, dpvi = dataset_of("logit"), few()
    plan = dpvi.plan(dataset, epsilon=5.0)
    run_steps = inference.run_steps
    with monkeypatch.context() as patch:
        patch.setattr(inference, "run_steps", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            dpvi.fit(dataset, plan, KEY, run_dir=tmp_path, insecure_seed=1, progress_bar=False)
    seen = []

    def watching(session, run, kernel, runner, state, **settings):
        seen.append((run.ledger.steps_spent, np.asarray(state.optimizer_state.inverse)))
        return run_steps(session, run, kernel, runner, state, **settings)

    monkeypatch.setattr(inference, "run_steps", watching)
    dpvi.fit(dataset, plan, KEY, run_dir=tmp_path, resume=True, insecure_seed=1, progress_bar=False)
    assert seen[0][0] == 3
    assert not np.array_equal(seen[0][1], np.eye(4))

    lost = dpvi.plan(dataset, epsilon=5.0)
    with monkeypatch.context() as patch:
        patch.setattr(inference, "run_steps", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            dpvi.fit(dataset, lost, KEY, run_dir=tmp_path / "lost", insecure_seed=1, progress_bar=False)
    for path in (tmp_path / "lost").iterdir():
        if path.suffix == ".npz":
            path.unlink()
    with pytest.raises(PlanSpentError, match="not stored"):
        dpvi.fit(dataset, lost, KEY, run_dir=tmp_path / "lost", resume=True, insecure_seed=1, progress_bar=False)
