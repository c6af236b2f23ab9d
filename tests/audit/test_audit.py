"""White-box audit: canaries through the whole fixed-point step of a mixture, seen by each adversary.

Two neighbouring tables (one record replaced by a canary that moves the sum as far as it can) go through the
local cores, the cross-party protocol and exact noise, many times, at full batch for one step. What an adversary then
proves of epsilon must never beat the plan's claim, and must beat it when a bug is planted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.initialization import init_to_uniform

from tests.audit import canaries
from tests.audit.canaries import OUTSIDE, Runs
from vertinumpyro.data import PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.model import party_plate

RUNS = 60_000
NUM_RECORDS = 16
SCHEMA = Schema({p: PartySchema({f"{p}_x": RealColumn(bounds=(0.0, 1.0))}) for p in ("clinic", "insurer")})
NOISE = {"half noise": canaries.halved, "missing share": canaries.without(1)}


def mixture(data: Mapping[str, Any], num_records: int) -> None:
    """Two components that differ little: a record at one end of the domain pulls opposite to one at the other."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        shifts = {party: numpyro.sample(f"{party}_shift", dist.Normal(0.0, 1.0)) for party in SCHEMA.parties}
    with numpyro.plate("records", num_records):
        z = numpyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
    for party in SCHEMA.parties:
        with party_plate(party, num_records):
            numpyro.sample(f"{party}_x", dist.Normal(0.5 + 5.0 * shifts[party][z], 1.0), obs=data[f"{party}_x"])


def table(canary: float) -> VerticalDataset:
    """Sixteen records in the middle of the domain, the last one replaced by the canary."""
    values = np.full(NUM_RECORDS, 0.5, np.float32)
    values[-1] = canary
    return VerticalDataset(SCHEMA, {p: {f"{p}_x": values} for p in SCHEMA.parties})


TABLES = table(1.0 - 1e-6), table(1e-6)


def runs(bug: str | None = None) -> Runs:
    dpvi = DPVI(mixture, init_loc_fn=init_to_uniform(radius=0.01), guide=partial(AutoDiagonalNormal, init_scale=0.001))
    plan = canaries.full_batch_plan(dpvi, TABLES[0], noise_multiplier=2.0, delta=0.01)
    return canaries.run(dpvi, plan, TABLES, RUNS, noise=NOISE.get(bug or "", canaries.as_drawn))


@pytest.fixture(scope="module")
def honest() -> Runs:
    return runs()


def test_a_threshold_that_every_run_passes_proves_nothing() -> None:
    chosen_on = np.random.default_rng(0).normal(size=(2, 20, 1)) + np.array([0.0, 8.0])[:, None, None]
    view = np.concatenate([chosen_on, chosen_on + 100.0], axis=1)
    assert canaries.epsilon_lower_bound(view, 1e-5) <= 0.0


@pytest.mark.parametrize("adversary", [OUTSIDE, *SCHEMA.parties])
def test_canaries_never_beat_the_claim(honest: Runs, adversary: str) -> None:
    bound, claim = honest.lower_bound(adversary), honest.plan.epsilon(adversary)
    assert bound <= claim
    assert bound > 0.5 * claim, "the canary is too weak to audit anything"


@pytest.mark.parametrize(
    ("bug", "adversary"),
    [("half noise", OUTSIDE), ("missing share", OUTSIDE), ("missing share", "clinic"), ("no clip", OUTSIDE)],
)
def test_planted_bugs_are_caught(bug: str, adversary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "no clip":
        canaries.leave_out_clip(monkeypatch)
    found = runs(bug)
    assert found.lower_bound(adversary) > found.plan.epsilon(adversary)
