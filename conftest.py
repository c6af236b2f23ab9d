"""Which modules have their doctests collected, and how workers divide the tests among them."""

from importlib.util import find_spec
from typing import Any

import pytest

# Those that import an optional engine at once, where it is installed.
_HERE = all(find_spec(name) is not None for name in ("crypten", "torch"))
collect_ignore = (
    [] if _HERE else [f"vertinumpyro/secure/crypten/{n}.py" for n in ("bands", "engine", "fixed", "paper", "protocol")]
)

# Begun first, so that no worker is left with one of them at the end: what takes half a minute and more.
LONGEST = (
    "tests/dpvi/test_fit.py",
    "tests/dpvi/test_warm_start.py",
    "tests/dpvi/test_second_moments.py",
    "tests/test_notebooks.py",
    "tests/model/test_party_sum.py",
    "tests/mrf/test_vertimrf.py",
    "tests/posterior/test_missing_values.py",
    "tests/marginals/test_table_law.py",
    "tests/glm/test_from_tables.py",
    "tests/glm/test_curvature.py",
    "tests/model/test_under_numpyro.py",
    "tests/model/test_record_independence.py",
    "tests/dpvi/test_horizontal.py",
    "tests/marginals/test_inference.py",
    "tests/model/test_split.py",
    "tests/mrf/test_rehearsal.py",
    "tests/posterior/test_twins.py",
    "tests/cli/test_demo.py",
    "tests/cli/test_commands.py",
    "tests/posterior/test_guide.py",
    "tests/secure/test_conformance.py",
    "tests/mrf/test_encoders.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, all others stay as they are."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """`-n 2` gives a worker whole files: what a file's tests share, fits and compiled programs, is made once."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)
