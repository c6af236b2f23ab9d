"""The command line with models that draw no table by themselves, or one of some columns."""

import json

import pandas as pd
import pytest

from tests.cli.conftest import Project, one_line

MODELS = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import vertinumpyro as vnp


def conditional(data, num_records):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("ill", dist.Bernoulli(logits=b[0] + b[1] * data["age"]), obs=data["ill"])


def partial(data, num_records):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    q = numpyro.sample("q", dist.Beta(1.0, 1.0))
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("ill", dist.Bernoulli(q), obs=data["ill"])
    with vnp.party_plate("insurer", num_records):
        numpyro.sample("plan", dist.Categorical(p), obs=data["plan"])


class NoDraws(dist.BernoulliProbs):
    def sample(self, key, sample_shape=()):
        raise NotImplementedError("no sampler")


def undrawable(data, num_records):
    q = numpyro.sample("q", dist.Beta(1.0, 1.0))
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("ill", NoDraws(q), obs=data["ill"])


def one_column(data, num_records):
    q = numpyro.sample("q", dist.Beta(1.0, 1.0))
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("ill", dist.Bernoulli(q), obs=data["ill"])
"""


def use(project: Project, function: str, diagnostics: bool = False) -> None:
    (project.folder / "models_of_test.py").write_text(MODELS)
    project.replace("num_components = 2", f'function = "models_of_test:{function}"')
    if diagnostics:
        project.config.write_text(project.config.read_text() + "\n[run]\ndiagnostics = true\n")


@pytest.mark.parametrize("diagnostics", [False, True])
def test_a_conditional_model_ends_in_its_posterior(project: Project, diagnostics: bool):
    use(project, "conditional", diagnostics)
    for command in ("plan", "check"):
        shown = project.run(command, project.config)
        assert shown.exit_code == 0, shown.stderr
        assert "this model reads 'age' and does not draw it" in one_line(shown.stderr)
    fitted = project.run("fit", project.config)
    assert fitted.exit_code == 0, fitted.stderr
    assert "reads 'age'" in one_line(fitted.stderr)
    assert "no synthetic table" in fitted.stdout
    assert "synthetic.csv" not in fitted.stdout
    assert sorted(path.name for path in project.run_dir.glob("*.[nhc]*")) == [
        "checkpoint.npz",
        "posterior.npz",
        "report.html",
    ]
    assert json.loads((project.run_dir / "privacy.json").read_text())["status"] == "finished"
    report = (project.run_dir / "report.html").read_text()
    assert "reads &#x27;age&#x27;" in report or "reads &#39;age&#39;" in report or "reads 'age'" in report
    assert "this synthetic table" not in report
    again = project.run("fit", project.config, "--resume")
    assert again.exit_code == 0, again.stderr
    refused = project.run("synthesize", project.run_dir, "--out", project.folder / "t.csv", "--trust-model")
    assert refused.exit_code == 2
    assert "the model reads 'age'" in one_line(refused.stderr)


def test_a_model_that_cannot_be_drawn_from_ends_in_its_posterior(project: Project):
    use(project, "undrawable")
    fitted = project.run("fit", project.config)
    assert fitted.exit_code == 0, fitted.stderr
    assert "NotImplementedError: no sampler" in one_line(fitted.stderr)
    assert "no synthetic table" in fitted.stdout
    assert (project.run_dir / "posterior.npz").exists()
    assert not list(project.run_dir.glob("synthetic.*"))


@pytest.mark.parametrize(("function", "columns"), [("partial", ["plan", "ill"]), ("one_column", ["ill"])])
def test_a_table_of_some_columns_is_written_as_it_is(project: Project, function: str, columns: list[str]):
    use(project, function, diagnostics=True)
    fitted = project.run("fit", project.config)
    assert fitted.exit_code == 0, fitted.stderr
    assert "will lack" in one_line(fitted.stderr)
    assert list(pd.read_csv(project.run_dir / "synthetic.csv").columns) == columns
    drawn = project.run("synthesize", project.run_dir, "-n", 200, "--out", project.folder / "t.csv", "--trust-model")
    assert drawn.exit_code == 0, drawn.stderr
    assert list(pd.read_csv(project.folder / "t.csv").columns) == columns
