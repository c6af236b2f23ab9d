"""What the parties of a protocol agree on before they compute: its name and its shapes, all of them public.

The same object names a computation to a dealer and to helpers, enters the digest that parties compare, tells a
rehearsal's processes what to run, and has inputs of zeros for a dry run.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.row_blocks import OneHot, RowBlocks, rows_at_a_time, slices
from vertinumpyro.secure.input_encoding import Layout, PartyInputs, PriorInputs, norm_width
from vertinumpyro.secure.input_form import InputForm
from vertinumpyro.secure.score_functions import link_of
from vertinumpyro.secure.shape import BatchShape

Arrays: TypeAlias = Mapping[str, np.ndarray]

_BLOCK_ROWS = 2**16  # of a product on shares: each block is a message or two
_COPIES = 8 * 8  # bytes of a number, as often as a protocol holds it: as it is, hidden, as shares, on its way


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """`PartyProtocol.clipped_noisy_sum`."""

    repeated: ClassVar[bool] = True

    shape: BatchShape
    layout: Layout

    @property
    def num_parties(self) -> int:
        """P."""
        return self.shape.num_parties

    @property
    def num_values(self) -> int:
        """D."""
        return self.shape.num_values

    @property
    def memory(self) -> int:
        """Bytes that a process takes at most, a block of records at a time."""
        return block_memory(self.shape)

    def at(self, end: Any, inputs: Arrays) -> np.ndarray:
        """Computes it at a `PartyProtocol`, on that party's inputs, by name."""
        common = PriorInputs(*(inputs[f"prior_{name}"] for name in PriorInputs._fields))
        numbers = range(self.shape.num_blocks) if self.shape.num_blocks > 1 else [...]
        own = (PartyInputs(*(inputs[name][number] for name in PartyInputs._fields)) for number in numbers)
        mask = inputs["mask"] if self.shape.num_blocks > 1 else inputs["mask"][None]
        return end.clipped_noisy_sum(self.shape, self.layout, own, common, mask, inputs["noise"])

    @property
    def of_one_block(self) -> ClippedSum:
        """The same of a batch of one block: a batch of several costs a little less than so many of these."""
        return dataclasses.replace(self, shape=dataclasses.replace(self.shape, num_blocks=1))

    def zeros(self, rank: int) -> dict[str, np.ndarray]:
        """Inputs of a party, for a dry run on one block."""
        n, K, norms = self.shape.batch_size, self.shape.num_components, norm_width(self.shape)
        d, s = self.layout.written_out(rank), self.layout.shared[rank]
        tables = [table for table in self.layout.tables[rank] if table[0]]
        sizes = {
            "log_density": (n, self.shape.num_inputs),
            "plated": (K, n, d),
            "codes": (n, len(tables)),
            "tables": (sum(K * num_values * width for num_values, width in tables),),
            "shared": (n * K, s),
            "squared_norm": (n, norms),
            "gram": (n, norms, norms),
            "prior_log_weights": (self.shape.num_inputs,),
            "prior_scores": (K, self.layout.prior),
            "prior_gram": (K, K),
            "noise": (self.num_values,),
        }
        return {"mask": np.ones(n, bool), **{name: np.zeros(size, np.int64) for name, size in sizes.items()}}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossProducts:
    """`PartyProtocol.noisy_cross_products`.

    Of many records a block at a time, so that no process holds more, nor sends more at once; blocks' products are
    added as shares, and opened once, with the noise.

    :ivar num_records: n, of every party's matrix.
    :ivar widths: d_p, the columns of each party's matrix.
    :ivar form: what the matrices are, where the parties are held to it.
    """

    repeated: ClassVar[bool] = False

    num_records: int
    widths: tuple[int, ...]
    form: InputForm | None = None

    def __post_init__(self) -> None:
        if self.form is not None and self.form.widths != self.widths:
            raise ArgumentError(f"form: its columns are {list(self.form.widths)}, and widths says {list(self.widths)}")

    @property
    def num_parties(self) -> int:
        """P."""
        return len(self.widths)

    @property
    def num_values(self) -> int:
        """Entries of all products together."""
        return sum(a * b for a, b in itertools.combinations(self.widths, 2))

    @property
    def memory(self) -> int:
        """Bytes that a process takes at most beside the columns that the matrices are made of."""
        return _COPIES * (self.block_rows * self._words + self.num_parties * self.num_values)

    @property
    def block_rows(self) -> int:
        """Records of a block, of which the last one may have fewer."""
        return min(self.num_records, rows_at_a_time(self._words, _BLOCK_ROWS))

    @property
    def _words(self) -> int:
        """Of a record, at all parties together."""
        return sum(self.widths) if self.form is None else sum(digits.num_digits for digits in self.form.digits)

    @property
    def blocks(self) -> list[slice]:
        """The blocks, at least one."""
        return list(slices(self.num_records, self.block_rows)) if self.num_records else [slice(0, 0)]

    def of_block(self, rows: slice) -> CrossProducts:
        """The same of these records alone."""
        return dataclasses.replace(self, num_records=rows.stop - rows.start)

    def at(self, end: Any, inputs: Mapping[str, Any]) -> np.ndarray:
        """Computes it at a `PartyProtocol`, on that party's inputs, by name."""
        return end.noisy_cross_products(inputs["matrix"], self.widths, inputs["noise"], self.form)

    def zeros(self, rank: int) -> dict[str, Any]:
        """Inputs of a party, for a dry run."""
        nothing = {"": np.broadcast_to(np.int8(0), self.num_records)}
        if self.form is None:
            made = functools.partial(_zeros, self.widths[rank])
            matrix = RowBlocks((self.num_records, self.widths[rank]), 0, nothing, made)
        else:
            digits = self.form.digits[rank]
            hot = OneHot(digits.groups, functools.partial(_first_cells, len(digits.groups)))
            matrix = RowBlocks(
                (self.num_records, self.widths[rank]),
                max((one.scale for one in digits.columns), default=0),
                nothing,
                functools.partial(_example, self.form, rank),
                bits=self.form.bits,
                one_hot=hot if digits.is_plain else None,
            )
        return {"matrix": matrix, "noise": np.zeros(self.num_values, np.int64)}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorSum:
    """`PartyProtocol.noisy_sum`.

    :ivar of_shares: of tables that are verified: modulo 2^61 - 1.
    """

    repeated: ClassVar[bool] = False

    num_parties: int
    num_values: int
    of_shares: bool = False

    @property
    def memory(self) -> int:
        """Bytes that a process takes at most."""
        return _COPIES * self.num_parties * self.num_values

    def at(self, end: Any, inputs: Arrays) -> np.ndarray:
        """Computes it at a `PartyProtocol`, on that party's inputs, by name."""
        return end.noisy_sum(inputs["vector"], inputs["noise"], of_shares=self.of_shares)

    def zeros(self, rank: int) -> dict[str, np.ndarray]:
        """Inputs of a party, for a dry run."""
        return {name: np.zeros(self.num_values, np.int64) for name in ("vector", "noise")}


