"""Private set intersection: exact for any number of parties, and what each of them receives is masked."""

import concurrent.futures
import contextlib
import itertools
import math
import socket
from functools import partial

import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.secure import private_set_intersection
from vertinumpyro.secure.private_set_intersection import common_places, find_common
from vertinumpyro.transport import Communicator, SocketLink

FIELD = 2**255 - 19
TOPIC = b"a study"


def seats(num_parties):
    """Connected seats: the parties, then the helper."""
    links = {rank: {} for rank in range(num_parties + 1)}
    for one, other in itertools.combinations(range(num_parties + 1), 2):
        ends = socket.socketpair()
        for (rank, peer), end in zip([(one, other), (other, one)], ends, strict=True):
            links[rank][peer] = SocketLink(end, f"party {peer}", 30.0)
    return [Communicator(rank, num_parties, links[rank], 30.0) for rank in links]


def linked(lists, helper=find_common, **settings):
    *parties, last = seats(len(lists))
    with concurrent.futures.ThreadPoolExecutor(len(lists) + 1) as pool:
        told = pool.submit(helper, last)
        found = [
            pool.submit(common_places, seat, ids, topic=TOPIC, **settings)
            for seat, ids in zip(parties, lists, strict=True)
        ]
        try:
            return told.result(timeout=60), [one.result(timeout=60) for one in found]
        finally:
            for seat in (*parties, last):
                for link in seat.links.values():
                    link.close()


@pytest.mark.parametrize("num_parties", [2, 3, 4])
@pytest.mark.parametrize("pad_to", [None, 40])
def test_every_party_finds_the_ids_that_all_hold(num_parties, pad_to):
    rng = np.random.default_rng(num_parties)
    lists = [[f"id{number}" for number in rng.permutation(30)[: 20 + rank]] for rank in range(num_parties)]
    common = set.intersection(*map(set, lists))
    count, found = linked(lists, pad_to=pad_to)
    assert count == len(common) > 0
    for ids, numbers in zip(lists, found, strict=True):
        assert {ids[number] for number in numbers} == common
        assert np.all(np.diff(numbers) > 0)


@pytest.mark.parametrize("lists", [[["a"], ["b"]], [[], ["b"]], [["a", "b"], ["b"]]])
def test_few_or_none_in_common_is_an_answer(lists):
    count, found = linked(lists)
    assert count == len(set(lists[0]) & set(lists[1]))
    assert [len(numbers) for numbers in found] == [count, count]


def test_what_passes_is_masked_and_as_long_as_agreed():
    """A party receives points that are no hash of any id, and lists of one length."""
    lists = [["a", "b", "c"], ["b", "c", "d", "e"]]
    hashed = set(
        private_set_intersection.points(
            [t.encode() for t in "abcde"], domain=b"vertinumpyro linkage 1\n" + TOPIC + b"\n"
        )
    )
    seen, lengths = [], []
    original = SocketLink.transfer

    def watched(self, outgoing, expected):
        data = bytes(outgoing)
        if len(data) >= private_set_intersection.POINT_BYTES:
            lengths.append(len(data))
            seen.extend(data[i : i + 32] for i in range(0, len(data), 32))
        return original(self, outgoing, expected)

    SocketLink.transfer = watched
    try:
        linked(lists, pad_to=6)
    finally:
        SocketLink.transfer = original
    assert set(lengths) == {6 * 32}
    assert len(seen) == len(set(seen)) == 12
    assert not hashed & set(seen)


