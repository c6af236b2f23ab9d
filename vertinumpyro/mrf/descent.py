"""The engine's mirror descent, with its first evaluation compiled as one program.

The engine evaluates where it starts operation by operation, each of which is compiled on its own: hundreds for a dozen
columns, which takes longer than the steps do.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax

__all__ = ["begun", "descended"]


def descended(
    mbi: ModuleType,
    domain: Any,
    loss: Any,
    model: Any,
    steps: int,
    num_records: float,
    *,
    oracle: Any = None,
    constraints: Sequence[Any] = (),
) -> Any:
    """The engine's model, so many steps further.

    Args:
        mbi: the engine.
        domain: its domain.
        loss: its loss.
        model: what it returned, or potentials of the loss's cliques.
        steps: how many, in multiples of 50.
        num_records: N.
        oracle: of the marginals; None is the engine's own choice.
        constraints: what the oracle is told of the structure.
    """
    return _compiled(mbi)(marginal_oracle=oracle).estimate(
        domain, loss, known_total=num_records, iters=steps, warm_start=model, constraints=constraints
    )


@functools.cache
def _compiled(mbi: ModuleType) -> Any:
    """The engine's class of mirror descent, derived."""
    base: Any = mbi.estimation.MirrorDescent

    class MirrorDescent(base):
        def _init(self, domain: Any, loss_fn: Any, known_total: float, *, warm_start: Any, constraints: Any) -> Any:
            potentials = getattr(warm_start, "potentials", warm_start)
            return begun(base, self, domain, loss_fn, known_total, potentials, constraints)

    return MirrorDescent


@functools.partial(jax.jit, static_argnames=("base", "descent", "domain"))
def begun(
    base: Any, descent: Any, domain: Any, loss: Any, num_records: float, potentials: Any, constraints: Any
) -> Any:
    """The state that the engine's steps begin with."""
    return base._init(descent, domain, loss, num_records, warm_start=potentials, constraints=constraints)
