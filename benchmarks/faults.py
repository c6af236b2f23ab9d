"""Runs that are killed at random moments, and go on: is a step ever released twice, uncounted, or lost?

    python benchmarks/faults.py --quick
    python benchmarks/faults.py --json results/faults.json [--only dpvi logistic] [--where in_process] [--kills 20]
                                [--jobs 2]

Every method fits a small generated table, in one process and between CrypTen's processes. One of a run's processes is
killed (SIGKILL; the starter, a party or the dealer, at random) at a random time within the fit's length, from when all
processes stand; the run goes on with resume=True, is killed again, and so on until it is complete; then a new run
begins, until every arm has had its kills. The processes of a benchmark share a cache of compiled programs, so that the
kills fall into work that differs. A witness outside the library's records writes down, and flushes, what each
party sends to be opened or publishes, and in one process what a fit hands on.

Keys faults.<method>.<where>.{kills, released_twice, under_counted, lost, longest_lost_s}:

released_twice     steps of which a party sent two different openings or releases, or which were handed on twice
under_counted      ledgers, of the run or of a party, that counted fewer steps than the witness had seen, at any kill
lost               runs that could be neither finished nor recovered
longest_lost_s     the longest that was computed and counted, and whose result one kill did not leave behind: steps of
                   DPVI that were lost times the time of a step; for the others the time of the release
runs, settings, environment

`--quick` keeps every key, with three kills.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import environment, finish, parser
from tqdm.auto import tqdm

METHODS = ("dpvi", "vertimrf", "logistic", "linear", "horizontal", "bayesian_linear")
WHERE = ("in_process", "crypten")
BETWEEN = ("dpvi", "vertimrf", "logistic", "linear")
_WORKER = pathlib.Path(__file__).parent / "faults_parts" / "worker.py"
_CACHED = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
_LONGEST_S = 600.0
_PATIENCE_S = 150.0  # more than the processes wait for each other


class Arm:
    """One method in one place: its runs, its kills, and what they did."""

    def __init__(self, method: str, where: str, seed: int, environ: Mapping[str, str]) -> None:
        self.method, self.where, self._environ = method, where, environ
        self._rng = random.Random(f"{seed} {method} {where}")
        self.found: dict[str, float] = dict.fromkeys(
            ("kills", "released_twice", "under_counted", "lost", "longest_lost_s", "runs"), 0
        )
        self._length = 0.0  # of fits that nobody kills, in seconds; kills beyond it shorten it, so it starts too long

    def run(self, kills: int, bar: Any) -> None:
        """Runs until there were so many kills; before them a whole run, which says how long a fit is."""
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            self._attempt(pathlib.Path(folder), first=True, kill=False)
        while self.found["kills"] < kills:
            with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                self._one_run(pathlib.Path(folder), kills, bar)
            self.found["runs"] += 1

    def _one_run(self, folder: pathlib.Path, kills: int, bar: Any) -> None:
        first = True
        while True:
            left = kills - self.found["kills"]
            killed, code, errors = self._attempt(folder, first=first, kill=left > 0)
            self.found["kills"] += killed
            bar.update(killed)
            self.found["under_counted"] += _under_counted(folder)
            if not killed:
                break
            first = first and not (folder / "run" / "privacy.json").exists()
        complete = code == 0 and (folder / "complete").exists()
        if not complete:
            print(f"{self.method} {self.where}: {errors[-2000:]}", file=sys.stderr)
        self.found["lost"] += not complete
        self.found["released_twice"] += _released_twice(folder)
        self.found["longest_lost_s"] = max(self.found["longest_lost_s"], _longest_lost(folder))

    def _attempt(self, folder: pathlib.Path, *, first: bool, kill: bool) -> tuple[bool, int, str]:
        """One process that starts or continues the run: (whether it was killed, its exit status, its errors)."""
        command = [
            sys.executable,
            str(_WORKER),
            self.method,
            self.where,
            str(folder),
            *(() if first else ("--resume",)),
        ]
        (folder / "started").unlink(missing_ok=True)
        with open(folder / "errors", "w+") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True, env=self._environ
            )
            killed = False
            try:
                if _ended(process, _LONGEST_S, folder / "started"):
                    return False, process.returncode, _text(errors)
                begun = time.monotonic()
                if not _ended(process, self._rng.uniform(0.0, 1.0) * self._length if kill else _LONGEST_S):
                    killed = kill and _kill_one(folder, process, self._rng)
                    _ended(process, _PATIENCE_S if killed else _LONGEST_S)
                if not killed:
                    length = time.monotonic() - begun
                    self._length = 0.5 * (self._length + length) if self._length else length
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                _wait_for_all(folder)
            return killed, process.returncode, _text(errors)


def _ended(process: subprocess.Popen, seconds: float, unless: pathlib.Path | None = None) -> bool:
    """Whether it ended within so many seconds, or before a file was there."""
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > deadline or (unless is not None and unless.exists()):
            return False
        time.sleep(0.005)
    return True


def _text(file: Any) -> str:
    file.seek(0)
    return file.read()


def _kill_one(folder: pathlib.Path, process: subprocess.Popen, rng: random.Random) -> bool:
    """Kills one of the run's processes; whether one was alive."""
    pids = [process.pid, *(int(path.name) for path in sorted((folder / "pids").glob("*")))]
    alive = [pid for pid in pids if _is_alive(pid)]
    if alive:
        os.kill(rng.choice(alive), signal.SIGKILL)
    return bool(alive)


