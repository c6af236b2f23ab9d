"""White-box audit of regressions across parties: canaries through the steps of a `party_sum`, seen by each adversary.

As `test_audit`, with three steps, and with neighbours as each claim has them: what a party holds is the same in both of
its tables. Predictors reach so far that every canary's gradient is many clip norms long. Where each party clips its own
part, a canary is as long as the part that changes, so most of C is given to that one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.initialization import init_to_value

from tests.audit import canaries
from tests.audit.canaries import OUTSIDE, Runs
from tests.model.sum_cases import OUTCOMES, UNIT, OutcomeCase
from vertinumpyro.core import ring
from vertinumpyro.data import PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.privacy import NeighbouringRelation
from vertinumpyro.secure import fixed_point, input_bounds, number_formats

RUNS = 60_000
NUM_RECORDS = 2
REACH = 1000.0  # of a predictor, so that its coefficient's score hides the intercept's
WIDE = OutcomeCase(RealColumn(bounds=(-10_000, 10_000)), lambda eta: dist.Normal(eta, 1.0))
FAMILIES = {
    "logit": (OUTCOMES["logit"], (0, 1)),
    "probit": (OUTCOMES["probit"], (0, 1)),
    "ordered": (OUTCOMES["ordered"], (0, 3)),
    "counts": (OUTCOMES["counts"], (0, 12)),
    "linear": (WIDE, (-9999.0, 9999.0)),
}
"""An outcome, and its two values that are furthest apart."""

LOW, MIDDLE, HIGH = 1e-6, 0.5, 1 - 1e-6
CHANGES = {
    "the insurer's column": ((1, MIDDLE, LOW), (1, MIDDLE, HIGH)),
    "the clinic's column": ((1, LOW, MIDDLE), (1, HIGH, MIDDLE)),
    "the outcome": ((0, HIGH, HIGH), (1, HIGH, HIGH)),
}
"""The canary in two tables: which outcome, the clinic's column, the insurer's."""

VIEWS = (
    ("the insurer's column", OUTSIDE),
    ("the insurer's column", "clinic"),
    ("the clinic's column", OUTSIDE),
    ("the clinic's column", "insurer"),
    ("the outcome", OUTSIDE),
    ("the outcome", "insurer"),
)
"""Each change and those who do not hold what changes: the clinic has the outcome."""


def regression(
    data: Mapping[str, Any], num_records: int, distribution: Callable[[Any], dist.Distribution], sites: Sequence[str]
) -> None:
    """:param sites: outcomes of the clinic, all with the same coefficients."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    parts = {}
    for party in ("clinic", "insurer"):
        slope = numpyro.sample(f"{party}_slope", dist.Normal(0.0, 1.0))
        parts[party] = REACH * (data[f"{party}_x"] - MIDDLE) * slope
    for site in sites:
        eta = party_sum(f"eta of {site}", {**parts, "clinic": intercept + parts["clinic"]})
        with party_plate("clinic", num_records):
            numpyro.sample(site, distribution(eta), obs=data[site])


def table(family: str, canary: tuple[int, float, float], sites: Sequence[str]) -> VerticalDataset:
    """Records in the middle of the domain, the last one replaced by the canary."""
    case, outcomes = FAMILIES[family]
    columns = {"clinic": dict.fromkeys(sites, case.column) | {"clinic_x": UNIT}, "insurer": {"insurer_x": UNIT}}
    rows = np.array([(0, MIDDLE, MIDDLE)] * (NUM_RECORDS - 1) + [canary]).T
    y = np.array(outcomes)[rows[0].astype(int)].astype(case.column.dtype)
    x = rows[1:].astype(np.float32)
    return VerticalDataset(
        Schema({party: PartySchema(own) for party, own in columns.items()}),
        {"clinic": dict.fromkeys(sites, y) | {"clinic_x": x[0]}, "insurer": {"insurer_x": x[1]}},
    )


def tables(family: str, sites: Sequence[str] = ("y",)) -> list[VerticalDataset]:
    """Two for each change."""
    return [table(family, canary, sites) for pair in CHANGES.values() for canary in pair]


def regression_dpvi(family: str, sites: Sequence[str] = ("y",), **settings: Any) -> DPVI:
    start = init_to_value(values=dict.fromkeys(("intercept", "clinic_slope", "insurer_slope"), jnp.zeros(())))
    model = partial(regression, distribution=FAMILIES[family][0].distribution, sites=sites)
    return DPVI(model, guide=AutoDelta, init_loc_fn=start, learning_rate=1e-4, **settings)


