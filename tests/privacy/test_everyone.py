"""`epsilon` is what everyone gets at most, of every method alike; `adversary=` narrows it, and says who gets more."""

import json
import warnings

import numpy as np
import pytest

from vertinumpyro import DPVI, VertiMRF
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema, TableFacts, VerticalDataset
from vertinumpyro.dpvi.horizontal import HorizontalDataset, HorizontalDPVI
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.privacy import OUTSIDE_ANALYST, Ledger, Plan, PrivacyWarning
from vertinumpyro.regression import VerticalLinearRegression, VerticalLogisticRegression

N = 3000
REAL = RealColumn(bounds=(0.0, 1.0))
SCHEMA = Schema(
    {
        "clinic": PartySchema({"age": REAL, "ill": BinaryColumn()}),
        "insurer": PartySchema({"visits": REAL}),
        "bank": PartySchema({"income": REAL, "late": BinaryColumn()}),
    }
)
FACTS = TableFacts(SCHEMA, N)


def dpvi(**settings):
    return DPVI(num_components=2).plan(FACTS, epsilon=1.0, num_steps=50, batch_size=300, **settings)


def vertimrf(**settings):
    pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")
    return VertiMRF().plan(FACTS, epsilon=1.0, **settings)


def linear(**settings):
    return VerticalLinearRegression(epsilon=1.0, delta=1e-5).plan(SCHEMA, "income", num_records=N, **settings)


def logistic(**settings):
    return VerticalLogisticRegression(epsilon=1.0).plan(SCHEMA, "late", num_records=N, **settings)


METHODS = {"dpvi": dpvi, "vertimrf": vertimrf, "linear": linear, "logistic": logistic}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@each_method
@pytest.mark.parametrize("threshold", [0, 1, 2])
def test_everyone_gets_the_target_at_most(method, threshold):
    plan = method(collusion_threshold=threshold)
    covered = [OUTSIDE_ANALYST, *SCHEMA.parties, "any 2 colluding parties"][: 5 if threshold == 2 else 4]
    assert [observer.name for observer in plan.covered] == covered
    assert all(plan.epsilon(name) <= 1.0 for name in covered)
    assert 0.99 < plan.epsilon() == plan.worst.epsilon <= 1.0
    assert plan.above == ()
    assert len(plan.uncovered) == (threshold < 2)


@each_method
def test_a_coalition_that_is_not_covered_has_its_row(method):
    plan = method()
    assert "any 2 colluding parties" in {row.adversary for row in plan.adversaries}
    assert [row.adversary for row in plan.uncovered] == ["any 2 colluding parties"]


@each_method
def test_to_narrow_it_is_a_choice_that_is_said(method):
    with pytest.warns(PrivacyWarning, match="insurer.*: adversary='outside analyst' narrows"):
        plan = method(adversary=OUTSIDE_ANALYST)
    assert 0.99 < plan.epsilon(OUTSIDE_ANALYST) <= 1.0 < plan.epsilon()
    assert "insurer" in {row.adversary for row in plan.above}
    restored = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert (restored, restored.fingerprint(), restored.above) == (plan, plan.fingerprint(), plan.above)


@each_method
@pytest.mark.filterwarnings("ignore:.*narrows")
@pytest.mark.parametrize("adversary", [OUTSIDE_ANALYST, *SCHEMA.parties])
def test_the_one_adversary_gets_all_of_it(method, adversary):
    assert 0.99 < method(adversary=adversary).epsilon(adversary) <= 1.0


@each_method
def test_without_narrowing_nothing_is_said(method):
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        method()


@each_method
def test_an_unknown_adversary_is_refused(method):
    with pytest.raises(ArgumentError, match=f"adversary must be one of {OUTSIDE_ANALYST}, clinic, insurer, bank"):
        method(adversary="eve")


@each_method
def test_the_record_leads_with_the_largest_epsilon(method, tmp_path):
    plan = method()
    with Ledger.start(plan, tmp_path / "privacy.json"):
        pass
    record = json.loads((tmp_path / "privacy.json").read_text())
    assert record["epsilon"] == plan.epsilon()
    assert record["against"] == [OUTSIDE_ANALYST, *SCHEMA.parties]
    assert list(record).index("epsilon") < list(record).index("plan")


def test_many_clients_get_the_same():
    columns = {p: {n: np.zeros(200, np.float32 if c.kind == "real" else np.int32) for n, c in part.columns.items()}
               for p, part in SCHEMA.parties.items()}  # fmt: skip
    dataset = HorizontalDataset(VerticalDataset(SCHEMA, columns))
    horizontal = HorizontalDPVI(DPVI(num_components=2))
    plan = horizontal.plan(dataset, epsilon=1.0, delta=1e-4, num_steps=20, batch_size=50)
    assert all(row.epsilon <= 1.0 for row in plan.adversaries)
    assert plan.epsilon() > 0.99
    with pytest.warns(PrivacyWarning, match="one client"):
        narrow = horizontal.plan(
            dataset, epsilon=1.0, delta=1e-4, num_steps=20, batch_size=50, adversary=OUTSIDE_ANALYST
        )
    assert narrow.epsilon(OUTSIDE_ANALYST) <= 1.0 < narrow.epsilon()


@pytest.mark.filterwarnings("ignore:.*narrows")
def test_defaults_of_dpvi_follow_whom_epsilon_is_for():
    """Sub-sampling is for those who do not know the batches; towards the others everybody is in every batch."""
    for warm, steps in ((False, 150), *([(None, 25)] if has_engine() else [])):
        known = DPVI(num_components=2, warm_start=warm).plan(FACTS, epsilon=1.0)
        assert known.sampling.full_batch
        assert known.num_gradients == steps
    for settings in ({"batch_indices": "hidden"}, {"adversary": OUTSIDE_ANALYST}):
        amplified = DPVI(num_components=2).plan(FACTS, epsilon=1.0, **settings)
        assert amplified.expected_batch_size == pytest.approx(N / 30)
        assert amplified.num_steps == 1000
    alone = DPVI(num_components=2).plan(TableFacts(SCHEMA.restrict("clinic"), N), epsilon=1.0)
    assert alone.num_steps == 1000
