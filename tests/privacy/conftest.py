import warnings

import pytest

from vertinumpyro.core import rng


@pytest.fixture
def seeded():
    """Builds a seeded source without the warning that a user would see."""

    def build(seed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rng.InsecureRandomnessWarning)
            return rng.InsecureSeededSource(insecure_seed=seed)

    return build
