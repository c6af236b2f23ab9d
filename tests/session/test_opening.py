"""A step is opened once: crashes at every moment, at every party, and what is sent again after them."""

import itertools
import random
import threading
import time

import numpy as np
import pytest

from vertinumpyro.core.errors import BackendError, PlanSpentError
from vertinumpyro.privacy import Ledger, LedgerRegistry
from vertinumpyro.regression import VerticalLinearRegression
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.session.reveal_once import _READY, RevealLog
from vertinumpyro.session.run import Payload, Run
from vertinumpyro.transport import Traffic

STEP = 0


class Crash(BaseException):
    """The process is gone."""


class Wire:
    """P parties in threads who show each other messages in rounds; a party that crashes breaks it for all."""

    def __init__(self, num_parties):
        self.barrier = threading.Barrier(num_parties)
        self.shown = [None] * num_parties

    def all_gather(self, rank, message):
        try:
            self.shown[rank] = message
            self.barrier.wait(20)
            found = list(self.shown)
            self.barrier.wait(20)
        except threading.BrokenBarrierError:
            raise BackendError("another party stopped") from None
        return found


class Seat:
    def __init__(self, wire, rank):
        self.wire, self.rank = wire, rank

    def all_gather(self, message, size):
        assert len(message) == size
        return self.wire.all_gather(self.rank, message)

    def broadcast(self, message, *, limit):
        return self.wire.all_gather(self.rank, message)[0]


class End(PartyProtocol):
    """Sums vectors; a message is this party's, with fresh noise. `sent` outlives the process, as a peer would."""

    rank = num_parties = 0
    traffic = dealer_traffic = Traffic()

    def __init__(self, seat, sent, crash):
        self.seat, self.sent, self.crash, self.on_record = seat, sent, crash, None

    def _set_on_record(self, on_record):
        self.on_record = on_record

    def noisy(self):
        message = np.random.default_rng().integers(-(2**40), 2**40, 3)
        self.crash("computed")
        self.on_record(message.tobytes())
        return self.open(message.tobytes())

    def open(self, message):
        self.sent.append(message)
        self.crash("sent")
        found = self.seat.wire.all_gather(self.seat.rank, message)
        self.crash("opened")
        return sum(np.frombuffer(one, np.int64) for one in found)

    def _everyones(self, digest): ...
    def _clipped_noisy_sum(self, *arguments): ...
    def _noisy_cross_products(self, *arguments): ...
    def _noisy_sum(self, *arguments): ...


class Parties:
    """Parties with records on disk; each attempt is new processes. What ever was sent is kept."""

    def __init__(self, folder, schema, num_parties):
        self.plan = VerticalLinearRegression().plan(schema, "debt", num_records=50, epsilon=1.0, delta=1e-5)
        self.folders = [folder / str(rank) for rank in range(num_parties)]
        self.sent = [[] for _ in self.folders]
        for own in self.folders:
            own.mkdir()

    def run(self, rank):
        path = self.folders[rank] / "privacy.json"
        begin = Ledger.resume if path.exists() else Ledger.start
        run = Run(self.plan, path.parent, begin(self.plan, path, book=LedgerRegistry()), "sent.npz", {})
        run._settle()
        run._load()
        return run

    def attempt(self, crashes=None, requests=None):
        """What each party opened, or its error. `crashes` says which party dies where; it may be a write."""
        wire, found = Wire(len(self.folders)), [None] * len(self.folders)

        def live(rank):
            where = (crashes or {}).get(rank)
            run = self.run(rank)

            def crash(place):
                if place == where:
                    raise Crash

            run.put = Puts(run, crash)
            seat = Seat(wire, rank)
            try:
                request = (requests or ["asked"] * len(self.folders))[rank]
                end = End(seat, self.sent[rank], crash)
                found[rank] = RevealLog(seat, end, run, f"p{rank}").opened(STEP, request, end.noisy)
            except (Crash, BackendError, PlanSpentError) as error:
                found[rank] = error
                wire.barrier.abort()
            finally:
                run.ledger.pause()

        threads = [threading.Thread(target=live, args=(rank,)) for rank in range(len(self.folders))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


class Puts:
    """Counts a party's writes, and may die beside one."""

    def __init__(self, run, crash):
        self.run, self.crash, self.writes = run, crash, 0

    def __call__(self, step, payload):
        self.crash(f"before write {self.writes}")
        kept = Run.put(self.run, step, payload)
        self.crash(f"after write {self.writes}")
        self.writes += 1
        return kept


PLACES = ["computed", "sent", "opened", *(f"{when} write {i}" for i in range(3) for when in ("before", "after"))]


@pytest.mark.parametrize("private", [True, False])
def test_a_release_is_private_until_it_is_counted(linear_schema, tmp_path, monkeypatch, private):
    plan = VerticalLinearRegression().plan(linear_schema, "debt", num_records=50, epsilon=1.0, delta=1e-5)
    staged, reserve = [], Ledger.reserve

    def counted(ledger, num_steps):
        staged.append((tmp_path / "sent.npz.staged").stat().st_mode & 0o777)
        return reserve(ledger, num_steps)

    monkeypatch.setattr(Ledger, "reserve", counted)
    with Run.opened(plan, tmp_path, results="sent.npz", book=LedgerRegistry(), private=private) as run:
        run.step(0, lambda: Payload({}, {"values": np.arange(3)}))
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("sent.npz", "privacy.json")]
    assert staged == [0o600]
    assert modes[0] == (0o600 if private else modes[1])


