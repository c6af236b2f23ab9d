"""The one place that knows how the supported jax releases differ (0.4.30 up to the newest), and what a process keeps of
them until it ends: compiled programs and loaded libraries.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.experimental
import numpy as np

# Newer releases moved the context manager out of `jax.experimental`.
_enable_x64: Any = getattr(jax if hasattr(jax, "enable_x64") else jax.experimental, "enable_x64")  # noqa: B009

_AFTER_0_4 = tuple(int(part) for part in jax.__version__.split(".")[:2]) >= (0, 5)
# jax 0.4 forgets while compiling with which setting a scalar or a constant was traced, and widens it.
_KEEPS_DTYPES = _AFTER_0_4

_JIT_TAKES_OPTIONS = "compiler_options" in inspect.signature(jax.jit).parameters
_COMPILE_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


x64: Callable[[], AbstractContextManager[None]] = functools.partial(_enable_x64, True)
"""Context in which jax has 64-bit integers: the ring needs them, whatever the user's own setting."""

precision: Callable[[bool], AbstractContextManager[None]] = _enable_x64
"""Context with the user's own setting: a model traced inside the 64-bit loop keeps its dtypes."""


def user_has_x64() -> bool:
    """Whether the user enabled 64-bit mode; ask outside `x64()`."""
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


def random_key(seed: int) -> jax.Array:
    """A key that every NumPyro release accepts (new-style keys fail in some handlers of old ones)."""
    return jax.random.PRNGKey(seed)


def compiled_fast(lowered: Any) -> Callable[..., Any]:
    """A `jax.stages.Lowered` compiled in haste: for programs that run a few times, on few numbers."""
    return lowered.compile(compiler_options=_fast_options())


def jit_fast(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` whose programs are compiled in haste, where jax can; not for use within another program."""
    return jax.jit(fn, compiler_options=_fast_options()) if _JIT_TAKES_OPTIONS else jax.jit(fn)


@functools.cache
def _fast_options() -> dict[str, Any]:
    """With the emitters of before, which compile in two thirds of the time, in releases that have both."""
    options = {**_COMPILE_FAST, "xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except Exception:  # an option that this XLA does not know is an error of its own
        return _COMPILE_FAST
    return options


def overwritable(*arguments: int) -> tuple[int, ...]:
    """For `donate_argnums`: the arguments whose memory a loop may overwrite.

    None where jax 0.4 keeps executables in a folder (`jax_compilation_cache_dir`): on a CPU one that it loads from
    there writes over arrays that were not given away, seen with 0.4.30.
    """
    kept = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    return arguments if _AFTER_0_4 or kept is None else ()


def bound(equation: Any, arguments: Sequence[Any]) -> Any:
    """What an equation of a jaxpr gives, as `jax.core.eval_jaxpr` computes it."""
    found = equation.primitive.get_bind_params(equation.params)
    functions, params = found if isinstance(found, tuple) else ((), found)  # newer releases have the functions inside
    return equation.primitive.bind(*functions, *arguments, **params)


_CALLS = frozenset(
    """
    checkpoint closed_call composite core_call custom_jvp_call custom_jvp_call_jaxpr custom_vjp_call
    custom_vjp_call_jaxpr custom_vmap_call jit pjit remat remat2 remat_opt
    """.split()  # noqa: SIM905 (a list of strings)
)


def calls(equation: Any) -> bool:
    """Whether an equation of a jaxpr runs another program, and nothing else of it matters to the values."""
    return equation.primitive.name in _CALLS


def called(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    """The jaxpr that such an equation runs on its own arguments, and its constants; None where it is no such one."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call") if calls(equation) else ():
        program: Any = equation.params.get(name)
        jaxpr = getattr(program, "jaxpr", program)
        if jaxpr is not None and len(jaxpr.invars) == len(equation.invars):
            return jaxpr, getattr(program, "consts", ())
    return None


def at_precision(enabled: bool, fn: Callable[..., Any]) -> Callable[..., Any]:
    """fn, traced with the user's own setting, for use inside code that is compiled in 64-bit mode."""

    def wrapped(*args: Any) -> Any:
        with precision(enabled):
            return fn(*args) if _KEEPS_DTYPES else _with_explicit_dtypes(fn, *args)

    return wrapped


def _with_explicit_dtypes(fn: Callable[..., Any], *args: Any) -> Any:
    """fn(*args) by way of its jaxpr, in which every number has been given the dtype that it was traced with."""
    from jax import core  # in newer releases these names live elsewhere, and they are not needed there

    closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    closed = _explicit(core, closed)
    leaves = core.eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree_util.tree_leaves(args))
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), leaves)


def _explicit(core: Any, value: Any) -> Any:
    """A jaxpr, or anything that holds jaxprs, with literals and constants as arrays of their traced dtype."""
    if isinstance(value, core.ClosedJaxpr):
        consts = zip(value.consts, value.jaxpr.constvars, strict=True)
        typed = [c if isinstance(c, jax.Array) else np.asarray(c, v.aval.dtype) for c, v in consts]
        return core.ClosedJaxpr(_explicit(core, value.jaxpr), typed)
    if isinstance(value, core.Jaxpr):
        equations = [
            equation.replace(
                invars=[_explicit(core, variable) for variable in equation.invars],
                params={name: _explicit(core, param) for name, param in equation.params.items()},
            )
            for equation in value.eqns
        ]
        return value.replace(eqns=equations, outvars=[_explicit(core, variable) for variable in value.outvars])
    if isinstance(value, core.Literal):
        return core.Literal(np.asarray(value.val, value.aval.dtype), value.aval)
    if type(value) in (tuple, list):
        return type(value)(_explicit(core, item) for item in value)
    return value


_MAPPED = Path("/proc/self/maps")
_MOST_MAPPED = Path("/proc/sys/vm/max_map_count")


def evict_compiled() -> None:
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


def freeze_gc() -> None:
    """Takes all that there is by now out of Python's collection of garbage; for a process that serves one run.

    JAX, torch and what they import are some 400,000 objects, none of which is ever garbage; a collection that looks
    through them all stops a party for .2 s, and the others wait for it.
    """
    gc.collect()
    gc.freeze()


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried: jax 0.12 has a tree of operands for it."""
    if "ft_in" in params:
        consts, carry, _ = (len(list(part)) for part in params["ft_in"].unpack())
        return consts, carry
    return params["num_consts"], params["num_carry"]


def numpy_generator(rng_key: jax.Array) -> np.random.Generator:
    """NumPy's generator of public randomness that a key begins, a typed one or a raw one."""
    return np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())
