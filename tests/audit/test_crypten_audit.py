"""The audits between real processes: a party whose noise never came is caught, for its peer.

Every run is a secure computation, so there are few of them and the noise is large: the claim is small, and what is
left without the other party's share is nothing at all.
"""

from functools import partial

import jax
import numpy as np
import pytest
from numpyro.infer.initialization import init_to_uniform

from tests.audit import canaries, test_audit, test_sum_audit
from vertinumpyro.dpvi import DPVI
from vertinumpyro.secure import InsecureSimulation
from vertinumpyro.secure.crypten import Crypten, is_installed

pytestmark = pytest.mark.skipif(
    not is_installed(), reason="CrypTen is not installed: pip install 'vertinumpyro[crypten]'"
)
RUNS = 40


@pytest.fixture(scope="module")
def backend():
    backend = InsecureSimulation(Crypten())
    yield backend
    backend.close()


def mixture(backend):
    """What is fitted, and two tables."""
    start = init_to_uniform(radius=0.01)
    return DPVI(test_audit.mixture, backend=backend, init_loc_fn=start), test_audit.TABLES


def regression(backend):
    """The same, of tables that differ at the second party, whose noise is the one that is missing."""
    return test_sum_audit.regression_dpvi("logit", backend=backend), test_sum_audit.tables("logit")[:2]


FITS = pytest.mark.parametrize("fitted", [mixture, regression])


def run(dpvi, tables, noise=canaries.as_drawn):
    """One after the other: a party's process computes one sum at a time."""
    plan = canaries.full_batch_plan(dpvi, tables[0], noise_multiplier=40.0)
    return canaries.run(dpvi, plan, tables, RUNS, noise=noise, over_runs=lambda steps: partial(jax.lax.map, steps))


@FITS
def test_a_party_without_noise_is_caught_for_its_peer(backend, fitted):
    missing = run(*fitted(backend), noise=canaries.without(1))
    peer = missing.plan.parties[0]
    assert not np.delete(missing.shares, 0, axis=-2).any()
    assert missing.lower_bound(peer) > missing.plan.epsilon(peer)


@FITS
def test_with_everybodys_noise_the_claim_holds(backend, fitted):
    honest = run(*fitted(backend))
    for adversary in (canaries.OUTSIDE, *honest.plan.parties):
        assert honest.lower_bound(adversary) <= honest.plan.epsilon(adversary)
