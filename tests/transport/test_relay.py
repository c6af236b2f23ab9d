"""Connections carried between two relays: whole, in both directions, many at once, and ended when an end is gone."""

import os
import socket
import ssl
import tempfile
import threading

import numpy as np
import pytest

from vertinumpyro.transport import Address, Peer, connect_all, make_identity
from vertinumpyro.transport.relay import Relay


def plain(tmp_path):
    return socket.socketpair()


def encrypted(tmp_path):
    identities = [make_identity(tmp_path / name, name) for name in ("a", "b")]
    listener = socket.create_server(("127.0.0.1", 0))
    address = Address(*listener.getsockname())
    found = [None, None]

    def join(rank):
        other = identities[1 - rank].certificate
        peer = Peer(name="ab"[1 - rank], certificate=other, dial=address if rank else None)
        links = connect_all(
            identities[rank], {1 - rank: peer}, topic=b"t", listener=None if rank else listener, wait_s=20
        )
        found[rank] = links[1 - rank].socket

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(found[0], ssl.SSLSocket)
    return found


@pytest.fixture(params=[plain, encrypted])
def relays(request, tmp_path):
    """Two relays, and what listens at each of them."""
    connections = request.param(tmp_path)
    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        made, servers = [], []
        for rank in range(2):
            home = os.path.join(folder, str(rank))
            os.mkdir(home)
            server = socket.socket(socket.AF_UNIX)
            server.bind(os.path.join(home, "own"))
            server.listen()
            server.settimeout(20)
            servers.append(server)
            made.append(Relay(rank, {1 - rank: connections[rank]}, home, os.path.join(home, "own")))
        yield made, servers
        for relay in made:
            relay.close()
        for server in servers:
            server.close()


def connected(relay, peer):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(relay.path(peer))
    return connection


def received(connection, size):
    data = bytearray()
    while len(data) < size and (part := connection.recv(2**16)):
        data += part
    return bytes(data)


def test_streams_of_both_sides_arrive_whole(relays):
    made, servers = relays
    sent = {rank: [np.random.default_rng((rank, i)).bytes(3_000_000) for i in range(3)] for rank in range(2)}
    opened = {rank: [connected(made[rank], 1 - rank) for _ in sent[rank]] for rank in range(2)}
    accepted = {1 - rank: [servers[1 - rank].accept()[0] for _ in sent[rank]] for rank in range(2)}

    writers = [
        threading.Thread(target=connection.sendall, args=(data,))
        for rank in range(2)
        for connection, data in zip(opened[rank], sent[rank], strict=True)
    ]
    for writer in writers:
        writer.start()
    for rank in range(2):
        found = []
        for connection in accepted[1 - rank]:
            connection.settimeout(20)
            found.append(received(connection, 3_000_000))
        for data in sent[rank]:  # streams may come in another order than they were opened
            assert data in found
    for writer in writers:
        writer.join(20)
        assert not writer.is_alive()


def test_an_answer_comes_back_and_an_end_is_told(relays):
    made, servers = relays
    connection = connected(made[0], 1)
    there, _ = servers[1].accept()
    there.settimeout(20)
    connection.sendall(b"question")
    assert there.recv(100) == b"question"
    there.sendall(b"answer")
    assert connection.recv(100) == b"answer"
    there.close()
    assert connection.recv(100) == b""


def test_who_reads_slowly_holds_the_sender_back_and_loses_nothing(relays):
    made, servers = relays
    data = np.random.default_rng(0).bytes(40_000_000)
    connection = connected(made[0], 1)
    there, _ = servers[1].accept()
    there.settimeout(20)
    writer = threading.Thread(target=connection.sendall, args=(data,))
    writer.start()
    writer.join(1.0)
    assert writer.is_alive()  # 40 MB are more than the relays keep
    assert received(there, len(data)) == data
    writer.join(20)


def test_nobody_listening_ends_the_connection(relays):
    made, servers = relays
    servers[1].close()
    assert connected(made[0], 1).recv(1) == b""


def test_a_broken_carrier_ends_what_it_carried(relays):
    made, servers = relays
    connection = connected(made[0], 1)
    there, _ = servers[1].accept()
    made[1].close()
    assert connection.recv(1) == b""
    there.settimeout(20)
    assert there.recv(1) == b""
