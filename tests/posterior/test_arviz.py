"""A posterior's draws in ArviZ's form."""

import builtins

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.initialization import init_to_uniform

from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import Diagnostics, Posterior
from vertinumpyro.dpvi.settings import default_guide
from vertinumpyro.model import party_plate, split_model
from vertinumpyro.posterior.guide import ReparameterisedGuide
from vertinumpyro.privacy import GradientPlan, NoiseSource, PoissonSampling

SCHEMA = Schema(
    {"clinic": PartySchema({"x": RealColumn(bounds=(0, 1))}), "insurer": PartySchema({"y": BinaryColumn()})}
)
K = 3


def model(data, num_records):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(K)))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("components", K):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        probs = numpyro.sample("probs", dist.Dirichlet(jnp.ones(2)))
    numpyro.deterministic("largest", loc.max())
    with numpyro.plate("outer", 2, dim=-2), numpyro.plate("components", K, dim=-1):
        grid = numpyro.sample("grid", dist.Normal(0.0, 1.0))
    unnamed = numpyro.sample("unnamed", dist.Normal(jnp.zeros(4), 1.0))
    with numpyro.plate("records", num_records):
        z = numpyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
    with party_plate("clinic", num_records):
        numpyro.sample("x", dist.Normal(loc[z] + grid.sum(0)[z] + unnamed.sum(), scale), obs=data["x"])
    with party_plate("insurer", num_records):
        numpyro.sample("y", dist.Categorical(probs[z]), obs=data["y"])


DIMS = {
    "weights": ("weights_dim_0",),
    "scale": (),
    "loc": ("components",),
    "largest": (),
    "probs": ("components", "probs_dim_1"),
    "grid": ("outer", "components"),
    "unnamed": ("unnamed_dim_0",),
}


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    split = split_model(model, SCHEMA)
    guide, params = ReparameterisedGuide.create(default_guide, split, init_to_uniform, jax.random.key(0))
    plan = GradientPlan(
        sampling=PoissonSampling.for_batch_size(20, 100, 2),
        clip_norm=1.0,
        noise=NoiseSource(kind="collaborative", num_parties=2, collusion_threshold=0),
        num_records=100,
        parties=split.parties,
        delta=1e-5,
        noise_multiplier=2.0,
        grid_bits=24,
    )
    return Posterior(guide=guide, params=params, plan=plan, diagnostics=Diagnostics.empty(), secure_noise=True)


def test_draws_have_what_follows_from_the_latents(posterior):
    draws = posterior.sample(jax.random.PRNGKey(0), 5)
    np.testing.assert_array_equal(draws["largest"], draws["loc"].max(axis=1))
    assert "largest" in posterior.summary().index


def test_draws_come_with_their_sites_and_plates(posterior):
    arviz = pytest.importorskip("arviz")
    found = posterior.to_arviz(jax.random.key(1), 50)
    draws = posterior.sample(jax.random.key(1), 50)
    assert set(found.posterior.data_vars) == set(DIMS)
    for name, dims in DIMS.items():
        assert found.posterior[name].dims == ("chain", "draw", *dims)
        np.testing.assert_array_equal(found.posterior[name].values[0], draws[name])
    assert found.posterior.attrs["spread_note"] == posterior.spread_note
    assert len(arviz.summary(found, var_names=["loc", "scale"])) == K + 1
    groups = found.groups() if callable(found.groups) else [group.strip("/") for group in found.groups]
    assert [group for group in groups if group] == ["posterior"], "nothing of the records"


def test_what_is_computed_from_records_has_to_be_asked_for_by_name(posterior):
    pytest.importorskip("arviz")
    records = VerticalDataset.example(SCHEMA, 7, np.random.default_rng(0))
    asked = {"log_likelihood": True, "posterior_predictive": True, "dataset": records}
    with pytest.raises(PrivacyError, match=r"log_likelihood: .*no epsilon covers; give allow_not_dp=True"):
        posterior.to_arviz(jax.random.key(1), 5, **asked)
    with pytest.raises(ArgumentError, match="posterior_predictive is of records; give their dataset"):
        posterior.to_arviz(jax.random.key(1), 5, posterior_predictive=True, allow_not_dp=True)
    found = posterior.to_arviz(jax.random.key(1), 5, allow_not_dp=True, **asked)
    density = found["log_likelihood"]["log_density"]
    assert density.dims == ("chain", "draw", "record_dim")
    expected = posterior.log_density(records, rng_key=jax.random.key(1), num_samples=5)
    np.testing.assert_allclose(np.log(np.exp(density.values[0]).mean(0)), expected, rtol=1e-4)
    drawn = found["posterior_predictive"]
    assert {name: array.shape for name, array in drawn.data_vars.items()} == {"x": (1, 5, 7), "y": (1, 5, 7)}
    assert set(np.unique(drawn["y"])) <= {0, 1}
    assert all(
        "no epsilon covers" in found[group].attrs["not_dp"] for group in ("log_likelihood", "posterior_predictive")
    )


def test_the_spread_is_said_to_be_no_interval(posterior):
    assert not posterior.is_interval
    assert "the guide's own: it leaves out the noise of the steps, and is no interval" in repr(posterior)


def test_without_arviz_the_extra_is_named(posterior, monkeypatch):
    find = builtins.__import__

    def missing(name, *rest):
        if name.split(".")[0] == "arviz":
            raise ImportError(name)
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ArgumentError, match=r"pip install 'vertinumpyro\[arviz\]'"):
        posterior.to_arviz(jax.random.key(0), 2)
