import json

import pytest

from vertinumpyro.cli.terminal import LOG, RunLog, last_events
from vertinumpyro.core.errors import PlanSpentError


def events(path):
    return [{key: value for key, value in event.items() if key != "time"} for event in last_events(path, 100)]


def test_every_event_is_a_line_at_once(tmp_path):
    path = tmp_path / "run" / LOG
    log = RunLog(path)
    log.event("join", party="clinic")
    log.steps(0, 10)
    log.steps(0, 10)
    log.steps(4, 10)
    assert events(path) == [
        {"event": "join", "party": "clinic"},
        {"event": "steps", "on_record": 0, "of": 10},
        {"event": "steps", "on_record": 4, "of": 10},
    ]
    assert all(json.loads(line)["time"].endswith("Z") for line in path.read_text().splitlines())
    RunLog(path).event("join", party="clinic", resume=True)
    assert len(events(path)) == 4


@pytest.mark.parametrize(
    ("error", "message"), [(PlanSpentError("begun before"), {"message": "begun before"}), (ValueError("a value"), {})]
)
def test_how_it_ended_is_said_without_a_record(tmp_path, error, message):
    log = RunLog(tmp_path / LOG)
    with log.until_the_end():
        pass
    with pytest.raises(type(error)), log.until_the_end():
        raise error
    finished, failed = events(tmp_path / LOG)
    assert finished["event"] == "finished"
    assert {key: failed[key] for key in failed if key != "seconds"} == {
        "event": "failed",
        "error": type(error).__name__,
        **message,
    }


def test_a_line_that_was_cut_off_is_passed_over(tmp_path):
    path = tmp_path / LOG
    assert last_events(path, 5) == []
    RunLog(path).event("join")
    with path.open("a") as file:
        file.write('{"time": "2026')
    assert events(path) == [{"event": "join"}]
