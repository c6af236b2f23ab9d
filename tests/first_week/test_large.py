"""Tables, schemas and disks beyond what a laptop's example has."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import Project, draw_tables, one_line

ROWS, COLUMNS = 2_000_000, 250

ON_A_FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
from vertinumpyro.cli.main import main
main()
"""


def test_one_value_among_two_million_records(project: Project):
    pytest.importorskip("pyarrow")
    small = draw_tables(1000)
    for party, table in small.items():
        large = pd.DataFrame({name: np.resize(table[name].to_numpy(), ROWS) for name in table.columns[1:]})
        large.insert(0, "person", np.arange(ROWS))
        if party == "clinic":
            large.loc[ROWS - 1, "age"] = 777.125
        large.to_parquet(project.folder / f"{party}.parquet")
    project.config.write_text(project.config.read_text().replace(".csv", ".parquet"))
    message = project.fails("check", project.config)
    assert "party 'clinic', column 'age': holds a value outside the public bounds" in message
    assert "777" not in message


def wide(project: Project) -> None:
    ids = [f"p{number}" for number in range(40)]
    schema = ['id_column = "person"']
    for party in ("insurer", "clinic"):
        names = [f"{party}{number}" for number in range(COLUMNS)]
        pd.DataFrame({"person": ids, **dict.fromkeys(names, 3)}).to_csv(project.folder / f"{party}.csv", index=False)
        schema += [f'[parties.{party}.columns.{name}]\ntype = "integer"\nbounds = [0, 4]' for name in names]
    (project.folder / "schema.toml").write_text("\n".join(schema))
    project.config.write_text(project.config.read_text().replace("noise_multiplier = 8.0", "epsilon = 1.0"))


def test_some_mistakes_among_five_hundred_columns(project: Project):
    wide(project)
    schema = project.folder / "schema.toml"
    right = schema.read_text()
    schema.write_text(
        right.replace("insurer7]\ntype", "insurer7]\ntypo").replace('clinic249]\ntype = "integer"\n', "clinic249]\n")
    )
    message = project.fails("check", project.config)
    assert "2 mistakes in the schema" in message
    assert "column 'insurer7': has no type" in message
    assert "line 1499, party 'clinic', column 'clinic249': has no type" in message
    schema.write_text(right)
    table = pd.read_csv(project.folder / "clinic.csv").rename(columns={"clinic77": "clinic_77"})
    table.to_csv(project.folder / "clinic.csv", index=False)
    assert "column 'clinic77': is not in the table; add it, or rename it (did you mean 'clinic_77'?)" in project.fails(
        "check", project.config
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of files there")
def test_a_full_disk_spends_nothing(project: Project):
    command = [sys.executable, "-c", ON_A_FULL_DISK, "fit", str(project.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "File too large" in one_line(done.stderr)
    record = project.run_dir / "privacy.json"
    assert not record.exists() or json.loads(record.read_text())["steps_spent"] == 0
