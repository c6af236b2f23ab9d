"""What a process keeps until it ends, and what that costs: compiled programs and loaded libraries."""

from __future__ import annotations

import gc
from pathlib import Path

import jax

__all__ = ["make_room", "set_apart"]

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
        mapped = _MAPPED.read_bytes().count(b"\n")
    except (OSError, ValueError):  # no Linux, or no such limit
        return
    if 2 * mapped > most:
        jax.clear_caches()
        gc.collect()


def set_apart() -> None:
    """Takes all that there is by now out of Python's collection of garbage; for a process that serves one run.

    JAX, torch and what they import are some 400,000 objects, none of which is ever garbage; a collection that looks
    through them all stops a party for .2 s, and the others wait for it.
    """
    gc.collect()
    gc.freeze()
