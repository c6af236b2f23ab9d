import functools
from collections.abc import Iterator

import jax
import pytest

from tests.model.cases import CASES, Case
from vertinumpyro.model import SplitModel, split_model


@pytest.fixture(scope="package", autouse=True)
def _compile_fast() -> Iterator[None]:
    """Each function runs a few times on a few records, so compiling it well costs more than it gains."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@functools.cache
def _split(name: str) -> SplitModel:
    return split_model(CASES[name].model, CASES[name].schema)


@pytest.fixture(scope="session", params=list(CASES))
def split_case(request: pytest.FixtureRequest) -> tuple[Case, SplitModel]:
    """Every hand-written case and its split."""
    return CASES[request.param], _split(request.param)
