"""The audit of `test_audit` between real processes: a party whose noise never came is caught, for its peer.

Every run is a secure computation, so there are few of them and the noise is large: the claim is small, and what is
left without the other party's share is nothing at all.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.initialization import init_to_uniform

from tests.audit import test_audit as audit
from vertinumpyro.core import compat
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.dpvi import DPVI
from vertinumpyro.posterior.columns import device_columns
from vertinumpyro.privacy import PoissonSampling
from vertinumpyro.secure import InsecureRehearsal
from vertinumpyro.secure.crypten import Crypten, is_installed

pytestmark = pytest.mark.skipif(
    not is_installed(), reason="CrypTen is not installed: pip install 'vertinumpyro[crypten]'"
)
RUNS = 40


@pytest.fixture(scope="module")
def backend():
    backend = InsecureRehearsal(Crypten())
    yield backend
    backend.close()


def run(backend, sends_noise):
    """As `audit._run`: both tables, `RUNS` times each; `sends_noise` says of each party whether its share comes."""
    dpvi = DPVI(audit._model, backend=backend, init_loc_fn=init_to_uniform(radius=0.01))
    n = audit.NUM_RECORDS
    sampling = PoissonSampling(sampling_prob=1.0, num_steps=1, max_batch_size=n)
    plan = dpvi.plan(audit._table(0.5), noise_multiplier=40.0, sampling=sampling)
    released, shares = [], []
    for canary in audit.CANARIES:
        table = audit._table(canary)
        kernel, state = dpvi.kernel(table, plan, compat.random_key(0))
        drawn = plan.draw_noise_shares(kernel.guide.split.num_values, RUNS, SystemRandomSource())
        added = drawn * np.array(sends_noise)[:, None]
        with compat.x64():
            contributions = jax.jit(kernel.local)(state, device_columns(table), jnp.arange(n))
            prior = jax.jit(kernel.component_prior)(state)
            inputs = kernel.shape, contributions, prior, jnp.ones(n, bool)
            released.append([np.asarray(backend.clipped_noisy_sum(*inputs, share)) for share in added])
        shares.append(added)
    claims = {name: plan.epsilon(name) for name in audit.ADVERSARIES}
    return audit.Run(claims, np.array(released), np.stack(shares), 2.0**-plan.grid_bits), plan.parties


def lower_bound(view):
    """As `audit._epsilon_lower_bound`, for few runs: the threshold is halfway between the tables, from one half."""
    choose, test = view[:, : RUNS // 2], view[:, RUNS // 2 :]
    return audit._bound(test, float(np.median(choose, axis=1).mean()))


def test_a_party_without_noise_is_caught_for_its_peer(backend):
    missing, parties = run(backend, [1, 0])
    peer = parties[0]
    assert lower_bound(missing.view(peer, parties)) > missing.claims[peer]


def test_with_everybodys_noise_the_claim_holds(backend):
    honest, parties = run(backend, [1, 1])
    for adversary in audit.ADVERSARIES:
        assert lower_bound(honest.view(adversary, parties)) <= honest.claims[adversary]
