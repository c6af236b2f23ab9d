import pytest

from vertinumpyro.core import compat


@pytest.fixture(autouse=True, scope="module")
def x64():
    """The ring needs 64-bit integers; module scope, because hypothesis runs many examples in one test."""
    with compat.x64():
        yield
