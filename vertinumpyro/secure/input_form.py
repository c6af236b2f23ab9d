"""What parties' matrices may be, in public, and the digits by which a party can show that its own is such.

Digits are zeros and ones: a record has the numbers x = W'a + o of its digits a, W, o public. Some digits are the cells
of one-hot columns, one of which is 1; all others are bits by themselves, which say exactly the numbers in bounds:

- 0 to M, by bits of the weights 1, 2, .., 2^(k-1) and one of the rest, M - (2^k - 1), k the largest with 2^k - 1 <= M;
- -S to S, as 0 to 2S with o = -S;
- -S or S, by one bit of the weight 2S with o = -S.

Squares of a record's numbers that add up to at most B do so to B less a slack of 0 to B, whose bits come last.

Whether digits are what an `InputForm` says, by a random sum of their squares, and what parties check of each other.

A row z of a column of V cells is one-hot if and only if (sum_v r_v z_v)^2 = sum_v r_v^2 z_v as polynomials in r, and
sum_v z_v = 1: the coefficient of r_v^2 is z_v^2 - z_v, and that of r_u r_v is 2 z_u z_v. A bit z is one if z^2 = z. The
numbers x of a record, which digits say, and their slack s are within a bound B if sum x^2 + s = B. All are weighted by
rho, lambda and mu, a record by tau, and added up. Steps (2) and (3) of `verified_tables`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.row_blocks import Factor, RowBlocks, factor_rows, rows_of
from vertinumpyro.secure import prime_field as field
from vertinumpyro.secure.committed_sum import cheated, check_same, hash_of
from vertinumpyro.secure.keystream import KeyStream, derived_key
from vertinumpyro.secure.prime_field import PRIME, uniform

_LARGEST = 2**20
"""Of a number: what `prime_field.product` multiplies as it is."""

_LONGEST = 2**30
"""Of a bound on squares: what `prime_field.weighted_sums` takes for a weight."""


@final
class Columns(NamedTuple):
    """Some columns of a party's matrix, and what a record may have there.

    kind: "one_hot", `scale` in one of them and 0 in the others; "sign", -scale or scale in each of them; "scalar", a
        whole number from -scale to scale in each of them.
    size: how many.
    """

    kind: str
    size: int
    scale: int = 1


@final
class InputForm(NamedTuple):
    """What every party's matrix is, in public. A backend may hold the parties to it.

    columns: of each party, in the matrix's order; numbers are in units of 2^bits.
    longest: of each party, what the squares of a record's numbers add up to at most, None for any; by default of all.
    """

    columns: tuple[tuple[Columns, ...], ...]
    bits: int = 0
    longest: tuple[int | None, ...] | None = None

    @classmethod
    def of_tables(cls, groups: Sequence[Sequence[int]], bits: int) -> InputForm:
        """2^bits in one cell of each column.

        :param groups: the cells of each column, of each party.
        """
        return cls(tuple(tuple(Columns("one_hot", size) for size in sizes) for sizes in groups), bits)

    @classmethod
    def read(cls, fields: Any) -> InputForm:
        """From plain data."""
        columns, bits, longest = fields
        read = tuple(tuple(Columns(*one) for one in own) for own in columns)
        return cls(read, bits, None if longest is None else tuple(longest))

    @property
    def widths(self) -> tuple[int, ...]:
        """The columns of each party's matrix."""
        return tuple(sum(one.size for one in own) for own in self.columns)

    @property
    def digits(self) -> tuple[Digits, ...]:
        """Each party's.

        :raises RangeError: the numbers are too large.
        """
        longest = (None,) * len(self.columns) if self.longest is None else self.longest
        return tuple(Digits.of(own, most, self.bits) for own, most in zip(self.columns, longest, strict=True))

    @property
    def largest_product(self) -> int:
        """Of two parties' numbers of a record, in the units of the result."""
        scales = [max((one.scale for one in own), default=0) for own in self.columns]
        return max((a * b for a, b in itertools.combinations(scales, 2)), default=0) << (2 * self.bits)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Digits:
    """One party's digits, and its W and o: first all cells, then each number's bits, then the slack's.

    :ivar columns: what W and o follow from; so `longest` and `bits`.
    :ivar groups: the cells of each one-hot column.
    :ivar cells_at: the matrix's column of each cell, and `scales` what a 1 there stands for.
    :ivar numbers_at: the matrix's columns of all other numbers; `low` is o there.
    :ivar weights: of the numbers' bits, and `starts` where each number's begin.
    :ivar slack: the weights of the slack's bits.
    """

    columns: tuple[Columns, ...]
    longest: int | None
    bits: int
    groups: tuple[int, ...]
    cells_at: np.ndarray
    scales: np.ndarray
    numbers_at: np.ndarray
    low: np.ndarray
    weights: np.ndarray
    starts: np.ndarray
    slack: np.ndarray

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, columns: tuple[Columns, ...], longest: int | None, bits: int) -> Digits:
        """Of the columns of a matrix."""
        each = [one for one in columns for _ in range(one.size)]
        longest = longest if each else None
        _check(each, longest)
        hot = np.array([one.kind == "one_hot" for one in each], bool)
        scales, numbers = (
            np.array([one.scale for one in each], np.int64),
            [one for one in each if one.kind != "one_hot"],
        )
        weights = [_sign(one.scale) if one.kind == "sign" else _weights(2 * one.scale) for one in numbers]
        ends = np.cumsum([0, *map(len, weights)])
        return cls(
            columns=columns,
            longest=longest,
            bits=bits,
            groups=tuple(one.size for one in columns if one.kind == "one_hot"),
            cells_at=np.flatnonzero(hot),
            scales=scales[hot],
            numbers_at=np.flatnonzero(~hot),
            low=-scales[~hot],
            weights=np.concatenate([np.zeros(0, np.int64), *weights]),
            starts=ends[:-1],
            slack=np.zeros(0, np.int64) if longest is None else _weights(longest),
        )

    @property
    def width(self) -> int:
        """The columns of the matrix."""
        return len(self.cells_at) + len(self.numbers_at)

    @property
    def num_cells(self) -> int:
        """The digits that are cells of one-hot columns."""
        return len(self.cells_at)

    @property
    def num_digits(self) -> int:
        """All."""
        return self.num_cells + self.num_bits

    @property
    def num_bits(self) -> int:
        """The digits that are bits by themselves."""
        return len(self.weights) + len(self.slack)

    @property
    def num_squares(self) -> int:
        """What a record's proof squares: a word of each one-hot column, each bit, each number of a bounded norm."""
        return len(self.groups) + self.num_bits + (0 if self.longest is None else self.width)

    @property
    def is_plain(self) -> bool:
        """Whether numbers are digits."""
        return not len(self.numbers_at) and self.longest is None and bool((self.scales == 1).all())

    # -- of elements, which may be a party's digits or a part of them ------------------------------

    def numbers(self, rows: np.ndarray, *, offset: bool = False) -> np.ndarray:
        """W'a of rows a of elements [n, digits], and o where `offset`: elements [n, width]."""
        if self.is_plain:
            return rows
        out = np.empty((len(rows), self.width), np.int64)
        out[:, self.cells_at] = field.multiply(self.scales, rows[:, : self.num_cells])
        if len(self.numbers_at):
            sums = field.weighted_sums(rows[:, self._of_numbers], self.weights, self.starts)
            out[:, self.numbers_at] = field.add(sums, field.from_integers(self.low)) if offset else sums
        return out

    def slacks(self, rows: np.ndarray) -> np.ndarray:
        """The same of the slack: elements [n]."""
        if not len(self.slack):
            return np.zeros(len(rows), np.int64)
        return field.weighted_sums(rows[:, self.num_cells + len(self.weights) :], self.slack, np.zeros(1, np.int64))[
            :, 0
        ]

    @property
    def _of_numbers(self) -> slice:
        return slice(self.num_cells, self.num_cells + len(self.weights))

    # -- a party's own -----------------------------------------------------------------------------

    def own_numbers(self, codes: np.ndarray) -> np.ndarray:
        """The matrix, int64 [n, width], of codes: which cell of each one-hot column is 1, then all bits."""
        groups, bits = np.split(codes, [len(self.groups)], axis=1)
        out = np.zeros((len(codes), self.width), np.int64)
        places = np.cumsum([0, *self.groups[:-1]]) + groups if self.groups else groups
        out[np.arange(len(codes))[:, None], self.cells_at[places]] = self.scales[places]
        if len(self.numbers_at):
            weighted = bits[:, : len(self.weights)] * self.weights
            out[:, self.numbers_at] = np.add.reduceat(weighted, self.starts, axis=1) + self.low
        return out

    def codes(self, numbers: np.ndarray) -> np.ndarray:
        """The codes of a matrix [n, width].

        :raises ArgumentError: it has none; says no number.
        """
        cells = np.split(numbers[:, self.cells_at], np.cumsum(self.groups)[:-1], axis=1) if self.groups else []
        above = numbers[:, self.numbers_at] - self.low
        weights = np.split(self.weights, self.starts[1:]) if len(self.starts) else []
        bits = [_bits(above[:, index], of_one) for index, of_one in enumerate(weights)]
        rest = np.zeros(len(numbers), np.int64) if self.longest is None else self.longest - (numbers**2).sum(axis=1)
        found = [*(block.argmax(axis=1)[:, None] for block in cells), *bits, _bits(rest, self.slack)]
        codes = np.concatenate(found, axis=1).astype(np.int64)
        if (self.own_numbers(codes) != numbers).any() or (found[-1] @ self.slack != rest).any():
            raise ArgumentError("this party's matrix has numbers that its public form has not; nothing was sent")
        return codes

    def example(self, num_rows: int) -> np.ndarray:
        """A matrix of this form, int64."""
        first = np.zeros(self.width, np.int64)
        start = 0
        for one in self.columns:
            first[start : start + (1 if one.kind == "one_hot" else one.size)] = one.scale * (one.kind != "scalar")
            start += one.size
        return np.tile(first, (num_rows, 1))


