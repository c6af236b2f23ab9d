"""The JSON schemas take what the library takes, and mark what it refuses for its keys and types."""

import json
import sys

import jsonschema  # nbformat brings it
import pytest

from tests.cli.conftest import SCHEMA, SETTINGS, Project
from vertinumpyro.cli.schema_commands import config_schema
from vertinumpyro.data import Schema
from vertinumpyro.data.schema_parsing import columns_schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EVERY_TYPE = """
id_column = "nr"

[parties.a.columns.age]
type = "integer"
bounds = [0, 120]
bins = 12
confirmed = true

[parties.a.columns.height]
type = "real"
bounds = [50, 230]
missing = "mask"
decimals = 1

[parties.a.columns.weight]
type = "real"
edges = [0, 50, 80, 200]
out_of_bounds = "clip"

[parties.b.columns.visits]
type = "count"
upper = 30

[parties.b.columns.plan]
type = "categorical"
categories = ["a", "b"]
unknown = "b"

[parties.b.columns.ill]
type = "binary"

[parties.b.columns.since]
type = "date"
bounds = ["2019-01-01", "2023-12-31"]
unit = "month"
"""


@pytest.mark.parametrize("text", [SCHEMA, EVERY_TYPE])
def test_a_schema_is_taken(text: str):
    Schema.from_toml(text)
    jsonschema.validate(tomllib.loads(text), columns_schema())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('type = "count"', 'type = "counts"'),
        ('type = "count"\n', ""),
        ("upper = 30", "uper = 30"),
        ("upper = 30", 'upper = "30"'),
        ("[0, 120]", "[0, 60, 120]"),
        ("[0, 120]", "120"),
        ('"clip"', '"drop"'),
        ("confirmed = true", "confirmed = false"),
        ("id_column", "id_colum"),
    ],
)
def test_a_mistake_is_marked(old: str, new: str):
    assert old in EVERY_TYPE
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(EVERY_TYPE.replace(old, new, 1)), columns_schema())


def test_configurations():
    settings = tomllib.loads(SETTINGS)
    jsonschema.validate(settings, config_schema())
    jsonschema.validate({**settings, "schema": tomllib.loads(SCHEMA)}, config_schema())
    for section, wrong in {
        "fit": {"num_step": 4},
        "privacy": {"epsilon": 0},
        "run": {"method": "gan"},
        "data": {"files": ["a.csv"]},
        "fits": {},
    }.items():
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**settings, section: wrong}, config_schema())


def test_keys_are_described():
    described = json.dumps(columns_schema())
    assert "public (lo, hi), both included" in described
    assert "the listed category that stands for every unlisted one" in described


def test_the_command_writes_both(project: Project):
    done = project.run("schema", "json", "--out", project.folder)
    assert done.exit_code == 0, done.stderr
    assert "#:schema ./schema.schema.json" in done.output
    assert json.loads((project.folder / "config.schema.json").read_text()) == config_schema()
    assert "there is no such folder" in project.fails("schema", "json", "--out", project.folder / "gone")
