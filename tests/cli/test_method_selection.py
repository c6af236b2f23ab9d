"""Which method runs where nobody names one, and that it says why."""

import re

import pytest

from tests.cli.conftest import Project, one_line
from vertinumpyro.cli import job as method_selection
from vertinumpyro.cli.config import load_config
from vertinumpyro.cli.job import chosen
from vertinumpyro.cli.methods import tables
from vertinumpyro.core.errors import ArgumentError

OWN_FIT = "noise_multiplier = 8.0\n\n[fit]\nnum_steps = 4\nbatch_size = 50\n"
MODEL = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import vertinumpyro as vnp


def {name}(data, num_records):
    rate = numpyro.sample("rate", dist.Beta(1.0, 1.0))
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("ill", dist.Bernoulli(rate), obs=data["ill"])
    with vnp.party_plate("insurer", num_records):
        numpyro.sample("visits", dist.Binomial(9, {probs}), obs=data["visits"])
"""


@pytest.fixture
def project(tmp_path):
    made = Project.create(tmp_path)
    made.replace(OWN_FIT, "epsilon = 3.0\n")
    return made


@pytest.fixture
def engine(monkeypatch, request):
    """Whether the engine of Markov fields is there."""
    if request.param:
        pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")
    for module in (method_selection, tables):
        monkeypatch.setattr(module, "has_engine", lambda: request.param)


def of(project):
    return chosen(load_config(project.config))


@pytest.mark.parametrize("engine", [True], indirect=True)
def test_a_field_without_a_model_and_tables_with_one(project, engine):
    assert of(project).name == "marginals"
    project.replace("num_components = 2", "")
    assert of(project).name == "vertimrf"
    assert "Markov field" in of(project).why


@pytest.mark.parametrize("engine", [False], indirect=True)
def test_without_the_engine_the_mixture_and_what_to_install(project, engine):
    project.replace("num_components = 2", "")
    name, why = of(project)
    assert name == "marginals"
    assert "vertinumpyro[mrf]" in why


@pytest.mark.parametrize("engine", [False], indirect=True)
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("epsilon = 3.0", "noise_multiplier = 8.0", r"\[privacy\] noise_multiplier"),
        ("epsilon = 3.0", "epsilon = 3.0\n[fit]\nnum_steps = 3", r"\[fit\] num_steps"),
    ],
)
def test_dpvi_where_the_settings_are_its_own(project, engine, old, new, why):
    project.replace(old, new)
    assert of(project).name == "dpvi"
    assert re.search(why, of(project).why)


@pytest.mark.parametrize("engine", [False], indirect=True)
@pytest.mark.parametrize(
    ("probs", "name"), [("rate", "marginals"), ('jnp.where(jnp.asarray(data["plan"]) == 0, rate, 0.5)', "dpvi")]
)
def test_a_model_that_reads_what_it_does_not_draw_has_no_tables(project, engine, probs, name):
    (project.folder / f"model_{name}.py").write_text(MODEL.format(name="health", probs=probs))
    project.replace("num_components = 2", f'function = "model_{name}:health"')
    assert of(project).name == name
    assert name == "marginals" or "'plan'" in of(project).why


@pytest.mark.parametrize("engine", [True], indirect=True)
@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ('[mrf]\nworkload = ["star:il"]', "workload: the schema has no column 'il'"),
        ("[mrf]\nmemory_limit = 1000", "memory_limit"),
        ('[fit]\nnum_steps = 3\n[mrf]\nworkload = ["star:ill"]', r"\[mrf\] workload .*taken as \[fit\] num_steps"),
        ('[run]\nmethod = "dpvi"\n[mrf]\nmax_cells = 4', r"\[mrf\] max_cells is nothing that --method dpvi reads"),
        ('[run]\nmethod = "vertimrf"\n[regression]\nridge = 2.0', r"\[regression\] ridge .*vertimrf"),
        ('[run]\nmethod = "logistic"\n[regression]\nlabel = "ill"\n[mrf]\nmax_cells = 4', r"\[mrf\] max_cells"),
        ('[run]\nmethod = "dpvi"\n[quality]\ntwin = "twin.csv"', r"\[quality\] twin"),
    ],
)
def test_no_other_method_is_taken_for_a_setting_that_it_would_not_read(project, engine, setting, why):
    project.replace("num_components = 2", "")
    project.replace("epsilon = 3.0", f"epsilon = 3.0\n{setting}")
    for command in ("plan", "check", "fit"):
        found = project.run(command, project.config)
        assert found.exit_code != 0
        assert re.search(why, one_line(found.stderr).replace("│ ", ""))
    assert not (project.folder / "run").exists()


@pytest.mark.parametrize("engine", [True], indirect=True)
def test_a_column_too_wide_for_tables_is_counted_in_groups_and_named(project, engine):
    project.replace("num_components = 2", "")
    schema = project.folder / "schema.toml"
    wide = ", ".join(f'"v{i}"' for i in range(2000))
    columns = [
        f'[parties.clinic.columns.{name}]\ntype = "categorical"\ncategories = [{wide}]' for name in ("town", "code")
    ]
    schema.write_text("\n".join([schema.read_text(), *columns]))
    project.replace("[data.files]", "[data]\nnum_records = 500\n[data.files]")
    text = one_line(project.run("plan", project.config).output)
    assert "Method: vertimrf" in text
    assert re.search(r"counted in groups *\d+ of neighbours: town, code", text)


def test_the_configuration_may_name_it_and_a_regression_must_be_named(project):
    project.replace("epsilon = 3.0", 'epsilon = 3.0\n[run]\nmethod = "dpvi"')
    assert of(project) == ("dpvi", "[run] method says so")
    project.replace('[run]\nmethod = "dpvi"', '[regression]\nlabel = "ill"')
    with pytest.raises(ArgumentError, match="--method logistic"):
        of(project)


@pytest.mark.parametrize("engine", [False], indirect=True)
def test_plan_says_which_and_why_unless_it_was_asked_for(project, engine):
    text = one_line(project.run("plan", project.config).output)
    assert "Method: marginals. Tables are paid for once" in text
    assert "Method:" not in project.run("plan", project.config, "--method", "dpvi").output
