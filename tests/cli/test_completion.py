"""What a shell completes: commands, options, and the names that two options take."""

import pytest
from typer.testing import CliRunner

from vertinumpyro.cli.main import BACKEND_NAMES, METHOD_NAMES, app
from vertinumpyro.cli.methods.base import METHODS
from vertinumpyro.secure import BACKENDS


def completed(line):
    """As bash asks for it: the last word of the line is the one to complete."""
    number = str(len(line.split(" ")) - 1)
    asked = {"_VERTINUMPYRO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": number}
    return CliRunner().invoke(app, [], prog_name="vertinumpyro", env=asked).output.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("vertinumpyro sche", ["schema"]),
        ("vertinumpyro schema ", ["draft", "json"]),
        ("vertinumpyro fit --res", ["--resume"]),
        ("vertinumpyro fit --method ma", ["marginals"]),
        ("vertinumpyro plan --backend c", ["crypten"]),
    ],
)
def test_words_are_completed(line, words):
    assert completed(line) == words


def test_no_name_is_forgotten():
    assert sorted(METHOD_NAMES) == sorted(METHODS)
    assert sorted(BACKEND_NAMES) == sorted(BACKENDS)