def codes_of(matrix: Factor, digits: Digits, rows: slice) -> np.ndarray:
    """Some records' codes, int64 [n, ...], of a matrix in memory or in blocks.

    :raises ArgumentError: the matrix is of another form.
    """
    if isinstance(matrix, RowBlocks) and matrix.one_hot is not None and digits.is_plain and digits.groups:
        return np.stack(matrix.one_hot.codes(rows_of(matrix.columns, rows)), axis=1).astype(np.int64)
    numbers = factor_rows(matrix, rows)
    if (numbers & ((1 << digits.bits) - 1)).any():
        raise ArgumentError(f"this party's matrix must be in units of 2^{digits.bits}; nothing was sent")
    return digits.codes(numbers >> digits.bits)


def check_codes(codes: np.ndarray, digits: Digits) -> np.ndarray:
    """The codes, each of which is a cell or a bit.

    :raises ArgumentError: one is none.
    """
    sizes = np.array([*digits.groups, *[2] * digits.num_bits], np.int64)
    if codes.shape[1:] != sizes.shape or (codes < 0).any() or (codes >= sizes).any():
        raise ArgumentError("codes must be a cell of each column for each record; nothing was sent")
    return codes


def _check(each: Sequence[Columns], longest: int | None) -> None:
    for one in each:
        if one.kind not in ("one_hot", "sign", "scalar") or not 1 <= one.scale <= _LARGEST:
            raise RangeError(
                f"a matrix has {one.kind} numbers up to {one.scale}, and what is verified up to {_LARGEST}"
            )
    squares = sum(one.scale**2 for one in each)
    if longest is not None and not (0 <= longest < _LONGEST and squares + longest < PRIME):
        raise RangeError(f"squares that add up to {longest} at most are not verified, but up to {_LONGEST}")


