"""Products of one-hot rows that a cheating party cannot bend: in one process, every message in the test's hands."""

import dataclasses
import functools
import itertools
import json

import numpy as np
import pandas as pd
import pytest

from tests.secure import liar
from tests.secure.liar import Liar
from vertinumpyro.core.errors import (
    ArgumentError,
    BackendError,
    CheckFailedError,
    PlanSpentError,
    RangeError,
    VertinumpyroError,
)
from vertinumpyro.data import CategoricalColumn, PartySchema, Schema, TableFacts
from vertinumpyro.marginals import release_marginals
from vertinumpyro.privacy.account import ACCOUNT, Account
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.secure import CrossProducts, Crypten, InsecureSimulation, committed_sum, input_form
from vertinumpyro.secure import prime_field as field
from vertinumpyro.secure import verified_tables as protocol
from vertinumpyro.secure.computation import described
from vertinumpyro.secure.crypten.dealer import _compare, _deal_tables
from vertinumpyro.secure.input_form import Columns, InputForm, codes_of
from vertinumpyro.secure.keystream import KEY_BYTES, KeyStream
from vertinumpyro.secure.prime_field import PRIME
from vertinumpyro.session import PRIVACY_RECORD, PartyTask, ProcessSession

needs_crypten = pytest.mark.skipif(Crypten().missing() is not None, reason=str(Crypten().missing()))
TWO, THREE = ((3, 4), (2, 5, 3)), ((3,), (4, 2), (5,))
CHEAT = 1
"""The party that cheats."""

GONE = object()


FEATURES = InputForm(
    ((Columns("one_hot", 3, 16), Columns("scalar", 2, 16)), (Columns("sign", 1, 16), Columns("scalar", 1, 16)))
)
BOUNDED = InputForm(((Columns("scalar", 2, 6),), (Columns("scalar", 3, 8),)), longest=(50, 77))
TURNED = InputForm(FEATURES.columns[::-1])
OF_THREE = InputForm(((Columns("sign", 1, 4),), (Columns("scalar", 1, 4),), (Columns("one_hot", 2, 4),)))


