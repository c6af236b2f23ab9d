"""Links between organisations: whoever is in the agreement comes through, in any order, and nobody else."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import errno
import os
import socket
import ssl
import threading
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.transport import (
    Address,
    Certificate,
    Communicator,
    Identity,
    Peer,
    PeerError,
    connect_all,
    connected,
    make_identity,
)
from vertinumpyro.transport import tls as handshakes

NAMES = ("clinic", "insurer", "shop")


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identities")
    return [make_identity(folder / name, name) for name in NAMES]


def issued(folder, name, *, issuer=None, begins=-1, ends=1):
    """A certificate as some other authority issues it, from and to so many days from now."""
    folder.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject, now = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        datetime.datetime.now(datetime.timezone.utc),
    )
    authority = ec.generate_private_key(ec.SECP256R1()) if issuer else key
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer or name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=begins))
        .not_valid_after(now + datetime.timedelta(days=ends))
        .sign(authority, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(text)
    return Identity(folder)


def bound():
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, Address("127.0.0.1", listener.getsockname()[1])


class Meeting:
    """Every organisation on a thread of its own; who has the greater number dials."""

    def __init__(self, identities, *, known=None, topics=None, wait_s=20.0, delays=None):
        self.identities, self.known = identities, known or [identity.certificate for identity in identities]
        self.listeners = [bound() for _ in identities]
        self.topics = topics or [b"a study"] * len(identities)
        self.delays, self.wait_s = delays or [0.0] * len(identities), wait_s

    def join(self, rank, **changes):
        time.sleep(self.delays[rank])
        peers = {
            other: Peer(
                name=NAMES[other],
                certificate=self.known[other],
                dial=self.listeners[other][1] if other < rank else None,
            )
            for other in range(len(self.identities))
            if other != rank
        }
        settings = {
            "topic": self.topics[rank],
            "listener": self.listeners[rank][0],
            "wait_s": self.wait_s,
            "timeout_s": 5.0,
        }
        return connect_all(self.identities[rank], peers, **{**settings, **changes})

    def all(self):
        """What came of each: links, or an error."""
        with concurrent.futures.ThreadPoolExecutor(len(self.identities)) as pool:
            futures = [pool.submit(self.join, rank) for rank in range(len(self.identities))]
            return [future.exception() or future.result() for future in futures]


@pytest.mark.parametrize("delays", [(0.0, 0.0, 0.0), (0.0, 1.0, 0.3), (1.0, 0.0, 0.5)])
def test_all_find_each_other_in_whatever_order_they_come(identities, delays):
    found = Meeting(identities, delays=delays).all()
    seats = [Communicator(rank, 3, links, 5.0) for rank, links in enumerate(found)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda seat: seat.all_gather(bytes([seat.rank]) * (1 + 100_000 * seat.rank)), seats))
    assert said == [[bytes([0]), bytes([1]) * 100_001, bytes([2]) * 200_001]] * 3
    for links in found:
        assert {link.socket.version() for link in links.values()} == {"TLSv1.3"}
        for link in links.values():
            link.close()


def test_bare_connections_hold_no_short_message_back(identities):
    listener, address = bound()

    def there(rank):
        other = Peer(name=NAMES[1 - rank], certificate=identities[1 - rank].certificate, dial=address if rank else None)
        settings = {"topic": b"carriers", "listener": None if rank else listener, "wait_s": 20.0}
        return connected(identities[rank], {1 - rank: other}, **settings)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for found in pool.map(there, range(2)):
            assert found.popitem()[1].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_announced_message_is_not_read_beyond_its_limit(identities):
    seats = [Communicator(rank, 2, links, 5.0) for rank, links in enumerate(Meeting(identities[:2]).all())]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(seat.all_gather, bytes(10 + seat.rank), limit=10) for seat in seats]
    assert "clinic" not in str(futures[0].exception())
    assert "insurer announces a message of 11 bytes where at most 10" in str(futures[0].exception())


def test_a_certificate_of_another_authority_for_the_same_name_is_refused(identities, tmp_path):
    impostor = issued(tmp_path / "impostor", "insurer", issuer="another authority")
    known = [identity.certificate for identity in identities[:2]]
    first, second = Meeting([identities[0], impostor], known=known, wait_s=2.0).all()
    assert isinstance(first, PeerError)
    assert "insurer did not join in time" in str(first)
    assert "certificate was refused" in str(first)
    assert "clinic did not join in time" in str(second)


def test_one_organisation_of_the_agreement_cannot_stand_for_another(identities):
    """The shop's own certificate, at the insurer's place."""
    known = [identity.certificate for identity in identities]
    meeting = Meeting([identities[0], identities[2], identities[2]], known=known, wait_s=2.0, delays=(0, 0, 5))
    first = meeting.all()[0]
    assert isinstance(first, PeerError)
    assert "insurer did not join in time" in str(first)


@pytest.mark.parametrize(("begins", "ends", "why"), [(-3, -1, "expired"), (1, 3, "not yet valid")])
def test_a_certificate_holds_for_its_time(identities, tmp_path, begins, ends, why):
    late = issued(tmp_path / "late", "insurer", begins=begins, ends=ends)
    first, _ = Meeting([identities[0], late], wait_s=2.0).all()
    assert isinstance(first, PeerError)
    assert f"certificate was refused (certificate is {why}" in str(first) or why in str(first)


def test_a_certificate_from_an_organisations_own_authority_serves(identities, tmp_path):
    own = issued(tmp_path / "own", "insurer", issuer="the insurer's authority")
    for links in Meeting([identities[0], own]).all():
        assert len(links) == 1


def test_who_comes_for_another_agreement_is_refused(identities):
    first, second = Meeting(identities[:2], topics=[b"a study", b"another"], wait_s=2.0).all()
    assert "insurer did not join in time: insurer: it came for another agreement" in str(first)
    assert "clinic: it came for another agreement" in str(second) or "closed the connection" in str(second)


def test_who_never_comes_is_named_with_the_address_that_was_tried(identities):
    meeting = Meeting(identities[:2], wait_s=1.0)
    meeting.listeners[0][0].close()
    with pytest.raises(PeerError, match=rf"clinic did not join in time: no connection to {meeting.listeners[0][1]}"):
        meeting.join(1)
    with pytest.raises(PeerError, match="insurer did not join in time: it was not heard of"):
        Meeting(identities[:2], wait_s=1.0).join(0)


def test_strangers_hold_nobody_up(identities):
    """Garbage, silence, and TLS without a certificate, before the right one comes."""
    meeting = Meeting(identities[:2], delays=(0.0, 1.0))
    address = meeting.listeners[0][1]

    def disturb():
        loud = socket.create_connection((address.host, address.port))
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
        socket.create_connection((address.host, address.port))  # says nothing
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
        with contextlib.suppress(OSError):
            bare.wrap_socket(socket.create_connection((address.host, address.port))).recv(1)

    threading.Thread(target=disturb, daemon=True).start()
    assert all(len(links) == 1 for links in meeting.all())


def test_strangers_take_few_places_and_the_right_one_comes_through_them(identities, monkeypatch):
    monkeypatch.setattr(handshakes, "_PLACES", 4)
    meeting = Meeting(identities[:2])
    address, before = meeting.listeners[0][1], threading.active_count()
    with concurrent.futures.ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as open_:
        waiting = pool.submit(meeting.join, 0)
        strangers = [open_.enter_context(socket.create_connection((address.host, address.port))) for _ in range(40)]
        for gone in strangers[:36]:
            with contextlib.suppress(ConnectionResetError):
                assert gone.recv(1) == b"", "those that have been there longest were closed"
        assert threading.active_count() <= before + 2, "the party's and the one that listens"
        assert len(meeting.join(1)) == len(waiting.result()) == 1


def test_who_waits_hears_at_once_who_is_missing_and_not_again_at_every_look(identities, monkeypatch):
    monkeypatch.setattr(handshakes, "_LOOK_S", 0.05)
    heard = []
    with pytest.raises(PeerError, match="did not join in time"):
        Meeting(identities, wait_s=0.5).join(0, waiting=heard.append)
    assert heard == [f"waiting for {NAMES[1]}, {NAMES[2]}"]


class Failing(socket.socket):
    """A listener whose system has no file, no memory or no patience for a while."""

    failures: list

    def accept(self):
        if self.failures:
            raise OSError(self.failures[0], os.strerror(self.failures.pop(0)))
        return super().accept()


def failing(meeting, *failures):
    listener = Failing(fileno=meeting.listeners[0][0].detach())
    listener.failures = list(failures)
    return listener


def test_listening_survives_what_keeps_a_connection_from_being_taken(identities):
    failures = (errno.EMFILE, errno.ECONNABORTED, errno.ENFILE, errno.ENOMEM, errno.EPROTO)
    meeting = Meeting(identities[:2])
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meeting.join, 0, listener=failing(meeting, *failures))
        assert len(meeting.join(1)) == len(waiting.result()) == 1


def test_who_waited_in_vain_is_told_of_strangers_and_of_missing_files(identities):
    meeting = Meeting(identities[:2], wait_s=1.0)
    address = meeting.listeners[0][1]
    listener = failing(meeting, errno.EMFILE)
    with contextlib.ExitStack() as open_:
        for _ in range(2):
            loud = open_.enter_context(socket.create_connection((address.host, address.port)))
            loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(PeerError, match=r"somebody else that were refused: 2 \(the TLS.*2 times\)") as caught:
            meeting.join(0, listener=listener)
    assert f"{os.strerror(errno.EMFILE)}; let it have more files (ulimit -n)" in str(caught.value)
    assert listener.fileno() < 0, "the port is free again"


def test_who_is_slow_on_purpose_has_its_time_and_no_more(identities, monkeypatch):
    """A byte now and then does not keep a handshake alive, on either side."""
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.3)
    meeting = Meeting(identities[:2], wait_s=1.5)
    address = meeting.listeners[0][1]
    over = threading.Event()

    def drip(connection):
        with connection, contextlib.suppress(OSError):
            for byte in b"\x16\x03\x03\x20\x00" + bytes(2**13):  # a record of 8 KiB
                if over.wait(0.05):
                    return
                connection.sendall(bytes([byte]))

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        pool.submit(drip, socket.create_connection((address.host, address.port)))
        with pytest.raises(PeerError, match=r"refused: 1 \(it did not answer within"):
            meeting.join(0)
        slow, _ = meeting.listeners[0] = bound()
        pool.submit(lambda: drip(slow.accept()[0]))
        with pytest.raises(PeerError, match="clinic: "):
            meeting.join(1)
        over.set()
        slow.close()


def test_where_no_thread_can_start_the_port_is_free_again(identities, monkeypatch):
    meeting = Meeting(identities[:2])

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(BackendError, match="may start no further thread"):
        meeting.join(0)
    assert meeting.listeners[0][0].fileno() < 0


def test_who_starts_again_while_others_are_awaited_takes_its_own_place(identities):
    meeting = Meeting(identities, delays=(0.0, 0.0, 2.0))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        early = pool.submit(meeting.join, 1, wait_s=1.0, listener=bound()[0])  # dies before the shop comes
        futures = [pool.submit(meeting.join, 0)]
        with pytest.raises(PeerError, match="shop did not join"):
            early.result()
        futures += [pool.submit(meeting.join, rank) for rank in (1, 2)]
        links = [future.result() for future in futures]
    seats = [Communicator(rank, 3, found, 5.0) for rank, found in enumerate(links)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda seat: seat.all_gather(b"x"), seats)) == [[b"x"] * 3] * 3


def test_a_key_is_its_owners_alone_and_never_replaced(tmp_path):
    identity = make_identity(tmp_path / "clinic", "clinic")
    assert os.stat(tmp_path / "clinic" / "key.pem").st_mode & 0o777 == 0o600
    assert len(identity.certificate.fingerprint) == 64
    assert "PRIVATE" not in repr(identity) + identity.certificate.pem
    with pytest.raises(ArgumentError, match=r"has a key.pem already"):
        make_identity(tmp_path / "clinic", "clinic")
    with pytest.raises(ArgumentError, match="name='a/b' must be"):
        make_identity(tmp_path / "other", "a/b")
    with pytest.raises(ArgumentError, match="no certificate in PEM"):
        Certificate("-----BEGIN nothing")
    (tmp_path / "clinic" / "key.pem").write_text("no key")
    with pytest.raises(ArgumentError, match=r"certificate and key in .* cannot be used"):
        connect_all(
            identity, {1: Peer(name="x", certificate=identity.certificate, dial=Address("127.0.0.1", 1))}, topic=b""
        )
