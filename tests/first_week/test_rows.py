"""From raw files with many rows of a person to a twin with one row each."""

from pathlib import Path

import numpy as np
import pandas as pd

from tests.cli.conftest import invoke
from vertinumpyro.cli import schema_commands
from vertinumpyro.data import CsvFormat, Schema
from vertinumpyro.data.streaming import count_common


def test_claims_of_persons_become_a_twin_of_persons(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(schema_commands.console, "width", 80)
    rng = np.random.default_rng(0)
    person = rng.permutation(np.repeat(np.arange(300), rng.integers(0, 5, 300)))
    claims = pd.DataFrame({"nr": person, "amount": rng.gamma(2.0, 40.0, len(person)).round(2)})
    claims["ward"] = rng.choice(["east", "west"], len(person))
    claims.to_csv(tmp_path / "claims.csv", index=False)
    persons = pd.DataFrame({"nr": range(300), "sex": rng.choice(["f", "m"], 300)})
    persons.to_csv(tmp_path / "persons.csv", index=False)
    schema, config = tmp_path / "schema.toml", tmp_path / "config.toml"
    for party in ("claims", "persons"):
        drafted = invoke("schema", "draft", tmp_path / f"{party}.csv", "--party", party, "--id", "nr", "--out", schema)
        assert drafted.exit_code == 0, drafted.output + drafted.stderr
        assert ("The epsilon is then a person's" in " ".join(drafted.output.split())) == (party == "claims")
        lines = [line for line in drafted.output.splitlines() if str(tmp_path) not in line]
        assert max(len(line.rstrip()) for line in lines) <= 80
    schema.write_text(schema.read_text().replace("confirmed = false", "confirmed = true"))
    files = "\n".join(f'{party} = "{party}.csv"' for party in ("claims", "persons"))
    config.write_text(f'schema = "schema.toml"\n[data.files]\n{files}\n[privacy]\nepsilon = 50.0\ndelta = 1e-5\n')
    planned = invoke("plan", config)
    assert planned.exit_code == 0, planned.output + planned.stderr
    paths = {party: tmp_path / f"{party}.csv" for party in ("claims", "persons")}
    assert count_common(Schema.from_toml(schema), paths, dict.fromkeys(paths, CsvFormat())) == 300
    fitted = invoke("fit", config, "--out", tmp_path / "run")
    assert fitted.exit_code == 0, fitted.output + fitted.stderr
    twin = pd.read_csv(tmp_path / "run" / "synthetic.csv")
    assert len(twin) == 300
    assert abs(twin["num_rows"].mean() - len(person) / 300) < 0.3
    without = twin["num_rows"] == 0  # has nothing that follows from rows
    assert without.sum() > 20
    assert twin.loc[without, ["amount", "ward"]].isna().all(axis=None)
    assert abs(twin["amount"].isna().mean() - (1 - claims["nr"].nunique() / 300)) < 0.05
