"""Matrix products on one thread, where threads would wait for each other longer than they compute.

OpenBLAS's threads spin until all have done their part. Where another process has one of the cores, each product then
takes as long as the system's scheduler lets that one run, which is many times what a small product computes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

from threadpoolctl import ThreadpoolController

__all__ = ["threads_for"]

_SMALL = 2**28  # multiplications, some 10 ms: what waiting costs is then no more than computing

_limiting = threading.Lock()


@contextlib.contextmanager
def threads_for(multiplications: int) -> Iterator[None]:
    """NumPy's products inside, of so many multiplications each, on one thread unless they are large.

    The library's setting is the whole process's: one thread at a time changes it, and puts it back.
    """
    if multiplications >= _SMALL or not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=1):
            yield
    finally:
        _limiting.release()


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