def test_points_lie_on_the_curve_and_not_on_its_twist():
    """Masking keeps the side, so a side that depends on the id would tell a bit of it."""
    found = private_set_intersection.points([str(number).encode() for number in range(200)], domain=b"test")
    assert len(set(found)) == 200
    for point in found:
        u = int.from_bytes(point, "little")
        assert pow(u * (u * u + 486662 * u + 1) % FIELD, (FIELD - 1) // 2, FIELD) == 1
    assert private_set_intersection.points([b"x"], domain=b"one") != private_set_intersection.points(
        [b"x"], domain=b"other"
    )


def test_elligator_agrees_with_the_standards_example():
    """RFC 9380, appendix J.4.2: Q of the first message, from its u."""
    u = 0x608D892B641F0328523802A6603427C26E55E6F27E71A91A478148D45B5093CD
    x = 0x51125222DA5E763D97F3C10FCC92EA6860B9CCBBD2EB1285728F566721C1E65B
    hashed = u.to_bytes(64, "little")
    assert int.from_bytes(private_set_intersection._elligator(hashed), "little") == x


def test_masks_commute():
    found = private_set_intersection.points([b"a", b"b"], domain=b"")
    one, other = private_set_intersection.fresh_key(), private_set_intersection.fresh_key()
    both = private_set_intersection.masked(private_set_intersection.masked(found, key=one), key=other)
    assert both == private_set_intersection.masked(private_set_intersection.masked(found, key=other), key=one)
    assert not set(both) & set(private_set_intersection.masked(found, key=one))


def test_many_items_are_worked_on_by_several_processes(monkeypatch):
    monkeypatch.setattr(private_set_intersection, "_WORTH_PROCESSES", 10)
    monkeypatch.setattr(private_set_intersection, "_CHUNK", 16)
    texts, done = [str(number).encode() for number in range(50)], []
    found = private_set_intersection.in_parallel(
        partial(private_set_intersection.points, domain=b""), texts, done.append
    )
    assert found == private_set_intersection.points(texts, domain=b"")
    assert done == [16, 32, 48, 50]


def test_lists_that_cannot_be_linked_are_refused_before_anything_is_sent():
    alone = Communicator(0, 2, {}, 1.0)
    with pytest.raises(ArgumentError, match="more ids than the 2"):
        common_places(alone, ["a", "b", "c"], topic=TOPIC, pad_to=2)
    with pytest.raises(ArgumentError, match="different from each other"):
        common_places(alone, ["a", "a"], topic=TOPIC)


def lying(change):
    """A helper that tells party 1 something else."""

    def run(seat):
        with contextlib.suppress(BackendError):
            for rank in range(2):
                size = int.from_bytes(seat.links[rank].receive(size=8), "little")
                seat.links[rank].receive(size=32 * size)
            for rank in range(2):
                places = np.asarray(change(rank), "<i8")
                seat.links[rank].send(len(places).to_bytes(8, "little"))
                seat.links[rank].send(places.tobytes())

    return run


@pytest.mark.parametrize(
    "change",
    [lambda rank: [0] * (1 + rank), lambda rank: [0, 0], lambda rank: [7], lambda rank: [-1], lambda rank: [0] * 9],
)
def test_a_helper_that_tells_nonsense_is_caught(change):
    with pytest.raises(BackendError, match=r"nothing was kept|stopped"):
        linked([["a", "b"], ["b", "c"]], helper=lying(change))


def test_a_party_that_sends_no_points_is_caught():
    *parties, helper = seats(2)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        honest = pool.submit(common_places, parties[0], ["a", "b"], topic=TOPIC)
        liar = parties[1]
        liar.all_gather((2).to_bytes(8, "little"), 8)
        transfer = liar.links[0].transfer(b"\0" * 64, 64)
        while transfer.waits_for:
            transfer.advance()
        with pytest.raises(BackendError, match="something else than masked ids"):
            honest.result(timeout=30)
    del helper


def test_a_list_longer_than_can_be_linked_is_refused_before_it_is_read():
    *parties, _ = seats(2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        honest = pool.submit(common_places, parties[0], ["a"], topic=TOPIC)
        parties[1].all_gather((2**40).to_bytes(8, "little"), 8)
        with pytest.raises(BackendError, match=r"announces a list of \d+ ids"):
            honest.result(timeout=30)


def test_bits_of_masked_points_are_fair():
    """No bit of 2,000 masked points leans by more than five standard deviations."""
    found = private_set_intersection.masked(
        private_set_intersection.points([str(i).encode() for i in range(2000)], domain=b""),
        key=private_set_intersection.fresh_key(),
    )
    bits = np.unpackbits(np.frombuffer(b"".join(found), np.uint8).reshape(-1, 32), axis=1, bitorder="little")[:, :254]
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / math.sqrt(2000)
