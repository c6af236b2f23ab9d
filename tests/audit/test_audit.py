"""White-box audit: canaries through the whole fixed-point step, seen by each adversary.

Two neighbouring tables (one record replaced by a canary that moves the sum as far as it can) go through the
local cores, the cross-party protocol and exact noise, many times, at full batch for one step. The adversary
subtracts what it knows, projects on the difference of the two sums, and picks a threshold on one half of the
runs; on the other half Clopper-Pearson bounds give a lower bound on epsilon that holds with probability
1 - 1e-4. It must never beat the plan's claim, and must beat it when a bug is planted.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.initialization import init_to_uniform
from scipy.stats import beta

from vertinumpyro.core import compat
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.model import party_plate
from vertinumpyro.posterior.columns import device_columns
from vertinumpyro.privacy import PoissonSampling
from vertinumpyro.secure import fixed_point

RUNS = 60_000
FAILURE_PROB = 1e-4
DELTA = 0.01
NUM_RECORDS = 16
SCHEMA = Schema({p: PartySchema({f"{p}_x": RealColumn(bounds=(0.0, 1.0))}) for p in ("clinic", "insurer")})
CANARIES = (1.0 - 1e-6, 1e-6)
ADVERSARIES = ("outside analyst", "clinic", "insurer")


def _model(data: Mapping[str, Any], num_records: int) -> None:
    """Two components that differ little: a record at one end of the domain pulls opposite to one at the other."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        shifts = {party: numpyro.sample(f"{party}_shift", dist.Normal(0.0, 1.0)) for party in SCHEMA.parties}
    with numpyro.plate("records", num_records):
        z = numpyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
    for party in SCHEMA.parties:
        with party_plate(party, num_records):
            numpyro.sample(f"{party}_x", dist.Normal(0.5 + 5.0 * shifts[party][z], 1.0), obs=data[f"{party}_x"])


def _table(canary: float) -> VerticalDataset:
    """Sixteen records in the middle of the domain, the last one replaced by the canary."""
    values = np.full(NUM_RECORDS, 0.5, np.float32)
    values[-1] = canary
    return VerticalDataset(SCHEMA, {p: {f"{p}_x": values} for p in SCHEMA.parties})


@dataclasses.dataclass(frozen=True)
class Run:
    """Released vectors of the two neighbouring tables, and the shares that were drawn for them."""

    claims: dict[str, float]
    released: np.ndarray
    shares: np.ndarray
    grid: float

    def view(self, adversary: str, parties: tuple[str, ...]) -> np.ndarray:
        """[2, runs]: released minus the adversary's own noise, along the difference of the two means."""
        known = 0.0
        if adversary in parties:
            known = self.shares[:, :, parties.index(adversary)] * self.grid
        seen = self.released - known
        direction = seen[1].mean(0) - seen[0].mean(0)
        return seen @ direction / np.linalg.norm(direction)


def _run(bug: str | None = None) -> tuple[Run, tuple[str, ...]]:
    """Both tables through kernel and protocol, `RUNS` times each with fresh exact noise."""
    dpvi = DPVI(_model, init_loc_fn=init_to_uniform(radius=0.01), guide=partial(AutoDiagonalNormal, init_scale=0.001))
    sampling = PoissonSampling(sampling_prob=1.0, num_steps=1, max_batch_size=NUM_RECORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # delta is large on purpose: it makes the audit sharp
        plan = dpvi.plan(_table(0.5), noise_multiplier=2.0, delta=DELTA, sampling=sampling)
        claims = {name: plan.epsilon(name) for name in ADVERSARIES}
    released, shares = [], []
    for canary in CANARIES:
        table = _table(canary)
        kernel, state = dpvi.kernel(table, plan, compat.random_key(0))
        drawn = plan.draw_noise_shares(kernel.guide.split.num_values, RUNS, SystemRandomSource())
        added = {"half noise": drawn // 2, "missing share": drawn * np.array([1, 0])[:, None]}.get(bug or "", drawn)
        with compat.x64():
            contributions = jax.jit(kernel.local)(state, device_columns(table), jnp.arange(NUM_RECORDS))
            prior = jax.jit(kernel.component_prior)(state)
            mask = jnp.ones(NUM_RECORDS, bool)
            protocol = partial(kernel.backend.clipped_noisy_sum, kernel.shape, contributions, prior, mask)
            release = jax.jit(jax.vmap(protocol))
            released.append(np.asarray(release(added)))
        shares.append(added)
    return Run(claims, np.stack(released), np.stack(shares), 2.0**-plan.grid_bits), plan.parties


def _epsilon_lower_bound(view: np.ndarray) -> float:
    """A lower bound on epsilon at `DELTA`, valid with probability 1 - `FAILURE_PROB`."""
    half = view.shape[1] // 2
    choose, test = view[:, :half], view[:, half:]
    candidates = np.quantile(choose[0], np.linspace(0.5, 0.9995, 60))
    threshold = max(candidates, key=lambda t: _bound(choose, t))
    return _bound(test, threshold)


def _bound(view: np.ndarray, threshold: float) -> float:
    runs = view.shape[1]
    false_alarms, hits = (int((row > threshold).sum()) for row in view)
    upper = beta.ppf(1 - FAILURE_PROB / 2, false_alarms + 1, runs - false_alarms)
    lower = beta.ppf(FAILURE_PROB / 2, hits, runs - hits + 1) if hits else 0.0
    return float(np.log(max(lower - DELTA, 1e-12) / upper))


@pytest.fixture(scope="module")
def honest() -> tuple[Run, tuple[str, ...]]:
    return _run()


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_canaries_never_beat_the_claim(honest: tuple[Run, tuple[str, ...]], adversary: str) -> None:
    run, parties = honest
    bound = _epsilon_lower_bound(run.view(adversary, parties))
    assert bound <= run.claims[adversary]
    assert bound > 0.5 * run.claims[adversary], "the canary is too weak to audit anything"


@pytest.mark.parametrize(
    ("bug", "adversary"),
    [
        ("half noise", "outside analyst"),
        ("missing share", "outside analyst"),
        ("missing share", "clinic"),
        ("no clip", "outside analyst"),
    ],
)
def test_planted_bugs_are_caught(bug: str, adversary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "no clip":
        honest_weights = fixed_point._clipped_weights
        monkeypatch.setattr(
            fixed_point, "_clipped_weights", lambda link, e, norm, mask: honest_weights(link, e, 0 * norm, mask)
        )
    run, parties = _run(bug)
    if bug == "missing share" and adversary == parties[0]:
        assert not np.delete(run.shares, 0, axis=2).any(), "the other party's share is the one that is missing"
    assert _epsilon_lower_bound(run.view(adversary, parties)) > run.claims[adversary]
