"""Regressions across parties, planned, fitted and drawn from: one party's outcome on several parties' columns."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from vertinumpyro.core.errors import ArgumentError, ModelContractError
from vertinumpyro.core.rng import InsecureRandomnessWarning
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    RealColumn,
    Schema,
    TableFacts,
    VerticalDataset,
)
from vertinumpyro.dpvi import DPVI
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.posterior import TwinWarning
from vertinumpyro.privacy import Plan

KEY = jax.random.PRNGKey(0)
NUM_RECORDS = 4000
UNIT = RealColumn(bounds=(-1, 1))
CUTPOINTS = jnp.array([-1.0, 1.0])
TRUTH = {"bank": np.array([0.3, 1.2]), "telco": np.array([-1.0, 0.8])}


OUTCOMES = {
    "logit": (BinaryColumn(), lambda eta: dist.Bernoulli(logits=eta)),
    "probit": (BinaryColumn(), lambda eta: dist.Bernoulli(probs=jax.scipy.special.ndtr(eta))),
    "ordered": (CategoricalColumn(categories=("a", "b", "c")), lambda eta: dist.OrderedLogistic(eta, CUTPOINTS)),
    "linear": (RealColumn(bounds=(-8, 8)), lambda eta: dist.Normal(eta, 0.5)),
    "counts": (CountColumn(upper=30), lambda eta: dist.Poisson(jnp.exp(eta))),
}


def schema_of(outcome):
    bank = {"income": UNIT, "y": OUTCOMES[outcome][0]}
    return Schema({"bank": PartySchema(bank), "telco": PartySchema({"usage": UNIT, "calls": UNIT})})


def model_of(outcome):
    def model(data, num_records):
        bank = numpyro.sample("bank", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        telco = numpyro.sample("telco", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        parts = {"bank": bank[0] + bank[1] * data["income"]}
        parts["telco"] = telco[0] * data["usage"] + telco[1] * data["calls"]
        with party_plate("bank", num_records):
            numpyro.sample("y", OUTCOMES[outcome][1](party_sum("eta", parts)), obs=data["y"])

    return model


def dataset_of(outcome):
    schema, rng = schema_of(outcome), np.random.default_rng(0)
    columns = VerticalDataset.example(schema, NUM_RECORDS, rng).pooled()
    numbers = {name: columns[name] for name in ("income", "usage", "calls")}
    eta = TRUTH["bank"][0] + TRUTH["bank"][1] * numbers["income"]
    eta = eta + TRUTH["telco"][0] * numbers["usage"] + TRUTH["telco"][1] * numbers["calls"]
    drawn = np.asarray(OUTCOMES[outcome][1](jnp.asarray(eta)).sample(KEY))
    y = np.clip(drawn, -8, 30).astype(columns["y"].dtype)
    own = {"bank": {"income": numbers["income"], "y": y}}
    own["telco"] = {"usage": numbers["usage"], "calls": numbers["calls"]}
    return VerticalDataset(schema, own)


@pytest.fixture(scope="module", params=list(OUTCOMES))
def fitted(request):
    dataset, dpvi = dataset_of(request.param), DPVI(model_of(request.param), learning_rate=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        with pytest.warns(TwinWarning, match="reads 'income', 'usage', 'calls' and does not draw"):
            plan = dpvi.plan(dataset, noise_multiplier=2.0, clip_norm=20.0, batch_size=NUM_RECORDS, num_steps=200)
        return dataset, dpvi, plan, dpvi.fit(dataset, plan, KEY, insecure_seed=1, progress_bar=False)


def test_a_fit_finds_the_coefficients_of_all_parties(fitted):
    _, _, plan, posterior = fitted
    assert plan.start is None  # there is no table from which it could start
    for site, found in posterior.sample(KEY, 500).items():
        np.testing.assert_allclose(found.mean(0), TRUTH[site], rtol=0, atol=0.25)


def test_a_twin_draws_the_outcome_at_given_covariates(fitted):
    dataset, _, _, posterior = fitted
    frame = dataset.to_frame()
    covariates = frame[["income", "usage", "calls"]].iloc[:500]
    twin = posterior.sample_synthetic(rng_key=KEY, covariates=covariates)
    assert list(twin.columns) == ["income", "y", "usage", "calls"]
    assert len(twin) == 500
    assert set(twin["y"].unique()) <= set(dataset.schema.columns["y"].labels) or twin["y"].dtype.kind in "fi"
    with pytest.raises(ArgumentError, match="covariates="):
        posterior.sample_synthetic(10, rng_key=KEY)


def test_a_posterior_is_stored_and_compared_on_held_out_records(fitted, tmp_path):
    dataset, dpvi, plan, posterior = fitted
    posterior.save(tmp_path / "posterior.npz")
    loaded = dpvi.load(tmp_path / "posterior.npz")
    assert loaded.plan == plan
    nll = loaded.held_out_nll(dataset)
    assert nll == posterior.held_out_nll(dataset)
    worse = posterior.guide, {name: jnp.zeros_like(value) for name, value in posterior.params.items()}
    assert nll < type(posterior)(
        guide=worse[0], params=worse[1], plan=plan, diagnostics=posterior.diagnostics, secure_noise=False
    ).held_out_nll(dataset)


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_a_plan_is_calibrated_from_facts_alone_and_starts_nowhere_else():
    dpvi, facts = DPVI(model_of("logit")), TableFacts(schema=schema_of("logit"), num_records=NUM_RECORDS)
    plan = dpvi.plan(facts, epsilon=1.0)
    assert plan.epsilon() <= 1.0
    assert plan.unproven == ()
    pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")
    with pytest.raises(ModelContractError, match="fit the model by DPVI"):
        DPVI(model_of("logit"), warm_start=True).plan(facts, epsilon=1.0, batch_size=NUM_RECORDS)


def clip_of(outcome, **settings):
    facts = TableFacts(schema=schema_of(outcome), num_records=NUM_RECORDS)
    plan = DPVI(model_of(outcome)).plan(facts, noise_multiplier=2.0, num_steps=5, **settings)
    return plan.clip_parts, plan.residual_bound, plan.clip_norm


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
@pytest.mark.parametrize(("outcome", "unit"), [("logit", 1.0), ("probit", 6.158), ("linear", 16.0), ("counts", 30.0)])
def test_each_party_clips_what_its_columns_add_at_most(outcome, unit):
    parts, columns = (2, 2), 4  # an intercept and the income; the usage and the calls
    assert clip_of(outcome) == (parts, pytest.approx(0.6 / unit, rel=1e-3), 0.6 * math.sqrt(columns))
    assert clip_of(outcome, residual_bound=0.5) == (parts, 0.5, pytest.approx(0.5 * unit * 2, rel=1e-3))
    assert clip_of(outcome, clip_norm=0.8) == (parts, pytest.approx(0.4 / unit, rel=1e-3), 0.8)
    assert clip_of(outcome, clip_norm=200.0) == (parts, 1.0, 200.0)
    assert clip_of(outcome, clip="joint", clip_norm=0.8) == (None, 1.0, 0.8)
    with pytest.raises(ArgumentError, match='choose clip="local"'):
        clip_of(outcome, clip="joint", residual_bound=0.5)
    with pytest.raises(ArgumentError, match="residual_bound must be at least"):
        clip_of(outcome, residual_bound=1.5)


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_a_plan_says_how_records_are_clipped():
    dpvi, facts = DPVI(model_of("logit")), TableFacts(schema=schema_of("logit"), num_records=NUM_RECORDS)
    plan = dpvi.plan(facts, noise_multiplier=2.0, residual_bound=0.4)
    form = json.loads(json.dumps(plan.to_dict()))
    assert (form["clip_parts"], form["residual_bound"]) == ([2, 2], 0.4)
    assert Plan.from_dict(form) == plan
    joint = dataclasses.replace(plan, clip_parts=None, residual_bound=1.0)
    assert not {"clip_parts", "residual_bound"} & set(joint.to_dict())  # as an earlier record: same fingerprint
    assert len({p.fingerprint() for p in (plan, joint, dataclasses.replace(plan, clip_parts=(1, 2)))}) == 3
    with pytest.raises(ArgumentError, match=r"parts for \['telco'\].*make a new plan"):
        dpvi.check(facts, dataclasses.replace(plan, clip_parts=(0, 2)))
    mixture = DPVI()
    other = mixture.plan(facts, noise_multiplier=2.0)
    assert other.clip_parts is None
    with pytest.raises(ArgumentError, match="learns from no party_sum"):
        mixture.check(facts, dataclasses.replace(other, clip_parts=(2, 2)))
    with pytest.raises(ArgumentError, match="the model has none"):
        mixture.plan(facts, noise_multiplier=2.0, clip="local")


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_a_clip_on_shares_is_still_to_be_had():
    dataset, dpvi = dataset_of("logit"), DPVI(model_of("logit"), learning_rate=0.1)
    plan = dpvi.plan(dataset, noise_multiplier=2.0, clip="joint", num_steps=100)
    with pytest.warns(InsecureRandomnessWarning):
        posterior = dpvi.fit(dataset, plan, KEY, insecure_seed=1, progress_bar=False)
    for site, found in posterior.sample(KEY, 500).items():
        np.testing.assert_allclose(found.mean(0), TRUTH[site], rtol=0, atol=0.4)
