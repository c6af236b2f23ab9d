"""The doctor: what it measures between members, and for each failure the cause and the remedy."""

from __future__ import annotations

import concurrent.futures
import datetime
import itertools
import shutil
import socket
import threading
import time

import pytest

from tests.organisations.test_join import Organisations, organisations, run  # noqa: F401
from tests.session.conftest import two  # noqa: F401
from tests.session.parties import INSTALLED
from vertinumpyro.cli.party_file import PartyFile
from vertinumpyro.core.errors import BackendError
from vertinumpyro.study import Agreement
from vertinumpyro.study import network as checkup
from vertinumpyro.study.network import check_network, own_facts
from vertinumpyro.transport import Communicator, SocketLink
from vertinumpyro.transport.identity import Certificate

HALF_TRIP_S = 0.02


def slow_pair():
    """A connection whose bytes arrive 20 ms after they were sent."""
    near, inner = socket.socketpair()
    far, outer = socket.socketpair()

    def carry(source, target):
        while data := source.recv(2**16):
            time.sleep(HALF_TRIP_S)
            target.sendall(data)
        target.close()

    for ends in ((inner, outer), (outer, inner)):
        threading.Thread(target=carry, args=ends, daemon=True).start()
    return near, far


def test_every_two_members_measure_each_other(monkeypatch):
    monkeypatch.setattr(checkup, "_BLOCKS", (2**18, 2**19))
    links = {rank: {} for rank in range(3)}
    for one, other in itertools.combinations(range(3), 2):
        ends = slow_pair() if (one, other) == (0, 1) else socket.socketpair()
        for (rank, peer), end in zip([(one, other), (other, one)], ends, strict=True):
            links[rank][peer] = SocketLink(end, f"member {peer}", 30.0)
    seats = [Communicator(rank, 2, links[rank], 30.0) for rank in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        facts = [{**own_facts(), "processor": f"cpu {rank}"} for rank in range(3)]
        found = [f.result(timeout=60) for f in [pool.submit(check_network, s, facts[s.rank]) for s in seats]]
    for rank, measured in enumerate(found):
        assert sorted(measured) == [other for other in range(3) if other != rank]
        for other, one in measured.items():
            assert one.facts["processor"] == f"cpu {other}"
            assert one.facts["vertinumpyro"] == own_facts()["vertinumpyro"]
            assert one.round_trip_s == found[other][rank].round_trip_s
            assert abs(one.clock_s) < 0.5
            assert one.sent == found[other][rank].received
            assert one.sent.at_once >= one.sent.sustained > 0
    assert found[0][1].round_trip_s >= 2 * HALF_TRIP_S
    assert found[0][2].round_trip_s < HALF_TRIP_S
    assert found[0][1].sent.sustained < found[0][2].sent.sustained


class LineThatFills:
    """A line whose first `room` bytes of a message come at half of its speed; and its clock."""

    def __init__(self, room, rate):
        self.room, self.rate, self.now, self.asked = room, rate, 0.0, []

    def send(self, data):
        self.asked.append(int.from_bytes(data, "little"))

    def receive(self, *, size):
        self.now += (size + min(size, self.room)) / self.rate

    def perf_counter(self):
        return self.now


class LineWithAWindow(LineThatFills):
    """A long line on which `held` bytes are under way at most."""

    def __init__(self, held, rate, round_trip_s):
        super().__init__(0, rate)
        self.held, self.round_trip_s, self.behind = held, round_trip_s, 0

    def send(self, data):
        super().send(data)
        self.behind = 0

    def receive(self, *, size):
        before, self.behind = self.behind, self.behind + size
        waits = max(0.0, self.round_trip_s - self.held / self.rate) * (self.behind // self.held - before // self.held)
        self.now += size / self.rate + waits


@pytest.mark.parametrize(("rate", "blocks"), [(1e9, 4), (2e7, 3), (1e6, 1)])
def test_blocks_grow_until_one_takes_its_time(monkeypatch, rate, blocks):
    line = LineThatFills(2**21, rate)
    monkeypatch.setattr(checkup, "time", line)
    at_once, sustained = checkup._received(line)
    *asked, last, _ = line.asked
    short = [checkup._SHORT] * (checkup._TRIES if blocks > 1 else 0)
    assert (asked, last) == ([*checkup._BLOCKS[:blocks], *short], 0)
    longest = checkup._BLOCKS[blocks - 1]
    assert sustained == pytest.approx(rate * longest / (longest + 2**21))
    assert at_once == sustained


def test_a_short_message_goes_faster_than_tcps_window_lets_a_long_one(monkeypatch):
    line = LineWithAWindow(held=2**21, rate=1e8, round_trip_s=0.05)
    monkeypatch.setattr(checkup, "time", line)
    at_once, sustained = checkup._received(line)
    assert at_once == pytest.approx(1e8)
    assert sustained == pytest.approx(2**21 / 0.05, rel=0.2)


def test_what_asks_for_another_length_than_the_probes_is_told():
    near, far = socket.socketpair()
    link, peer = SocketLink(near, "the insurer", 10.0), SocketLink(far, "peer", 10.0)
    peer.send((2**40).to_bytes(checkup._COUNT, "little"))
    with pytest.raises(BackendError, match="the insurer asks for a block of 1099511627776 bytes"):
        checkup._sent(link)


def test_a_clock_that_is_ahead_is_noticed_on_both_sides(monkeypatch):
    ends = socket.socketpair()
    monkeypatch.setattr(checkup, "_BLOCKS", (2**10,))
    seats = [Communicator(rank, 2, {1 - rank: SocketLink(end, "peer", 10.0)}, 10.0) for rank, end in enumerate(ends)]
    ahead, real = threading.local(), time.time
    monkeypatch.setattr(checkup.time, "time", lambda: real() + getattr(ahead, "by", 0.0))

    def member(seat):
        ahead.by = 3600.0 if seat.rank else 0.0
        return check_network(seat, {})

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [f.result(timeout=30) for f in [pool.submit(member, seat) for seat in seats]]
    assert found[0][1].clock_s == pytest.approx(3600, abs=5)
    assert found[1][0].clock_s == pytest.approx(-3600, abs=5)


@pytest.fixture
def approved(organisations):  # noqa: F811
    code, text = organisations.draft()
    assert code == 0, text
    study = organisations.folder / "study.toml"
    for name in ("clinic", "bank"):
        organisations.ok("study", "approve", study, "--party", organisations.party(name), "--yes")
    return organisations


def alone(approved, name="clinic"):
    code, text = approved.run("doctor", approved.folder / "study.toml", "--party", approved.party(name), "--alone")
    return code, " ".join(text.replace("│", " ").split())


def test_a_party_that_is_ready_is_told_so(approved):
    for name in approved.names:
        code, text = alone(approved, name)
        assert code == 0, text
        assert "Nothing here stands in the way." in text
    assert "none needed: this member dials the others" in text


def no_key(folder):
    (folder / "key.pem").unlink()


def other_key(folder):
    shutil.copy(folder.parent / "bank" / "key.pem", folder / "key.pem")


def other_certificate(folder):
    shutil.copy(folder.parent / "bank" / "certificate.pem", folder / "certificate.pem")


def no_table(folder):
    (folder / "table.csv").unlink()


def fewer_records(folder):
    lines = (folder / "table.csv").read_text().splitlines()
    (folder / "table.csv").write_text("\n".join(lines[:-3]) + "\n")


def no_approval(folder):
    shutil.rmtree(folder / "approvals")


def approval_of_another(folder):
    (approval,) = (folder / "approvals").iterdir()
    approval.rename(approval.with_name("0123456789abcdef.json"))


def no_ledger(folder):
    shutil.rmtree(folder / "ledger", ignore_errors=True)
    (folder / "ledger").touch()


def small_policy(folder):
    with (folder / "party.toml").open("a") as file:
        file.write("[policy]\nlargest_total_epsilon = 0.5\n")


@pytest.mark.parametrize(
    ("broken", "remedy"),
    [
        (no_key, "put it back, or make a new identity"),
        (other_key, "is not its certificate's; put the right one back"),
        (other_certificate, "draft the study with yours"),
        (no_table, "table.csv"),
        (fewer_records, "the plan is for 60 records, and this table has 57; link the records"),
        (no_approval, "has not approved study.toml"),
        (approval_of_another, "another digest was approved, 0123456789abcdef"),
        (no_ledger, "nothing runs without a record of it"),
        (small_policy, "policy allows 0.5; nothing was begun"),
    ],
    ids=lambda value: getattr(value, "__name__", "says"),
)
def test_each_failure_comes_with_its_remedy(approved, broken, remedy):
    broken(approved.folder / "clinic")
    code, text = alone(approved)
    assert code == 2
    assert remedy in text
    assert "1 of these would keep the run from its end" in text


def ids_that_are_one(folder):
    lines = (folder / "table.csv").read_text().splitlines()
    twice = [f"a{number % 30}" if number < 30 else f"A{number % 30} " for number in range(len(lines) - 1)]
    lines[1:] = [f"{new},{line.partition(',')[2]}" for new, line in zip(twice, lines[1:], strict=True)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")


def linked_already(folder):
    linkage = PartyFile.load(folder / "party.toml").linkage_path(Agreement.load(folder.parent / "linkage.toml").digest)
    linkage.parent.mkdir(parents=True)
    linkage.touch()


@pytest.mark.parametrize(
    ("broken", "pad_to", "remedy"),
    [
        (lambda folder: None, 60, None),
        (ids_that_are_one, 60, "30 ids are another's by the rule that ids are compared by"),
        (linked_already, 60, "these records are linked already"),
        (lambda folder: None, 59, "more ids than the 59 that lists are padded to"),
    ],
)
def test_a_linkage_is_looked_at_as_link_will_do_it(organisations, broken, pad_to, remedy):  # noqa: F811
    linkage = organisations.folder / "linkage.toml"
    assert organisations.draft(None, linkage.name, ("--pad-to", pad_to))[0] == 0
    organisations.ok("study", "approve", linkage, "--party", organisations.party("clinic"), "--yes")
    broken(organisations.folder / "clinic")
    code, text = organisations.run("doctor", linkage, "--party", organisations.party("clinic"), "--alone")
    text = " ".join(text.replace("│", " ").split())
    assert code == (0 if remedy is None else 2), text
    assert remedy is None or (remedy in text and "1 of these would keep" in text)


def test_a_port_that_is_taken_and_a_name_that_nobody_knows(approved, monkeypatch):
    with socket.create_server(("127.0.0.1", approved.ports["clinic"])):
        code, text = alone(approved)
    assert (code, "is the port taken?" in text) == (2, True)

    def unknown(*arguments, **settings):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    code, text = alone(approved, "bank")
    assert (code, "ask for its address, or enter it" in text) == (2, True)


def test_a_clock_off_by_years_makes_certificates_invalid(approved, monkeypatch):
    monkeypatch.setattr(
        Certificate, "begins", property(lambda self: datetime.datetime(2999, 1, 1, tzinfo=datetime.timezone.utc))
    )
    code, text = alone(approved)
    assert (code, "set the clock, or make a new one" in text) == (2, True)


@pytest.mark.skipif("crypten" not in INSTALLED, reason="parties apart: extra `crypten`")
def test_together_they_measure_and_estimate(approved):
    codes, said = approved.all_do("doctor", "study.toml")
    assert codes == [0, 0, 0], "\n".join(said)
    for name, text in zip(approved.names, said, strict=True):
        assert "TLS 1.3 both ways with" in text
        for other in approved.names:
            assert (f"{other} " in text and "round trip" in text) or other == name
        assert ("the run would take about" in text) == (name != "dealer")


def test_one_that_does_not_come_is_named(approved):
    code, text = approved.run(
        "doctor", approved.folder / "study.toml", "--party", approved.party("bank"), "--wait", "2"
    )
    text = " ".join(text.replace("│", " ").split())
    assert code == 2
    assert "clinic" in text
    assert "links" in text


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_clock_that_is_no_number_is_refused_with_the_members_name(number):
    class Peer:
        peer = "clinic"

        def send(self, message):
            pass

        def receive(self, size):
            return checkup._STAMP.pack(number)

    with pytest.raises(BackendError, match="clinic sent no measure"):
        checkup._asked(Peer())
