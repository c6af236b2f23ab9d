import re
from pathlib import Path

from vertinumpyro import mrf


def test_all_is_sorted_and_complete():
    assert sorted(mrf.__all__) == list(mrf.__all__)
    assert all(getattr(mrf, name).__doc__ for name in mrf.__all__)


def test_one_module_knows_the_engine():
    importing = re.compile(r"^\s*(import|from) mbi\b", re.MULTILINE)
    modules = Path(mrf.__file__).parent.glob("*.py")
    assert [m.name for m in modules if importing.search(m.read_text(encoding="utf-8"))] == ["field.py"]
