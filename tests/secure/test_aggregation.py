"""The secure sum between holders: its result, what anybody sees of it, what it costs, and what it is not for."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.secure import problems
from tests.transport.wires import wired
from vertinumpyro.core.errors import BackendError, CheckFailedError
from vertinumpyro.secure import CrossProducts, FixedPoint, VectorSum, committed_sum
from vertinumpyro.secure.committed_sum import RING, Opening, VerifiedSum, add_up
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.secure.keystream import KEY_BYTES, ZeroSharing
from vertinumpyro.secure.prime_field import PRIME
from vertinumpyro.transport import Communicator

EDGE = np.array([2**63 - 1, -(2**63), 0, 1, -1], np.int64)


def at_every_holder(count, use):
    """What `use(end, rank)` gives, each holder a thread."""
    links = [{} for _ in range(count)]
    for i in range(count):
        for j in range(i):
            links[i][j], links[j][i] = wired(f"holder {i}", f"holder {j}", 30.0)
    with ThreadPoolExecutor(count) as pool:
        return list(
            pool.map(
                lambda rank: use(SecureAggregation().end(Communicator(rank, count, links[rank], 30.0), count), rank),
                range(count),
            )
        )  # fmt: skip


def share_in(record, count):
    """The share that a record of an opening has: behind a mark, the statement's digest, commitments and a salt."""
    return np.frombuffer(record[32 * (count + 3) :], "<i8")


@pytest.mark.parametrize("count", [2, 3, 5])
def test_everybody_gets_the_sum_and_sends_nothing_else(count):
    rng = np.random.default_rng(0)
    vectors = rng.integers(-(2**63), 2**63, (count, 5)) + EDGE
    noise = rng.integers(-100, 100, (count, 5))
    sent = {}

    def use(end, rank):
        with end.before_opening(lambda record: sent.__setitem__(rank, share_in(record, count))):
            return end.noisy_sum(vectors[rank], noise[rank])

    expected = (vectors + noise).sum(axis=0)
    assert all(np.array_equal(found, expected) for found in at_every_holder(count, use))
    assert np.array_equal(sum(sent.values()), expected)
    assert not any(np.array_equal(sent[rank], vectors[rank] + noise[rank]) for rank in range(count))


def test_messages_are_uniform_whatever_they_hide_also_to_a_coalition():
    """Of three holders one knows its own keys; the other two still share one."""
    size, messages = 20_000, {}

    def use(end, rank):
        with end.before_opening(lambda record: messages.__setitem__(rank, share_in(record, 3))):
            return end.noisy_sum(np.full(size, 7, np.int64), np.zeros(size, np.int64))

    at_every_holder(3, use)
    pair = messages[0] + messages[1]  # their common key cancels: 14 and what the third one knows
    for words in (*messages.values(), pair):
        counts = np.bincount(words.view(np.uint8), minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 400  # chi square of 255 degrees: mean 255, sd 23
    assert len(np.unique(messages[0])) == size


def test_a_message_is_sent_again_as_it_was():
    kept = {}

    def use(end, rank):
        with end.before_opening(lambda message: kept.__setitem__(rank, message)):
            first = end.noisy_sum(np.array([rank], np.int64), np.zeros(1, np.int64))
        return first, end.open(kept[rank])

    assert [(first.tolist(), again.tolist()) for first, again in at_every_holder(3, use)] == [([3], [3])] * 3


def test_other_protocols_are_refused_and_public_numbers_are_compared():
    def products(end, rank):
        with pytest.raises(BackendError, match="parties with columns"):
            end.noisy_cross_products(np.ones((4, 1), np.int64), (1, 1), np.zeros(1, np.int64))

    at_every_holder(2, products)

    def other_size(end, rank):
        with pytest.raises(BackendError, match="differ"):
            end.noisy_sum(np.zeros(2 + rank, np.int64), np.zeros(2 + rank, np.int64))

    at_every_holder(2, other_size)


def test_a_sum_takes_four_rounds_and_a_word_a_value():
    cost = SecureAggregation().cost(VectorSum(num_parties=3, num_values=1000))
    assert cost.traffic.rounds == 4  # keys and the public numbers' digests, commitments, their digest, and the sum
    assert 2 * 8000 < cost.traffic.bytes_sent < 2 * 8400
    assert cost.dealer_traffic.bytes_received == 0
    with pytest.raises(BackendError, match="parties with columns"):
        SecureAggregation().cost(CrossProducts(num_records=5, widths=(1, 1)))
    assert SecureAggregation().missing() is None
    assert SecureAggregation().helpers(3) == []


def test_it_says_what_it_is():
    info = SecureAggregation().info()
    assert (info.name, info.dealer, info.unproven) == ("dca", "none", ())
    assert SecureAggregation().grid_bits(problems.shape_of()) == FixedPoint().grid_bits(problems.shape_of())


# -- a holder that cheats, every message in the test's hands ----------------------------------------------

CHEAT, SIZE = 1, 4


def attacked(tamper=None, *, count=3, modulus=RING):
    """What each holder has in the end, or its error: the sums of 1, 10, 100 without noise.

    `tamper(name, receiver, sent)` is what the cheat sends once it has all others' messages of that round, `sent` by
    (round, sender, receiver); None leaves its own.
    """
    statement = VerifiedSum(num_parties=count, num_values=SIZE, modulus=modulus)
    holders = [add_up(statement, rank, np.full(SIZE, 10**rank, np.int64)) for rank in range(count)]
    steps, sent, found = {rank: next(holder) for rank, holder in enumerate(holders)}, {}, {}
    while steps:
        name = "opening" if isinstance(next(iter(steps.values())), Opening) else next(iter(steps.values())).name
        for rank, step in steps.items():
            for other in statement.others(rank):
                sent[name, rank, other] = step.message if name == "opening" else step.outgoing[other]
        changed = {to: tamper and tamper(name, to, sent) for to in statement.others(CHEAT)}
        sent |= {(name, CHEAT, to): message for to, message in changed.items() if message is not None}
        for rank in list(steps):
            try:
                steps[rank] = holders[rank].send({other: sent[name, other, rank] for other in statement.others(rank)})
            except StopIteration as end:
                found[rank] = end.value
            except BackendError as error:
                found[rank] = error
        steps = {} if found else steps
    return found


def flipped(name, receiver=None):
    def tamper(now, to, sent):
        message = sent[now, CHEAT, to]
        return bytes([message[0] ^ 1]) + message[1:] if now == name and receiver in (None, to) else None

    return tamper


def honest(found):
    return [result for rank, result in found.items() if rank != CHEAT]


@pytest.mark.promise
@pytest.mark.parametrize("modulus", [RING, PRIME])
@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (flipped("keys"), "public numbers differ"),
        (flipped("commitments"), "commitments; nothing was opened"),
        (flipped("commitments", 2), "commitments; nothing was opened"),
        (flipped("agreed"), "commitments; nothing was opened"),
        (flipped("opening"), "another share"),
        (flipped("opening", 0), "another share"),
    ],
)
def test_a_holder_that_alters_a_message_stops_the_sum(modulus, tamper, says):
    assert (attacked(modulus=modulus)[0] == 111).all()
    found = honest(attacked(tamper, modulus=modulus))
    assert found
    assert any(isinstance(result, BackendError) and says in str(result) for result in found)
    assert all(isinstance(result, BackendError) or (result == 111).all() for result in found)


