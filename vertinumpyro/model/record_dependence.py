"""Which records each number of a traced model may depend on: shown by rules for its operations, not by trying values.

Numbers at stand-in records do not show what a model does when some record passes a rare threshold. So every element of
every array of the traced program gets a set of records, and an operation's rule says which sets its results get: an
elementwise one unites those of the elements that it reads, a sum those of the axis that it sums over, and so on. Sets
only grow too large, never too small; where they hold one record each, no record's number reads another one, whatever
the values are.

What has no rule here (a convolution, a primitive of another library) is marked, and left to the check by numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from vertinumpyro.core.compat import called, calls, scan_sizes
from vertinumpyro.model.user_code import traced_at

Array: TypeAlias = Any  # of NumPy, which makes scalars of arrays without axes

# A set of records is a word of bits; two bits are no record.
LATENT = np.uint64(1 << 62)  # a latent, or a number that is not worked out here
UNCLEAR = np.uint64(1 << 63)  # an operation that has no rule
_RECORDS = np.uint64((1 << 62) - 1)
_NOTHING = np.uint64(0)

_LONGEST_UNROLLED = 64  # of a scan; of a longer one all turns are taken together

# One number of the result for each number of the operands.
_ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil
    clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2
    expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p logistic lt
    lt_to max min mul mulhi name ne neg nextafter not or polygamma population_count pow random_gamma_grad real
    reduce_precision regularized_incomplete_beta rem round rsqrt shift_left shift_right_arithmetic shift_right_logical
    sharding_constraint sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
    """.split()  # noqa: SIM905 (a list of a hundred strings)
)
_REDUCTIONS = frozenset(
    {"argmax", "argmin", *(f"reduce_{what}" for what in ("and", "max", "min", "or", "prod", "sum", "xor"))}
)
_CUMULATIVE = frozenset(f"cum{what}" for what in ("logsumexp", "max", "min", "prod", "sum"))
_SCATTERS = frozenset({"scatter", *(f"scatter{what}" for what in ("-add", "-max", "-min", "-mul", "-sub", "_add"))})
# Of matrices, or of vectors, behind any number of axes.
_MATRICES = {
    **dict.fromkeys(("cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "schur", "svd"), 2),
    **dict.fromkeys(("geqp3", "hessenberg", "symmetric_product", "tridiagonal"), 2),
    **dict.fromkeys(("lu_pivots_to_permutation", "tridiagonal_solve"), 1),
}
_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "neg": np.negative,
    "rem": np.fmod, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or, "sign": np.sign, "abs": np.abs, "copy": np.array,
    "clamp": lambda low, value, high: np.clip(value, low, high),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Dependence:
    """What is known of an array.

    :ivar bits: uint64, of the array's shape: the records that each element may depend on.
    :ivar value: of integers and truth values, right where `bits` is empty, as most indices are; else anything.
    :ivar origin: the operation that first made an element depend on several records, if one does.
    """

    bits: Array
    value: Array | None = None
    origin: Any = None


def depends_on(bits: Array, shape: Sequence[int] = ()) -> Dependence:
    """An argument of the program whose elements depend on these."""
    return Dependence(np.broadcast_to(bits, np.shape(bits) or tuple(shape)))


def records_read(closed: Any, arguments: Iterable[Dependence]) -> list[Dependence]:
    """What each result of a traced program depends on.

    :param closed: a `ClosedJaxpr`.
    :param arguments: of each of its arguments; `depends_on` makes them.
    """
    return _run(closed.jaxpr, [_constant(const) for const in closed.consts], list(arguments))


def written_at(origin: Any) -> str:
    """Where the user's model has an operation, as "mean at my_models.py:12"; its name alone where that is not known.

    :param origin: see `Dependence`.
    """
    name = str(origin.params.get("name", "a call")) if calls(origin) else origin.primitive.name
    line = traced_at(origin)
    return name if line is None else f"{name} at {line}"


def reads_others(found: Dependence, num_records: int) -> bool:
    """Whether any element [..., n] depends on a record besides the n-th."""
    return bool((found.bits & _RECORDS & ~one_record_each(num_records)).any())


def one_record_each(num_records: int) -> Array:
    """Of a column [n]: record n alone."""
    return np.uint64(1) << np.arange(num_records, dtype=np.uint64)


def _mixed(bits: Array) -> bool:
    """Whether any element depends on several records."""
    records = bits[bits != 0] & _RECORDS
    records = records[records != 0]
    return bool((records & (records - np.uint64(1))).any())


# -- the program ----------------------------------------------------------------------------------------


def _run(jaxpr: Any, constants: list[Dependence], arguments: list[Dependence]) -> list[Dependence]:
    inputs = zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True)
    known = {variable: _whole(found, variable.aval, found.origin) for variable, found in inputs}

    def read(variable: Any) -> Dependence:
        return _constant(variable.val) if hasattr(variable, "val") else known[variable]

    for equation in jaxpr.eqns:
        operands = [read(variable) for variable in equation.invars]
        shapes = [tuple(getattr(variable.aval, "shape", ())) for variable in equation.outvars]
        origin = next((operand.origin for operand in operands if operand.origin is not None), equation)
        for variable, found in zip(equation.outvars, _results(equation, operands, shapes), strict=True):
            known[variable] = _whole(found, variable.aval, origin)
    return [read(variable) for variable in jaxpr.outvars]


def _whole(found: Dependence, aval: Any, origin: Any) -> Dependence:
    """In the array's own shape; whole numbers that no rule worked out are marked, so that all others are known."""
    shape, dtype = tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
    bits, value = np.broadcast_to(found.bits, shape), found.value
    if getattr(dtype, "kind", "") not in ("b", "i", "u"):
        value = None
    elif value is None:
        bits, value = np.where(bits == 0, LATENT, bits), np.zeros((), dtype)
    return Dependence(bits, None if value is None else np.broadcast_to(value, shape), origin if _mixed(bits) else None)


def _constant(value: Any) -> Dependence:
    try:
        array = np.asarray(value)
    except TypeError:  # a random key
        return Dependence(np.full(np.shape(value), LATENT))
    return Dependence(np.zeros(array.shape, np.uint64), array if array.dtype.kind in "biu" else None)


def _results(equation: Any, operands: list[Dependence], shapes: list[tuple[int, ...]]) -> list[Dependence]:
    try:
        found = _by_rule(equation, operands, shapes)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # another jax names its parameters otherwise
        found = None
    if found is not None:
        return found
    everything = _union(operand.bits for operand in operands)
    marked = UNCLEAR | LATENT if everything & _RECORDS else everything | LATENT
    return [Dependence(np.broadcast_to(marked, shape)) for shape in shapes]


def _by_rule(equation: Any, operands: list[Dependence], shapes: list[tuple[int, ...]]) -> list[Dependence] | None:
    """None where there is no rule."""
    name, params = equation.primitive.name, equation.params
    bits = [operand.bits for operand in operands]
    if name in _ELEMENTWISE:
        return [_elementwise(name, params, operands)]
    if name in _MOVES:
        return [_moved(_MOVES[name], params, operands)]
    if name in _RULES:
        return [Dependence(found) for found in _RULES[name](params, bits)]
    if name in _WITH_INDICES or name in _SCATTERS:
        return [Dependence((_WITH_INDICES.get(name) or _scatter)(params, operands, shapes[0]))]
    if name in _MATRICES:
        return [Dependence(found) for found in _of_matrices(_MATRICES[name], bits, shapes)]
    if (inner := called(equation)) is not None:
        jaxpr, constants = inner
        return _run(jaxpr, [_constant(const) for const in constants], operands)
    if name in _CONTROL:
        return _CONTROL[name](params, operands)
    return None


def _union(arrays: Iterable[Array]) -> np.uint64:
    """All that any element depends on."""
    found = [np.bitwise_or.reduce(array, axis=None) for array in arrays if array.size]
    return np.uint64(np.bitwise_or.reduce(np.array(found, np.uint64))) if found else _NOTHING


def _either(*arrays: Array) -> Array:
    found = arrays[0]
    for array in arrays[1:]:
        found = found | array
    return found


# -- rules: elementwise, and elements that move ------------------------------------------------------------


def _values(operands: Sequence[Dependence]) -> list[Array] | None:
    found = [operand.value for operand in operands if operand.value is not None]
    return found if len(found) == len(operands) else None


def _elementwise(name: str, params: Mapping[str, Any], operands: list[Dependence]) -> Dependence:
    bits, values = _either(*(operand.bits for operand in operands)), _values(operands)
    if values is None:
        return Dependence(bits)
    if name == "not":
        (value,) = values
        return Dependence(bits, ~value)
    if name == "convert_element_type" and np.dtype(params["new_dtype"]).kind in "biu":
        return Dependence(bits, values[0].astype(params["new_dtype"]))
    if name in _ARITHMETIC:
        with np.errstate(all="ignore"):
            return Dependence(bits, _ARITHMETIC[name](*values))
    return Dependence(bits)


def _select(params: Mapping[str, Any], operands: list[Dependence]) -> Dependence:
    which, *cases = operands
    every = _either(which.bits, *(case.bits for case in cases))
    if which.value is None:
        return Dependence(every)
    choice = np.broadcast_to(which.value.astype(np.intp), every.shape)

    def chosen(arrays: list[Array]) -> Array:
        stacked = np.stack([np.broadcast_to(array, every.shape) for array in arrays])
        return np.take_along_axis(stacked, choice[None] % len(cases), axis=0)[0]

    bits = np.where(np.broadcast_to(which.bits == 0, every.shape), chosen([case.bits for case in cases]), every)
    values = _values(cases)
    return Dependence(bits, None if values is None else chosen(values))


def _iota(params: Mapping[str, Any]) -> Dependence:
    shape, axis = params["shape"], params["dimension"]
    counted = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    value = np.broadcast_to(counted, shape).astype(params["dtype"])
    return Dependence(np.zeros(shape, np.uint64), value)


def _moved(move: Callable[..., Array], params: Mapping[str, Any], operands: list[Dependence]) -> Dependence:
    bits, values = move(params, *(operand.bits for operand in operands)), _values(operands)
    return Dependence(bits, None if values is None else move(params, *values))


def _broadcast(params: Mapping[str, Any], array: Array, *_: Any) -> Array:
    shape, places = params["shape"], params["broadcast_dimensions"]
    aligned = [1] * len(shape)
    for axis, place in enumerate(places):
        aligned[place] = array.shape[axis]
    return np.broadcast_to(array.reshape(aligned), shape)


def _slice(params: Mapping[str, Any], array: Array) -> Array:
    strides = params["strides"] or [1] * array.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return array[tuple(slice(*bound) for bound in bounds)]


def _pad(params: Mapping[str, Any], array: Array, filler: Array) -> Array:
    for axis, (low, high, between) in enumerate(params["padding_config"]):
        size = array.shape[axis]
        spread = np.zeros(size, int) if not size else np.arange(size) * (between + 1)
        shape = [*array.shape]
        shape[axis] = max(size + between * max(size - 1, 0) + low + high, 0)
        wider, places = np.full(shape, filler, array.dtype), spread + low
        kept = (places >= 0) & (places < shape[axis])
        np.moveaxis(wider, axis, 0)[places[kept]] = np.moveaxis(array, axis, 0)[kept]
        array = wider
    return array


_MOVES: Mapping[str, Callable[..., Array]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda params, *arrays: np.concatenate(arrays, axis=params["dimension"]),
    "pad": _pad,
    "reshape": lambda params, array, *_: array.reshape(params["new_sizes"]),
    "rev": lambda params, array: np.flip(array, params["dimensions"]),
    "slice": _slice,
    "stack": lambda params, *arrays: np.stack(arrays, axis=params["axis"]),
    "tile": lambda params, array: np.tile(array, params["reps"]),
    "squeeze": lambda params, array: np.squeeze(array, tuple(params["dimensions"])),
    "transpose": lambda params, array: np.transpose(array, params["permutation"]),
}


# -- rules: what unites elements ---------------------------------------------------------------------------


def _reduced(params: Mapping[str, Any], bits: list[Array]) -> list[Array]:
    return [np.bitwise_or.reduce(bits[0], axis=tuple(params["axes"])) if params["axes"] else bits[0]]


def _cumulated(params: Mapping[str, Any], bits: list[Array]) -> list[Array]:
    axis, turned = params["axis"], np.flip if params["reverse"] else (lambda array, axis: array)
    return [turned(np.bitwise_or.accumulate(turned(bits[0], axis), axis=axis), axis)]


def _sorted(params: Mapping[str, Any], bits: list[Array]) -> list[Array]:
    united = np.bitwise_or.reduce(_either(*bits), axis=params["dimension"], keepdims=True)
    return [np.broadcast_to(united, array.shape) for array in bits]


def _top(params: Mapping[str, Any], bits: list[Array]) -> list[Array]:
    return [np.bitwise_or.reduce(bits[0], axis=params.get("axis", -1), keepdims=True)] * 2


def _dot(params: Mapping[str, Any], bits: list[Array]) -> list[Array]:
    """Each result reads a whole row of the left and a whole column of the right: [batch, left, right]."""
    contracted, batch = params["dimension_numbers"]
    sides = []
    for array, over, leading in zip(bits, contracted, batch, strict=True):
        free = [axis for axis in range(array.ndim) if axis not in over and axis not in leading]
        ordered = np.transpose(array, [*leading, *free, *over])
        rows = ordered.reshape((*ordered.shape[: len(leading) + len(free)], -1))
        sides.append(np.bitwise_or.reduce(rows, axis=-1))
    left, right = sides
    leading = left.ndim - (bits[0].ndim - len(contracted[0]) - len(batch[0]))
    left = left.reshape((*left.shape, *[1] * (right.ndim - leading)))
    return [left | right.reshape((*right.shape[:leading], *[1] * (left.ndim - right.ndim), *right.shape[leading:]))]


def _transformed(params: Mapping[str, Any], bits: list[Array]) -> list[Array]:
    """A Fourier transform: each result reads all of the last axes."""
    last = tuple(range(-len(params["fft_lengths"]), 0))
    return [np.bitwise_or.reduce(bits[0], axis=last, keepdims=True)]


def _of_matrices(rank: int, bits: list[Array], shapes: list[tuple[int, ...]]) -> list[Array]:
    """All of a matrix's results read all of it; the axes before a matrix's stay apart."""
    leading = bits[0].ndim - rank
    united = _either(*(np.bitwise_or.reduce(a.reshape((*a.shape[:leading], -1)), axis=-1) for a in bits))
    return [np.broadcast_to(united.reshape((*united.shape, *[1] * (len(s) - leading))), s) for s in shapes]


def _triangular_solve(params: Mapping[str, Any], bits: list[Array]) -> list[Array]:
    """Each column of the result (or row, from the right) reads the matrix, and one column of the right-hand side."""
    matrix, sides = bits
    united = np.bitwise_or.reduce(matrix, axis=(-2, -1), keepdims=True)
    along = -2 if params["left_side"] else -1
    return [np.broadcast_to(united | np.bitwise_or.reduce(sides, axis=along, keepdims=True), sides.shape)]


_RULES: Mapping[str, Callable[[Mapping[str, Any], list[Array]], list[Array]]] = {
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **dict.fromkeys(_CUMULATIVE, _cumulated),
    "device_put": lambda params, bits: bits,
    "dot_general": _dot,
    "fft": _transformed,
    "optimization_barrier": lambda params, bits: bits,
    "sort": _sorted,
    "split": lambda params, bits: np.split(bits[0], np.cumsum(params["sizes"])[:-1], axis=params["axis"]),
    "top_k": _top,
    "triangular_solve": _triangular_solve,
    "unstack": lambda params, bits: list(np.moveaxis(bits[0], params["axis"], 0)),
}


# -- rules: indices --------------------------------------------------------------------------------------


def _known(index: Dependence) -> Array | None:
    """The numbers of an index, if all of them are known."""
    return None if _union([index.bits]) else index.value


def _spread(bits: Array, axes: Iterable[Any]) -> Array:
    """Each element with all that stand along some axes: an index that is not known may take any of them."""
    united = np.bitwise_or.reduce(bits, axis=tuple(axes), keepdims=True)
    return np.broadcast_to(united, bits.shape)


def _index_columns(indices: Dependence, count: int) -> list[Dependence]:
    """The columns of start indices [..., count]."""
    return [
        Dependence(indices.bits[..., i], None if indices.value is None else indices.value[..., i]) for i in range(count)
    ]


def _gather(params: Mapping[str, Any], operands: list[Dependence], shape: tuple[int, ...]) -> Array:
    source, indices = operands
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    columns = _index_columns(indices, len(numbers.start_index_map))
    unknown = [axis for axis, col in zip(numbers.start_index_map, columns, strict=True) if _known(col) is None]
    bits = _spread(source.bits, unknown)
    batching = tuple(getattr(numbers, "operand_batching_dims", ()))
    dropped = {*numbers.collapsed_slice_dims, *batching}
    kept = [axis for axis in range(source.bits.ndim) if axis not in dropped]
    at = np.indices(shape, sparse=True)
    batch = [at[axis] for axis in range(len(shape)) if axis not in numbers.offset_dims]
    places: list[Any] = [0] * source.bits.ndim
    for axis, place in zip(kept, numbers.offset_dims, strict=True):
        places[axis] = at[place]
    for axis, of_batch in zip(batching, getattr(numbers, "start_indices_batching_dims", ()), strict=True):
        places[axis] = batch[of_batch]
    for axis, column in zip(numbers.start_index_map, columns, strict=True):
        start = _known(column)
        if start is not None:
            limit = source.bits.shape[axis] - sizes[axis]
            places[axis] = places[axis] + np.clip(start.astype(np.int64), 0, limit)[tuple(batch)]
    found = bits[tuple(np.broadcast_to(place, shape) for place in places)] if source.bits.ndim else bits
    read = _either(*(column.bits for column in columns)) if columns else np.zeros(indices.bits.shape[:-1], np.uint64)
    return found | np.broadcast_to(read[tuple(batch)] if batch else read, shape)


def _dynamic_slice(params: Mapping[str, Any], operands: list[Dependence], shape: tuple[int, ...]) -> Array:
    source, *starts = operands
    known = [_known(start) for start in starts]
    bits = _spread(source.bits, [axis for axis, start in enumerate(known) if start is None])
    limits = np.subtract(source.bits.shape, shape)
    begins = [0 if start is None else int(np.clip(start, 0, limit)) for start, limit in zip(known, limits, strict=True)]
    piece = bits[tuple(slice(begin, begin + size) for begin, size in zip(begins, shape, strict=True))]
    return piece | _union(start.bits for start in starts)


def _dynamic_update(params: Mapping[str, Any], operands: list[Dependence], shape: tuple[int, ...]) -> Array:
    target, update, *starts = operands
    known = [start for start in map(_known, starts) if start is not None]
    if len(known) < len(starts):
        return target.bits | _union([update.bits, *(start.bits for start in starts)])
    limits = np.subtract(shape, update.bits.shape)
    begins = [int(np.clip(start, 0, limit)) for start, limit in zip(known, limits, strict=True)]
    bits = np.array(target.bits)
    bits[tuple(slice(b, b + size) for b, size in zip(begins, update.bits.shape, strict=True))] = update.bits
    return bits


def _scatter(params: Mapping[str, Any], operands: list[Dependence], shape: tuple[int, ...]) -> Array:
    """Updates go where the index says, or where it is not known to every place that it may mean."""
    target, indices, updates = operands
    numbers = params["dimension_numbers"]
    axes, batching = numbers.scatter_dims_to_operand_dims, tuple(getattr(numbers, "operand_batching_dims", ()))
    scattered = [axis for axis in range(updates.bits.ndim) if axis not in numbers.update_window_dims]
    columns = [_known(column) for column in _index_columns(indices, len(axes))]
    at_batch = dict(zip(batching, getattr(numbers, "scatter_indices_batching_dims", ()), strict=True))
    bits, rows = np.array(target.bits), np.moveaxis(updates.bits, scattered, range(len(scattered)))
    for place in np.ndindex(*indices.bits.shape[:-1]):
        target_of: list[Any] = [
            slice(None)
        ] * bits.ndim  # windows are not worked out: they may be anywhere on their axes
        for axis, column in zip(axes, columns, strict=True):
            if column is not None and axis in numbers.inserted_window_dims:
                index = int(column[place])
                target_of[axis] = slice(index, index + 1) if index >= 0 else slice(0, 0)
        for axis, of_batch in at_batch.items():
            target_of[axis] = slice(place[of_batch], place[of_batch] + 1)
        bits[tuple(target_of)] |= _union([rows[place], indices.bits[place]])
    return bits


_WITH_INDICES = {"gather": _gather, "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update}


# -- rules: programs within programs ----------------------------------------------------------------------


def _merged(first: Sequence[Dependence], *others: Sequence[Dependence], also: np.uint64) -> list[Dependence]:
    """Results that come from one of several programs; their values are not worked out."""
    return [
        Dependence(_either(*(one.bits for one in same)) | also, origin=next((o.origin for o in same if o.origin), None))
        for same in zip(first, *others, strict=True)
    ]


def _cond(params: Mapping[str, Any], operands: list[Dependence]) -> list[Dependence]:
    which, *rest = operands
    first, *others = (records_read(branch, rest) for branch in params["branches"])
    return _merged(first, *others, also=_union([which.bits]) | LATENT)


def _linear_solve(params: Mapping[str, Any], operands: list[Dependence]) -> list[Dependence]:
    lengths, solve = params["const_lengths"], params["jaxprs"].solve
    before = lengths.matvec + lengths.vecmat
    sides = operands[before + lengths.solve + lengths.transpose_solve :]
    return records_read(solve, [*operands[before : before + lengths.solve], *sides])


def _settled(turn: Callable[[list[Dependence]], list[Dependence]], carry: list[Dependence]) -> list[Dependence]:
    """What is carried from turn to turn, after any number of them."""
    carry = [Dependence(one.bits | LATENT) for one in carry]
    while True:
        after = _merged(carry, turn(carry), also=_NOTHING)
        if all(np.array_equal(a.bits, b.bits) for a, b in zip(after, carry, strict=True)):
            return after
        carry = after


def _while(params: Mapping[str, Any], operands: list[Dependence]) -> list[Dependence]:
    """Under `vmap` a loop asks each of a batch by itself, with a truth value for each; else one that stops them all."""
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    asked, body = operands[:of_cond], operands[of_cond : of_cond + of_body]

    def turn(now: list[Dependence]) -> list[Dependence]:
        (goes_on,) = records_read(params["cond_jaxpr"], [*asked, *now])
        after = records_read(params["body_jaxpr"], [*body, *now])
        return [dataclasses.replace(one, bits=one.bits | _leading(goes_on.bits, one.bits.ndim)) for one in after]

    return _settled(turn, operands[of_cond + of_body :])


def _leading(bits: Array, num_axes: int) -> Array:
    """With axes of 1 behind, to be broadcast along what each of a batch has of its own."""
    return np.reshape(bits, (*np.shape(bits), *[1] * (num_axes - np.ndim(bits))))


def _scan(params: Mapping[str, Any], operands: list[Dependence]) -> list[Dependence]:
    (num_consts, num_carry), length = scan_sizes(params), params["length"]
    consts, carry, xs = operands[:num_consts], operands[num_consts:][:num_carry], operands[num_consts + num_carry :]
    if not 0 < length <= _LONGEST_UNROLLED:
        return _long_scan(params["jaxpr"], consts, carry, xs, length)
    turns = range(length)[::-1] if params["reverse"] else range(length)
    outputs: list[Any] = [None] * length
    for i in turns:
        rows = [Dependence(x.bits[i], None if x.value is None else x.value[i], x.origin) for x in xs]
        found = records_read(params["jaxpr"], [*consts, *carry, *rows])
        carry, outputs[i] = found[:num_carry], found[num_carry:]
    return [*carry, *(_stacked(rows) for rows in zip(*outputs, strict=True))]


def _stacked(rows: Sequence[Dependence]) -> Dependence:
    origin = next((row.origin for row in rows if row.origin is not None), None)
    return Dependence(np.stack([row.bits for row in rows]) | LATENT, origin=origin)


def _long_scan(
    jaxpr: Any, consts: list[Dependence], carry: list[Dependence], xs: list[Dependence], length: int
) -> list[Dependence]:
    anywhere = [Dependence(np.bitwise_or.reduce(x.bits, axis=0) | LATENT, origin=x.origin) for x in xs]
    found = _settled(lambda now: records_read(jaxpr, [*consts, *now, *anywhere])[: len(carry)], carry)
    rows = records_read(jaxpr, [*consts, *found, *anywhere])[len(carry) :]
    return [*found, *(dataclasses.replace(r, bits=np.broadcast_to(r.bits, (length, *r.bits.shape))) for r in rows)]


_CONTROL: Mapping[str, Callable[[Mapping[str, Any], list[Dependence]], list[Dependence]]] = {
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
    "scan": _scan,
    "iota": lambda params, operands: [_iota(params)],
    "select_n": lambda params, operands: [_select(params, operands)],
    "while": _while,
}
