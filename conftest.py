"""Which tests run: those that `tests/durations.json` shows to be cheap, or all; and how workers divide them.

The default leaves to the whole run, from what a whole run recorded, functions whose one item takes long, and of a
function with many items those beyond its share. `pytest -m whole` runs what it leaves out, and `pytest -m "whole or
not whole"` everything, as do tests that the command line names; `-m "not whole"` holds for folders and files that it
names, but not for a test that it names with `::`. A function that stands for a promise of the library carries
`@pytest.mark.promise`: one of its items always runs. A fixture that several tests share and that takes long is made by
default for a promise alone; without one, whoever reads it is left too, or both runs would make it. What has no record
runs.

`pytest -m "whole or not whole" --record-durations` writes the record: processor seconds, of the processes that a test
waits for too, so that a busy machine does not lengthen them; and what XLA's cache saved, as if a test ran alone.
"""

import gc
import json
import os
from collections import defaultdict
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

# Those that import an optional engine at once, where it is installed.
_HERE = all(find_spec(name) is not None for name in ("crypten", "torch"))
_ENGINE = ("arithmetic", "engine", "protocol", "verified")
collect_ignore = [] if _HERE else [f"vertinumpyro/secure/crypten/{n}.py" for n in _ENGINE]

DURATIONS = Path(__file__).parent / "tests" / "durations.json"
# Processor seconds: of one item, and of one shared fixture, that the default still runs; of all items of a function.
LONGEST_ITEM = 1.0
SHARE = 1.0
# What a function takes altogether from which on it is recorded.
RECORDED_FROM = 0.5


_LEFT = pytest.StashKey[Any]()  # how many tests were left out, and their seconds
_CLOCK = pytest.StashKey[float]()
_SHARED: dict[str, float] = {}  # what fixtures took that others share, since the last report


_SAVED = [0.0]  # seconds that XLA's cache has saved in this process


def _processor() -> float:
    """Seconds of a processor, of this process and of those that it waited for, and what XLA's cache saved."""
    return sum(os.times()[:4]) + _of_forked() + _SAVED[0]


def _of_forked() -> float:
    """Of parties' processes, which a server forks and waits for; where the system says it."""
    server = getattr(forkserver, "_forkserver", None)
    stat = Path(f"/proc/{getattr(server, '_forkserver_pid', None)}/stat")
    if not stat.exists():
        return 0.0
    return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")


def _on_duration(event: str, seconds: float, **_: Any) -> None:
    """Adds what a program took to compile that came from the cache now."""
    if event == "/jax/compilation_cache/compile_time_saved_sec":
        _SAVED[0] += max(seconds, 0.0)


