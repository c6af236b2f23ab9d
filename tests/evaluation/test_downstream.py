import numpy as np
import pytest

from tests.evaluation.conftest import draw_table
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.evaluation import combine_estimates, train_on_synthetic_test_on_real


def test_good_twin_scores_near_the_real_rows_and_an_inverted_one_mirrors_it(schema):
    synthetic, real, test = (draw_table(2000, seed) for seed in (1, 2, 3))
    result = train_on_synthetic_test_on_real(synthetic, real, test, "claim", schema)
    assert result.real is not None
    assert result.real.auc is not None
    assert result.synthetic.auc == pytest.approx(result.real.auc, abs=0.02)
    assert result.synthetic.auc > 0.6
    assert result.majority == pytest.approx(max(test.claim.mean(), 1 - test.claim.mean()))
    assert result.num_test == 2000
    assert not result.is_dp
    # scrambled labels would rank the rows in some arbitrary direction; inverted ones must mirror the AUC
    inverted = synthetic.assign(claim=1 - synthetic.claim)
    mirrored = train_on_synthetic_test_on_real(inverted, None, test, "claim", schema).synthetic.auc
    assert mirrored == pytest.approx(1 - result.synthetic.auc, abs=1e-3)


def test_auc_and_balanced_accuracy_equal_scikit_learns(schema):
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score

    class Recorder(HistGradientBoostingClassifier):
        def predict(self, X):
            return seen.setdefault("predicted", super().predict(X))

        def predict_proba(self, X):
            return seen.setdefault("score", super().predict_proba(X))

    seen: dict[str, np.ndarray] = {}
    synthetic, test = draw_table(300, 1), draw_table(200, 3)
    model = Recorder(max_iter=10)
    scores = train_on_synthetic_test_on_real(synthetic, None, test, "claim", schema, model).synthetic
    assert scores.auc == pytest.approx(roc_auc_score(test.claim, seen["score"][:, 1]))
    assert scores.balanced_accuracy == pytest.approx(balanced_accuracy_score(test.claim, seen["predicted"]))


def test_targets_with_missing_values_and_several_classes(real, synthetic, schema):
    result = train_on_synthetic_test_on_real(synthetic, None, real, "ward", schema)
    assert result.num_test == real.ward.notna().sum()
    assert result.synthetic.auc is None
    assert result.real is None


def test_one_class_in_the_synthetic_rows_predicts_it(real, synthetic, schema):
    result = train_on_synthetic_test_on_real(synthetic.assign(claim=0), real, real, "claim", schema)
    assert result.synthetic.accuracy == pytest.approx(1 - real.claim.mean())
    assert result.synthetic.auc == pytest.approx(0.5)
    assert "not DP" in " ".join(result.to_frame().index)


def test_errors_name_the_argument(real, synthetic, schema):
    cases = [
        ("target='nobody'", (synthetic, real, real, "nobody", schema)),
        ("target='age'", (synthetic, real, real, "age", schema)),
        ("test_real lacks", (synthetic, real, real.drop(columns="cost"), "claim", schema)),
        ("train_synth has no row", (synthetic.assign(ward=None), real, real, "ward", schema)),
    ]
    for pattern, arguments in cases:
        with pytest.raises(ArgumentError, match=pattern):
            train_on_synthetic_test_on_real(*arguments)


def test_missing_scikit_learn_names_the_extra(real, synthetic, schema, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.linear_model", None)
    with pytest.raises(ArgumentError, match=r"vertinumpyro\[report\]"):
        train_on_synthetic_test_on_real(synthetic, None, real, "claim", schema)


# -- Rubin's rules for synthetic tables: the formula, its edge, and coverage where everything is normal ---------


def test_the_formula_of_rubins_rules():
    combined = combine_estimates([1.0, 2.0, 6.0], [0.5, 1.0, 1.5])
    between = 4 / 3 * np.var([1.0, 2.0, 6.0], ddof=1)
    assert combined.estimate == 3.0
    assert combined.stddev**2 == pytest.approx(between - 1.0)
    assert combined.degrees_of_freedom == pytest.approx(2 * (1 - 1.0 / between) ** 2)


def test_a_negative_variance_gives_way_to_that_within_tables():
    combined = combine_estimates([1.0, 1.1], [4.0, 4.0])
    assert combined.stddev == 2.0
    low, high = combined.interval()
    assert low < 1.0 < 1.1 < high


def test_intervals_cover_where_posterior_and_tables_are_normal():
    """θ has variance 1 given the data, an estimate on a table 0.25 given θ."""
    rng, hits = np.random.default_rng(0), []
    for _ in range(2000):
        truth = rng.normal()  # about the posterior's mean, which is 0
        tables = rng.normal(size=20) + 0.5 * rng.normal(size=20)
        low, high = combine_estimates(tables, np.full(20, 0.25)).interval()
        hits.append(low < truth < high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("estimates", "variances"),
    [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, np.nan], [1.0, 1.0]), ([1.0, 2.0], [1.0, -1.0]), (1.0, 1.0)],
)
def test_bad_estimates_are_refused(estimates, variances):
    with pytest.raises(ArgumentError, match="estimates"):
        combine_estimates(estimates, variances)


def test_a_level_is_a_probability():
    with pytest.raises(ArgumentError, match="level"):
        combine_estimates([1.0, 2.0], [1.0, 1.0]).interval(95)
