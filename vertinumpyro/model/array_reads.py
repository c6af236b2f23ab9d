"""Finds where a program reads an array beyond its end, which jax does in silence: it takes the last entry instead.

A program is run as jax traced it, equation by equation, with a number added to all that such a read returns. What
then changes depends on entries that are not there. A read whose result is thrown away, as the other side of a
`jnp.where`, changes nothing, and neither does one with `mode="clip"` or a fill value of the user's choice, which say
what is meant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core.compat import bound, called
from vertinumpyro.model.user_code import UserLine, traced_at

__all__ = ["ArrayRead", "TracedProgram"]

_CLIP, _FILL = jax.lax.GatherScatterMode.CLIP, jax.lax.GatherScatterMode.FILL_OR_DROP


class ArrayRead(NamedTuple):
    """A place where an array is read beyond its end: the sizes of the indexed axes, and the line of the user's."""

    sizes: tuple[int, ...]
    line: UserLine | None


@dataclasses.dataclass(frozen=True)
class TracedProgram:
    """A function as jax traced it.

    :ivar closed: its jaxpr.
    :ivar outputs: the number of each of its outputs, in the form of the function's result.
    """

    closed: Any
    outputs: Any

    @classmethod
    def of(cls, fn: Callable[..., Any], *args: Any) -> TracedProgram:
        """Of arrays such as these."""
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        structure = jax.tree_util.tree_structure(shape)
        return cls(closed, jax.tree_util.tree_unflatten(structure, range(structure.num_leaves)))

    def screened(self, wanted: Sequence[int], *args: Any) -> tuple[list[Any], list[ArrayRead]]:
        """Some outputs, and the reads beyond an array's end; computes no more than these need, and compiles nothing."""
        leaves = jax.tree_util.tree_leaves(args)
        frame = _Frame(self.closed.jaxpr, self.closed.consts, [lambda leaf=leaf: leaf for leaf in leaves], None)
        return [frame.of(self.closed.jaxpr.outvars[number]) for number in wanted], list(frame.beyond())

    def moved_by(self, offset: jax.Array, *args: Any) -> Any:
        """The function's result where `offset` is added to whatever is read beyond an array's end."""
        outs = _evaluated(self.closed.jaxpr, self.closed.consts, jax.tree_util.tree_leaves(args), offset)
        return jax.tree_util.tree_map(lambda number: outs[number], self.outputs)


class _Frame:
    """The variables of a jaxpr, each computed when it is asked for.

    :param given: functions that return its arguments.
    :param line: of the equation around it: what lies inside may have been traced for another line before.
    """

    def __init__(self, jaxpr: Any, consts: Sequence[Any], given: Sequence[Callable[[], Any]], line: Any) -> None:
        self._equations, self._outvars, self._line = jaxpr.eqns, jaxpr.outvars, line
        self._values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        self._given = dict(zip(jaxpr.invars, given, strict=True))
        self._sources = {variable: place for place, one in enumerate(jaxpr.eqns) for variable in one.outvars}
        self._inner: dict[int, _Frame] = {}

    def of(self, variable: Any) -> Any:
        """Its value."""
        if hasattr(variable, "val"):
            return variable.val
        if variable not in self._values:
            if variable in self._given:
                self._values[variable] = self._given[variable]()
            else:
                self._compute(self._sources[variable], variable)
        return self._values[variable]

    def _compute(self, place: int, variable: Any) -> None:
        equation = self._equations[place]
        if (inner := self._inside(place)) is not None:
            self._values[variable] = inner.of(inner._outvars[equation.outvars.index(variable)])
            return
        outs = bound(equation, [self.of(one) for one in equation.invars])
        outs = outs if equation.primitive.multiple_results else [outs]
        self._values.update(zip(equation.outvars, outs, strict=True))

    def _inside(self, place: int) -> _Frame | None:
        equation = self._equations[place]
        inner = called(equation)
        if inner is None or not _reads_arrays(inner[0]):
            return None
        if place not in self._inner:
            given = [lambda one=one: self.of(one) for one in equation.invars]
            self._inner[place] = _Frame(*inner, given, self._line or traced_at(equation))
        return self._inner[place]

    def beyond(self) -> Iterator[ArrayRead]:
        """Reads beyond an array's end, whatever comes of them."""
        for place, equation in enumerate(self._equations):
            if (inner := self._inside(place)) is not None:
                yield from inner.beyond()
            elif _is_unsaid(equation):
                operand, indices = equation.invars
                if not _inside_array(equation, operand.aval.shape, self.of(indices)).all():
                    axes = equation.params["dimension_numbers"].start_index_map
                    yield ArrayRead(tuple(operand.aval.shape[axis] for axis in axes), self._line or traced_at(equation))


def _evaluated(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], offset: jax.Array) -> list[Any]:
    """jax's own evaluation of a jaxpr, but for reads."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def of(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else values[variable]

    for equation in jaxpr.eqns:
        given = [of(variable) for variable in equation.invars]
        if (inner := called(equation)) is not None and _reads_arrays(inner[0]):
            outs = _evaluated(inner[0], inner[1], given, offset)
        elif _is_unsaid(equation):
            operand, indices = given
            outs = [_read(equation, operand, indices, offset)]
        else:
            outs = bound(equation, given)
            outs = outs if equation.primitive.multiple_results else [outs]
        values.update(zip(equation.outvars, outs, strict=True))
    return [of(variable) for variable in jaxpr.outvars]


def _read(equation: Any, operand: Any, indices: Any, offset: jax.Array) -> jax.Array:
    """The last entry where the indices are beyond the end, as jax reads it, plus the offset."""
    inside = _inside_array(equation, jnp.shape(operand), indices)
    found = equation.primitive.bind(operand, indices, **{**equation.params, "mode": _CLIP, "fill_value": None})
    is_bool = found.dtype == jnp.bool_
    return jnp.where(inside, found, found ^ (offset != 0) if is_bool else found + offset.astype(found.dtype))


def _inside_array(equation: Any, shape: tuple[int, ...], indices: Any) -> jax.Array:
    """Which entries of a read's result come from within the array."""
    params = {**equation.params, "mode": _FILL, "fill_value": 0}
    return equation.primitive.bind(jnp.ones(shape, jnp.int8), indices, **params) == 1


def _is_unsaid(equation: Any) -> bool:
    """Whether it is a read, and left to jax what is beyond the end: NaN, the least integer, or the last entry."""
    if equation.primitive.name != "gather":
        return False
    dtype, mode, fill = (equation.invars[0].aval.dtype, *(equation.params[name] for name in ("mode", "fill_value")))
    if jnp.issubdtype(dtype, jax.dtypes.extended) or mode == _CLIP:
        return False
    if mode != _FILL or fill is None:
        return True
    return bool(np.isnan(fill)) or (jnp.issubdtype(dtype, jnp.integer) and int(fill) == jnp.iinfo(dtype).min)


def _reads_arrays(jaxpr: Any) -> bool:
    """Whether a read is somewhere in it: any other is left whole, which is sooner run."""
    inner = (called(equation) for equation in jaxpr.eqns)
    return any(map(_is_unsaid, jaxpr.eqns)) or any(one is not None and _reads_arrays(one[0]) for one in inner)
