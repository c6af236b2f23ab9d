"""Numbers in words."""

import math
import re
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import norm

from vertinumpyro.data import Schema, TableFacts
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.regression import FunctionalMechanismPlan
from vertinumpyro.reports.plain_language import in_words, rounded_up


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
@example(1e-9)
@example(1.0 + 1e-9)
@example(math.nextafter(1.0, 2.0))
@example(5e-324)
@example(sys.float_info.max)
def test_an_epsilon_is_never_shown_below_its_value_and_never_as_nothing(epsilon: float):
    shown = float(rounded_up(epsilon))
    assert shown >= epsilon
    assert shown <= epsilon * 1.11 + (0.001 if epsilon >= 0.001 else 5e-324)


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (1.0, "1.000"), (0.1, "0.100"), (0.99992, "1.000"), (3.4004, "3.401"), (12.0, "12.000"), (0.001, "0.001"),
        (0.00025, "0.00025"), (1e-9, "1e-09"), (1.23e-7, "1.3e-07"), (0.0, "0.000"), (math.inf, "∞"), ("inf", "∞"),
    ],
)  # fmt: skip
def test_epsilons_as_people_read_them(epsilon: object, text: str):
    assert rounded_up(epsilon) == text


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 3.0, 50.0])
def test_a_plan_in_words_bounds_the_power_of_a_test_of_one_record(epsilon: float):
    """The Gaussian mechanism's own best test, by its parameter, has no more power than the sentence says."""
    schema = Schema.from_toml('[parties.a.columns.x]\ntype="binary"\n[parties.b.columns.y]\ntype="binary"')
    plan = VertiMRF().plan(TableFacts(schema, 10_000), epsilon=epsilon, delta=1e-5)
    sentences = in_words(plan)
    assert [s.partition(":")[0] for s in sentences] in (["Outside analyst", "A and b"], ["Outside analyst and a and b"])
    told = float(re.search(r"at most ([0-9.]+)% of those", sentences[-1])[1]) / 100
    mu = next(mu for mu in np.linspace(40, 0, 40_001) if gaussian_delta_of(mu, plan.worst.epsilon) <= 1e-5)
    assert norm.cdf(mu + norm.ppf(0.05)) <= told <= 1
    assert told < math.exp(min(epsilon, 3)) * 0.05 + 2e-3


def gaussian_delta_of(mu: float, epsilon: float) -> float:
    shift = epsilon / max(mu, 1e-9)
    return float(norm.cdf(mu / 2 - shift) - math.exp(epsilon) * norm.cdf(-mu / 2 - shift))


def test_a_question_names_the_columns_that_it_is_about():
    schema = Schema.from_toml('[parties.a.columns.x]\ntype="binary"\n[parties.b.columns.y]\ntype="binary"')
    plan = FunctionalMechanismPlan.of(schema, "y", num_records=10_000, model="logistic", epsilon=1.0, delta=1e-5)
    told = {who: rest for who, _, rest in (sentence.partition(": a test whether ") for sentence in in_words(plan))}
    about = {row["adversary"] for row in plan.table_rows() if "alone" in row["adversary"]}
    assert about
    for who, question in told.items():
        if "alone" in who:
            assert question.startswith("one person's record in that party's columns is one thing or another")
        elif "utside" in who:
            assert question.startswith("one person's record is one thing or another")
        else:
            assert question.startswith("one person's record in columns that it does not hold")


def test_under_add_remove_a_record_counts_or_is_zeroed():
    schema = Schema.from_toml('[parties.a.columns.x]\ntype="binary"\n[parties.b.columns.y]\ntype="binary"')
    plan = VertiMRF().plan(TableFacts(schema, 10_000), epsilon=1.0, delta=1e-5, relation="add_remove")
    assert all("one person's record counts or is zeroed" in sentence for sentence in in_words(plan))
