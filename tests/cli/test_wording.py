"""Numbers in words."""

import math
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vertinumpyro.cli.wording import rounded_up


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
