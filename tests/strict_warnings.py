"""Warnings as errors, for a block of code."""

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def warnings_are_errors() -> Iterator[None]:
    """All but those of unclosed files and sockets: whose garbage is collected in the block is by chance another's."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("default", ResourceWarning)
        yield