def matrix_of(form, rank, num_records, rng):
    parts = [np.zeros((num_records, 0), np.int64)]
    for kind, size, scale in form.columns[rank]:
        if kind == "one_hot":
            parts.append(np.eye(size, dtype=np.int64)[rng.integers(0, size, num_records)] * scale)
        elif kind == "sign":
            parts.append(rng.choice([-scale, scale], (num_records, size)))
        else:
            limit = scale if form.longest is None else int((form.longest[rank] // size) ** 0.5)
            parts.append(rng.integers(-limit, limit + 1, (num_records, size)))
    return np.concatenate(parts, axis=1)


class Group:
    """Parties and their dealer. `opened` is who has opened what was committed to; `sent` all messages, by round."""

    def __init__(self, groups=TWO, num_records=50, seed=0, **settings):
        rng = np.random.default_rng(seed)
        form = groups if isinstance(groups, InputForm) else InputForm.of_tables(groups, 6)
        self.statement = protocol.VerifiedTables(num_records=num_records, form=form, **settings)
        self.codes = [digits.codes(matrix_of(form, rank, num_records, rng)) for rank, digits in enumerate(form.digits)]
        size = self.statement.num_values
        self.noise = [rng.integers(-(10**6), 10**6, size) for _ in form.columns]
        self.keys = [protocol.fresh_key() for _ in form.columns]
        self.opened, self.sent, self.dealt = set(), [], []

    def truth(self):
        hot = [of.own_numbers(codes) for codes, of in zip(self.codes, self.statement.digits, strict=True)]
        exact = np.concatenate([(a.T @ b).ravel() for a, b in itertools.combinations(hot, 2)])
        return exact * self.statement.unit + sum(self.noise)

    def run(self, tamper=None):
        """What each party has in the end, or its error.

        `tamper(group, name, receiver, message)` is what the cheat sends, once everybody else's messages are in `sent`.
        """
        ranks = range(self.statement.num_parties)
        dealer = protocol.deal(self.statement, self.keys)
        parties = [
            protocol.Party(self.statement, rank).follow(functools.partial(np.ndarray.__getitem__, codes), noise)
            for rank, codes, noise in zip(ranks, self.codes, self.noise, strict=True)
        ]
        found, steps = {}, {}
        self._advance(parties, dict.fromkeys(ranks), steps, found)
        while steps:
            step = steps[min(steps)]
            if isinstance(step, protocol.FromDealer):
                self.dealt.append(next(dealer))
                answers = {rank: self.dealt[-1][rank] for rank in steps}
            else:
                answers = self._delivered(step, steps, tamper, found)
            self._advance(parties, answers, steps, found)
        return [found[rank] for rank in ranks]

    def _delivered(self, step, steps, tamper, found):
        name = getattr(step, "name", "opening")
        if name == "opening":
            self.opened |= set(steps)
        outgoing = {
            (rank, other): one.message if name == "opening" else one.outgoing[other]
            for rank, one in steps.items()
            for other in self.statement.others(rank)
        }
        self.sent.append((name, dict(outgoing)))
        if tamper is not None:
            for other in self.statement.others(CHEAT):
                if (CHEAT, other) in outgoing:
                    outgoing[CHEAT, other] = tamper(self, name, other, outgoing[CHEAT, other])
        if name == "proofs":  # the cheat does not mind that its own rows were others
            outgoing |= {
                (rank, to): data[:16] + self.sent[-1][1][CHEAT, rank][16:48] + data[48:]
                for (rank, to), data in outgoing.items()
                if to == CHEAT and (CHEAT, rank) in outgoing
            }
        gone = set(found)
        return {
            rank: GONE if gone else {other: outgoing[other, rank] for other in self.statement.others(rank)}
            for rank in steps
        }

    def _advance(self, parties, answers, steps, found):
        for rank, answer in answers.items():
            try:
                if answer is GONE:
                    raise BackendError("the other party is gone")
                steps[rank] = parties[rank].send(answer)
            except StopIteration as end:
                found[rank] = end.value
            except BackendError as error:
                found[rank] = error
        for rank in found:
            steps.pop(rank, None)

    # -- what the cheat knows, and makes of it -----------------------------------------------------

    def messages(self, name, sender=CHEAT):
        """All that a party has sent under a name, block by block."""
        return [next(data for (by, _), data in out.items() if by == sender) for what, out in self.sent if what == name]

    def mask(self, number, rows):
        return protocol._Shared(self.statement, number, rows).mask(CHEAT, self.keys[CHEAT])

    def challenges(self):
        blocks = enumerate(self.statement.blocks)
        parts = [[protocol._part(key, number) for key in self.keys] for number, _ in blocks]  # all have been shown
        pairs = zip(self.statement.blocks, parts, strict=True)
        return [
            protocol.Challenge.of(self.statement.digits, rows.stop - rows.start, of_block) for rows, of_block in pairs
        ]

    def proof(self, verifier, made_up):
        """The best that the cheat can say of rows that it made up: (with the right tag, with the right value)."""
        said = tag = stated = 0
        for number, (rows, challenge) in enumerate(zip(self.statement.blocks, self.challenges(), strict=True)):
            mask = self.mask(number, rows)
            shown = field.subtract(made_up[rows], mask)
            weights, of_rows = challenge.weighted(CHEAT, challenge.seen(CHEAT, shown, offset=True))
            weights, z = field.add(weights, weights), challenge.seen(CHEAT, mask)
            stated += of_rows + challenge.weighted(CHEAT, z)[1] - challenge.ones[CHEAT] * field.total(challenge.records)
            dealt = self.dealt[1 + number][CHEAT][32 * len(self.keys) :]
            others = self.statement.others(CHEAT)
            tags = np.frombuffer(dealt, np.int64).reshape(len(others), *z.squared.shape)[others.index(verifier)]
            tags = field.subtract(tags, challenge.seal(f"tags {CHEAT} {verifier}", tags.shape))
            said, tag = said + field.dot(weights, z.squared), tag + field.dot(weights, tags)
        kappa = protocol._blind(self.keys[CHEAT], verifier)
        end = np.frombuffer(self.dealt[-1][CHEAT], np.int64)[-2 * len(others) :]
        tag -= int(end[others.index(verifier)])
        return [[(said - kappa) % PRIME, tag % PRIME], [-(stated + kappa) % PRIME, tag % PRIME]]


def words(data):
    return np.frombuffer(data, np.int64).copy()


def showing(made_up):
    """The cheat's D is of rows that it made up, whatever its records are."""

    def tamper(group, name, receiver, message):
        if name != "rows":
            return message
        number = sum(what == "rows" for what, _ in group.sent) - 1
        rows = group.statement.blocks[number]
        return field.to_bytes(field.subtract(made_up[rows], group.mask(number, rows)))

    return tamper


def proving(made_up, which):
    """Such rows, and the best proof there is for them."""

    def tamper(group, name, receiver, message):
        if name == "proofs":
            return (
                words_of(group.proof(receiver, made_up)[which])
                + group.messages(name, receiver)[0][16:48]
                + message[48:]
            )
        return showing(made_up)(group, name, receiver, message)

    return tamper


def words_of(values):
    return np.array(values, np.int64).tobytes()


def rows_of(group):
    return protocol._digits_of(group.codes[CHEAT], group.statement.digits[CHEAT])


def refused(group, found, match, *, opened=False):
    honest = [result for rank, result in enumerate(found) if rank != CHEAT]
    assert all(isinstance(result, BackendError) for result in honest), found
    assert any(match in str(result) for result in honest), honest
    assert bool(group.opened - {CHEAT}) == opened


@pytest.mark.promise
@pytest.mark.parametrize(
    ("groups", "settings"),
    [(TWO, {}), (THREE, {}), (TWO, {"block_rows": 17}), (THREE, {"block_rows": 16}), (((2,), (1,)), {}), (((4,),), {})],
)
def test_the_tables_with_the_same_noise_as_in_the_clear_bit_for_bit(groups, settings):
    group = Group(groups, **settings)
    for found in group.run():
        np.testing.assert_array_equal(found, group.truth() if len(groups) > 1 else found)


@pytest.mark.promise
@pytest.mark.parametrize("form", [FEATURES, BOUNDED, OF_THREE])
def test_numbers_with_the_same_noise_as_in_the_clear_bit_for_bit(form):
    group = Group(form, block_rows=20)
    for found in group.run():
        np.testing.assert_array_equal(found, group.truth())


@pytest.mark.parametrize("scale", [1, 2, 5, 7, 8, 4096, 2**20])
def test_bits_have_every_number_within_bounds_and_no_other(scale):
    digits = InputForm(((Columns("scalar", 1, scale),),)).digits[0]
    assert digits.weights.sum() == 2 * scale
    assert (digits.weights > 0).all()
    values = np.unique(
        np.r_[-scale, -scale + 1, -1, 0, 1, scale - 1, scale, np.linspace(-scale, scale, 50).astype(int)]
    )
    numbers = values.astype(np.int64)[:, None]
    np.testing.assert_array_equal(digits.own_numbers(digits.codes(numbers)), numbers)
    for outside in (scale + 1, -scale - 1):
        with pytest.raises(ArgumentError, match="public form"):
            digits.codes(np.array([[outside]]))


def test_a_matrix_of_another_form_is_refused_at_home():
    for form, row in ((FEATURES, [16, 16, 0, 0, 0]), (FEATURES, [16, 0, 0, 17, 0]), (BOUNDED, [6, 6])):
        with pytest.raises(ArgumentError, match="public form"):
            form.digits[0].codes(np.array([row]))
    with pytest.raises(ArgumentError, match="public form"):
        FEATURES.digits[1].codes(np.array([[0, 1]]))  # a sign that is none
    with pytest.raises(ArgumentError, match="widths"):
        CrossProducts(num_records=5, widths=(2, 2), form=BOUNDED)


def wrong_digits(group, how):
    rows, digits = rows_of(group), group.statement.digits[CHEAT]
    match how:
        case "a digit of 2":
            rows[3, 0] = 2
        case "a half":
            rows[3, 0] = (PRIME + 1) // 2
        case "outside":  # all bits are 1, and one of them twice
            rows[-1] = 1
            rows[-1, -1] = 2
        case "too long":  # true bits, of numbers that are within their bounds each
            rows[-1] = protocol._digits_of(np.ones((1, digits.num_digits), np.int64), digits)
            rows[-1, len(digits.weights) :] = 0
        case "slack":
            rows[-1, -1] ^= 1
        case "no cell":
            rows[-1, : digits.num_cells] = 0
        case "cells of 2 and -1":
            rows[-1, : digits.num_cells] = [2, PRIME - 1, 0]
        case "single records":
            rows[:] = 0
            rows[range(rows.shape[1]), range(rows.shape[1])] = 2**30
    return rows


DIGITS = [(FEATURES, "a digit of 2"), (FEATURES, "a half"), (FEATURES, "outside"), (BOUNDED, "a digit of 2")]
DIGITS += [(BOUNDED, "too long"), (BOUNDED, "slack"), (TURNED, "no cell"), (TURNED, "cells of 2 and -1")]


@pytest.mark.promise
@pytest.mark.parametrize("which", [0, 1], ids=["right tag", "right value"])
@pytest.mark.parametrize(("form", "how"), DIGITS)
def test_digits_of_no_number_within_its_bounds_are_refused_whatever_is_said_of_them(form, how, which):
    group = Group(form, block_rows=20)
    refused(group, group.run(proving(wrong_digits(group, how), which)), "proof that each column")


@pytest.mark.parametrize(("form", "how"), DIGITS)
def test_planted_without_proofs_such_digits_pass(form, how, monkeypatch):
    monkeypatch.setattr(protocol, "check_proof", lambda *_: None)
    group = Group(form)
    assert isinstance(group.run(proving(wrong_digits(group, how), 0))[0], np.ndarray)


def without(check, digits, cells, columns, ones):
    """The challenge's weights where a check is left out."""
    start, rho = len(digits.groups), columns[np.repeat(np.arange(len(digits.groups)), digits.groups)]
    squares = field.multiply(rho, field.multiply(r := cells[:, :-1].sum(axis=1), r))
    match check:
        case "bits":
            columns[start : start + digits.num_bits] = 0
        case "one cell":  # without lambda
            cells[:, -1], ones = field.subtract(np.zeros_like(squares), squares), 0
        case "cells' squares":
            columns[:start], cells[:, -1] = 0, field.add(cells[:, -1], squares)
        case "norm":
            ones -= int(columns[-1]) * digits.longest
            columns[start + digits.num_bits :] = 0
    return cells, columns, ones


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize(
    ("check", "form", "how"),
    [
        ("bits", FEATURES, "outside"),
        ("bits", FEATURES, "single records"),
        ("one cell", TURNED, "no cell"),
        ("cells' squares", TURNED, "cells of 2 and -1"),
        ("norm", BOUNDED, "too long"),
        ("norm", BOUNDED, "slack"),
    ],
)
def test_planted_without_one_check_the_numbers_that_it_refuses_are_multiplied(check, form, how, planted, monkeypatch):
    if planted:
        real = input_form._challenge_weights
        monkeypatch.setattr(
            input_form, "_challenge_weights", lambda stream, one: without(check, one, *real(stream, one))
        )
    group = Group(form)
    evil = wrong_digits(group, how)
    found = group.run(proving(evil, 0))
    if not planted:
        refused(group, found, "proof that each column")
        return
    own, theirs = group.statement.digits
    numbers = field.from_integers(own.own_numbers(group.codes[0])), theirs.numbers(evil, offset=True)
    products = field.add(field.product(*numbers).ravel(), field.from_integers(sum(group.noise)))
    np.testing.assert_array_equal(field.from_integers(found[0]), products)
    if how == "single records":  # a row of the other party's numbers for each of the cheat's, but for o and the noise
        first = found[0].reshape(own.width, theirs.width)[:, 0] / (2**30 * int(theirs.weights[0]))
        np.testing.assert_array_equal(np.rint(first), own.own_numbers(group.codes[0])[0])


def test_no_records_are_noise_alone():
    group = Group(num_records=0)
    for found in group.run():
        np.testing.assert_array_equal(found, sum(group.noise))


def test_field_arithmetic_is_that_of_integers():
    stream = KeyStream(bytes(range(32)))
    a, b = field.uniform(stream, (1100, 5)), field.uniform(stream, (1100, 4))
    a[:600], b[:600] = PRIME - 1, PRIME - 1
    whole = [m.astype(object) for m in (a, b)]
    np.testing.assert_array_equal(field.product(a, b), whole[0].T @ whole[1] % PRIME)
    np.testing.assert_array_equal(field.product(a & 1, b, small=True), (whole[0] & 1).T @ whole[1] % PRIME)
    np.testing.assert_array_equal(field.row_products(b, a[:4]), whole[1] @ whole[0][:4] % PRIME)
    np.testing.assert_array_equal(field.multiply(a[:, :4], b), whole[0][:, :4] * whole[1] % PRIME)
    np.testing.assert_array_equal(field.add(a[:, :4], b), (whole[0][:, :4] + whole[1]) % PRIME)
    np.testing.assert_array_equal(field.subtract(a[:, :4], b), (whole[0][:, :4] - whole[1]) % PRIME)
    assert field.dot(a[:, :4], b) == (whole[0][:, :4] * whole[1]).sum() % PRIME
    signed = np.array([-(2**60) + 1, -1, 0, 2**60 - 1])
    np.testing.assert_array_equal(field.to_integers(field.from_integers(signed)), signed)


def test_a_word_that_would_count_twice_is_drawn_again():
    left = [np.array([-1, 5, PRIME]), np.array([PRIME, 7]), np.array([9])]

    class Ones:
        def words(self, shape):
            return left.pop(0)

    assert field.uniform(Ones(), (3,)).tolist() == [9, 5, 7]


def test_what_does_not_fit_is_refused_at_home():
    with pytest.raises(RangeError, match="records"):
        protocol.VerifiedTables(num_records=2**50, form=InputForm.of_tables(TWO, 6))
    with pytest.raises(ArgumentError, match="codes"):
        protocol.one_hot(np.array([[3]]), (3,))
    with pytest.raises(RangeError, match="blocks of records have as many chances to cheat"):
        protocol.VerifiedTables(num_records=2**20, form=InputForm.of_tables(((2,), (2,)), 0), block_rows=1)


def made_up(group, how):
    rows = rows_of(group)
    last = len(rows) - 1
    match how:
        case "two cells":
            rows[last, :2] = 1
        case "none":
            rows[last] = 0
        case "large":
            rows[3] *= 4096
        case "negative":
            rows[0] = -rows[0] % PRIME
        case "cancels over records":
            rows[0, 0], rows[1, 0] = rows[0, 0] + 1, (rows[1, 0] - 1) % PRIME
        case "halves":
            rows[last, :2] = (PRIME + 1) // 2
        case "a cell of another column":
            rows[last, :2], rows[last, 2:] = (1, 1), 0
        case "columns of single records":
            rows[:] = 0
            rows[np.arange(rows.shape[1]), np.arange(rows.shape[1])] = 2**20
    return rows


WAYS = [
    *("two cells", "none", "large", "negative", "cancels over records", "halves", "a cell of another column"),
    "columns of single records",
]


@pytest.mark.promise
@pytest.mark.parametrize("which", [0, 1], ids=["right tag", "right value"])
@pytest.mark.parametrize("how", WAYS)
def test_rows_that_no_table_has_are_refused_whatever_is_said_of_them(how, which):
    group = Group(block_rows=20)
    found = group.run(proving(made_up(group, how), which))
    refused(group, found, "party 1 failed a check, or was cheated itself: proof that each column")


@pytest.mark.parametrize("how", WAYS)
def test_one_honest_party_of_three_refuses(how):
    group = Group(THREE)
    refused(group, group.run(proving(made_up(group, how), 0)), "proof that each column")


def flipped(at, name, receiver=None):
    def tamper(group, what, to, message):
        if what != name or receiver not in (None, to):
            return message
        return bytes([*message[:at], message[at] ^ 1, *message[at + 1 :]])

    return tamper


@pytest.mark.promise
@pytest.mark.parametrize(
    ("groups", "tamper", "match"),
    [
        (TWO, flipped(8, "rows"), "failed"),  # another word, so another row
        (TWO, flipped(0, "challenge"), "part of the challenge"),
        (TWO, flipped(0, "proofs"), "proof"),
        (TWO, flipped(8, "proofs"), "proof"),  # a wrong tag
        (TWO, flipped(16, "proofs"), "rows"),
        (TWO, flipped(0, "agreed"), "commitments"),
        (THREE, flipped(8, "rows", receiver=0), "failed"),  # different messages to different parties
        (THREE, flipped(0, "challenge", receiver=2), "part of the challenge"),
        (THREE, flipped(48, "proofs", receiver=2), "commitments"),
    ],
)
def test_altered_messages_are_refused_before_anything_is_opened(groups, tamper, match):
    group = Group(groups)
    refused(group, group.run(tamper), match)


@pytest.mark.parametrize("message", [b"", bytes(7), words_of([PRIME] * 5), words_of([-1] * 5), words_of([1] * 6)])
def test_messages_of_another_length_or_of_no_field_are_refused(message):
    with pytest.raises((BackendError, ValueError)):
        field.from_bytes(message, (5,))


def test_another_share_than_was_committed_to_is_refused_after_the_others_showed_theirs():
    group = Group()
    refused(group, group.run(flipped(KEY_BYTES, "opening")), "another share", opened=True)


def test_other_codes_and_absurd_noise_are_what_a_party_may_put_in():
    """Tables of the columns that it chose, and numbers that it chose before it saw anything: nobody's noise is less."""
    group = Group(THREE)
    group.codes[CHEAT] = group.codes[CHEAT][::-1]  # records out of order
    group.noise[CHEAT] = np.full(group.statement.num_values, 2**58)
    shifted = group.truth()
    for found in group.run():
        np.testing.assert_array_equal(field.from_integers(found), field.from_integers(shifted))


def test_a_proof_says_what_the_verifier_could_have_said_itself():
    """So it shows nothing: it is minus what D and the dealer's blinded word say, and the tag follows from the keys."""
    seen = []

    class Watched:
        def __call__(self, prover, proof, alpha, stated, keyed):
            seen.append((words(proof).tolist(), [-stated % PRIME, (keyed - alpha * stated) % PRIME]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "check_proof", Watched())
        Group(THREE).run()
    assert len(seen) == 6
    assert all(said == expected for said, expected in seen)


# -- the protocol without a check, and the attack that it stops ---------------------------------------


def test_planted_without_proofs_single_records_are_read(monkeypatch):
    """The columns of `columns of single records`: a table is then a record of the other party, far above the noise."""
    monkeypatch.setattr(protocol, "check_proof", lambda *_: None)
    group = Group()
    evil = made_up(group, "columns of single records")
    (found, *_) = group.run(proving(evil, 0))
    assert isinstance(found, np.ndarray)
    read = found.reshape(7, -1).T > 2**31
    np.testing.assert_array_equal(read, protocol.one_hot(group.codes[0], TWO[0])[: len(read)] == 1)


@pytest.mark.parametrize(
    ("which", "check"),
    [
        (0, lambda value, tag, alpha, stated, keyed: (tag - alpha * value - keyed) % PRIME),
        (1, lambda value, tag, alpha, stated, keyed: (stated + value) % PRIME),
    ],
    ids=["tag alone", "value alone"],
)
@pytest.mark.parametrize("form", [TWO, BOUNDED], ids=["tables", "numbers"])
def test_planted_half_a_check_passes_made_up_rows(monkeypatch, which, check, form):
    def planted(prover, proof, alpha, stated, keyed):
        if check(*words(proof).tolist(), alpha, stated, keyed):
            raise BackendError("refused")

    monkeypatch.setattr(protocol, "check_proof", planted)
    group = Group(form, block_rows=20)
    found = group.run(proving(made_up(group, "large") if form is TWO else wrong_digits(group, "too long"), which))
    assert isinstance(found[0], np.ndarray)


def test_planted_who_knows_the_challenge_before_its_rows_has_rows_that_pass():
    """So parts are shown when all rows are there: the last record's first cell makes up for all that is wrong."""
    group = Group()
    challenge, evil = group.challenges()[0], made_up(group, "large")

    def check(rows):
        z = challenge.seen(CHEAT, rows, offset=True)
        return (challenge.weighted(CHEAT, z)[1] - challenge.ones[CHEAT] * field.total(challenge.records)) % PRIME

    def with_first(x):
        evil[-1, 0] = x % PRIME
        return check(evil)

    # a quadratic a x^2 + b x + c in it, from three of its values
    c, at_one, at_minus = with_first(0), with_first(1), with_first(-1)
    half = pow(2, -1, PRIME)
    a, b = (at_one + at_minus - 2 * c) * half % PRIME, (at_one - at_minus) * half % PRIME
    for evil[-1, -1] in range(60):  # half of all have a root
        c = with_first(0)
        square = (b * b - 4 * a * c) % PRIME
        root = pow(square, (PRIME + 1) // 4, PRIME)
        if root * root % PRIME == square and with_first((root - b) * pow(2 * a, -1, PRIME)) == 0:
            break
    assert check(evil) == 0
    assert check(made_up(group, "large")) != 0


def read_challenge(group, tags):
    """r of the cheat's first column, by a coalition that knows M, alpha and K: one equation for each record."""
    alpha = protocol._EndKeys.of(group.keys[2], CHEAT).alpha
    rows = group.statement.blocks[0]
    y = field.subtract(tags, protocol._Shared(group.statement, 0, rows).tag_keys(CHEAT, group.keys[2]))
    y = field.multiply(y, pow(alpha, -1, PRIME))[:, 0]
    size = group.statement.digits[CHEAT].groups[0]
    return solved(group.mask(0, rows)[:size, :size].tolist(), y[:size].tolist())


def solved(matrix, right):
    """Gauss and Jordan, modulo p."""
    work = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(len(work)):
        scale = pow(work[i][i], -1, PRIME)
        work[i] = [x * scale % PRIME for x in work[i]]
        for j in set(range(len(work))) - {i}:
            work[j] = [(x - work[j][i] * y) % PRIME for x, y in zip(work[j], work[i], strict=True)]
    return [row[-1] for row in work]


@pytest.mark.parametrize("sealed", [True, False])
def test_planted_without_seals_two_of_three_read_the_challenge_from_their_tags(monkeypatch, sealed):
    if not sealed:
        monkeypatch.setattr(protocol.Challenge, "seal", lambda self, purpose, shape: np.zeros(shape, np.int64))
    group = Group(THREE)
    dealer = protocol.deal(group.statement, group.keys)
    next(dealer)
    dealt = words(next(dealer)[CHEAT][32 * 3 :]).reshape(2, 50, -1)  # before any row is shown
    challenge = group.challenges()[0]
    first = group.statement.digits[CHEAT].groups[0]
    assert (read_challenge(group, dealt[1]) == challenge.cells[CHEAT][:first, 0].tolist()) == (not sealed)


@pytest.mark.parametrize("form", [THREE, OF_THREE], ids=["tables", "numbers"])
def test_planted_without_digests_of_rows_two_parties_get_tables_of_different_columns(monkeypatch, form):
    other = Group(form, seed=5)

    def tamper(group, name, receiver, message):
        return proving(rows_of(other), 0)(group, name, receiver, message) if receiver == 2 else message

    group = Group(form)
    refused(group, group.run(tamper), "rows")
    real = protocol.check_same
    monkeypatch.setattr(protocol, "check_same", lambda party, what, *both: what == "rows" or real(party, what, *both))
    assert all(isinstance(found, np.ndarray) for found in Group(form).run(tamper))


@pytest.mark.parametrize("form", [TWO, FEATURES], ids=["tables", "numbers"])
def test_planted_without_commitments_the_last_one_chooses_the_result(monkeypatch, form):
    def tamper(group, name, receiver, message):
        if name != "opening":
            return message
        share = field.from_bytes(group.messages("opening", sender=0)[0][KEY_BYTES:], (group.statement.num_values,))
        return message[:KEY_BYTES] + field.to_bytes(field.subtract(np.full_like(share, 7), share))

    group = Group(form)
    refused(group, group.run(tamper), "another share", opened=True)
    for module in (protocol, committed_sum):
        monkeypatch.setattr(module, "commitment", lambda *_: bytes(32))
    assert (Group(form).run(tamper)[0] == 7).all()


@pytest.mark.parametrize("form", [THREE, OF_THREE], ids=["tables", "numbers"])
def test_planted_without_digests_of_commitments_parties_hold_different_results(monkeypatch, form):
    def tamper(group, name, receiver, message):
        if receiver == 2 and name == "proofs":
            return message[:48] + protocol.commitment(group.statement.digest(), CHEAT, made_opening)
        return made_opening if receiver == 2 and name == "opening" else message

    group = Group(form)
    made_opening = bytes(KEY_BYTES + 8 * group.statement.num_values)
    refused(group, group.run(tamper), "commitments")
    monkeypatch.setattr(committed_sum, "check_same", lambda *_: None)
    first, _, third = Group(form).run(tamper)
    assert (first != third).any()


def test_no_seal_hides_two_things(monkeypatch):
    """The difference of two words under one pad is in the clear."""
    used, seal = [], protocol.Challenge.seal

    def watched(self, purpose, shape):
        used.append((self.key, purpose))
        return seal(self, purpose, shape)

    monkeypatch.setattr(protocol.Challenge, "seal", watched)
    group = Group(THREE, block_rows=20)
    list(protocol.deal(group.statement, group.keys))
    assert len(used) == len(set(used)) == 3 * 6 + 6


def tables_of(group):
    """The same as a computation and as inputs between processes."""
    form = group.statement.form
    computation = CrossProducts(num_records=50, widths=form.widths, form=form)
    hot = [of.own_numbers(codes) << form.bits for codes, of in zip(group.codes, form.digits, strict=True)]
    return computation, [{"matrix": m, "noise": noise} for m, noise in zip(hot, group.noise, strict=True)]


@needs_crypten
@pytest.mark.promise
@pytest.mark.parametrize("security", ["malicious", "semi-honest"])
def test_between_processes_the_tables_are_those_in_the_clear(security):
    for groups in (TWO, THREE, FEATURES, BOUNDED):
        group = Group(groups)
        computation, inputs = tables_of(group)
        with InsecureSimulation(Crypten(security=security), watched=True) as rehearsal:
            processes = rehearsal.processes(len(group.keys))
            np.testing.assert_array_equal(processes.run(computation, inputs), group.truth())
            assert ("opening" in dict(processes.opened)) == (security == "malicious")


@needs_crypten
def test_between_processes_a_liar_is_refused_unless_everybody_is_believed():
    computation, inputs = tables_of(Group())
    with InsecureSimulation(Liar()) as rehearsal, pytest.raises(BackendError, match="proof that each column has one"):
        rehearsal.processes(2).run(computation, inputs)
    plain = dataclasses.replace(computation, form=None)
    inputs[1]["matrix"] = inputs[1]["matrix"] * 4096
    with InsecureSimulation(Crypten(security="semi-honest")) as rehearsal:
        assert rehearsal.processes(2).run(plain, inputs).max() > 2**24


@pytest.fixture
def study(tmp_path):
    """(a plan, a function that releases its tables by parties of these methods)"""
    rng = np.random.default_rng(0)
    cells = CategoricalColumn(categories=("a", "b", "c"))
    schema = Schema({"p0": PartySchema({"x": cells}), "p1": PartySchema({"y": cells})})
    tables = {"p0": "x", "p1": "y"}
    for party, column in tables.items():
        frame = pd.DataFrame({"id": [f"r{n}" for n in range(60)], column: rng.choice(list("abc"), 60)})
        frame.to_csv(tmp_path / f"{party}.csv", index=False)
    plan = liar.verifying().plan(TableFacts(schema, 60), epsilon=1.0, delta=1e-5)

    def released(builds, *, resume):
        tasks = [
            PartyTask(party=party, schema=schema.to_dict(), table=tmp_path / f"{party}.csv", build=build)
            for party, build in zip(tables, builds, strict=True)
        ]
        with ProcessSession(tasks, timeout_s=60.0) as session:
            return release_marginals(session, plan, liar.verifying(), run_dir=tmp_path / "run", resume=resume)

    return plan, released


@needs_crypten
@pytest.mark.promise
def test_a_failed_check_names_the_party_and_ends_the_plan(study, tmp_path):
    plan, released = study
    proof = (
        "'p1' failed a check, or was cheated itself: proof that each column has one cell for each record, or a number"
    )
    with pytest.raises(
        CheckFailedError, match=f"party 'p0': {proof} within its bounds; nothing was opened. The attempt counts"
    ):
        released([liar.verifying, liar.lying], resume=False)
    folder = tmp_path / "p0.csv.ledger"
    record = read_record(folder / plan.plan_id / PRIVACY_RECORD)
    assert (record.steps_spent, record.status) == (plan.num_steps, "finished")
    (entry,) = Account(folder / ACCOUNT, "p0", "p0.csv").entries()
    assert entry.failed == record.failed == f"{proof} within its bounds; nothing was opened"
    with pytest.raises(PlanSpentError, match=f"party 'p0': plan {plan.plan_id} was closed when a check failed"):
        released([liar.verifying, liar.verifying], resume=True)


@needs_crypten
@pytest.mark.promise
def test_what_lay_ready_unverified_is_not_opened_by_parties_that_verify(study):
    _, released = study
    with pytest.raises(VertinumpyroError):
        released([liar.believing, liar.leaving], resume=False)
    found = released([liar.verifying, liar.verifying], resume=True)
    assert max(np.abs(one.values).max() for one in found.measurements) < 10**4


def test_a_party_of_which_no_table_across_has_a_column_has_no_cell_to_prove():
    groups = ((3, 2), (), (4,))
    group = Group(groups)
    for found in group.run():
        np.testing.assert_array_equal(found, group.truth())
    assert codes_of(np.zeros((5, 0), np.int64), group.statement.digits[1], slice(1, 4)).shape == (3, 0)


def test_parties_that_disagree_on_what_is_verified_are_told():
    class Links:
        """Both ends of a dealer's links."""

        def __init__(self, asked):
            self.asked, self.sent = asked, []

        def receive(self, *, limit):
            return json.dumps({"ask": "tables", "tables": self.asked}).encode()

        def send(self, message):
            self.sent.append(message)

    computation, _ = tables_of(Group())
    fields = [json.loads(json.dumps(described(dataclasses.replace(computation, num_records=n)))) for n in (50, 51)]
    links = [Links(one) for one in fields]
    with pytest.raises(BackendError, match="different tables"):
        _deal_tables(links, {"ask": "tables", "tables": fields[0]})
    assert links[0].sent == links[1].sent == []


@needs_crypten
@pytest.mark.parametrize("digests", [("aa", "aa", "aa"), ("aa", "aa", "ab")])
def test_the_dealer_says_whether_all_hold_the_same_and_nothing_else(digests):
    class Link:
        def __init__(self, digest):
            self.message, self.sent = json.dumps({"ask": "compare", "digest": digest}).encode(), []

        def receive(self, *, limit):
            return self.message

        def send(self, message):
            self.sent.append(message)

    links = [Link(digest) for digest in digests]
    _compare(links, json.loads(links[0].message))
    assert [link.sent for link in links] == [[b"\1" if len(set(digests)) == 1 else b"\0"]] * 3


@needs_crypten
def test_an_opening_on_record_is_opened_again_as_it_was():
    from vertinumpyro.secure.crypten.protocol import open_again

    group = Group()
    (result, _), (_, messages) = group.run(), group.sent[-1]
    _, proofs = group.sent[-3]
    commitments = {1: proofs[1, 0][48:], 0: proofs[0, 1][48:]}
    step = committed_sum.Opening(messages[0, 1], 0, group.statement.digest(), commitments, PRIME)
    record = step.record()

    class Engine:
        rank, num_parties, links = 0, 2, {1: None}

        def swap_bytes(self, why, outgoing, sizes):
            assert (outgoing, sizes) == ({1: messages[0, 1]}, {1: len(messages[1, 0])})
            return {1: bytearray(self.message)}

    engine = Engine()
    assert committed_sum.is_opening(record)
    engine.message = messages[1, 0]
    np.testing.assert_array_equal(open_again(engine, record), result)
    engine.message = bytes([*messages[1, 0][:-1], messages[1, 0][-1] ^ 1])
    with pytest.raises(BackendError, match="another share"):
        open_again(engine, record)


def test_nothing_secret_is_shown():
    assert "key" not in repr(field.ZeroSums({}, {}))
