import doctest

import vertinumpyro.model as model
from vertinumpyro.model import dummy_data as unobserved

PUBLIC = {
    *("party_plate", "party_sum", "mixture_model", "UNOBSERVED", "Unobserved"),
    *("split_model", "SplitModel", "inspect_model", "ModelStructure", "DrawnAt"),
    *("OwnFactor", "PiecewiseHazard"),
}


def test_public_names_are_pinned_and_explained():
    assert set(model.__all__) == PUBLIC
    assert all(getattr(model, name).__doc__ for name in PUBLIC)


def test_examples_run():
    assert doctest.testmod(unobserved).failed == 0
