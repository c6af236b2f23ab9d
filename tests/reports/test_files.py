"""`write_report`: one call on what a fit returned writes what the command line writes, and refuses what it must."""

import json
import re
import sys

import jax
import numpy as np
import pandas as pd
import pytest

import vertinumpyro as vnp
from tests.cli.conftest import NUM_RECORDS, SCHEMA, Project, draw_tables
from vertinumpyro.cli import commands
from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.glm import MarginalGLM, VerticalGLM
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.regression import BayesianLinearRegression, VerticalLinearRegression
from vertinumpyro.secure import FixedPoint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OF_DPVI = "noise_multiplier = 8.0\n\n[fit]\nnum_steps = 4\nbatch_size = 50\n"
TABLES = "epsilon = 20.0\n\n[mrf]\nmax_cells = 4\n"
LABEL = 'epsilon = 20.0\n\n[regression]\nlabel = "ill"\n'
MIXTURE = "[model]\nnum_components = 2\n\n"
SETTINGS = {
    "dpvi": (OF_DPVI, MIXTURE),
    "marginals": (TABLES, MIXTURE),
    "vertimrf": (TABLES + "iterations = 20\n", ""),
    "quality": (TABLES + '\n[quality]\ntwin = "twin.csv"\n', ""),
    "logistic": (LABEL, ""),
    "linear": (LABEL.replace("ill", "age"), ""),
}
OF_THE_RUN = {
    "privacy.json.lock",
    "config.toml",
    "schema.toml",
    "report.html",
}  # the command's own, and what the test moves away
SUMS = {"moments.npz", "checkpoint.npz"}  # kept by the run alone
LATER_NAME = {"released.npz": "marginals.npz"}  # as `Marginals.save` calls it


def twin_of_nobody() -> pd.DataFrame:
    tables = draw_tables()
    joined = tables["insurer"].merge(tables["clinic"], on="person").drop(columns="person")
    return joined.sample(frac=1.0, random_state=1)


@pytest.fixture(scope="module", params=SETTINGS)
def run(request, tmp_path_factory):
    """The project of a complete fit by the command line, and what the fit returned."""
    if request.param == "vertimrf" and not has_engine():
        pytest.skip("the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")
    project = Project.create(tmp_path_factory.mktemp(request.param))
    settings, model = SETTINGS[request.param]
    project.replace(OF_DPVI, settings)
    project.replace(MIXTURE, model)
    twin_of_nobody().to_csv(project.folder / "twin.csv", index=False)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        write = commands.write
        patch.setattr(
            commands, "write", lambda job, result, *more: results.append((job, result)) or write(job, result, *more)
        )
        done = project.run("fit", project.config, "--method", request.param)
    assert done.exit_code == 0, done.output + done.stderr
    job, result = results[0]
    return project, result, job.method


def more_of(method) -> dict:
    """What the command knows and the result does not."""
    if method.name == "marginals":
        return {"released": method._released}
    return {"compared": method.twin()} if method.name == "quality" else {}


def headings(folder) -> list[str]:
    return re.findall(r"<h2>([^<]*)</h2>|<title>([^<]*)</title>", (folder / "report.html").read_text())


def test_one_call_writes_what_the_command_writes(run, tmp_path):
    project, result, method = run
    written = vnp.write_report(result, tmp_path / "new", backend=FixedPoint(), **more_of(method))
    names = {path.name for path in (tmp_path / "new").iterdir()}
    by_command = {LATER_NAME.get(path.name, path.name) for path in project.run_dir.iterdir()}
    assert names == set(written)
    assert names | OF_THE_RUN == (by_command - SUMS) | OF_THE_RUN
    assert headings(tmp_path / "new") == headings(project.run_dir)
    mine, theirs = read_record(tmp_path / "new" / "privacy.json"), read_record(project.run_dir / "privacy.json")
    assert mine == theirs
    if "synthetic.parquet" in names:
        twin = pd.read_parquet(tmp_path / "new" / "synthetic.parquet")
        assert len(twin) == NUM_RECORDS
        assert twin.dtypes.equals(pd.read_parquet(project.run_dir / "synthetic.parquet").dtypes)


def test_the_run_s_own_folder_gets_its_report_and_keeps_its_record(run):
    project, result, method = run
    folder, page = project.run_dir, (project.run_dir / "report.html").read_bytes()
    before = (folder / "privacy.json").read_bytes()
    with pytest.raises(ArgumentError, match=r"report\.html already"):
        vnp.write_report(result, folder, **more_of(method))
    assert (folder / "report.html").read_bytes() == page
    (folder / "report.html").unlink()
    vnp.write_report(result, folder, **more_of(method))
    assert (folder / "privacy.json").read_bytes() == before
    assert not (folder / "marginals.npz").exists() or method.name == "dpvi"
    (folder / "report.html").write_bytes(page)


@pytest.fixture(scope="module")
def dataset():
    return vnp.VerticalDataset.from_frames(vnp.Schema.from_dict(tomllib.loads(SCHEMA)), draw_tables())


@pytest.fixture(scope="module")
def fitted(dataset):
    model = VerticalLinearRegression(label="age", epsilon=20.0)
    return model.fit(dataset)


