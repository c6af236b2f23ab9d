"""Tables of columns at different parties, and products of numbers within public bounds, with noise, of which parties
that cheat get nothing more.

The products X_i^T X_j of the parties' matrices, modulo p = 2^61 - 1, by a dealer's masks, as `crypten.protocol` has
them modulo 2^64. What is new is what keeps a cheating party to what the ideal computation would let it do: choose
columns of its own, and add numbers of its own to the result before it sees it. Section 13 of docs/proofs.md has the
proof, and these four in eight steps:

1. Each party p shows D_p = A_p - M_p, A_p its digits, zeros and ones with X_p = A_p W_p + o_p (`input_form`), and M_p a
   uniform matrix that it has from the dealer.
2. With every D in its hands it shows its part of the challenge, which the dealer has fixed and hashed before.
3. Digits are those of numbers within the bounds if and only if a sum of their squares, weighted by the challenge, is
   what it has to be (`input_form`). It is, for each record, the squares of D's part, which the verifier has, and of
   M's, which the dealer has, and twice their product. The dealer tags M's part for each verifier, t = alpha y + K: so
   the prover can say what a weighted sum of products is, and cannot say anything else.
4. Results are committed to before they are opened. Nobody opens before all have found everything right.

Dealer and party are generators without a link or a clock: they yield what they send and expect, and are sent what came.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from vertinumpyro.core.errors import BackendError, RangeError
from vertinumpyro.core.row_blocks import slices
from vertinumpyro.secure import prime_field as field
from vertinumpyro.secure.committed_sum import (
    HASH_BYTES,
    Exchange,
    Opening,
    check_same,
    commitment,
    cut,
    hash_of,
    nobodys_answer,
    open_committed,
)
from vertinumpyro.secure.computation import Computation, CrossProducts
from vertinumpyro.secure.input_form import Challenge, Digits, InputForm, check_codes, check_parts, check_proof, one_hot
from vertinumpyro.secure.keystream import KEY_BYTES, KeyStream, derived_key, fresh_key
from vertinumpyro.secure.prime_field import PRIME, ZeroSums, uniform

_BLOCK_ROWS = 2**16
_SOUNDNESS_BITS = 40
_WORD, _HASH = 8, HASH_BYTES

Codes: TypeAlias = Callable[[slice], np.ndarray]
"""A party's codes of some records: its cell of each one-hot column, then all bits; int64 [n, ...]. Secret."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifiedTables:
    """What parties and dealer agree on before they begin.

    :ivar num_records: N.
    :ivar form: what each party's matrix is.
    """

    num_records: int
    form: InputForm
    block_rows: int = _BLOCK_ROWS

    def __post_init__(self) -> None:
        if self.num_records * self.form.largest_product >= PRIME // 4:
            raise RangeError(
                f"{self.num_records} records' products of up to {self.form.largest_product} do not fit into 59 bits"
            )
        if (4 * len(self.blocks) + 1) * (self.num_parties - 1) > PRIME >> _SOUNDNESS_BITS:  # Statement 13.2
            raise RangeError(f"{len(self.blocks)} blocks of records have as many chances to cheat; take larger blocks")
        _ = self.digits  # refuses numbers that are too large

    @property
    def num_parties(self) -> int:
        """P."""
        return len(self.form.columns)

    @property
    def digits(self) -> tuple[Digits, ...]:
        """Of each party."""
        return self.form.digits

    @property
    def widths(self) -> tuple[int, ...]:
        """The columns of each party's matrix."""
        return self.form.widths

    @property
    def unit(self) -> int:
        """Of the products, in which the noise is."""
        return 1 << (2 * self.form.bits)

    @property
    def num_values(self) -> int:
        """Entries of all products together."""
        return sum(self.widths[i] * self.widths[j] for i, j in self.pairs)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every two parties, in the order of their products."""
        return list(itertools.combinations(range(self.num_parties), 2))

    @property
    def blocks(self) -> list[slice]:
        """Records at a time, at least one block."""
        return list(slices(self.num_records, self.block_rows)) if self.num_records else [slice(0, 0)]

    def others(self, rank: int) -> list[int]:
        """All parties but one."""
        return [other for other in range(self.num_parties) if other != rank]

    def digest(self) -> bytes:
        """Of all of it."""
        return hash_of(json.dumps(dataclasses.astuple(self)).encode())


def statement_of(computation: Computation) -> VerifiedTables:
    """Of products of matrices whose form is known.

    :raises BackendError: it is another computation.
    :raises RangeError: numbers or products are too large.
    """
    if not isinstance(computation, CrossProducts) or computation.form is None:
        raise BackendError("only products of matrices whose form is known are verified")
    return VerifiedTables(
        num_records=computation.num_records, form=computation.form, block_rows=max(1, computation.block_rows)
    )


class FromDealer(NamedTuple):
    """Sent back are the dealer's next bytes."""

    name: str
    size: int


