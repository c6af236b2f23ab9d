"""What networks, disks and machines do to a run: each is refused or survived, and no step is released twice."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import types

import pytest

from tests.organisations.network import Between
from tests.organisations.test_session import Study
from tests.session.conftest import two  # noqa: F401
from tests.session.parties import INSTALLED
from vertinumpyro.core.files import load_arrays
from vertinumpyro.transport import identity, make_identity

pytestmark = pytest.mark.skipif("crypten" not in INSTALLED, reason="parties apart: extra `crypten`")


class Disturbed(Study):
    """A study whose bank reaches the clinic through something that does mischief."""

    def attempt_with(self, after, mischief, *, resume=False, timeout_s=30, **settings):
        """Exit codes, what was said, and how many bytes went to the clinic."""
        self.between = []

        def proxied(ports):
            self.between.append(Between(ports[0], after, mischief, **settings))
            return [self.between[0].port, *ports[1:]]

        try:
            codes, said = self.run(resume=resume, changes={"bank": {"ports": proxied}}, timeout_s=timeout_s)
        finally:
            for one in self.between:
                one.close()
        return codes[:-1], said[:-1], self.between[0].carried

    def sent(self):
        """The messages that each party has on record as sent, by party and step."""
        found = {}
        for party in self.parties:
            path = self.ledger(party) / self.plan.plan_id / "sent.npz"
            if path.exists():
                words, arrays = load_arrays(path)
                for step, one in words["steps"].items():
                    if one.get("sent"):
                        found[party, step] = arrays[f"{step}/message"].tobytes()
        return found

    def goes_on(self):
        """Everybody resumes, over an honest network: the same at all, and nothing that was sent is sent otherwise."""
        before = self.sent()
        spent = {record.plan.plan_id: record.steps_spent for record in self.records_there_are()}
        codes, said = self.run(resume=True)
        assert codes[:-1] == [0, 0], said
        self.all_ended_with_the_same()
        after = self.sent()
        assert all(after[key] == message for key, message in before.items())
        assert all(record.steps_spent >= spent.get(record.plan.plan_id, 0) for record in self.records())

    def records_there_are(self):
        try:
            return self.records()
        except Exception:  # one of them had not begun
            return []


@pytest.fixture(scope="module")
def total(tmp_path_factory):
    """Bytes that an undisturbed run sends to the clinic; filled by the first test that needs it."""
    return {}


@pytest.fixture
def disturbed(two, tmp_path, total):  # noqa: F811
    if "bytes" not in total:
        (tmp_path / "first").mkdir()
        first = Disturbed(two, tmp_path / "first", "linear")
        codes, said, total["bytes"] = first.attempt_with(None, "cut")
        assert codes == [0, 0], said
    return Disturbed(two, tmp_path, "linear")


@pytest.mark.parametrize(
    ("mischief", "share"),
    [("cut", 0.9), ("garble", 0.6), ("repeat", 0.7)],
)
def test_a_link_that_breaks_or_lies_ends_the_attempt_and_the_next_goes_on(disturbed, total, mischief, share):
    codes, said, _ = disturbed.attempt_with(int(share * total["bytes"]), mischief)
    assert disturbed.between[0].done
    assert codes == [2, 2], said
    for other, text in zip(["bank", "clinic"], said, strict=True):
        assert f"PeerError: {other} stopped" in text
    disturbed.goes_on()


def test_a_network_that_stalls_and_heals_is_survived(disturbed, total):
    codes, said, _ = disturbed.attempt_with(int(0.6 * total["bytes"]), "stall", pause_s=3.0)
    assert codes == [0, 0], said
    disturbed.all_ended_with_the_same()


def test_a_peer_that_hangs_is_named_after_the_agreed_time(disturbed, total):
    codes, said, _ = disturbed.attempt_with(int(0.8 * total["bytes"]), "stall", pause_s=40.0, timeout_s=8)
    assert codes == [2, 2], said
    assert any("did not answer within 8 s" in text for text in said)
    disturbed.goes_on()


@pytest.mark.parametrize("share", [0.3, 0.85, 0.97])
def test_a_party_killed_at_any_moment_goes_on(disturbed, total, share):
    def kill():
        os.kill(disturbed.pids["bank"], signal.SIGKILL)

    codes, said, _ = disturbed.attempt_with(int(share * total["bytes"]), kill)
    assert codes[1] == -signal.SIGKILL, said
    assert codes[0] in (0, 2)
    disturbed.goes_on()


def test_a_disk_that_is_full_releases_nothing(disturbed):
    codes, said = disturbed.run(changes={"bank": {"largest_file": 1024}})
    assert codes[:-1] == [2, 2], said
    assert "PrivacyError" in said[1]
    assert "nothing is released before it can be" in said[1]
    assert disturbed.sent() == {}


def test_a_clock_an_hour_off_makes_certificates_that_hold_already(tmp_path, monkeypatch):
    now = datetime.datetime.now(datetime.timezone.utc)
    clock = types.SimpleNamespace(now=lambda zone: now + datetime.timedelta(hours=1))
    ahead = types.SimpleNamespace(datetime=clock, timezone=datetime.timezone, timedelta=datetime.timedelta)
    monkeypatch.setattr(identity, "datetime", ahead)
    made = make_identity(tmp_path / "ahead", "bank").certificate
    assert made.begins < now - datetime.timedelta(hours=1)
    assert made.expires > now


def test_a_second_start_at_one_party_is_refused(two, tmp_path):  # noqa: F811
    """The ledger of a plan is one process's at a time."""
    study = Study(two, tmp_path, "linear")
    folder = study.ledger("clinic") / study.plan.plan_id
    program = f"""
import sys, time
from pathlib import Path
from vertinumpyro.privacy import Plan
from vertinumpyro.session.run import Run
import json
plan = Plan.from_dict(json.loads({json.dumps(study.plan.to_dict())!r}))
with Run.opened(plan, Path({str(folder)!r}), results="sent.npz"):
    print("open", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline().strip() == "open"
        codes, said = study.run(resume=True, changes={"clinic": {"out": str(tmp_path / "elsewhere")}})
    finally:
        holder.kill()
    assert codes[0] == 2
    assert "is in use by another process" in said[0] or "does not exist" in said[0], said
