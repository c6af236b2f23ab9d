"""Mirror descent (McKenna, Sheldon and Miklau 2019, Algorithm 1) with the engine's oracles, as one program.

The engine's own `MirrorDescent` takes the same path, step sizes and line search included. But it passes all messages
twice a step where once says it all, as a step ends at the marginals that the next one begins with; and what it compiles
besides its steps, first evaluation and last marginals, takes longer than the steps do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["descended"]


class _At(NamedTuple):
    """A point of the path: log potentials, their marginals, these marginals' loss, and the next step's size."""

    potentials: Any
    marginals: Any
    loss: jax.Array
    size: jax.Array


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
        model: what this returned, or potentials of the loss's cliques.
        steps: how many.
        num_records: N.
        oracle: of the marginals; None is the engine's own choice.
        constraints: what the oracle is told of the structure.
    """
    if oracle is None:
        oracle = mbi.marginal_oracles.default_oracle(loss.cliques, domain, has_constraints=bool(constraints))
    potentials = getattr(model, "potentials", model)
    found = _path(oracle, loss, potentials, steps, num_records, tuple(constraints))
    return mbi.MarkovRandomField(potentials=found.potentials, marginals=found.marginals, total=num_records)


@partial(jax.jit, static_argnames="oracle")
def _path(oracle: Any, loss: Any, potentials: Any, steps: int, num_records: float, constraints: Sequence[Any]) -> _At:
    def at(potentials: Any, size: Any) -> _At:
        marginals = oracle(potentials, num_records, constraints=constraints)
        return _At(potentials, marginals, loss(marginals), jnp.asarray(size))

    def step(_: Any, before: _At) -> _At:
        slope = jax.grad(loss)(before.marginals)
        after = at(before.potentials - before.size * slope, 1.01 * before.size)
        expected = before.size * slope.dot(before.marginals - after.marginals)
        enough = before.loss - after.loss >= 0.5 * expected  # Armijo's rule
        stays = before._replace(size=0.5 * before.size)
        return jax.tree_util.tree_map(partial(jnp.where, enough), after, stays)

    return jax.lax.fori_loop(0, steps, step, at(potentials, 2.0 / (loss.lipschitz * num_records)))
