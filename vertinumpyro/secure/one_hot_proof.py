"""Whether digits are what an `InputForm` says, by a random sum of their squares, and what parties check of each other.

A row z of a column of V cells is one-hot if and only if (sum_v r_v z_v)^2 = sum_v r_v^2 z_v as polynomials in r, and
sum_v z_v = 1: the coefficient of r_v^2 is z_v^2 - z_v, and that of r_u r_v is 2 z_u z_v. A bit z is one if z^2 = z. The
numbers x of a record, which digits say, and their slack s are within a bound B if sum x^2 + s = B. All are weighted by
rho, lambda and mu, a record by tau, and added up. Steps (2) and (3) of `verified_tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.secure import prime_field as field
from vertinumpyro.secure.committed_sum import cheated, check_same, hash_of
from vertinumpyro.secure.input_form import Digits
from vertinumpyro.secure.keystream import KeyStream, derived_key
from vertinumpyro.secure.prime_field import PRIME, uniform


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
        cells, columns, ones = zip(*(_weights(stream, one) for one in digits), strict=True)
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


def _weights(stream: KeyStream, digits: Digits) -> tuple[np.ndarray, np.ndarray, int]:
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