def runs(family: str, noise: canaries.Noise = canaries.as_drawn, *, clip_parts: tuple[int, int] | None = None) -> Runs:
    """:param clip_parts: where each party clips its own scores; then a residual is cut to a tenth."""
    dpvi, canary_tables = regression_dpvi(family), tables(family)
    settings = {"num_steps": 3, "noise_multiplier": 6.0, "delta": 0.01, "clip_norm": 1.0, "clip": "joint"}
    plan = canaries.full_batch_plan(dpvi, canary_tables[0], **settings)
    if clip_parts is not None:
        plan = dataclasses.replace(plan, clip_parts=clip_parts, residual_bound=0.1)
    return canaries.run(dpvi, plan, canary_tables, RUNS, noise=noise)


def lower_bound(found: Runs, change: str, adversary: str) -> float:
    first = 2 * list(CHANGES).index(change)
    return found.lower_bound(adversary, (first, first + 1))


@pytest.fixture(scope="module", params=FAMILIES)
def honest(request: pytest.FixtureRequest) -> Runs:
    return runs(request.param)


@pytest.mark.promise
def test_canaries_never_beat_the_claim(honest: Runs) -> None:
    for change, adversary in VIEWS:
        bound, claim = lower_bound(honest, change, adversary), honest.plan.epsilon(adversary)
        assert bound <= claim, (change, adversary)
        assert bound > 0.5 * claim, f"to replace {change} is too weak a canary to audit {adversary} with"


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"relation": NeighbouringRelation.ADD_REMOVE}, id="sensitivity of add/remove"),
        pytest.param({"sampling": canaries.full_batches(NUM_RECORDS, num_steps=1)}, id="one step for three"),
    ],
)
def test_a_claim_that_counts_too_little_is_beaten(honest: Runs, wrong: dict[str, Any]) -> None:
    claimed = dataclasses.replace(honest.plan, **wrong)
    for change, adversary in VIEWS:
        assert lower_bound(honest, change, adversary) > claimed.epsilon(adversary), (change, adversary)


@pytest.mark.parametrize(
    ("noise", "blind"),
    [
        pytest.param(canaries.halved, None, id="half the noise"),
        pytest.param(canaries.without(0), "clinic", id="clinic sends none"),
        pytest.param(canaries.without(1), "insurer", id="insurer sends none"),
    ],
)
def test_missing_noise_is_caught(noise: canaries.Noise, blind: str | None) -> None:
    """`blind` misses only what it knew anyway: the claim for it is as good as before."""
    found = runs("logit", noise)
    for change, adversary in VIEWS:
        beaten = lower_bound(found, change, adversary) > found.plan.epsilon(adversary)
        assert beaten == (adversary != blind), (change, adversary)


def clip_without(width: int) -> Callable[[pytest.MonkeyPatch], None]:
    """A bug: the norm leaves out the party that has so many coefficients."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        honest = fixed_point._shared_norm
        monkeypatch.setattr(
            fixed_point, "_shared_norm", lambda e, scores, norm: honest(e, scores, norm) * (scores.shape[-1] != width)
        )

    return plant


def clip_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: each party's part is as long as the clip norm allows the whole to be."""
    honest = fixed_point.ring_sum

    def ring_sum(shape: Any, inputs: fixed_point.Encoded, mask: jax.Array) -> jax.Array:
        parts = range(shape.num_parties)
        alone = (tuple(scores * (p == q) for q, scores in enumerate(inputs.shared)) for p in parts)
        return jnp.stack([honest(shape, inputs._replace(shared=shared), mask) for shared in alone]).sum(0)

    monkeypatch.setattr(fixed_point, "ring_sum", ring_sum)


def residual_unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: the normal's residual goes on beyond 8 scales, and the norm, which is proved for less, wraps around."""
    bits = ring.EXP_FRACTIONAL_BITS - number_formats.RING_LOG_BITS
    monkeypatch.setattr(fixed_point.RingArithmetic, "clip", lambda arithmetic, z: z << bits)


