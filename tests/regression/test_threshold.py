"""The cut of a logistic fit's scores, computed from what was released."""

import numpy as np
import pytest

from tests.regression.conftest import FEATURES, SCHEMA, draw
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.regression import VerticalLogisticRegression
from vertinumpyro.regression.features import FeatureLayout
from vertinumpyro.regression.functional_mechanism import best_threshold
from vertinumpyro.secure import Plaintext

SKEWED = Schema(
    {
        "a": PartySchema({"ward": CategoricalColumn(categories=("x", "y", "z")), "owner": BinaryColumn()}),
        "b": PartySchema({"rare": BinaryColumn(), "late": BinaryColumn()}),
    }
)
LAYOUT = FeatureLayout.of(SKEWED, "late")
WEIGHTS = np.array([-0.1, 0.9, -0.6, -0.3, 0.25, 0.7])  # intercept, three wards, owner, rare


def records(n, rng):
    """Features that are independent within a class, one of them rare; returns coordinates and labels in {-1, 1}."""
    late = rng.random(n) < 0.4
    ward = np.where(late, rng.choice(3, n, p=[0.3, 0.1, 0.6]), rng.choice(3, n, p=[0.02, 0.58, 0.4]))
    owner = np.where(rng.random(n) < np.where(late, 0.7, 0.4), 1.0, -1.0)
    rare = np.where(rng.random(n) < np.where(late, 0.15, 0.01), 1.0, -1.0)
    y = np.where(late, 1.0, -1.0)
    return np.column_stack([np.ones(n), np.eye(3)[ward], owner, rare, y]), y


def accuracy(scores, y, cut):
    return np.mean((scores > cut) == (y > 0))


def test_it_finds_the_best_cut_where_features_are_independent_within_a_class():
    v, y = records(40_000, np.random.default_rng(0))
    scores = v[:, :-1] @ WEIGHTS
    means = scores[y < 0].mean(), scores[y > 0].mean()
    best = max(accuracy(scores, y, cut) for cut in np.linspace(*means, 2_000))
    found = best_threshold(v.T @ v, LAYOUT, WEIGHTS, 0.0)
    assert accuracy(scores, y, found) == pytest.approx(best, abs=2e-3)
    assert accuracy(scores, y, 0.0) < best - 0.01


def test_dependent_features_leave_it_near_the_best_cut():
    dataset = draw(20_000, 3)
    layout = FeatureLayout.of(SCHEMA, "late", features=FEATURES)
    x, y = layout.encode_features(dataset), 2.0 * dataset.pooled()["late"] - 1
    v = np.insert(np.column_stack([np.ones(len(x)), x]), layout.label_index, y, axis=1)
    design = np.column_stack([np.ones(len(x)), x])
    weights = np.linalg.lstsq(design, y, rcond=None)[0]
    scores = design @ weights
    best = max(accuracy(scores, y, cut) for cut in np.linspace(-1, 1, 401))
    assert accuracy(scores, y, best_threshold(v.T @ v, layout, weights, 0.0)) > best - 0.005


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_one_class_alone_leaves_the_cut_at_zero(late):
    v, _ = records(500, np.random.default_rng(0))
    v[:, -1] = 2 * late - 1
    assert best_threshold(v.T @ v, LAYOUT, WEIGHTS, 0.0) == 0.0


def test_scores_without_width_or_order_leave_the_cut_at_zero():
    v, _ = records(500, np.random.default_rng(0))
    assert best_threshold(v.T @ v, LAYOUT, np.r_[0.3, np.zeros(5)], 0.0) == 0.0
    assert best_threshold(v.T @ v, LAYOUT, -WEIGHTS, 0.0) == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_moments_of_noise_alone_still_give_a_finite_cut(seed):
    noise = np.random.default_rng(seed).normal(0, 1e4, (len(WEIGHTS) + 1,) * 2)
    noise = noise + noise.T
    noise[0, 0] = 500
    assert np.isfinite(best_threshold(noise, LAYOUT, WEIGHTS, 1e4))


def test_between_classes_apart_noise_does_not_move_it_to_one_of_them():
    """A category of the other class alone, to which noise gives some records of this one."""
    layout = FeatureLayout.of(
        Schema(
            {
                "a": PartySchema({"ward": BinaryColumn(), "age": RealColumn(bounds=(0.0, 90.0))}),
                "b": PartySchema({"late": BinaryColumn()}),
            }
        ),
        "late",
    )
    rng = np.random.default_rng(0)
    y = rng.choice([-1.0, 1.0], 3000)
    v = np.column_stack([np.ones(3000), y, rng.uniform(-1, 1, 3000), y])
    weights = np.array([0.0, 1.0, 0.003])  # a fit's, by the noise below
    for _ in range(300):
        noise = rng.normal(0, 5.0, (4, 4))
        assert best_threshold(v.T @ v + (noise + noise.T) / np.sqrt(2), layout, weights, 5.0) == pytest.approx(
            0, abs=0.5
        )


def test_a_fit_cuts_there_and_probabilities_do_not_move():
    v, y = records(30_000, np.random.default_rng(1))
    a = {"ward": v[:, 1:4].argmax(axis=1).astype(np.int32), "owner": (v[:, 4] > 0).astype(np.int32)}
    b = {"rare": (v[:, 5] > 0).astype(np.int32), "late": (y > 0).astype(np.int32)}
    dataset = VerticalDataset(SKEWED, {"a": a, "b": b})
    fits = {}
    for threshold in ("zero", "expected"):
        model = VerticalLogisticRegression(threshold=threshold, backend=Plaintext(), insecure_seed=5)
        plan = model.plan(SKEWED, "late", num_records=len(y), epsilon=2.0, delta=1e-5)
        fits[threshold] = model.fit(dataset, plan)
    zero, expected = fits["zero"], fits["expected"]
    assert zero.threshold_ == 0.0 != expected.threshold_
    assert np.array_equal(expected.predict(dataset), expected.decision_function(dataset) > expected.threshold_)
    assert np.array_equal(zero.predict_proba(dataset), expected.predict_proba(dataset))
    assert expected.score(dataset) > zero.score(dataset) - 0.003  # least squares may sit near its best cut already


def test_an_unknown_threshold_is_refused_before_anything_is_spent(dataset):
    model = VerticalLogisticRegression(threshold="best")
    plan = model.plan(SCHEMA, "late", num_records=dataset.num_records, epsilon=1.0, delta=1e-5)
    with pytest.raises(ArgumentError, match='threshold must be "zero" or "expected"'):
        model.fit(dataset, plan)
    model.set_params(threshold="zero").fit(dataset, plan)