def block_memory(shape: BatchShape) -> int:
    """Bytes that a process takes at most for one block of a `ClippedSum`, whatever is in it."""
    norms = norm_width(shape)
    of_a_record = shape.num_values + shape.num_parties * (shape.num_inputs + norms + norms**2)
    return _COPIES * shape.batch_size * of_a_record


def _first_cells(num_columns: int, block: Arrays) -> list[np.ndarray]:
    return [np.zeros(len(block[""]), np.int64)] * num_columns


def _example(form: InputForm, rank: int, block: Arrays) -> np.ndarray:
    return form.digits[rank].example(len(block[""]))


def _zeros(width: int, block: Arrays) -> np.ndarray:
    return np.zeros((len(block[""]), width), np.int64)


Computation: TypeAlias = ClippedSum | CrossProducts | VectorSum

_KINDS = {kind.__name__: kind for kind in (ClippedSum, CrossProducts, VectorSum)}


def described(computation: Computation) -> dict[str, Any]:
    """As plain data, for a message."""
    fields = dataclasses.asdict(computation)
    if isinstance(computation, ClippedSum):
        fields["shape"]["link"] = computation.shape.link.described()
    return {"run": type(computation).__name__, **fields}


def computation_of(words: Mapping[str, Any]) -> Computation:
    """What `described` wrote, lists in the place of tuples or not."""
    fields = {name: value for name, value in words.items() if name != "run"}
    if "shape" in fields:
        prior, plated, shared = (fields["layout"][name] for name in ("prior", "plated", "shared"))
        tables = tuple(tuple((size, width) for size, width in party) for party in fields["layout"]["tables"])
        layout = Layout(prior=prior, plated=tuple(plated), shared=tuple(shared), tables=tables)
        parts = fields["shape"]["clip_parts"]
        bound = fields["shape"]["residual_bound"]
        read = {
            "link": link_of(fields["shape"]["link"]),
            "clip_parts": None if parts is None else tuple(parts),
            "residual_bound": tuple(bound) if isinstance(bound, list | tuple) else bound,
        }
        shape = BatchShape(**{**fields["shape"], **read})
        fields |= {"shape": shape, "layout": layout}
    if "widths" in fields:
        fields["widths"] = tuple(fields["widths"])
        fields["form"] = fields["form"] and InputForm.read(fields["form"])
    return _KINDS[words["run"]](**fields)
