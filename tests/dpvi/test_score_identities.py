"""What holds of every record's scores: it is found, leaves exact moments as they are, and takes noise off others."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from vertinumpyro.data import CategoricalColumn, PartySchema, RealColumn, Schema, TableFacts
from vertinumpyro.dpvi import DPVI, SecondMoments
from vertinumpyro.dpvi.score_identities import consistent, identities_among, identities_of
from vertinumpyro.dpvi.second_moments import moments_of
from vertinumpyro.model import party_plate, party_sum

pytestmark = pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")

NUM_LEVELS = 5
SCHEMA = Schema(
    {
        "bank": PartySchema({"late": CategoricalColumn(categories=("no", "yes")), "debt": RealColumn(bounds=(0, 1))}),
        "telco": PartySchema(
            {"group": CategoricalColumn(categories=tuple("abcde")), "calls": RealColumn(bounds=(0, 1))}
        ),
    }
)


def model(data, num_records):
    own = numpyro.sample("own", dist.Normal(0, 1).expand([2]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    groups = numpyro.sample("groups", dist.Normal(0, 1).expand([NUM_LEVELS]).to_event(1))
    eta = party_sum(
        "eta",
        {"bank": own[0] + own[1] * data["debt"], "telco": slope * data["calls"] + groups[data["group"].astype(int)]},
    )
    with party_plate("bank", num_records):
        numpyro.sample("late", dist.Bernoulli(logits=eta), obs=data["late"])


def scores_by_hand(rng, num_records, rare=0.01):
    """In the order of a step's vector: intercept, debt; groups, calls. Groups go with debt."""
    debt = rng.uniform(size=num_records)
    group = np.where(rng.random(num_records) < rare, 4, (debt * 4).astype(int))
    return np.column_stack([np.ones(num_records), debt, np.eye(NUM_LEVELS)[group], rng.uniform(size=num_records)])


def noise_like(rng, size, stddev):
    noise = rng.normal(0, stddev, (size, size))
    return (noise + noise.T) / np.sqrt(2)


def test_of_a_model_what_is_exact_stays_and_noise_shrinks_by_what_is_said():
    method = DPVI(model, warm_start=SecondMoments())
    plan = method.plan(TableFacts(schema=SCHEMA, num_records=5_000), epsilon=1.0, delta=1e-5)
    known = identities_of(method.split(SCHEMA), moments_of(plan))
    assert known is identities_of(method.split(SCHEMA), moments_of(plan)), "found once"
    assert known.null.shape == (8, 1), "the groups add up to the intercept"
    rng = np.random.default_rng(0)
    scores = scores_by_hand(rng, 3_000)
    exact = scores.T @ scores
    np.testing.assert_allclose(consistent(exact, known), exact, rtol=1e-6, atol=1e-5)
    before, after = [], []
    for _ in range(40):
        noise = noise_like(rng, 8, 50.0)
        before.append(np.square(noise).sum())
        after.append(np.square(consistent(exact + noise, known) - exact).sum())
    assert np.sqrt(np.sum(after) / np.sum(before)) == pytest.approx(known.noise_left, rel=0.05)
    assert known.noise_left < 0.8


def test_what_stand_ins_cannot_tell_is_not_taken_to_hold():
    rng = np.random.default_rng(1)
    num_records = 4_000
    seldom = np.zeros(num_records)
    seldom[:5] = 1.0  # on so few that nothing is known of it
    halves = (rng.random((num_records, 2)) < 0.02).astype(float)  # seldom both, and not because they exclude each other
    halves[:, 1] *= halves[:, 0] == 0
    scores = np.column_stack([np.ones(num_records), seldom, halves, rng.normal(size=num_records)])
    scores[0, 4] = np.inf  # as where a stand-in is the logarithm of 0
    known = identities_among(scores, np.zeros(5, int))
    assert known.null.shape[1] == 0
    assert not (known.kin == 0).any()
    matrix = noise_like(rng, 5, 1.0)
    found = consistent(matrix, known)
    np.testing.assert_allclose(found[1], matrix[1], err_msg="of the seldom one all stays")
    np.testing.assert_allclose(found[4], matrix[4], err_msg="of what is like no other, too")
    assert found[2, 2] == found[0, 2], "its square is itself"


def test_between_scores_that_are_cut_apart_nothing_holds():
    rng = np.random.default_rng(2)
    scores = scores_by_hand(rng, 4_000)
    joint, apart = (identities_among(scores, numbers) for numbers in (np.zeros(8, int), np.repeat([0, 1], [2, 6])))
    assert (joint.null.shape[1], apart.null.shape[1]) == (1, 0)
    assert joint.noise_left < apart.noise_left < 1
    cut = scores * np.minimum(1, 0.9 + 0.2 * rng.random((4_000, 1)) * np.array([1] * 2 + [0] * 6))
    np.testing.assert_allclose(consistent(cut.T @ cut, apart), cut.T @ cut, rtol=1e-9)
