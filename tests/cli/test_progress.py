"""What a log file says of a long fit."""

import json
import time

import pytest

from vertinumpyro.cli import terminal as progress
from vertinumpyro.cli.terminal import ProgressLines, console, progress_in_log
from vertinumpyro.core.errors import Sparing


def said(steps, seconds_a_step, total):
    """(step, line) of all lines of a run whose clock is ours."""
    now, found = [0.0], []
    lines = ProgressLines("step", say=found.append, clock=lambda: now[0])
    for step in steps:
        now[0] = step * seconds_a_step
        lines(step, total)
    return found


def test_a_quick_run_says_the_first_tenth_and_then_a_line_every_ten_seconds_at_most():
    found = said(range(0, 101), 0.01, 100)
    assert found == ["10 of 100 steps recorded as spent (10%), 0.1 s"]
    assert [line.split()[0] for line in said(range(0, 101), 0.5, 100)] == ["10", "30", "50", "70", "90"]


def test_a_slow_run_says_something_every_ten_seconds_at_first_and_rarely_in_the_end():
    found = said(range(0, 10_801), 1.0, 10_000_000)  # three hours, a thousandth of the way
    assert found[0].startswith("10 of 10,000,000 steps")
    assert found[1].startswith("20 of ")
    assert 60 < len(found) < 150
    assert " min " in found[-1]


def test_a_run_that_stands_still_says_so_and_a_single_step_is_one():
    now, found = [0.0], []
    lines = ProgressLines("release", say=found.append, clock=lambda: now[0])
    for now[0] in (0.0, 5.0, 11.0, 22.0, 31.0, 51.0, 71.0, 150.0):
        lines(0, 1)
    assert [line.split(", ")[1] for line in found] == ["11.0 s", "31.0 s", "1 min 11 s"]  # pauses double
    assert all(line.startswith("0 of 1 release recorded as spent (0%)") for line in found)


def test_after_the_last_release_it_says_what_is_computed_and_in_the_end_how_long_it_took():
    now, found = [0.0], []
    lines = ProgressLines("step", say=found.append, clock=lambda: now[0], after="the field, about 40 s")
    for now[0] in (0.0, 1.0, 2.0, 12.0, 22.0):
        lines(2 if now[0] else 0, 2)
    now[0] = 30.0
    lines.end(2, 2)
    assert found == [
        "2 of 2 steps recorded as spent (100%), 1.0 s; now the field, about 40 s",
        "2 of 2 steps recorded as spent (100%), 22.0 s; now the field, about 40 s",
        "computed, 29.0 s after the last step",
    ]


def test_what_is_awaited_is_said_when_it_changes_and_otherwise_after_ever_longer_pauses():
    now, due = [0.0], []
    sparing = Sparing(lambda: now[0])
    for now[0] in map(float, range(200)):
        who = "both" if now[0] < 5 else "dealer"
        if sparing.is_due(who):
            due.append((now[0], who))
    assert due == [(0.0, "both"), (10.0, "dealer"), (30.0, "dealer"), (70.0, "dealer"), (150.0, "dealer")]


def test_a_run_that_continues_starts_where_it_stopped():
    assert said([500, 501], 0.0, 1000) == []


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_POLL_S", 0.01)
    return tmp_path / "privacy.json"


def test_the_privacy_record_is_followed_from_before_it_exists(record, capsys):
    with progress_in_log(record, 40):
        time.sleep(0.05)
        record.write_text(json.dumps({"steps_spent": 8}))
        time.sleep(1.0)
        record.write_text("{")  # a reader may come at any moment
        time.sleep(0.05)
        record.write_text(json.dumps({"steps_spent": 40}))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("8 of 40 steps recorded as spent (20%)")
    assert shown[-1].startswith("40 of 40 steps recorded as spent (100%)")
    assert not any("\r" in line for line in shown)


def test_a_fit_that_fails_still_says_what_it_spent(record, capsys):
    record.write_text(json.dumps({"steps_spent": 3}))
    with pytest.raises(RuntimeError), progress_in_log(record, 40):
        raise RuntimeError
    assert "3 of 40 steps recorded as spent" in capsys.readouterr().out


def test_a_terminal_has_its_bar_and_no_lines(record, capsys, monkeypatch):
    monkeypatch.setattr(type(console), "is_terminal", property(lambda _: True))
    with progress_in_log(record, 40):
        time.sleep(0.05)
    assert capsys.readouterr().out == ""
