"""Whether rows are one-hot, by one random product for each column, and what parties check of each other.

A row z of a column of V cells is one-hot if and only if (sum_v r_v z_v)^2 = sum_v r_v^2 z_v as polynomials in r, and
sum_v z_v = 1: the coefficient of r_v^2 is z_v^2 - z_v, and that of r_u r_v is 2 z_u z_v. Both are weighted by rho and
lambda, a record by tau, and added up. Steps (2) and (3) of `verified_tables`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vertinumpyro.core.errors import ArgumentError, CheckFailedError
from vertinumpyro.secure import prime_field as field
from vertinumpyro.secure.keystream import KeyStream, derived_key
from vertinumpyro.secure.prime_field import PRIME, uniform


class Challenge(NamedTuple):
    """What a block's check depends on; uniform as long as one party's part is.

    cells:   for each party [cells, columns + 1]: r at each column's own cells, and lambda - rho r^2 at the end. A row's
             product with it is its (z_c) of all columns, and sum_c lambda_c (sum_v z_v) - rho_c sum_v r_v^2 z_v.
    columns: rho, for each party [columns].
    records: tau [n].
    ones:    the sum of lambda, for each party.
    key:     seals what the dealer says about this challenge.
    """

    cells: tuple[np.ndarray, ...]
    columns: tuple[np.ndarray, ...]
    records: np.ndarray
    ones: tuple[int, ...]
    key: bytes

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], num_rows: int, parts: Sequence[bytes]) -> Challenge:
        """From every party's part, for so many records."""
        key = hash_of(*parts)
        stream = KeyStream(derived_key(key, "challenge"))
        records = uniform(stream, (num_rows,))
        drawn = [_cell_weights(stream, sizes) for sizes in groups]
        cells, columns, ones = zip(*drawn, strict=True)
        return cls(cells, columns, records, ones, key)

    def weighted(self, party: int, z: np.ndarray) -> tuple[np.ndarray, int]:
        """(tau rho z, sum of tau (rho z^2 + what is linear)) of rows' products with `cells` [n, columns + 1]."""
        squared, linear = z[:, :-1], z[:, -1]
        weights = field.multiply(self.records[:, None], self.columns[party])
        products = field.multiply(weights, squared)
        return products, field.dot(products, squared) + field.dot(self.records, linear)

    def seal(self, purpose: str, shape: tuple[int, ...]) -> np.ndarray:
        """A pad for what the dealer says before the challenge is known and must not be read before; once a purpose."""
        return uniform(KeyStream(derived_key(self.key, f"seal {purpose}")), shape)


def _cell_weights(stream: KeyStream, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray, int]:
    column_of = np.repeat(np.arange(len(sizes)), sizes)
    r, rho, lam = (uniform(stream, (size,)) for size in (len(column_of), len(sizes), len(sizes)))
    cells = np.zeros((len(column_of), len(sizes) + 1), np.int64)
    cells[np.arange(len(column_of)), column_of] = r
    cells[:, -1] = field.subtract(lam[column_of], field.multiply(rho[column_of], field.multiply(r, r)))
    return cells, rho, field.total(lam)


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
        raise _cheated(prover, "proof that each column has one cell for each record")


def check_same(party: int, what: str, own: bytes, theirs: bytes) -> None:
    """What must be the same everywhere is.

    :raises CheckFailedError: it is not.
    """
    if own != theirs:
        raise _cheated(party, what)


def _cheated(party: int, what: str) -> CheckFailedError:
    return CheckFailedError(f"failed a check, or was cheated itself: {what}; nothing was opened", party)


def hash_of(*parts: bytes) -> bytes:
    """SHA-256 of parts, each behind its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