def _recorded() -> dict[str, float]:
    """What one item of a function takes, for functions that take long enough."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


def _function(item: pytest.Item) -> str:
    """The file and the function of a test, its parameters left out."""
    return item.nodeid.partition("[")[0]


def _is_named(config: pytest.Config) -> bool:
    """Whether the command line says itself which tests it wants."""
    options = config.option
    chosen = options.keyword or options.markexpr or getattr(options, "lf", False) or getattr(options, "ff", False)
    return bool(chosen) or config.args_source is not pytest.Config.ArgsSource.TESTPATHS


def _by_default(items: list[pytest.Item], seconds: float) -> list[pytest.Item]:
    """Which items of one function run by default, evenly from its grid.

    :param seconds: what one item took
    """
    if seconds * len(items) <= SHARE:
        return items
    if seconds > LONGEST_ITEM and items[0].get_closest_marker("promise") is None:
        return []
    number = max(1, int(SHARE / seconds))
    return [items[place * len(items) // number] for place in range(number)]


def _shared(item: pytest.Item, recorded: dict[str, float]) -> dict[tuple[str, int], float]:
    """The fixtures of a test that outlive it and what each takes: by file or folder and name, and its own parameter."""
    found = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 (pytest has no public name for it)
    which = item.callspec.indices if hasattr(item, "callspec") else {}
    shared = {name: f"{own[-1].baseid}::{name}" for name, own in found.items() if own[-1].scope != "function"}
    return {(full, which.get(name, 0)): recorded[full] for name, full in shared.items() if full in recorded}


def _reads_what_is_made(items: list[pytest.Item], recorded: dict[str, float]) -> list[pytest.Item]:
    """Without those that would have a shared fixture made which takes long, and which no promise needs.

    Of a fixture that has parameters a promise needs one.
    """

    def long(item: pytest.Item) -> set[tuple[str, int]]:
        return {name for name, seconds in _shared(item, recorded).items() if seconds > LONGEST_ITEM}

    needed: dict[str, set[tuple[str, int]]] = {}
    for item in items:
        if item.get_closest_marker("promise"):
            needed.setdefault(_function(item), long(item))
    made = set().union(*needed.values())
    return [item for item in items if long(item) <= made]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is left to the whole run, and leaves it out by default; the longest files come first."""
    recorded = _recorded()
    functions, files, shared = defaultdict(list), defaultdict(float), defaultdict(dict)
    for item in items:
        functions[_function(item)].append(item)
    cheap = [item for name, own in functions.items() for item in _by_default(own, recorded.get(name, 0.0))]
    kept = set(_reads_what_is_made(cheap, recorded))
    asked = tuple(argument for argument in config.args if "::" in argument)
    for item in items:
        if item not in kept and not (asked and item.nodeid.startswith(asked)):
            item.add_marker("whole")
    if not _is_named(config):
        left = [item for item in items if item not in kept]
        items[:] = [item for item in items if item in kept]
        config.hook.pytest_deselected(items=left)
        config.stash[_LEFT] = (len(left), sum(recorded.get(_function(item), 0.0) for item in left))
    for item in items:
        files[item.path] += recorded.get(_function(item), 0.0)
        shared[item.path].update(_shared(item, recorded))
    items.sort(key=lambda item: -files[item.path] - sum(shared[item.path].values()))


def pytest_collection_finish() -> None:
    """What imports made stays: the collector need not walk it again and again, a twentieth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that writes the record."""
    parser.addoption(
        "--record-durations", action="store_true", help=f"record what this run's tests take in {DURATIONS.name}"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Adds what records, and what says which tests were left out: once, in the process that starts the workers."""
    if config.option.record_durations:
        import jax.monitoring

        jax.monitoring.register_event_duration_secs_listener(_on_duration)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Summary())
        if config.option.record_durations:
            config.pluginmanager.register(_Record())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Starts the clock of a test."""
    item.stash[_CLOCK] = _processor()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Any:
    """What others share is not on the account of the first test that reads it."""
    begun = _processor()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _SHARED[f"{fixturedef.baseid}::{fixturedef.argname}"] = _processor() - begun


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """A report carries the processor seconds since the one before, and those of shared fixtures apart."""
    report = yield
    begun, item.stash[_CLOCK] = item.stash.get(_CLOCK, _processor()), _processor()
    report.shared = dict(_SHARED)
    _SHARED.clear()
    report.processor = item.stash[_CLOCK] - begun - sum(report.shared.values())
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker says what it left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(_LEFT, None)


class _Record:
    """Adds up, for each function and shared fixture, what its items took, and writes what one takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("[")[0]][report.nodeid] += getattr(report, "processor", 0.0)
        for name, seconds in getattr(report, "shared", {}).items():
            self.seconds[name][report.nodeid] += seconds

    def pytest_sessionfinish(self) -> None:
        old = {name: seconds for name, seconds in _recorded().items() if Path(name.partition("::")[0]).exists()}
        for name, items in self.seconds.items():
            old.pop(name, None)
            if (total := sum(items.values())) >= RECORDED_FROM:
                old[name] = round(total / len(items), 3)
        DURATIONS.write_text(json.dumps(dict(sorted(old.items())), indent=0) + "\n")


class _Summary:
    """Says at the end what was left to the whole run."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        node.config.stash[_LEFT] = getattr(node, "workeroutput", {}).get("left")

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if left := config.stash.get(_LEFT, None):
            terminalreporter.write_line(
                "{} tests, about {:.0f} s of a processor, are left to the whole run: pytest -m whole".format(*left)
            )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """`-n 2` gives a worker whole files: what a file's tests share, fits and compiled programs, is made once."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)
