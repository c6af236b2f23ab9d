"""Room for compiled programs: jax keeps every one, and Linux lets a process map only so many pieces of memory."""

from __future__ import annotations

import gc
from pathlib import Path

import jax

__all__ = ["make_room"]

_MAPPED = Path("/proc/self/maps")
_MOST_MAPPED = Path("/proc/sys/vm/max_map_count")


def make_room() -> None:
    """Forgets all programs that jax has compiled, where a process has mapped half of what it may.

    A program takes a few mappings, and a fit compiles up to a thousand programs: after a dozen of fits in one process
    the compiler would end with "Cannot allocate memory", however much is free. What is forgotten is compiled again
    when it is called again.
    """
    try:
        most = int(_MOST_MAPPED.read_text())
        with _MAPPED.open("rb") as lines:
            mapped = sum(1 for _ in lines)
    except (OSError, ValueError):  # no Linux, or no such limit
        return
    if 2 * mapped > most:
        jax.clear_caches()
        gc.collect()
