"""Guards of the repository itself: what a reader, an installer or a reviewer relies on."""

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vertinumpyro

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vertinumpyro"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 600

# A path or an address of one machine, or a number of one tracker.
FOREIGN = re.compile(r"(?<![\w./~$}-])/(?:work|root|home|tmp)/|\bissue #\d+|\bfile:///|\blocalhost:\d+")
# Importing any of these must not be needed to import the library: they come with extras.
OPTIONAL = ("arviz", "crypten", "d3p", "dask", "matplotlib", "mbi", "sklearn", "spu", "statsmodels", "torch")


def tracked_text_files() -> list[Path]:
    """The tracked files but the lock; without git (a source archive), the files of the source folders."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        paths = [ROOT / name for name in listed.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        folders = ("vertinumpyro", "tests", "benchmarks")
        paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    suffixes = {".lock", ".npz", ".parquet", ".png", ".pyc", ".sqlite"}
    return [path for path in paths if path.is_file() and path.suffix not in suffixes]


def readme_block(marker: str) -> str:
    """The fenced block after `<!-- marker -->`, the one that `.ci/run` runs."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"^<!-- {marker} -->\n+```\w*\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"README.md must have one fenced block right after <!-- {marker} -->"
    return found[0]


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("marker", "needle"), [("demo-command", "vertinumpyro demo"), ("test-command", "pytest")])
def test_readme_has_the_commands_that_ci_runs(marker, needle):
    block = readme_block(marker)
    assert needle in block
    assert "-m venv" in block, "the block must do all of its own set-up"


def test_nothing_speaks_of_one_machine():
    found = []
    for path in tracked_text_files():
        if path == Path(__file__):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [f"{path.relative_to(ROOT)}:{n}" for n, line in enumerate(lines, 1) if FOREIGN.search(line)]
    assert not found


@pytest.mark.parametrize("line", ["see @home/me/x", '"@tmp/a"', "fixes issue ~3", "file:@@@opt/x"])
def test_the_guard_finds_what_it_looks_for(line):
    assert FOREIGN.search(line.replace("@", "/").replace("~", "#"))


@pytest.mark.parametrize("line", ["https://a.org/home/x", "src/work/table", "../tmp/x", "tmp_path / 'a'"])
def test_the_guard_lets_the_rest_pass(line):
    assert not FOREIGN.search(line)


def test_the_lock_names_public_hosts_only():
    text = (ROOT / "uv.lock").read_text(encoding="utf-8")
    hosts = set(re.findall(r"(?:https?|file)://([^/\"]*)", text))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}
    assert len(text) < 1000 * 1024
    assert "torch" not in re.findall(r'^name = "(.*)"$', text, re.MULTILINE)


def test_modules_are_short():
    lengths = {path.relative_to(ROOT): path.read_text(encoding="utf-8").count("\n") for path in MODULES}
    long = {str(path): length for path, length in lengths.items() if length > MAX_LINES}
    assert not long, f"modules past {MAX_LINES} lines: is there a second idea in each?"


def test_every_public_method_says_what_it_does_or_a_base_class_does():
    classes = [
        n for path in MODULES for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ClassDef)
    ]
    methods = [(c, m) for c in classes for m in c.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")]
    said = {(c.name, m.name) for c, m in methods if ast.get_docstring(m) or ".setter" in ast.unparse(m)}

    def says(name: str, method: str) -> bool:
        bases = (ast.unparse(base).split("[")[0] for c in classes if c.name == name for base in c.bases)
        return (name, method) in said or any(says(base.rpartition(".")[2], method) for base in bases)

    assert not [f"{c.name}.{m.name}" for c, m in methods if not c.name.startswith("_") and not says(c.name, m.name)]


def test_only_the_command_line_prints():
    printing = []
    for path in MODULES:
        calls = (n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call))
        names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
        if names & {"print", "exit", "quit"} and PACKAGE / "cli" not in path.parents:
            printing.append(str(path.relative_to(ROOT)))
    assert not printing


def test_package_data():
    assert (PACKAGE / "py.typed").is_file()
    assert (PACKAGE / "evaluation" / "report.html").is_file()


def test_every_import_contract_module_exists_and_every_part_has_a_floor(pyproject):
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    floors = next(contract for contract in contracts if contract["id"] == "floors")["layers"]
    listed = {name.strip() for floor in floors for name in floor.split("|")}
    parts = {m.name for m in pkgutil.iter_modules(vertinumpyro.__path__)} - {"__main__"}
    assert listed == {f"vertinumpyro.{part}" for part in parts}


def test_the_version_is_the_same_everywhere(pyproject):
    version = pyproject["project"]["version"]
    assert vertinumpyro.__version__ == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_groups_mirror_extras(pyproject):
    extras, groups = pyproject["project"]["optional-dependencies"], pyproject["dependency-groups"]
    assert groups["test"] == extras["test"]
    assert groups["lint"] == extras["dev"]


def public_packages() -> list[str]:
    packages = pkgutil.walk_packages(vertinumpyro.__path__, "vertinumpyro.")
    return ["vertinumpyro", *(module.name for module in packages if module.ispkg)]


@pytest.mark.parametrize("name", public_packages())
def test_public_names_exist(name):
    package = importlib.import_module(name)
    exported = getattr(package, "__all__", [])
    assert len(set(exported)) == len(exported)
    assert [attribute for attribute in exported if not hasattr(package, attribute)] == []


def test_packages_import_without_extras():
    """In a fresh interpreter in which every optional package is missing."""
    program = (
        "import importlib, sys\n"
        "class Missing:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {OPTIONAL!r}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing)\n"
        f"for name in {public_packages()!r}:\n"
        "    package = importlib.import_module(name)\n"
        "    [getattr(package, attribute) for attribute in getattr(package, '__all__', [])]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run_tiers(folder: Path, *arguments: str) -> str:
    """What pytest says with this repository's tiers, of tests that take long, or have a long grid or fixture."""
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers =\n    promise\n    whole\n")
    cases = "import time\n\nimport pytest\n\ngrid = pytest.mark.parametrize('i', range(6))\n\n"
    cases += "def test_long(): pass\n\n@pytest.mark.promise\n@grid\ndef test_promise(i): pass\n\n"
    cases += "@grid\ndef test_grid(i): pass\n\n@grid\ndef test_unrecorded(i): pass\n\n"
    cases += "@pytest.fixture(scope='module')\ndef fitted():\n    end = time.process_time() + 0.6\n"
    cases += "    while time.process_time() < end: pass\n\ndef test_reads(fitted): pass\n\n"
    cases += "@pytest.fixture(scope='module', params=range(3))\ndef family(request): pass\n\n"
    cases += "@pytest.mark.promise\ndef test_family(family): pass\n\ndef test_reads_family(family): pass\n"
    (folder / "tests" / "test_a.py").write_text(cases)
    seconds = {"long": 50.0, "promise": 50.0, "grid": 0.45, "gone": 70.0, "reads": 0.1}
    recorded = {f"tests/test_a.py::test_{name}": value for name, value in seconds.items()}
    recorded |= {"tests/test_a.py::fitted": 30.0, "tests/test_a.py::family": 20.0}
    (folder / "tests" / "durations.json").write_text(json.dumps(recorded))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist.plugin", *arguments]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}  # plugins import libraries
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True).stdout


def test_the_default_leaves_what_takes_long_to_the_whole_run_and_says_so(tmp_path):
    for by_default in (run_tiers(tmp_path, "-n", "2"), run_tiers(tmp_path)):
        # one of the promise, two of the grid, all that has no record, and what reads the family that a promise needs
        assert "11 passed" in by_default
        assert "15 tests, about 302 s of a processor, are left to the whole run: pytest -m whole" in by_default
    assert "15 passed" in run_tiers(tmp_path, "-m", "whole")
    assert "12 passed" in run_tiers(tmp_path, "-m", "not whole", "tests", "tests/test_a.py::test_long")
    for everything in (("-m", "whole or not whole"), ("tests/test_a.py",)):
        assert "26 passed" in (said := run_tiers(tmp_path, *everything))
        assert "left to the whole run" not in said


def test_a_record_has_what_takes_long_and_forgets_files_that_are_gone(tmp_path):
    run_tiers(tmp_path, "tests/test_a.py::test_long", "tests/test_a.py::test_reads", "--record-durations")
    left = json.loads((tmp_path / "tests" / "durations.json").read_text())
    kept = ("test_promise", "test_grid", "test_gone", "fitted", "family")
    assert left.keys() == {f"tests/test_a.py::{name}" for name in kept}
    assert left["tests/test_a.py::fitted"] != 30.0
