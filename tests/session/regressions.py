"""A regression across parties, as what every party's process makes it from."""

import numpyro
import numpyro.distributions as dist

from tests.session.parties import BACKENDS
from vertinumpyro.dpvi import DPVI
from vertinumpyro.model import party_plate, party_sum


def ill(data, num_records):
    """Illness at the clinic, from its own columns and the bank's."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    kinds = numpyro.sample("kinds", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    clinic = weights[0] + weights[1] * data["age"]
    eta = party_sum("eta", {"clinic": clinic, "bank": weights[2] * data["debt"] + kinds[data["kind"]]})
    with party_plate("clinic", num_records):
        numpyro.sample("ill", dist.Bernoulli(logits=eta), obs=data["ill"])


def regression(backend, block_size=None):
    return DPVI(ill, backend=BACKENDS[backend], block_size=block_size)
