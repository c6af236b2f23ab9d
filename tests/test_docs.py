"""The documentation: what its pages are made from explains every key, and the commands that they show exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from vertinumpyro.cli.main import app
from vertinumpyro.cli.party_file import PartyFile, PolicySettings
from vertinumpyro.cli.schema_commands import config_schema
from vertinumpyro.data.schema_parsing import columns_schema, properties

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])
BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def keys():
    for section, table in config_schema()["properties"].items():
        if section != "schema":
            yield from ((f"[{section}] {key}", spec) for key, spec in table["properties"].items())
    column = columns_schema()["properties"]["parties"]["additionalProperties"]["properties"]["columns"]
    for case in column["additionalProperties"]["allOf"]:
        name = case["if"]["properties"]["type"]["const"]
        own = case["then"]["properties"].items()
        yield from ((f"{name} {key}", spec) for key, spec in own if key not in ("type", "confirmed"))
    yield from ((f"[policy] {key}", spec) for key, spec in properties(PolicySettings).items())
    yield from ((f"party.toml {key}", spec) for key, spec in properties(PartyFile).items())


def test_every_key_of_every_file_is_explained():
    found = dict(keys())
    assert len(found) > 70
    assert [name for name, spec in found.items() if len(spec.get("description", "")) < 10] == []


def shown_commands():
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("vertinumpyro "):
                    yield pytest.param(line.partition(" #")[0], id=f"{page.parent.name}/{page.name}: {line[:60]}")


@pytest.mark.parametrize("line", list(shown_commands()))
def test_commands_that_pages_show_exist(line):
    command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not getattr(command, "commands", None), f"{line!r} names no command"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert [word for word in words if word.startswith("-") and word.partition("=")[0] not in options] == []


def test_reference_pages_are_written_from_the_code(tmp_path):
    # in a process of its own: other tests add encoders of theirs
    subprocess.run([sys.executable, ROOT / "docs/reference_pages.py", tmp_path], check=True)
    pages = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert sorted(pages) == ["commands.md", "config.md", "party.md", "schema.md"]
    stored = {name: (ROOT / "docs/reference" / name).read_text(encoding="utf-8") for name in pages}
    stale = [name for name, text in pages.items() if name != "commands.md" and text != stored[name]]
    assert not stale, "python docs/reference_pages.py writes them anew"
    for key in {key for key, _ in keys()} - {"party.toml path", "party.toml policy"}:
        assert any(f"`{key.split()[-1]}`" in page for page in pages.values()), key
    for command in ("fit", "study approve", "schema draft"):
        assert f"## `vertinumpyro {command}`" in pages["commands.md"]


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+?\.md)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def tables(page):
    """Runs of lines that begin with a bar, outside of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for run in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        yield [re.sub(r"`[^`]*`", "", line).replace(r"\|", "").strip() for line in run.splitlines()]


@pytest.mark.parametrize(
    "page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=lambda page: f"{page.parent.name}/{page.name}"
)
def test_tables_are_whole(page):
    """A blank line within a table would make text of the rows below it."""
    for lines in tables(page):
        assert re.fullmatch(r"\|(:?-+:?\|)+", lines[1] if len(lines) > 1 else ""), lines[0]
        assert {line.count("|") for line in lines} == {lines[0].count("|")}, lines[0]
