"""Our per-example gradients against those of d3p, the non-partitioned DPVI of the same authors.

How the two are aligned. d3p differentiates the per-example loss, -(N log p(x_n | theta) + log p(theta) -
log q) / N, with respect to the guide's unconstrained parameters. Under AutoDelta the guide is the point
theta, log q is 0, and its unconstrained parameters are the model's unconstrained latents, the space in
which we clip. What is left besides the likelihood is the gradient of log p(theta) / N, the same for every
example: it is computed from the prior alone and taken off. Our gradient of one example is the library's
own: the plaintext protocol on a batch whose mask leaves that example alone, without noise and with a clip
that does not bind, gathered to flat theta.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro.distributions import biject_to
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.initialization import init_to_value

from vertinumpyro.core import compat
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
)
from vertinumpyro.model import mixture_model, split_model
from vertinumpyro.secure import BatchShape, Plaintext

pytest.importorskip("d3p", reason="d3p needs jax 0.4.30: the other lane runs this")

K, N, BATCH = 4, 1000, 12
COLUMNS = {
    "clinic": {"age": RealColumn(bounds=(0, 100)), "sex": BinaryColumn(categories=("f", "m"))},
    "insurer": {"plan": CategoricalColumn(categories=("a", "b", "c")), "risk": RealColumn(bounds=(0, 1))},
}
SCHEMA = Schema({party: PartySchema(columns) for party, columns in COLUMNS.items()})


def pooled_model(age, sex, plan, risk):
    """The mixture that the library builds for SCHEMA, for pooled arrays and with the component summed out."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("components", K):
        age_a = numpyro.sample("age_a", dist.Gamma(1.0, 1.0))
        age_b = numpyro.sample("age_b", dist.Gamma(1.0, 1.0))
        sex_prob = numpyro.sample("sex_prob", dist.Beta(1.0, 1.0))
        plan_probs = numpyro.sample("plan_probs", dist.Dirichlet(jnp.ones(3)))
        risk_a = numpyro.sample("risk_a", dist.Gamma(1.0, 1.0))
        risk_b = numpyro.sample("risk_b", dist.Gamma(1.0, 1.0))
    density = jnp.log(weights) + dist.Beta(age_a, age_b).log_prob(age[:, None])
    density = density + dist.Bernoulli(sex_prob).log_prob(sex[:, None])
    density = density + dist.Categorical(plan_probs).log_prob(plan[:, None])
    density = density + dist.Beta(risk_a, risk_b).log_prob(risk[:, None])
    with numpyro.plate("records", N, subsample_size=len(age)):
        numpyro.factor("log_density", logsumexp(density, axis=-1))


@pytest.fixture(scope="module")
def dataset():
    return VerticalDataset.example(SCHEMA, BATCH, np.random.default_rng(3))


@pytest.fixture(scope="module")
def split():
    return split_model(mixture_model(SCHEMA, K), SCHEMA)


@pytest.fixture(scope="module")
def flat_theta(split):
    rng = np.random.default_rng(4)
    return jnp.asarray(rng.normal(0, 0.5, split.num_parameters), jnp.float32)


@pytest.fixture(scope="module")
def ours(dataset, split, flat_theta):
    """[BATCH, theta]."""
    columns = {p: {name: jnp.asarray(c) for name, c in dataset.arrays(p).items()} for p in dataset.parties}
    contributions = [split.contribution(party, flat_theta, columns[party]) for party in split.parties]
    prior = split.component_prior(flat_theta)
    shape = BatchShape(
        batch_size=BATCH,
        num_components=K,
        num_parties=len(split.parties),
        num_values=split.num_values,
        clip_norm=1024.0,
        noise_stddev=0.0,
    )
    with compat.x64():
        no_noise = jnp.zeros((1, split.num_values), jnp.int64)
        alone = jnp.eye(BATCH, dtype=bool)
        protocol = Plaintext().clipped_noisy_sum
        rows = [protocol(shape, contributions, prior, mask, no_noise).astype(jnp.float32) for mask in alone]
    return np.stack([split.gather(row) for row in rows])


@pytest.fixture(scope="module")
def theirs(dataset, split, flat_theta):
    """[BATCH, theta]: d3p's gradients of the loss, its sign turned and the prior's part taken off."""
    import d3p.random
    from d3p.svi import DPSVI

    start = init_to_value(values=split.constrain(flat_theta))
    guide = AutoDelta(pooled_model, init_loc_fn=start)
    svi = DPSVI(pooled_model, guide, numpyro.optim.Adam(0.01), Trace_ELBO(), clipping_threshold=1.0, dp_scale=1.0)
    arrays = [jnp.asarray(dataset.pooled()[name]) for name in SCHEMA.columns]
    state = svi.init(d3p.random.PRNGKey(0), *arrays)
    assert state.observation_scale == N
    _, _, gradients, _ = svi._compute_per_example_gradients(state, d3p.random.PRNGKey(1), *arrays)
    rows = jax.vmap(lambda tree: split.flatten({n: tree[f"{n}_auto_loc"] for n in split.structure.latents}))(gradients)
    return np.asarray(-rows - prior_gradient(split, flat_theta) / N)


def prior_gradient(split, flat_theta):
    """d log p(theta) / d unconstrained theta, without the Jacobian's part, which AutoDelta leaves out."""
    priors = {"weights": dist.Dirichlet(jnp.ones(K)), "plan_probs": dist.Dirichlet(jnp.ones(3))}
    priors |= {"sex_prob": dist.Beta(1.0, 1.0)}

    def log_density(flat):
        laws = {name: priors.get(name, dist.Gamma(1.0, 1.0)) for name in split.structure.latents}
        values = split.unflatten(flat)
        return sum(law.log_prob(biject_to(law.support)(values[name])).sum() for name, law in laws.items())

    return jax.grad(log_density)(flat_theta)


def test_per_example_gradients_are_those_of_d3p(ours, theirs):
    norms = np.linalg.norm(theirs, axis=1)
    assert (norms > 0.1).all()
    assert (np.linalg.norm(ours - theirs, axis=1) <= 1e-5 * norms).all()


def test_the_examples_differ(theirs):
    """Or the comparison would hold for anything that returns a mean."""
    assert np.linalg.norm(theirs - theirs.mean(0), axis=1).min() > 0.1
