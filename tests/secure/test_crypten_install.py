"""CrypTen 0.4.1 today: the withdrawn package that it asks for, and the private module of torch that is gone."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vertinumpyro.core.errors import BackendError
from vertinumpyro.secure.crypten import compat, is_installed

ROOT = Path(__file__).parents[2]
needs_crypten = pytest.mark.skipif(
    not is_installed(), reason="CrypTen is not installed: pip install 'vertinumpyro[crypten]'"
)


def in_a_new_process(program):
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)


def test_the_extra_names_a_release_of_the_withdrawn_package_that_installs():
    line = re.search(r"^crypten = (.*)$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    assert '"crypten==0.4.1"' in line[1]
    assert '"sklearn==0.0"' in line[1]  # every later one is a source archive that stops the installation


@needs_crypten
def test_crypten_still_asks_for_the_withdrawn_package():
    assert any(re.match(r"sklearn\b", line) for line in importlib.metadata.requires("crypten") or ())
    assert importlib.metadata.version("sklearn") == "0.0"


@needs_crypten
def test_crypten_needs_the_private_module_that_torch_no_longer_has():
    alone = in_a_new_process("import crypten")
    assert "torch.onnx._internal.registration" in alone.stderr or alone.returncode == 0  # the latter with an old torch
    ours = in_a_new_process("from vertinumpyro.secure.crypten import compat; print(compat.load()[1].__version__)")
    assert ours.stdout.strip() == "0.4.1", ours.stderr


@needs_crypten
def test_refuses_another_release_of_crypten(monkeypatch):
    _, crypten = compat.load()
    monkeypatch.setattr(crypten, "__version__", "0.5.0")
    with pytest.raises(BackendError, match=r"needs 0\.4\.1"):
        compat.load()