def test_without_a_backend_nobody_tells_who_computed(fitted, dataset, tmp_path):
    released = vnp.release_marginals(
        dataset, vnp.VertiMRF(max_cells=4).plan(dataset, epsilon=20.0), vnp.VertiMRF(max_cells=4)
    )
    vnp.write_report(released, tmp_path / "tables")
    page = (tmp_path / "tables" / "report.html").read_text()
    assert "is not stated here" in page
    assert "A private release of tables" in page
    assert vnp.Marginals.load(tmp_path / "tables").plan == released.plan
    vnp.write_report(fitted, tmp_path / "own")
    assert "simulated, bit for bit" in (tmp_path / "own" / "report.html").read_text()


def test_what_compares_with_the_real_table_is_marked(fitted, dataset, tmp_path):
    vnp.write_report(fitted, tmp_path / "public")
    vnp.write_report(fitted, tmp_path / "internal", dataset=dataset)
    public, internal = ((tmp_path / name / "report.html").read_text() for name in ("public", "internal"))
    assert "Do not publish it" in internal
    assert "Do not publish it" not in public
    assert "Nothing in this report was computed on real data outside the mechanism" in public


def test_insecure_noise_stands_first(dataset, tmp_path):
    insecure = VerticalLinearRegression(label="age", epsilon=20.0, insecure_seed=0).fit(dataset)
    vnp.write_report(insecure, tmp_path / "seed")
    assert "this run has no privacy" in (tmp_path / "seed" / "report.html").read_text()
    assert json.loads((tmp_path / "seed" / "privacy.json").read_text())["noise"].startswith("an insecure seed")


def test_whole_records_at_no_holder(tmp_path):
    X = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    model = BayesianLinearRegression(epsilon=20.0, bounds=1.0, target_bound=3.0).fit(X, X.sum(axis=1))
    assert set(vnp.write_report(model, tmp_path / "run")) == {"coefficients.csv", "privacy.json", "report.html"}


def test_a_glm_s_coefficients_and_posterior_are_written(dataset, tmp_path):
    model = VerticalGLM(family="bernoulli", label="ill", features=["age"], epsilon=20.0)
    assert "not fitted" in refusal(model, tmp_path / "unfitted")
    model = model.set_params(plan_settings={"num_steps": 2}, curvature=False).fit(dataset)
    written = vnp.write_report(model, tmp_path / "run")
    assert set(written) == {"coefficients.csv", "posterior.npz", "privacy.json", "report.html"}
    assert list(pd.read_csv(tmp_path / "run" / "coefficients.csv")["estimate"]) == pytest.approx(
        [model.intercept_, *model.coef_]
    )
    assert "A private regression of ill" in (tmp_path / "run" / "report.html").read_text()


def test_a_glm_from_tables_is_written_with_its_tables(dataset, tmp_path):
    model = MarginalGLM(schema=dataset.schema, family="bernoulli", label="ill", features=["plan"])
    released = model.release(dataset, model.plan(dataset, epsilon=20.0))
    found = model.fit(released, jax.random.key(0), num_samples=10)
    assert "GLMPosterior that its fit returned" in refusal(model, tmp_path / "unfitted")
    written = vnp.write_report(found, tmp_path / "run", released=released)
    assert {"coefficients.csv", "posterior.npz", "privacy.json", "report.html"} < set(written)
    assert set(written) == {path.name for path in (tmp_path / "run").iterdir()}
    assert list(pd.read_csv(tmp_path / "run" / "coefficients.csv")["term"]) == list(found.draws())
    other = model.release(dataset, model.plan(dataset, epsilon=20.0))
    assert "of another plan" in refusal(found, tmp_path / "other", released=other)


def refusal(result, folder, **more) -> str:
    with pytest.raises(ArgumentError) as error:
        vnp.write_report(result, folder, **more)
    assert not folder.exists()
    return str(error.value)


def test_refused_folders_stay_as_they_are(fitted, dataset, tmp_path):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "party.toml").write_text("mine")
    with pytest.raises(ArgumentError, match="holds something else"):
        vnp.write_report(fitted, tmp_path / "keys")
    with pytest.raises(ArgumentError, match="is a file"):
        vnp.write_report(fitted, tmp_path / "keys" / "party.toml")
    other = VerticalLinearRegression(label="age", epsilon=20.0).fit(dataset, run_dir=tmp_path / "other")
    assert other.plan_ != fitted.plan_
    with pytest.raises(PlanSpentError, match="another plan"):
        vnp.write_report(fitted, tmp_path / "other")
    assert {path.name for path in (tmp_path / "other").iterdir()} == {
        "privacy.json",
        "privacy.json.lock",
        "moments.npz",
    }
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["party.toml"]


@pytest.mark.parametrize(
    ("result", "more", "message"),
    [
        (3, {}, "result is of type int"),
        (VerticalLinearRegression(label="age"), {}, "not fitted"),
        (VerticalLinearRegression(label="age"), {"num_synthetic": 0}, "num_synthetic=0"),
        (VerticalLinearRegression(label="age"), {"rng_key": 3}, "rng_key"),
        (VerticalLinearRegression(label="age"), {"compared": {"age": [1.0]}}, "compared is a twin"),
    ],
)
def test_wrong_arguments_write_nothing(result, more, message, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        vnp.write_report(result, tmp_path / "new", **more)
    assert not (tmp_path / "new").exists()