Step: TypeAlias = Exchange | FromDealer | Opening


def deal(statement: VerifiedTables, keys: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The dealer: a message for each party, a key, then one for each block of records and one at the end.

    It is sent nothing, so that it learns nothing, and it waits for nobody.

    :param keys: fresh, for this release alone.
    """
    yield list(keys)
    products = np.zeros(statement.num_values, np.int64)
    stated, challenge = [0] * statement.num_parties, None
    for number, rows in enumerate(statement.blocks):
        shared = _Shared(statement, number, rows)
        masks = [shared.mask(rank, key) for rank, key in enumerate(keys)]
        numbers = [digits.numbers(mask) for digits, mask in zip(statement.digits, masks, strict=True)]
        products = field.add(products, _pair_products(numbers))
        parts = [_part(key, number) for key in keys]
        challenge = Challenge.of(statement.digits, shared.num_rows, parts)
        seen = [challenge.seen(rank, mask) for rank, mask in enumerate(masks)]
        stated = [s + challenge.weighted(rank, z)[1] for rank, (s, z) in enumerate(zip(stated, seen, strict=True))]
        hashes = b"".join(hash_of(part) for part in parts)
        yield [hashes + _dealt_tags(shared, challenge, keys, rank, z.squared) for rank, z in enumerate(seen)]
    assert challenge is not None
    yield [_dealt_end(statement, keys, rank, products, stated, challenge) for rank in range(len(keys))]


class _Shared(NamedTuple):
    """What a party and the dealer draw alike, of one block."""

    statement: VerifiedTables
    number: int
    rows: slice

    @property
    def num_rows(self) -> int:
        """Records of the block."""
        return self.rows.stop - self.rows.start

    def _uniform(self, key: bytes, purpose: str, width: int) -> np.ndarray:
        stream = KeyStream(derived_key(key, f"{purpose} {self.number}"))
        return uniform(stream, (self.num_rows, width))

    def mask(self, rank: int, key: bytes) -> np.ndarray:
        """M of party `rank`, who has this key."""
        return self._uniform(key, "mask", self.statement.digits[rank].num_digits)

    def tag_keys(self, prover: int, key: bytes) -> np.ndarray:
        """K of a verifier, who has this key, for what a prover's check squares."""
        return self._uniform(key, f"tags {prover}", self.statement.digits[prover].num_squares)


def _part(key: bytes, number: int) -> bytes:
    """A party's part of a block's challenge."""
    return derived_key(key, f"part {number}")


def _pair_products(matrices: Sequence[np.ndarray]) -> np.ndarray:
    found = [field.product(a, b).ravel() for a, b in itertools.combinations(matrices, 2)]
    return np.concatenate([np.zeros(0, np.int64), *found])


class _EndKeys(NamedTuple):
    """What a verifier and the dealer draw alike: alpha, and K of the prover's last word, kappa."""

    alpha: int
    key: int

    @classmethod
    def of(cls, key: bytes, prover: int) -> _EndKeys:
        return cls(*uniform(KeyStream(derived_key(key, f"verify {prover}")), (2,)).tolist())


def _blind(key: bytes, verifier: int) -> int:
    """kappa: what a prover and the dealer draw alike, and hides what the dealer states to a verifier."""
    return int(uniform(KeyStream(derived_key(key, f"blind {verifier}")), (1,))[0])


def _product_share(key: bytes, other: int, size: int) -> np.ndarray:
    """What the first of two parties and the dealer draw alike: a share of their masks' product."""
    return uniform(KeyStream(derived_key(key, f"product {other}")), (size,))


def _dealt_tags(shared: _Shared, challenge: Challenge, keys: Sequence[bytes], prover: int, y: np.ndarray) -> bytes:
    """t = alpha y + K for each verifier, sealed: with K and M, two parties together could read the challenge from t."""
    found = []
    for verifier in shared.statement.others(prover):
        alpha = _EndKeys.of(keys[verifier], prover).alpha
        tags = field.add(field.multiply(alpha, y), shared.tag_keys(prover, keys[verifier]))
        found.append(field.to_bytes(field.add(tags, challenge.seal(f"tags {prover} {verifier}", tags.shape))))
    return b"".join(found)


def _dealt_end(
    statement: VerifiedTables,
    keys: Sequence[bytes],
    rank: int,
    products: np.ndarray,
    stated: Sequence[int],
    challenge: Challenge,
) -> bytes:
    """The rest of the masks' products with earlier parties; tags of this party's kappas; what M says of each prover."""
    places, others = _places(statement), statement.others(rank)
    rests = [
        field.subtract(products[place], _product_share(keys[i], j, place.stop - place.start))
        for (i, j), place in places.items()
        if j == rank
    ]
    tags, blinded = [], []
    for other in others:
        drawn = _EndKeys.of(keys[other], rank)
        tags.append((drawn.alpha * _blind(keys[rank], other) + drawn.key) % PRIME)
        seal = int(challenge.seal(f"end {other} {rank}", (1,))[0])
        blinded.append((stated[other] + _blind(keys[other], rank) + seal) % PRIME)
    return field.to_bytes(np.concatenate([*rests, np.array([*tags, *blinded], np.int64)]))


def _places(statement: VerifiedTables) -> dict[tuple[int, int], slice]:
    """Of each pair's product in the flat vector of all."""
    sizes = [statement.widths[i] * statement.widths[j] for i, j in statement.pairs]
    ends = np.cumsum(sizes).tolist()
    return {pair: slice(end - size, end) for pair, end, size in zip(statement.pairs, ends, sizes, strict=True)}


@final
class Party:
    """One party's sums over blocks.

    As a prover: what it says of its own rows, and the tags that prove it, for each verifier. As a verifier, of each
    other party: what follows from its D, and the keys' sum, of which the tag must be.
    """

    def __init__(self, statement: VerifiedTables, rank: int) -> None:
        self._statement, self._rank, self._key = statement, rank, b""
        self._others, self._places = statement.others(rank), _places(statement)
        self._digits = statement.digits[rank]
        self._products = np.zeros(statement.num_values, np.int64)
        self._said = 0
        self._tags, self._stated, self._keyed = (dict.fromkeys(self._others, 0) for _ in range(3))
        self._transcript = statement.digest()
        self._challenge: Challenge | None = None

    def follow(self, codes: Codes, noise: np.ndarray) -> Generator[Step, Any, np.ndarray]:
        """The products and everybody's noise, int64 [num_values], within p / 2.

        :param codes: this party's, see `Codes`.
        :param noise: this party's, int64 [num_values].
        :raises CheckFailedError: another party did not follow the protocol; says which check it failed.
        """
        self._key = bytes((yield FromDealer("key", KEY_BYTES)))
        sent = {other: fresh_key() for other in self._others}
        received = yield Exchange("keys", sent, dict.fromkeys(sent, KEY_BYTES))
        zero = ZeroSums(sent, {other: bytes(theirs) for other, theirs in received.items()})
        for number, rows in enumerate(self._statement.blocks):
            yield from self.block(_Shared(self._statement, number, rows), codes(rows))
        share = field.multiply((yield from self.end()), self._statement.unit)
        share = field.add(field.add(share, field.from_integers(noise)), zero.share(noise.shape))
        return (yield from self.open(share))

    def block(self, shared: _Shared, codes: np.ndarray) -> Generator[Step, Any, None]:
        """(1) and (2): rows, challenge, and what follows for products and proofs; the dealer has time for its part."""
        mask, all_digits = shared.mask(self._rank, self._key), self._statement.digits
        digits = _digits_of(check_codes(codes, self._digits), self._digits)
        own = field.subtract(digits, mask)
        message = field.to_bytes(own)
        sizes = {q: _WORD * len(codes) * all_digits[q].num_digits for q in self._others}
        shown = yield Exchange("rows", dict.fromkeys(self._others, message), sizes)
        rows = {q: field.from_bytes(shown[q], (len(codes), all_digits[q].num_digits), q) for q in self._others}
        self._transcript = hash_of(
            self._transcript, *(data for _, data in sorted({**shown, self._rank: message}.items()))
        )
        self._multiply(digits if self._digits.is_plain else self._digits.own_numbers(codes), mask, rows)
        hashes, tags = self._read_deal((yield FromDealer("block", self._deal_size(shared))), shared)
        own_part = _part(self._key, shared.number)
        parts = yield Exchange("challenge", dict.fromkeys(self._others, own_part), dict.fromkeys(self._others, _HASH))
        parts = [bytes(part) for _, part in sorted({**parts, self._rank: own_part}.items())]
        check_parts(parts, hashes)
        self._challenge = challenge = Challenge.of(all_digits, shared.num_rows, parts)
        self._prove(challenge, codes, own, tags)
        for other in self._others:
            self._verify(challenge, other, rows[other], shared.tag_keys(other, self._key))

    def _deal_size(self, shared: _Shared) -> int:
        tags = shared.num_rows * self._digits.num_squares * len(self._others)
        return _HASH * self._statement.num_parties + _WORD * tags

    def _read_deal(self, data: bytes, shared: _Shared) -> tuple[list[bytes], np.ndarray]:
        """(the parts' hashes, this party's tags [verifiers, n, squares])."""
        end = _HASH * self._statement.num_parties
        hashes = [bytes(data[start : start + _HASH]) for start in range(0, end, _HASH)]
        shape = (len(self._others), shared.num_rows, self._digits.num_squares)
        return hashes, field.from_bytes(memoryview(data)[end:], shape)

    def _multiply(self, own: np.ndarray, mask: np.ndarray, rows: Mapping[int, np.ndarray]) -> None:
        """X_i^T X_j = X_i^T D_j + D_i^T M_j + M_i^T M_j of numbers; party i computes the first, party j the second."""
        masks = self._digits.numbers(mask)
        shown = {q: self._statement.digits[q].numbers(theirs, offset=True) for q, theirs in rows.items()}
        for (i, j), place in self._places.items():
            if self._rank == i:
                found = field.product(own, shown[j], small=True)
            elif self._rank == j:
                found = field.product(shown[i], masks)
            else:
                continue
            self._products[place] = field.add(self._products[place], found.ravel())

    def _prove(self, challenge: Challenge, codes: np.ndarray, own: np.ndarray, tags: np.ndarray) -> None:
        """(3): the sum of 2 tau rho z_D z_M, and the same of z_M's tags; z_M is what is left of z_A."""
        z = challenge.seen(self._rank, own, offset=True)
        weights = _doubled(challenge.weighted(self._rank, z)[0])
        self._said += field.dot(weights, field.subtract(self._squared(challenge, codes), z.squared))
        for verifier, sealed in zip(self._others, tags, strict=True):
            found = field.subtract(sealed, challenge.seal(f"tags {self._rank} {verifier}", sealed.shape))
            self._tags[verifier] += field.dot(weights, found)

    def _squared(self, challenge: Challenge, codes: np.ndarray) -> np.ndarray:
        """z_A: r at the code of each one-hot column, bits, and the numbers of a bounded norm."""
        groups, bits = np.split(codes, [len(self._digits.groups)], axis=1)
        starts = np.cumsum([0, *self._digits.groups])[:-1]
        whole = challenge.cells[self._rank][:, :-1].sum(axis=1)  # r: a cell has one column
        found = [whole[starts + groups], bits]
        if self._digits.longest is not None:
            found.append(field.from_integers(self._digits.own_numbers(codes)))
        return np.concatenate(found, axis=1)

    def _verify(self, challenge: Challenge, prover: int, rows: np.ndarray, keys: np.ndarray) -> None:
        """(3): what of the check follows from D, and the weighted keys."""
        weights, stated = challenge.weighted(prover, challenge.seen(prover, rows, offset=True))
        self._stated[prover] += stated - challenge.ones[prover] * field.total(challenge.records)
        self._keyed[prover] += field.dot(_doubled(weights), keys)

    def end(self) -> Generator[Step, Any, np.ndarray]:
        """The last of the dealer's words: this party's share of the products."""
        sizes = [self._statement.widths[i] * self._statement.widths[j] for i, j in self._places if j == self._rank]
        size = sum(sizes) + 2 * len(self._others)
        words = field.from_bytes((yield FromDealer("end", _WORD * size)), (size,))
        *rests, tags, blinded = np.split(words, np.cumsum([*sizes, len(self._others)]))
        rest = iter(rests)
        for (i, j), place in self._places.items():
            if self._rank in (i, j):
                size = place.stop - place.start
                share = next(rest) if self._rank == j else _product_share(self._key, j, size)
                self._products[place] = field.add(self._products[place], share)
        self._finish_checks(tags.tolist(), blinded.tolist())
        return self._products

    def _finish_checks(self, tags: Sequence[int], blinded: Sequence[int]) -> None:
        """kappa is one more place of y, with the weight -1."""
        assert self._challenge is not None
        for other, tag, stated in zip(self._others, tags, blinded, strict=True):
            self._tags[other] -= tag
            self._keyed[other] -= _EndKeys.of(self._key, other).key
            self._stated[other] += stated - int(self._challenge.seal(f"end {other} {self._rank}", (1,))[0])

    def open(self, share: np.ndarray) -> Generator[Step, Any, np.ndarray]:
        """(4): proofs beside what must be the same everywhere, then commitments, then the result."""
        opening = fresh_key() + field.to_bytes(share)
        commitments = {self._rank: commitment(self._statement.digest(), self._rank, opening)}
        outgoing = {q: self._proof(q) + self._transcript + commitments[self._rank] for q in self._others}
        found = yield Exchange("proofs", outgoing, {q: len(message) for q, message in outgoing.items()})
        for other in self._others:
            proof, transcript, theirs = (bytes(part) for part in cut(found[other], (2 * _WORD, _HASH, _HASH)))
            check_same(other, "rows", self._transcript, transcript)
            alpha = _EndKeys.of(self._key, other).alpha
            check_proof(other, proof, alpha, self._stated[other], self._keyed[other])
            commitments[other] = theirs
        return (yield from open_committed(self._statement.digest(), PRIME, self._rank, opening, commitments))

    def _proof(self, verifier: int) -> bytes:
        value = (self._said - _blind(self._key, verifier)) % PRIME
        return field.to_bytes(np.array([value, self._tags[verifier] % PRIME], np.int64))

    def own_proof_of(self, prover: int) -> bytes:
        """The proof that this party accepts of a prover: it follows from its own numbers, so a proof shows nothing."""
        value = -self._stated[prover] % PRIME
        tag = _EndKeys.of(self._key, prover).alpha * value + self._keyed[prover]
        return field.to_bytes(np.array([value, tag % PRIME], np.int64))


@final
class Nobody:
    """What a party of a dry run hears in the place of the dealer and of the others: all of it passes.

    It knows nothing but the party's own numbers, so it is the proof's simulator, too.
    """

    def __init__(self, statement: VerifiedTables, rank: int, party: Party) -> None:
        self._statement, self._rank, self._party = statement, rank, party
        self._key, self._number = fresh_key(), -1
        self._opening = bytes(KEY_BYTES + _WORD * statement.num_values)

    def answer(self, step: Step) -> Any:
        """To any step."""
        if isinstance(step, FromDealer):
            return self._dealt(step)
        if isinstance(step, Exchange) and step.name == "challenge":
            return {other: self._part(other) for other in step.sizes}
        if isinstance(step, Exchange) and step.name == "proofs":
            return {other: self._proof(other, message) for other, message in step.outgoing.items()}
        return nobodys_answer(self._statement.digest(), self._statement.num_values, step)

    def _dealt(self, step: FromDealer) -> bytes:
        if step.name == "key":
            return self._key
        self._number += 1
        hashes = [hash_of(self._part(other)) for other in range(self._statement.num_parties)]
        return b"".join(hashes if step.name == "block" else []).ljust(step.size, b"\0")

    def _part(self, other: int) -> bytes:
        return _part(self._key, self._number) if other == self._rank else bytes(_HASH)

    def _proof(self, other: int, own: bytes) -> bytes:
        committed = commitment(self._statement.digest(), other, self._opening)
        return self._party.own_proof_of(other) + own[2 * _WORD : 2 * _WORD + _HASH] + committed


def _digits_of(codes: np.ndarray, digits: Digits) -> np.ndarray:
    """A, of a party's codes: [n, digits]."""
    groups, bits = np.split(codes, [len(digits.groups)], axis=1)
    return np.concatenate([one_hot(groups, digits.groups), bits], axis=1)


def _doubled(a: np.ndarray) -> np.ndarray:
    return field.add(a, a)
