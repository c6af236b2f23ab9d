"""Which programs jax compiles in a block of code."""

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def compilations() -> Iterator[Counter[str]]:
    """Counts them by the name of the function, from jax's own log.

    A jitted function's `_cache_size()` does not tell: all of them share one cache, and when it is full, an old entry of
    any of them goes for each new one.
    """
    found: Counter[str] = Counter()

    class Counting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if name := re.match(r"Compiling (?:jit\()?([\w.<>]+)\)? with", record.getMessage()):
                found[name[1]] += 1

    log, handler = logging.getLogger("jax"), Counting()
    log.addHandler(handler)
    try:
        with jax.log_compiles():
            yield found
    finally:
        log.removeHandler(handler)
