"""The one place that knows how the supported jax releases differ (0.4.30 up to the newest)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from typing import Any

import jax
import jax.experimental

# Newer releases moved the context manager out of `jax.experimental`.
_enable_x64: Any = getattr(jax, "enable_x64", None) or getattr(jax.experimental, "enable_x64", None)

__all__ = ["precision", "random_key", "user_has_x64", "x64"]


def x64() -> AbstractContextManager[None]:
    """Context in which jax has 64-bit integers: the ring needs them, whatever the user's own setting."""
    return _enable_x64(True)


def precision(enabled: bool) -> AbstractContextManager[None]:
    """Context with the user's own setting: a model traced inside the 64-bit loop keeps its dtypes."""
    return _enable_x64(enabled)


def user_has_x64() -> bool:
    """Whether the user enabled 64-bit mode; ask outside `x64()`."""
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


def random_key(seed: int) -> jax.Array:
    """A key that every NumPyro release accepts (new-style keys fail in some handlers of old ones)."""
    return jax.random.PRNGKey(seed)
