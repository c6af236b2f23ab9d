import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from vertinumpyro.cli.main import app

NUM_RECORDS = 200

SCHEMA = """
id_column = "person"

[parties.insurer.columns.plan]
type = "categorical"
categories = ["a", "b", "c"]

[parties.insurer.columns.visits]
type = "integer"
bounds = [0, 9]

[parties.clinic.columns.age]
type = "real"
bounds = [0, 100]

[parties.clinic.columns.ill]
type = "binary"
"""

SETTINGS = """
schema = "schema.toml"

[data.files]
insurer = "insurer.csv"
clinic = "clinic.csv"

[model]
num_components = 2

[privacy]
noise_multiplier = 8.0

[fit]
num_steps = 4
batch_size = 50
"""


def draw_tables(num_records: int = NUM_RECORDS) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    ids = [f"p{i:04d}" for i in range(num_records)]
    age = rng.uniform(18, 90, num_records).round(1)
    ill = (rng.random(num_records) < age / 150).astype(int)
    visits = np.clip(rng.poisson(1 + 3 * ill), 0, 9)
    plans = rng.choice(["a", "b", "c"], num_records)
    return {
        "insurer": pd.DataFrame({"person": ids, "plan": plans, "visits": visits}),
        "clinic": pd.DataFrame({"person": ids, "age": age, "ill": ill}),
    }


@dataclasses.dataclass(frozen=True)
class Project:
    """A folder with a configuration and two parties' files, and the command line to use on it."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> "Project":
        project = cls(folder)
        (folder / "schema.toml").write_text(SCHEMA)
        project.config.write_text(SETTINGS)
        project.write_tables(draw_tables())
        return project

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def write_tables(self, tables: dict[str, pd.DataFrame]) -> None:
        for party, table in tables.items():
            table.to_csv(self.folder / f"{party}.csv", index=False)

    def replace(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new, 1))

    def run(self, *arguments: object):
        return invoke(*arguments)

    def fails(self, *arguments: object) -> str:
        """The message of a command that must fail, on one line, with nothing spent."""
        result = self.run(*arguments)
        assert result.exit_code == 2, result.output
        assert not list(self.folder.rglob("privacy.json"))
        assert "Traceback" not in result.output
        return one_line(result.stderr)


def invoke(*arguments: object):
    """Run the command line as on a wide terminal without colours."""
    return CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(app, [str(argument) for argument in arguments])


def one_line(text: str) -> str:
    """The text of a panel without its frame."""
    return " ".join(text.replace("│", " ").split())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.create(tmp_path)


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose fit is complete; tests only read it."""
    project = Project.create(tmp_path_factory.mktemp("fitted"))
    result = project.run("fit", project.config)
    assert result.exit_code == 0, result.output + result.stderr
    (project.folder / "terminal.txt").write_text(result.output)
    return project


def copied(fitted: Project, project: Project) -> Project:
    """The project with a folder of the complete run, to change."""
    shutil.copytree(fitted.run_dir, project.run_dir)
    return project


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """Another current folder than the project's."""
    folder, before = tmp_path / "elsewhere", Path.cwd()
    folder.mkdir()
    os.chdir(folder)
    yield folder
    os.chdir(before)
