"""Links: framed, capped, full duplex, counted, over any connected socket."""

import io
import os
import socket
import struct
import threading
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from tests.transport.wires import wired
from vertinumpyro.core.errors import BackendError
from vertinumpyro.transport import Link, LoopbackLink, PeerError, SocketLink, Traffic, exchange, pack, unpack
from vertinumpyro.transport.links import HEADER_BYTES

FRAME = struct.Struct("<IQ")


def in_thread(function, *arguments):
    """Starts it; calling what comes back waits for its result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function(*arguments)), daemon=True)
    thread.start()

    def result():
        thread.join(20)
        assert found, "the other end did not finish"
        return found[0]

    return result


@pytest.mark.parametrize("sizes", [(3_000_000, 2_000_001), (0, 5_000_000), (5_000_000, 1), (0, 0), (7, 9)])
def test_messages_of_any_sizes_cross_without_waiting_for_each_other(sizes):
    left, right = wired()
    messages = [os.urandom(size) for size in sizes]
    other = in_thread(exchange, {0: right}, {0: messages[1]}, {0: sizes[0]})
    assert exchange({1: left}, {1: messages[0]}, {1: sizes[1]}) == {1: messages[1]}
    assert other() == {0: messages[0]}
    sent, received = (size + HEADER_BYTES for size in sizes)
    bulks = sum(size > 2**16 for size in sizes)
    assert left.traffic == Traffic(rounds=1, bytes_sent=sent, bytes_received=received, bulks=bulks)
    assert right.traffic.bytes_sent == left.traffic.bytes_received


def test_three_exchange_at_once_and_a_slow_one_holds_nobody_else_up():
    (ab, ba), (ac, ca), (bc, cb) = wired(), wired(), wired()
    size = 2_000_000
    sent = {name: bytes([index]) * size for index, name in enumerate("abc")}

    def slow():
        time.sleep(0.5)
        return exchange({0: ca, 1: cb}, {0: sent["c"], 1: sent["c"]}, {0: size, 1: size})

    c = in_thread(slow)
    b = in_thread(exchange, {0: ba, 2: bc}, {0: sent["b"], 2: sent["b"]}, {0: size, 2: size})
    assert exchange({1: ab, 2: ac}, {1: sent["a"], 2: sent["a"]}, {1: size, 2: size}) == {1: sent["b"], 2: sent["c"]}
    assert b() == {0: sent["a"], 2: sent["c"]}
    assert c() == {0: sent["a"], 1: sent["b"]}


def test_header_and_message_leave_in_one_write():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps writes apart
    SocketLink(ours, "party 'b'", 5.0).send(b"x" * 1000)
    assert len(theirs.recv(10_000)) == HEADER_BYTES + 1000


def test_over_tcp_small_messages_do_not_wait_for_more():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    left, right = SocketLink(ours, "party 'b'", 5.0), SocketLink(theirs, "party 'a'", 5.0)
    assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    other = in_thread(exchange, {0: right}, {0: b"y" * 3_000_000}, {0: 4})
    assert exchange({1: left}, {1: b"abcd"}, {1: 3_000_000}) == {1: b"y" * 3_000_000}
    assert other() == {0: b"abcd"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [({"size": 8}, "8 are expected"), ({"limit": 1000}, "at most 1000 are expected"), ({"size": 0}, "0 are expected")],
)
@pytest.mark.parametrize("claimed", [2**60, 2**33])
def test_a_header_that_claims_too_much_is_refused_before_anything_is_allocated(asked, expected, claimed):
    ours, theirs = socket.socketpair()
    link = SocketLink(ours, "party 'b'", 5.0)
    theirs.sendall(FRAME.pack(1, claimed) + b"the beginning of it")
    tracemalloc.start()
    try:
        with pytest.raises(BackendError, match=rf"party 'b' announces a message of {claimed} bytes where {expected}"):
            link.receive(**asked)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("claimed", [7, 9, 2**60])
def test_an_exchange_takes_exactly_the_expected_length(claimed):
    ours, theirs = socket.socketpair()
    link = SocketLink(ours, "party 'b'", 5.0)
    theirs.sendall(FRAME.pack(1, claimed) + bytes(7))
    with pytest.raises(BackendError, match="where 8 are expected"):
        exchange({1: link}, {1: b"12345678"}, {1: 8})


def test_a_message_up_to_the_limit_is_taken():
    left, right = wired()
    left.send(b"x" * 100)
    assert right.receive(limit=100) == b"x" * 100
    left.send(b"")
    assert right.receive(limit=100) == b""


def test_a_link_names_who_is_gone_or_silent():
    left, right = wired(timeout_s=0.1)
    with pytest.raises(PeerError, match=r"party 'b' did not answer within 0\.1 s"):
        left.receive(size=1)
    with pytest.raises(PeerError, match=r"party 'b' did not answer within 0\.1 s"):
        left.send(bytes(10_000_000))  # nobody reads
    right.close()
    with pytest.raises(PeerError, match="party 'b' stopped"):
        left.receive(size=1)


def test_in_an_exchange_the_silent_one_is_named():
    (ab, ba), (ac, _kept) = wired("a", "b", timeout_s=0.5), wired("a", "c", timeout_s=0.5)
    other = in_thread(exchange, {0: ba}, {0: b"1"}, {0: 1})
    with pytest.raises(PeerError, match=r"^c did not answer within 0\.5 s"):
        exchange({1: ab, 2: ac}, {1: b"1", 2: b"1"}, {1: 1, 2: 1})
    assert other() == {0: b"1"}


@pytest.mark.parametrize(("size", "pieces", "silent"), [(6, 6, True), (10**6, 10**6, True), (2**18, 4, False)])
def test_a_peer_that_answers_piece_by_piece_is_silent_where_it_trickles(size, pieces, silent):
    left, right = wired(timeout_s=1.0)
    going = threading.Event()

    def trickle():
        message = FRAME.pack(1, size) + bytes(size)
        for start in range(0, len(message), size // pieces):
            right.socket.setblocking(True)
            right.socket.send(message[start : start + size // pieces])
            if going.wait(0.4):
                break
        return True

    done = in_thread(trickle)
    started = time.monotonic()
    if silent:
        with pytest.raises(PeerError, match="did not answer within 1 s"):
            left.receive(size=size)
    else:
        assert left.receive(size=size) == bytes(size)
        assert time.monotonic() - started > 1.0  # longer than the time-out
    going.set()
    done()


def test_closing_wakes_who_waits():
    left, _right = wired(timeout_s=60.0)
    left.wait_forever()

    def wait():
        with pytest.raises(PeerError, match="stopped"):
            left.receive(size=1)
        return True

    waiting = in_thread(wait)
    time.sleep(0.1)
    left.close()
    assert waiting()


def test_a_lost_message_is_noticed():
    ours, theirs = socket.socketpair()
    theirs.sendall(FRAME.pack(2, 6) + b"second")
    with pytest.raises(BackendError, match="another step of the protocol"):
        SocketLink(ours, "party 'b'", 5.0).receive(size=6)


def test_messages_hold_no_pickles():
    words, arrays = unpack(pack({"a": [1, 2]}, x=np.arange(3)))
    assert words == {"a": [1, 2]}
    np.testing.assert_array_equal(arrays["x"], np.arange(3))
    with pytest.raises(BackendError, match="not what this version writes"):
        unpack(pack({}, x=np.array([object()])))


def test_nobody_is_a_link_that_counts_as_a_real_one_does():
    left, right = wired()
    nobody = LoopbackLink(Traffic())
    assert all(isinstance(link, Link) for link in (left, nobody))
    other = in_thread(lambda: (exchange({0: right}, {0: b"yz"}, {0: 3}), right.send(b"12345"), right.receive(limit=9)))
    for link in (left, nobody):
        assert len(exchange({1: link}, {1: b"abc"}, {1: 2})[1]) == 2
        assert len(link.receive(size=5)) == 5
        link.send(b"last")
    other()
    assert nobody.traffic == left.traffic


def test_nobody_echoes():
    nobody = LoopbackLink(Traffic())
    assert exchange({1: nobody}, {1: b"abc"}, {1: 3}) == {1: b"abc"}
    assert exchange({1: nobody}, {1: b"abc"}, {1: 2}) == {1: b"ab"}
    assert exchange({1: nobody}, {1: b"abc"}, {1: 5}) == {1: b"abc\0\0"}


def test_nobody_is_gone_with_its_link():
    before = set(threading.enumerate())
    held = [LoopbackLink(Traffic()) for _ in range(3)]
    answering = [thread for thread in threading.enumerate() if thread not in before]
    assert len(answering) == 3
    held[0].close()
    with pytest.raises(PeerError, match="nobody stopped"):
        held[0].send(b"abc")
    del held
    for thread in answering:
        thread.join(10)
    assert not any(thread.is_alive() for thread in answering)


def test_links_that_share_a_counter_count_one_round():
    (ab, ba), (ac, ca) = wired(), wired()
    ab.traffic = ac.traffic = together = Traffic()
    others = [in_thread(exchange, {0: link}, {0: b"12"}, {0: 1}) for link in (ba, ca)]
    exchange({1: ab, 2: ac}, {1: b"1", 2: b"2"}, {1: 2, 2: 2})
    assert [other() for other in others] == [{0: b"1"}, {0: b"2"}]
    assert together == Traffic(rounds=1, bytes_sent=2 * (HEADER_BYTES + 1), bytes_received=2 * (HEADER_BYTES + 2))


def test_traffic_is_a_difference_of_snapshots():
    traffic = Traffic(rounds=1, bytes_sent=2, bytes_received=3)
    before = traffic.snapshot()
    traffic.rounds += 4
    assert traffic.since(before) == Traffic(rounds=4)
    assert before + traffic.since(before) == traffic


def archived(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def compressed():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, words=np.array("{}"), values=np.zeros(10**6))
    return buffer.getvalue()


def claiming_more():
    """An array of 8 TB by its header, and of 8 bytes in the message."""
    array, buffer = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("values.npy", array.getvalue() + bytes(8))
        archive.writestr("words.npy", b"")
    return buffer.getvalue()


def of_no_bytes():
    """2^40 numbers of a type that takes none."""
    array, buffer = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "|V0", "fortran_order": False, "shape": (2**40,)})
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("values.npy", array.getvalue())
        np.save(words := io.BytesIO(), np.array("{}"))
        archive.writestr("words.npy", words.getvalue())
    return buffer.getvalue()


HOSTILE = {
    "numbers of no bytes": of_no_bytes(),
    "words without an end": archived(words=np.array("[" * 10**5)),
    "compressed": compressed(),
    "claims more than it holds": claiming_more(),
    "empty": b"",
    "cut off": pack({"a": 1}, values=np.arange(3))[:-30],
    "no archive": b"x" * 500,
    "other words": archived(values=np.arange(2)),
    "words that are a list": archived(words=np.array("[1, 2]")),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_message_that_is_something_else_is_refused_in_words(kind):
    with pytest.raises(BackendError, match="not what this version writes"):
        unpack(HOSTILE[kind])