def _weights(largest: int) -> np.ndarray:
    """Of the bits of 0 to `largest`."""
    powers = [1 << bit for bit in range((largest + 1).bit_length() - 1)]
    rest = largest - sum(powers)
    return np.array([*powers, *([rest] if rest else [])], np.int64)


def _sign(scale: int) -> np.ndarray:
    return np.array([2 * scale], np.int64)


def _bits(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[n, bits] of values [n]: the last weight where the others do not reach, and the rest in powers of two."""
    if not len(weights):
        return np.zeros((len(values), 0), np.int64)
    last = (values > weights[:-1].sum()).astype(np.int64)
    rest = (values - last * weights[-1])[:, None] >> np.arange(len(weights) - 1)
    return np.concatenate([rest & 1, last[:, None]], axis=1)


class Squares(NamedTuple):
    """Of some records: what is squared [n, squares], one-hot columns' words, bits, and numbers; and what is not [n]."""

    squared: np.ndarray
    linear: np.ndarray


class Challenge(NamedTuple):
    """What a block's check depends on; uniform as long as one party's part is.

    digits:  each party's.
    cells:   for each party [cells, columns + 1]: r at each column's own cells, and lambda - rho r^2 at the end. A row's
             product with it is its (z_c) of all columns, and sum_c lambda_c (sum_v z_v) - rho_c sum_v r_v^2 z_v.
    columns: for each party the weights of squares [squares]: rho of each column and bit, mu of each number.
    records: tau [n].
    ones:    what the linear part is where digits are right, for each party: the sum of lambda, and mu B.
    key:     seals what the dealer says about this challenge.
    """

    digits: tuple[Digits, ...]
    cells: tuple[np.ndarray, ...]
    columns: tuple[np.ndarray, ...]
    records: np.ndarray
    ones: tuple[int, ...]
    key: bytes

    @classmethod
    def of(cls, digits: Sequence[Digits], num_rows: int, parts: Sequence[bytes]) -> Challenge:
        """From every party's part, for so many records."""
        key = hash_of(*parts)
        stream = KeyStream(derived_key(key, "challenge"))
        records = uniform(stream, (num_rows,))
        cells, columns, ones = zip(*(_challenge_weights(stream, one) for one in digits), strict=True)
        return cls(tuple(digits), cells, columns, records, ones, key)

    def seen(self, party: int, rows: np.ndarray, *, offset: bool = False) -> Squares:
        """What the check squares of rows [n, digits], which are a party's or a part of them.

        :param offset: the rows are the part that the numbers' o is in.
        """
        digits, bits = self.digits[party], rows[:, self.digits[party].num_cells :]
        z = field.row_products(rows[:, : digits.num_cells], self.cells[party])
        squared, linear = [z[:, :-1], bits], z[:, -1]
        if digits.longest is not None:
            squared.append(digits.numbers(rows, offset=offset))
            linear = field.add(linear, field.multiply(self.columns[party][-1:], digits.slacks(rows)))
        return Squares(np.concatenate(squared, axis=1), linear)

    def weighted(self, party: int, z: Squares) -> tuple[np.ndarray, int]:
        """(tau rho z, sum of tau (rho z^2 + what is linear)), of a bit rho (z^2 - z)."""
        start = len(self.digits[party].groups)
        bits = slice(start, start + self.digits[party].num_bits)
        products = field.multiply(field.multiply(self.records[:, None], self.columns[party]), z.squared)
        linear = field.dot(self.records, z.linear) - field.total(products[:, bits])
        return products, field.dot(products, z.squared) + linear

    def seal(self, purpose: str, shape: tuple[int, ...]) -> np.ndarray:
        """A pad for what the dealer says before the challenge is known and must not be read before; once a purpose."""
        return uniform(KeyStream(derived_key(self.key, f"seal {purpose}")), shape)


def _challenge_weights(stream: KeyStream, digits: Digits) -> tuple[np.ndarray, np.ndarray, int]:
    sizes = digits.groups
    column_of = np.repeat(np.arange(len(sizes)), sizes)
    r, rho, lam = (uniform(stream, (size,)) for size in (len(column_of), len(sizes), len(sizes)))
    cells = np.zeros((len(column_of), len(sizes) + 1), np.int64)
    cells[np.arange(len(column_of)), column_of] = r
    cells[:, -1] = field.subtract(lam[column_of], field.multiply(rho[column_of], field.multiply(r, r)))
    of_bits, (mu,) = uniform(stream, (digits.num_bits,)), uniform(stream, (1,)).tolist()
    of_numbers = np.full(digits.num_squares - len(sizes) - digits.num_bits, mu)
    return cells, np.concatenate([rho, of_bits, of_numbers]), field.total(lam) + mu * (digits.longest or 0)


def one_hot(codes: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Rows [n, cells] with a 1 at each column's code.

    :raises ArgumentError: a code is no cell; nothing was sent.
    """
    if codes.shape[1:] != (len(sizes),) or (codes < 0).any() or (codes >= np.array(sizes)).any():
        raise ArgumentError("codes must be a cell of each column for each record")
    found = np.zeros((len(codes), sum(sizes)), np.int64)
    found[np.arange(len(codes))[:, None], np.cumsum([0, *sizes[:-1]]) + codes] = 1
    return found


def check_parts(parts: Sequence[bytes], hashes: Sequence[bytes]) -> None:
    """(2): every part of the challenge is what the dealer gave its party.

    :raises CheckFailedError: it is another.
    """
    for party, (part, expected) in enumerate(zip(parts, hashes, strict=True)):
        check_same(party, "part of the challenge", expected, hash_of(part))


def check_proof(prover: int, proof: bytes, alpha: int, stated: int, keyed: int) -> None:
    """(3): the tag fits what the prover says, and with it the check comes to 0.

    :param alpha: the verifier's key for this prover.
    :param stated: what D and M say, modulo p.
    :param keyed: the keys' weighted sum.
    :raises CheckFailedError: it is no proof.
    """
    value, tag = field.from_bytes(proof, (2,), prover).tolist()
    if (tag - alpha * value - keyed) % PRIME or (stated + value) % PRIME:
        raise cheated(prover, "proof that each column has one cell for each record, or a number within its bounds")
