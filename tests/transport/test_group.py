"""What a process of a group can ask of the others: party 0's message, everybody's, and nothing larger than agreed."""

import functools
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.transport import Member, ProcessGroup
from vertinumpyro.transport import process_group as group


def gathering(seat, size, limit):
    """Tell the starter what came from party 0 and from everybody."""
    if seat.rank < seat.num_parties:
        first = seat.broadcast(b"from %d" % seat.rank, limit=limit)
        everybody = seat.all_gather(bytes([seat.rank]) * 3, size)
        seat.reply({"first": first.decode(), "everybody": [list(message) for message in everybody]})
    seat.command()


def replies(size=3, limit=6):
    names = ("party 0", "party 1", "party 2", "a helper")
    members = [Member(name=name, run=gathering, arguments=(size, limit)) for name in names]
    with ProcessGroup(members, 3, 10.0) as group:
        return group.replies(range(3), within_s=60.0)


def test_messages_of_the_first_party_and_of_everybody_reach_the_parties_alone():
    for words, _ in replies().values():
        assert words == {"first": "from 0", "everybody": [[0] * 3, [1] * 3, [2] * 3]}


def test_a_message_beyond_its_limit_is_refused_by_name():
    with pytest.raises(BackendError, match="party 0 announces a message of 6 bytes where at most 5 are expected"):
        replies(limit=5)


def test_messages_of_everybody_have_one_size():
    with pytest.raises(ArgumentError, match="message must have 4 bytes"):
        replies(size=4)


def exit_code(tmp_path, run, libraries=(), processes=1):
    """Of the processes that a program of its own starts: no server of an earlier test's settings is there."""
    path = tmp_path / "program.py"
    path.write_text(
        "from vertinumpyro.transport.process_group import start_process\n"
        "if __name__ == '__main__':\n"
        f"    for process in [start_process(exec, ({run!r},), {list(libraries)}) for _ in range({processes})]:\n"
        "        process.join(60)\n"
        "        print(process.exitcode, end=' ')\n"
    )
    path_of_modules = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path_of_modules, "VERTINUMPYRO_LIBRARIES": ""}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, env=environment)
    return done.stdout.strip() or done.stderr


def test_a_library_that_cannot_be_read_ahead_stops_nobody(tmp_path):
    """As an engine that is not installed: the server goes on, and only who needs it says so."""
    libraries = ["no.such.library", "vertinumpyro.secure.crypten.protocol"]
    assert exit_code(tmp_path, "import os; os._exit(7)", libraries) == "7"


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are read ahead on Linux alone")
def test_no_process_looks_for_garbage_in_what_was_read_ahead(tmp_path):
    looks = "import gc, os, jax; os._exit(8 if id(vars(jax)) in map(id, gc.get_objects()) else 7)"
    assert exit_code(tmp_path, looks) == "7"


SEEDED = """
import random, sys
import numpy as np
import vertinumpyro.secure.keystream, vertinumpyro.core.rng
try:
    import vertinumpyro.secure.crypten.engine, torch
except Exception:  # not installed
    torch = None
def seed():
    random.seed(0); np.random.seed(0)
    if torch: torch.manual_seed(0)
seed()
"""
DRAWS = """
import json, os, random, secrets, ssl, threading, uuid
import numpy as np, seeded
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.secure.keystream import KeyStream, fresh_key
def draw():
    drawn = {"random": random.random(), "numpy": float(np.random.random()), "state": random.getrandbits(64)}
    if seeded.torch:
        import crypten
        assert not any(crypten.generators.values())  # the engine makes them, under keys of this process
        drawn["torch"] = float(seeded.torch.rand(1, dtype=seeded.torch.float64))
        fresh = seeded.torch.Generator()
        fresh.seed()
        drawn["generator"] = fresh.initial_seed()
    return drawn
of_system = {
    "default_rng": np.random.default_rng().bytes(8).hex(), "secrets": secrets.token_hex(8), "uuid": str(uuid.uuid4()),
    "openssl": ssl.RAND_bytes(8).hex(), "key": fresh_key().hex(), "masks": KeyStream(fresh_key()).words((1,)).item(),
    "noise": SystemRandomSource().uint64(1).item(),
}
threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
drawn = draw()
seeded.seed()
print(json.dumps({"drawn": drawn | of_system, "of the server": draw(), "threads": [threads, threading.active_count()]}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are read ahead on Linux alone")
def test_no_process_inherits_a_random_state_nor_a_thread(tmp_path):
    """Two processes of one server draw different values from every source, and others than what it had seeded."""
    (tmp_path / "seeded.py").write_text(SEEDED)
    run = f"import sys; sys.stdout = open({str(tmp_path)!r} + '/drawn', 'a'); exec({DRAWS!r}, {{}}); sys.stdout.flush()"
    assert exit_code(tmp_path, run, ["seeded"], processes=2) == "0 0"
    one, other = map(json.loads, (tmp_path / "drawn").read_text().splitlines())
    assert one["threads"] == other["threads"] == [1, 1]  # the server's, and the process's own
    assert len(one["drawn"]) >= 10
    for name, value in one["drawn"].items():
        assert len({value, other["drawn"][name], one["of the server"].get(name)}) == 3, name


def late_beside_a_helper(seat):
    """The second party answers after the helper, which nobody asked, has ended."""
    if seat.rank == 1:
        time.sleep(1.5)
    if seat.rank < seat.num_parties:
        seat.reply({"rank": seat.rank})
        seat.command()


def test_a_helper_may_end_before_the_last_party_has_answered():
    members = [Member(name=name, run=late_beside_a_helper, arguments=()) for name in ("party 0", "party 1", "a helper")]
    with ProcessGroup(members, 2, 10.0) as group:
        assert [words for words, _ in group.replies(range(2), within_s=60.0).values()] == [{"rank": 0}, {"rank": 1}]


class OfThisRun:
    """As a class in the user's own script."""

    __module__ = "__main__"
    lambda_ = lambda: None  # noqa: E731
    lambda_.__module__ = "__main__"

    def build(self):
        return None


def outer():
    return lambda: None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (functools.partial(replies, OfThisRun), r"cannot import 'OfThisRun' from the script .* move it to a module"),
        (OfThisRun().build, "cannot import 'OfThisRun' from the script"),
        ({"build": [outer()]}, r"cannot import 'outer.<locals>.<lambda>', which is made while .* functools.partial"),
        (OfThisRun.lambda_, "'OfThisRun.<lambda>', which is made while __main__ runs: give a function that"),
        (threading.Lock(), r"cannot be sent to one \(TypeError\)"),
    ],
)
def test_what_a_process_could_not_find_is_refused_before_one_is_started(given, why, monkeypatch):
    monkeypatch.setattr(group, "start_process", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(ArgumentError, match=f"party 'clinic': .*{why}"):
        ProcessGroup([Member(name="party 'clinic'", run=late_beside_a_helper, arguments=(given,))], 1, 10.0)