def _is_alive(pid: int) -> bool:
    """Whether it runs; what has ended and was not waited for does not."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def _wait_for_all(folder: pathlib.Path) -> None:
    """Until the run's other processes have gone, so that the next attempt finds the ledgers free."""
    deadline = time.monotonic() + _PATIENCE_S
    others = list((folder / "pids").glob("*"))
    while time.monotonic() < deadline and any(_is_alive(int(path.name)) for path in others):
        time.sleep(0.05)
    for path in others:
        path.unlink()


def _witnessed(folder: pathlib.Path) -> list[dict[str, Any]]:
    """What was sent or handed on, by whom; a line that was cut off had not left."""
    found = []
    for path in sorted((folder / "witness").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                found.append({"who": path.stem, **json.loads(line)})
            except json.JSONDecodeError:
                continue
    return found


def _under_counted(folder: pathlib.Path) -> int:
    """Ledgers below what the witness saw of them."""
    seen: dict[str, int] = collections.defaultdict(int)
    for entry in _witnessed(folder):
        seen[entry["who"]] = max(seen[entry["who"]], entry["step"] + entry.get("count", 1))
    below = 0
    for who, steps in seen.items():
        records = (
            [folder / "run" / "privacy.json"]
            if who == "run"
            else list((folder / "tables").glob(f"{who}.*.ledger/*/privacy.json"))
        )
        counted = [json.loads(path.read_text())["steps_spent"] for path in records if path.exists()]
        below += not counted or max(counted) < steps
    return below


def _released_twice(folder: pathlib.Path) -> int:
    """Steps that somebody sent with two different contents."""
    contents: dict[tuple[str, str, int], set[str]] = collections.defaultdict(set)
    for entry in _witnessed(folder):
        for step in range(entry["step"], entry["step"] + entry.get("count", 1)):
            contents[entry["who"], entry["what"], step].add(entry["content"])
    return sum(len(different) > 1 for different in contents.values())


def _longest_lost(folder: pathlib.Path) -> float:
    path = folder / "lost_s"
    return float(path.read_text()) if path.exists() else 0.0


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=METHODS, help="some methods")
    arguments.add_argument("--where", nargs="+", choices=WHERE, help="some places")
    arguments.add_argument("--kills", type=int, help="kills of every arm (20; quick: 3)")
    arguments.add_argument("--seed", type=int, default=0, help="of the kills' moments (0)")
    arguments.add_argument("--jobs", type=int, default=1, help="arms side by side (1)")
    args: argparse.Namespace = arguments.parse_args()
    kills = args.kills or (3 if args.quick else 20)
    with tempfile.TemporaryDirectory(prefix="compiled-") as compiled:
        environ = {**os.environ, **_CACHED, "JAX_COMPILATION_CACHE_DIR": compiled}
        arms = [
            Arm(method, where, args.seed, environ)
            for where in args.where or WHERE
            for method in args.only or METHODS
            if where == "in_process" or method in BETWEEN
        ]
        with tqdm(total=kills * len(arms), unit="kill") as bar, ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda arm: arm.run(kills, bar), arms))
    found: dict[str, Any] = collections.defaultdict(dict)
    for arm in arms:
        found[arm.method][arm.where] = arm.found
    finish({"faults": found, "settings": {"kills": kills, "seed": args.seed}, "environment": environment()}, args, {})


if __name__ == "__main__":
    main()