@pytest.mark.promise
def test_a_holder_that_chooses_its_share_by_the_others_is_refused(monkeypatch):
    """It wants the sum to be 7: it opens last, and makes up for all others' shares."""

    def tamper(name, receiver, sent):
        if name != "opening":
            return None
        shares = [np.frombuffer(sent[name, rank, CHEAT][KEY_BYTES:], "<i8") for rank in (0, 2)]
        return bytes(KEY_BYTES) + (7 - sum(shares)).tobytes()

    assert all("another share" in str(result) for result in honest(attacked(tamper)))
    monkeypatch.setattr(committed_sum, "commitment", lambda *_: bytes(32))
    assert all((result == 7).all() for result in honest(attacked(tamper)))


@pytest.mark.promise
def test_a_holder_that_gives_two_holders_two_sums_is_refused(monkeypatch):
    digest = VerifiedSum(num_parties=3, num_values=SIZE, modulus=RING).digest()
    other_opening = bytes(KEY_BYTES) + np.arange(SIZE).tobytes()

    def tamper(name, receiver, sent):
        if receiver != 2 or name not in ("commitments", "opening"):
            return None
        return other_opening if name == "opening" else committed_sum.commitment(digest, CHEAT, other_opening)

    assert all("commitments" in str(result) for result in honest(attacked(tamper)))
    monkeypatch.setattr(committed_sum, "check_same", lambda *_: None)
    first, second = honest(attacked(tamper))
    assert (first != second).any()


def test_anothers_commitment_and_opening_are_no_holders_own():
    """It puts in what holder 0 did, which it does not know, and says whatever that one says."""

    def tamper(name, receiver, sent):
        return None if name == "keys" else sent[name, 0, CHEAT]

    found = honest(attacked(tamper))
    assert all(isinstance(result, CheckFailedError) and "another share" in str(result) for result in found)


def test_a_share_that_is_no_element_is_refused():
    digest = VerifiedSum(num_parties=3, num_values=SIZE, modulus=PRIME).digest()
    none = bytes(KEY_BYTES) + np.full(SIZE, PRIME).tobytes()

    def tamper(name, receiver, sent):
        said = {"commitments": committed_sum.commitment(digest, CHEAT, none), "opening": none}
        return sent[name, 0, CHEAT] if name == "agreed" else said.get(name)

    assert all("a share that is none" in str(result) for result in honest(attacked(tamper, modulus=PRIME)))


@pytest.mark.promise
def test_whatever_a_holder_sends_it_sees_the_others_sum_under_their_pads_alone():
    """Two sums of the same vectors, or one that was stopped: what the honest send is uniform but for its sum."""
    seen = []

    def tamper(name, receiver, sent):
        if name != "opening":
            return None
        shares = [np.frombuffer(sent[name, rank, CHEAT][KEY_BYTES:], "<i8") for rank in (0, 2)]
        own = {rank: sent["keys", CHEAT, rank][-KEY_BYTES:] for rank in (0, 2)}
        theirs = {rank: sent["keys", rank, CHEAT][-KEY_BYTES:] for rank in (0, 2)}
        seen.append((shares, sum(shares) + ZeroSharing(own, theirs).share((SIZE,))))
        return bytes(len(sent[name, CHEAT, receiver]))

    for _ in range(2):
        attacked(tamper)
    assert all((total == 101).all() for _, total in seen)
    assert len(np.unique(np.concatenate([share for shares, _ in seen[::2] for share in shares]))) == 4 * SIZE
