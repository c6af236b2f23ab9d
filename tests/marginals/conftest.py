"""Small models with dependence across two parties, and releases of tables of their own records."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
)
from vertinumpyro.marginals import release_marginals
from vertinumpyro.model import party_plate
from vertinumpyro.mrf import VertiMRF

SCHEMA = Schema(
    {
        "clinic": PartySchema({"old": BinaryColumn(), "ill": BinaryColumn(), "weight": RealColumn(bounds=(0, 1))}),
        "bank": PartySchema({"plan": CategoricalColumn(categories=("a", "b", "c")), "claims": CountColumn(upper=20)}),
    }
)


def two_groups(data, num_records):
    """Two groups of people, which the first has more of; `ill` reads `old` at the same party."""
    share = numpyro.sample("share", dist.Beta(8.0, 4.0))
    old = numpyro.sample("old_prob", dist.Beta(2.0, 2.0).expand([2]).to_event(1))
    risk = numpyro.sample("risk", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    shape = numpyro.sample("shape", dist.Gamma(4.0, 2.0).expand([2]).to_event(1))
    plan = numpyro.sample("plan_probs", dist.Dirichlet(jnp.ones(3)).expand([2]).to_event(1))
    rate = numpyro.sample("rate", dist.Gamma(jnp.array([2.0, 12.0]), 2.0).to_event(1))
    with numpyro.plate("records", num_records, dim=-1):
        z = numpyro.sample("z", dist.Bernoulli(1 - share), infer={"enumerate": "parallel"}).astype(int)
    with party_plate("clinic", num_records):
        numpyro.sample("old", dist.Bernoulli(old[z]), obs=data["old"])
        numpyro.sample("ill", dist.Bernoulli(logits=risk[z, data["old"].astype(int)]), obs=data["ill"])
        numpyro.sample("weight", dist.Beta(shape[z], 2.0), obs=data["weight"])
    with party_plate("bank", num_records):
        numpyro.sample("plan", dist.Categorical(plan[z]), obs=data["plan"])
        numpyro.sample("claims", dist.Poisson(rate[z]), obs=data["claims"])


def by_age(data, num_records):
    """The plan given age alone; z is age, so nothing can change places, and other columns are left alone."""
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    plan = numpyro.sample("plan_probs", dist.Dirichlet(jnp.ones(3)).expand([2]).to_event(1))
    with numpyro.plate("records", num_records, dim=-1):
        z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"}).astype(int)
    with party_plate("clinic", num_records):
        numpyro.sample("old", dist.Bernoulli(logits=24.0 * z - 12.0), obs=data["old"])
    with party_plate("bank", num_records):
        numpyro.sample("plan", dist.Categorical(plan[z]), obs=data["plan"])


def apart(data, num_records):
    """Age and plan without dependence."""
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    plan = numpyro.sample("plan_probs", dist.Dirichlet(jnp.ones(3)))
    with party_plate("clinic", num_records):
        numpyro.sample("old", dist.Bernoulli(share), obs=data["old"])
    with party_plate("bank", num_records):
        numpyro.sample("plan", dist.Categorical(plan), obs=data["plan"])


TRUTH = {
    "share": np.array(0.65),
    "old_prob": np.array([0.3, 0.7]),
    "risk": np.array([[-1.0, 0.0], [0.5, 1.5]]),
    "shape": np.array([1.0, 4.0]),
    "plan_probs": np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]]),
    "rate": np.array([1.0, 5.0]),
}


def simulated(seed, num_records):
    """Records of `two_groups` at `TRUTH`, by NumPy alone."""
    rng = np.random.default_rng(seed)
    z = (rng.random(num_records) > TRUTH["share"]).astype(int)
    old = (rng.random(num_records) < TRUTH["old_prob"][z]).astype(int)
    ill = (rng.random(num_records) < 1 / (1 + np.exp(-TRUTH["risk"][z, old]))).astype(int)
    plan = (rng.random(num_records)[:, None] > TRUTH["plan_probs"][z].cumsum(1)).sum(1)
    return pd.DataFrame(
        {
            "id": np.arange(num_records),
            "old": old,
            "ill": ill,
            "weight": rng.beta(TRUTH["shape"][z], 2.0),
            "plan": np.array(["a", "b", "c"])[plan],
            "claims": np.minimum(rng.poisson(TRUTH["rate"][z]), 20),
        }
    )


def dataset_of(frame, schema=SCHEMA):
    return VerticalDataset.from_frames(schema, {p: frame[["id", *part.columns]] for p, part in schema.parties.items()})


SETTINGS = VertiMRF(max_cells=6)


@pytest.fixture(scope="package")
def dataset():
    return dataset_of(simulated(0, 4000))


@pytest.fixture(scope="package")
def release(dataset):
    return release_marginals(dataset, SETTINGS.plan(dataset, epsilon=8.0), SETTINGS, insecure_seed=0)
