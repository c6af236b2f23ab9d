"""How large the library is, and how far it is through it: modules, lines, circles, and calls of traced runs.

    python benchmarks/house.py --quick
    python benchmarks/house.py --json results/house.json [--checkout ../before] [--most-called 25]

Modules and lines are all `*.py` files of `vertinumpyro/` and their lines as `wc -l` counts them. The median leaves out
packages' `__init__` that are a docstring, imports and `__all__`. A module below 80 lines says why in a line of its
docstring that begins "Short because"; those that do not are listed. Circles are the strongly connected components of
the imports between modules, those under TYPE_CHECKING and within functions included; an import from a package's
`__init__` is one of the module that the name comes from. Docstrings are counted by style: `:param x:` fields, which are
wanted, and Google's sections.

A journey is one traced fit of a small table (400 records and ten columns of RAND HIE) in a process of its own, which
imports everything first. Counted are the calls of functions whose file is the package's, as `sys.setprofile` reports
them: a lambda and, up to Python 3.11, a list, set or dict comprehension is a function; a generator counts once each
time it goes on. Counts differ by some hundred from run to run, with what is random. The party is one process of DPVI
under CrypTen from when it starts. A training step's files are those with functions that run from one chunk of DPVI's
steps to the next, when all programs are there, and the kernel that jax has traced. What lacks an engine is left out.

Keys:

house.modules, lines, median, circles      circles: their number in all packages
house.circles_in.<package>                 circles with a module of the package
house.short                                modules below 80 lines that do not say why
house.docstrings.{fields, google}          docstrings of each style
house.<journey>.{files, functions, calls}  dpvi, crypten_party, tables (a release and a model learned from it), cli_fit,
                                           vertical_glm; null without its engine, or with `--only` others
house.step.{files, functions, calls}       a training step
house.passed                               all targets that could be asked; the exit status is 1 where one failed
settings, environment

`--quick` is the whole run. `--checkout` counts another checkout of this project.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import environment, finish, parser
from house_parts.layout import Layout
from tqdm.auto import tqdm

_HERE = Path(__file__).resolve().parents[1]
_JOURNEYS = Path(__file__).resolve().parent / "house_parts" / "journeys.py"

NEEDS = {
    "dpvi": ("statsmodels",),
    "crypten_party": ("statsmodels", "crypten"),
    "tables": ("statsmodels", "mbi"),
    "cli_fit": ("statsmodels", "mbi", "matplotlib"),
    "vertical_glm": ("statsmodels", "sklearn"),
}
MOST = {
    "modules": 235,
    "lines": 48_000,
    "circles_in.secure": 0,
    "circles_in.dpvi": 0,
    "docstrings.google": 0,
    "vertical_glm.calls": 9_000,
    "dpvi.calls": 6_000,
    "step.files": 6,
    "crypten_party.files": 90,
    "cli_fit.files": 75,
}
LEAST = {"median": 180}

Calls = Mapping[str, int]


def layout(checkout: Path) -> dict[str, Any]:
    """What the source says."""
    found = Layout.of(checkout / "vertinumpyro")
    circles = found.circles()
    for circle in circles:
        print(f"circle of {len(circle)}: {', '.join(circle)}")
    for module in found.short_without_reason:
        print(f"short, and does not say why: {module.name} ({module.lines} lines)")
    packages = sorted({name.split(".")[1] for name in found.modules if name.count(".") > 0})
    return {
        "modules": len(found.modules),
        "lines": found.lines,
        "median": found.median,
        "circles": len(circles),
        "circles_in": {p: sum(any(n.split(".")[1] == p for n in c) for c in circles) for p in packages},
        "short": len(found.short_without_reason),
        "docstrings": found.styles,
    }


def journey(name: str, checkout: Path) -> dict[str, Calls]:
    """Calls by function of one traced run, under its name; nothing without its engine."""
    if missing := [library for library in NEEDS[name] if find_spec(library) is None]:
        print(f"{name}: left out, {' and '.join(missing)} not installed")
        return {}
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        file = Path(folder) / "calls.json"
        path = os.pathsep.join([str(checkout), str(_JOURNEYS.parents[1])])
        subprocess.run(
            [sys.executable, "-W", "ignore", str(_JOURNEYS), name, str(file)],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": path},
        )
        return json.loads(file.read_text())


def counts(calls: Calls | None) -> dict[str, int | None]:
    """The figures of a trace."""
    if calls is None:
        return dict.fromkeys(("files", "functions", "calls"))
    return {"files": len(_files(calls)), "functions": len(calls), "calls": sum(calls.values())}


def _files(calls: Calls) -> list[str]:
    return sorted({name.partition(": ")[0] for name in calls})


def judged(house: Mapping[str, Any]) -> bool:
    """Prints every target; whether none failed."""
    passed = True
    for key, limit, sign in [*((k, v, -1) for k, v in MOST.items()), *((k, v, 1) for k, v in LEAST.items())]:
        value: Any = house
        for part in key.split("."):
            value = value[part]
        good = value is None or sign * value >= sign * limit
        passed &= good
        said = "skipped" if value is None else "pass" if good else "FAIL"
        print(f"{said:8}{key}: {value}, {'at least' if sign > 0 else 'at most'} {limit}")
    return passed


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--checkout", type=Path, default=_HERE, help="another checkout of this project")
    arguments.add_argument("--most-called", type=int, default=0, metavar="N", help="also print so many functions")
    arguments.add_argument("--only", nargs="+", choices=NEEDS, default=NEEDS, help="some journeys")
    args: argparse.Namespace = arguments.parse_args()
    checkout = args.checkout.resolve()
    house = layout(checkout)
    house |= {name: counts(None) for name in (*NEEDS, "step")}
    for name in tqdm(args.only, unit="journey"):
        found = journey(name, checkout)
        for key, calls in found.items():
            house[key] = counts(calls)
            print(f"{key}: {house[key]}")
            if key == "step":
                print(f"files of a step: {', '.join(_files(calls))}")
            for function in list(calls)[: args.most_called]:
                print(f"{calls[function]:8} {function}")
    house["passed"] = judged(house)
    finish({"house": house, "settings": {"checkout": checkout.name}, "environment": environment()}, args, {})
    if not house["passed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
