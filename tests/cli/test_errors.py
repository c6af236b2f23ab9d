"""Every mistake gives one clear panel and exit code 2, before anything is spent."""

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import Project, draw_tables, one_line
from vertinumpyro.cli import commands
from vertinumpyro.model import user_code


@pytest.mark.parametrize("name", ["config.toml", "schema.toml"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp1252"])
def test_a_settings_file_in_another_encoding_is_named(project: Project, name: str, encoding: str):
    path = project.folder / name
    path.write_bytes((path.read_text() + "# für später\n").encode(encoding))
    assert f"{name} looks like {encoding} text; save it as UTF-8" in project.fails("plan", project.config)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().decode(encoding).encode())
    assert project.run("plan", project.config).exit_code == 0


MODELS = {
    "module": ("", "nowhere:health", "no module 'nowhere'"),
    "function": ("def health(data, num_records): ...", "MODULE:helth", "did you mean 'health'?"),
    "form": ("", "MODULE", 'write "module:function"'),
    "broken": ("1 / 0", "MODULE:health", "raised ZeroDivisionError"),
    "imports": ("import not_a_package", "MODULE:health", "imports 'not_a_package'"),
    "signature": (
        "def health(data): ...",
        "MODULE:health",
        "write `def model(data, num_records, num_components):`",
    ),
    "exception": (
        "def health(data, num_records, num_components): 1 / 0",
        "MODULE:health",
        "the model raised ZeroDivisionError on stand-in records",
    ),
    "raises": (
        "def health(data, num_records, num_components): data['a' * 3]",
        "MODULE:health",
        "column 'aaa'",
    ),
    "contract": (
        """
import numpyro, vertinumpyro as vnp
import numpyro.distributions as dist
def health(data, num_records, num_components):
    rate = numpyro.sample("rate", dist.Beta(1.0, 1.0))
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("ill", dist.Bernoulli(rate * data["visits"] / 10), obs=data["ill"])
""",
        "MODULE:health",
        "site 'ill' of party 'clinic' reads column 'visits' of party 'insurer'",
    ),
}


@pytest.mark.parametrize(("source", "function", "message"), MODELS.values(), ids=MODELS.keys())
def test_models(project: Project, request: pytest.FixtureRequest, source: str, function: str, message: str):
    module = f"model_{request.node.callspec.id}"
    (project.folder / f"{module}.py").write_text(source)
    project.replace("[model]", f'[model]\nfunction = "{function.replace("MODULE", module)}"')
    assert message in project.fails("check", project.config)


MODEL = """
import jax.numpy as jnp, numpyro, vertinumpyro as vnp
import numpyro.distributions as dist

def health(data, num_records, num_components=2, prior=1.0):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(num_components)))
    with numpyro.plate("components", num_components):
        ill = numpyro.sample("ill_prob", dist.Beta(prior, prior))
        plan = numpyro.sample("plan_probs", dist.Dirichlet(jnp.ones(3)))
        visits = numpyro.sample("visits_probs", dist.Dirichlet(jnp.ones(10)))
        a = numpyro.sample("age_a", dist.Gamma(1.0, 1.0))
        b = numpyro.sample("age_b", dist.Gamma(1.0, 1.0))
    with numpyro.plate("records", num_records):
        z = numpyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("ill", dist.Bernoulli(ill[z]), obs=data["ill"])
        numpyro.sample("age", dist.Beta(a[z], b[z]), obs=data["age"])
    with vnp.party_plate("insurer", num_records):
        numpyro.sample("plan", dist.Categorical(plan[z]), obs=data["plan"])
        numpyro.sample("visits", dist.Categorical(visits[z]), obs=data["visits"])
"""


def test_a_model_of_ones_own_is_found_again_from_the_run(project: Project, elsewhere):
    (project.folder / "own_model.py").write_text(MODEL)
    project.replace("[model]", '[model]\nfunction = "own_model:health"\nkwargs = {prior = 2.0}')
    fitted = project.run("fit", project.config)
    assert fitted.exit_code == 0, fitted.stderr
    drawn = project.run("synthesize", project.run_dir, "-n", 200, "--out", elsewhere / "t.csv", "--trust-model")
    assert drawn.exit_code == 0, drawn.stderr


def with_value(party: str, column: str, value: object) -> dict[str, pd.DataFrame]:
    tables = draw_tables()
    tables[party][column] = tables[party][column].astype(object)
    tables[party].loc[3, column] = value
    return tables


TABLES = {
    "NaN": ("clinic", "age", np.nan, "party 'clinic', column 'age': has missing values"),
    "out of bounds": (
        "clinic",
        "age",
        777.125,
        "party 'clinic', column 'age': holds a value outside the public bounds",
    ),
    "category": ("insurer", "plan", "zzz", "party 'insurer', column 'plan': "),
    "not whole": ("insurer", "visits", 2.5, "party 'insurer', column 'visits': holds a value that is not"),
}


@pytest.mark.parametrize(("party", "column", "value", "message"), TABLES.values(), ids=TABLES.keys())
def test_a_fit_names_what_a_table_has_wrong(project: Project, party: str, column: str, value: object, message: str):
    """What else it may be is in tests/first_week, asked of `check`."""
    project.write_tables(with_value(party, column, value))
    shown = project.fails("fit", project.config)
    assert message in shown
    assert not any(value in shown for value in ("zzz", "777"))


def test_the_parties_may_write_csv_each_in_its_own_way(project: Project):
    tables = draw_tables()
    tables["insurer"].to_csv(project.folder / "insurer.tsv", sep="\t", index=False)
    tables["clinic"].to_csv(project.folder / "clinic.csv", sep=";", decimal=",", encoding="utf-16", index=False)
    project.replace("insurer.csv", "insurer.tsv")
    told = project.fails("check", project.config)
    assert "party 'clinic': 'clinic.csv' looks like utf-16 text" in told
    assert 'separator = ";"' in told
    assert told == project.fails("plan", project.config)  # which reads the ids alone
    written = '[data]\nencoding.clinic = "utf-16"\nseparator = {clinic = ";"}\ndecimal.clinic = ","\n[data.files]'
    project.replace("[data.files]", written)
    assert project.run("plan", project.config).exit_code == 0
    fitted = project.run("fit", project.config)
    assert fitted.exit_code == 0, fitted.stderr
    assert project.run("check", project.run_dir / "config.toml").exit_code == 0


def test_a_bug_keeps_its_message_to_itself(project: Project, monkeypatch: pytest.MonkeyPatch):
    def broken(path, **_):
        raise RuntimeError("a value of somebody")

    monkeypatch.setattr(commands, "check", broken)
    result = project.run("check", project.config)
    assert result.exit_code == 70
    assert "unexpected RuntimeError" in result.stderr
    assert "somebody" not in result.output + result.stderr
    assert "somebody" in project.run("check", project.config, "--debug").stderr


def test_what_a_model_raises_only_in_a_fit_is_not_called_ours(project: Project, monkeypatch: pytest.MonkeyPatch):
    """`errors_on_stand_ins` stands for any code of ours that calls a model's, of the test here."""
    monkeypatch.setattr(commands, "check", lambda path, **_: user_code.where(_Raises()))
    result = project.run("check", project.config)
    assert result.exit_code == 2
    assert "RuntimeError at test_errors.py:" in result.stderr
    assert 'raise RuntimeError("a value of somebody")' not in result.stdout
    assert "not your doing" not in result.stderr


class _Raises:
    @property
    def __traceback__(self):
        raise RuntimeError("a value of " + "somebody")


def test_debug_shows_the_traceback(project: Project):
    project.replace("[fit]", "[fits]")
    result = project.run("plan", project.config, "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "unknown key 'fits'" in one_line(result.stderr)


def test_a_warning_is_one_line(project: Project):
    project.replace("[privacy]", "[privacy]\ndelta = 0.01")
    result = project.run("plan", project.config)
    assert result.exit_code == 0, result.stderr
    assert one_line(result.stderr).startswith("! delta=0.01 is at least 1/num_records")
