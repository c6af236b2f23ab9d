import numpy as np
import pytest

from tests.evaluation.conftest import draw_table
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.evaluation import train_on_synthetic_test_on_real


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