@pytest.mark.parametrize("num_parties", [2, 3])
def test_wherever_a_party_dies_the_step_is_opened_once_and_to_the_same(tmp_path, num_parties, linear_schema):
    """Every place at every party, then two places one after the other at any parties."""
    single = [[{rank: place}] for rank in range(num_parties) for place in PLACES]
    double = [a + b for a, b in itertools.product(single, single)] if num_parties == 2 else []
    double = random.Random(0).sample(double, min(len(double), 80))
    for number, crashes in enumerate(single + double):
        folder = tmp_path / str(number)
        folder.mkdir()
        parties = Parties(folder, linear_schema, num_parties)
        opened = []
        for crash in crashes:
            opened += [found for found in parties.attempt(crash) if isinstance(found, np.ndarray)]
        after = parties.attempt()
        assert all(isinstance(found, np.ndarray) for found in after), (crashes, after)
        for found in (*opened, *after):
            np.testing.assert_array_equal(found, after[0], err_msg=str(crashes))
        assert all(len(set(sent)) == 1 for sent in parties.sent), crashes
        before = [len(sent) for sent in parties.sent]
        again = parties.attempt()
        np.testing.assert_array_equal(again[0], after[0])
        assert [len(sent) for sent in parties.sent] == before  # the result is kept: nothing is sent any more
        assert all(parties.run(rank).ledger.steps_spent == 1 for rank in range(num_parties))


def test_what_was_sent_is_not_sent_as_something_else(tmp_path, linear_schema):
    parties = Parties(tmp_path, linear_schema, 2)
    parties.attempt()
    other = parties.attempt(requests=["another", "another"])
    assert all("p0" in str(e) or "p1" in str(e) or "another party" in str(e) for e in other)
    assert any(isinstance(error, PlanSpentError) and "something else" in str(error) for error in other)
    assert all(len(sent) == 1 for sent in parties.sent)


def test_what_was_never_sent_may_be_asked_for_anew(tmp_path, linear_schema):
    parties = Parties(tmp_path, linear_schema, 2)
    parties.attempt({1: "before write 0"})  # party 0 is ready, party 1 never was
    assert parties.sent == [[], []]
    found = parties.attempt(requests=["another", "another"])
    np.testing.assert_array_equal(found[0], found[1])
    assert all(len(sent) == 1 for sent in parties.sent)


def test_no_party_can_give_an_attempt_the_name_of_one_before(tmp_path, linear_schema, monkeypatch):
    """Two would be ready with messages of two attempts, and take them for those of one."""
    parties, names, real = Parties(tmp_path, linear_schema, 2), [], Seat.all_gather

    def repeated(self, message, size):
        if self.rank == 0 and message == _READY:
            while self.wire.shown[1] != _READY:
                time.sleep(0.01)
            raise Crash
        cheats = self.rank == 0 and size in (16, 17)  # its part of the name; which one it has on record
        return real(self, bytes(size) if cheats else message, size)

    monkeypatch.setattr(Seat, "all_gather", repeated)
    monkeypatch.setattr(Seat, "broadcast", lambda self, message, *, limit: bytes(16))
    for _ in range(2):
        parties.attempt()
        run = parties.run(1)
        names.append(run.stored(0).arrays["attempt"].tobytes())
        run.ledger.pause()
    assert names[0] != names[1]


def test_an_older_record_at_another_party_does_not_make_this_one_send_again(tmp_path, linear_schema):
    """A backup put in place of one party's folder: alone it would compute the step anew, with new noise."""
    parties = Parties(tmp_path, linear_schema, 2)
    parties.attempt()
    for path in parties.folders[1].iterdir():
        path.unlink()
    found = parties.attempt()
    assert isinstance(found[0], PlanSpentError)
    assert "party 'p0' has sent its part" in str(found[0])
    assert isinstance(found[1], BackendError)
    assert len(parties.sent[0]) == 1


def test_a_step_that_is_counted_and_gone_is_lost_by_name(tmp_path, linear_schema):
    parties = Parties(tmp_path, linear_schema, 2)
    parties.attempt()
    (parties.folders[0] / "sent.npz").unlink()
    found = parties.attempt()
    assert isinstance(found[0], PlanSpentError)
    assert "party 'p0' counts the parties' own products as released" in str(found[0])
    assert all(len(sent) == 1 for sent in parties.sent)


def test_a_plan_is_complete_once_all_its_results_are_here(tmp_path, linear_schema):
    parties = Parties(tmp_path, linear_schema, 2)
    parties.attempt({0: "sent"})
    run = parties.run(0)
    run.ledger.reserve(run.ledger.steps_left)
    openings = RevealLog(None, None, run, "p0")
    assert not openings.complete  # the ledger stays locked against others: this step is still to be written
    run.ledger.pause()
    parties.attempt()
    run = parties.run(0)
    assert RevealLog(None, None, run, "p0").complete
    run.ledger.pause()