@pytest.mark.parametrize(
    ("family", "plant", "caught_by"),
    [
        pytest.param("logit", canaries.leave_out_clip, CHANGES, id="no clip"),
        pytest.param("logit", clip_without(2), ["the clinic's column", "the outcome"], id="clinic's part unclipped"),
        pytest.param("counts", clip_without(1), ["the insurer's column", "the outcome"], id="insurer's part unclipped"),
        pytest.param("counts", clip_apart, ["the outcome"], id="parts clipped apart"),
        pytest.param("linear", residual_unbounded, ["the insurer's column", "the outcome"], id="residual unbounded"),
    ],
)
def test_a_clip_that_is_none_is_caught(
    family: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    caught_by: Collection[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By everyone who does not hold what changes."""
    plant(monkeypatch)
    found = runs(family)
    for change, adversary in VIEWS:
        if change in caught_by:
            assert lower_bound(found, change, adversary) > found.plan.epsilon(adversary), (change, adversary)


LOCAL_VIEWS = {
    (8, 1): [("the clinic's column", OUTSIDE), ("the clinic's column", "insurer"), *VIEWS[4:]],
    (1, 8): [*VIEWS[:2], *VIEWS[4:]],
}
"""Parts of C, and the changes of what they leave room for: an outcome turns all of a record round."""


@pytest.mark.parametrize(("family", "parts"), [("logit", (1, 8)), ("linear", (8, 1))])
def test_canaries_never_beat_the_claim_where_each_party_clips_its_part(family: str, parts: tuple[int, int]) -> None:
    found = runs(family, clip_parts=parts)
    for change, adversary in LOCAL_VIEWS[parts]:
        bound, claim = lower_bound(found, change, adversary), found.plan.epsilon(adversary)
        assert 0.5 * claim < bound <= claim, (change, adversary)


def all_of_c_for_every_party(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: parts that add up to 2."""
    monkeypatch.setattr(fixed_point, "score_bound", lambda shape, party: 1.0)


def insurer_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: a party leaves its scores as long as the number formats allow."""
    monkeypatch.setattr(
        fixed_point, "score_bound", lambda shape, p: 1024.0 if p == 1 else number_formats.score_bound(shape, p)
    )


def residual_uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: scores are scaled for a residual of a tenth, which is not cut."""
    monkeypatch.setattr(fixed_point, "largest_weights", lambda shape, bits: None)


def coefficients_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug: two outcomes are clipped as if no coefficient were of both."""

    def apart(plated: jax.Array, shared: jax.Array) -> jax.Array:
        return (plated**2).sum((-2, -1)) + (shared**2).sum((-2, -1))

    monkeypatch.setattr(input_bounds, "_largest_square", apart)


@pytest.mark.parametrize("plant", [None, coefficients_apart], ids=["honest", "coefficients apart"])
def test_two_outcomes_of_the_same_coefficients_count_as_one_record(
    plant: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their residuals have one sign here, so that what they add is twice as long as either."""
    if plant is not None:
        plant(monkeypatch)
    sites = ("y", "also y")
    dpvi, canary_tables = regression_dpvi("logit", sites), tables("logit", sites)
    settings = {"num_steps": 3, "noise_multiplier": 6.0, "delta": 0.01, "clip_norm": 1.0}
    plan = canaries.full_batch_plan(dpvi, canary_tables[0], **settings)
    plan = dataclasses.replace(plan, clip_parts=(1, 8), residual_bound=(0.1, 0.1))
    found = canaries.run(dpvi, plan, canary_tables, RUNS, noise=canaries.as_drawn)
    for change, adversary in VIEWS[:2]:
        bound, claim = lower_bound(found, change, adversary), found.plan.epsilon(adversary)
        assert (bound > claim) == (plant is not None), (change, adversary)
        assert bound > 0.5 * claim


@pytest.mark.parametrize(
    ("plant", "caught_by"),
    [
        pytest.param(all_of_c_for_every_party, ["the outcome"], id="parts of 2"),
        pytest.param(insurer_skips, ["the insurer's column", "the outcome"], id="insurer does not scale"),
        pytest.param(residual_uncut, ["the insurer's column", "the outcome"], id="residual uncut"),
    ],
)
def test_a_party_that_does_not_clip_its_part_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], caught_by: Collection[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = runs("logit", clip_parts=(1, 8))
    for change, adversary in LOCAL_VIEWS[1, 8]:
        if change in caught_by:
            assert lower_bound(found, change, adversary) > found.plan.epsilon(adversary), (change, adversary)
