"""What a statistician gets wrong in a configuration or on the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Project, one_line

NOISE = "noise_multiplier = 8.0"
STEPS = "num_steps = 4"
MODEL = "num_components = 2"
LAST = "batch_size = 50"

SETTINGS = {
    "schema a number": ('"schema.toml"', "5", 'config.toml has no schema; add schema = "schema.toml"'),
    "schema a folder": ('"schema.toml"', '"."', "is a folder; give the file in it"),
    "file a number": ('clinic = "clinic.csv"', "clinic = 3", "[data.files] clinic = 3; give a text"),
    "files a list": ('[data.files]\ninsurer = "insurer.csv"\nclinic = "clinic.csv"', '[data]\nfiles = ["a.csv"]',
                     "[data] files = ['a.csv']; give a table"),
    "two budgets": (NOISE, f"{NOISE}\nepsilon = 1", "[privacy] needs either epsilon"),
    "epsilon zero": (NOISE, "epsilon = 0", "[privacy] epsilon = 0.0; give a number above 0"),
    "epsilon no number": (NOISE, "epsilon = nan", "[privacy] epsilon = nan; give a finite number"),
    "epsilon a text": (NOISE, 'epsilon = "1"', "[privacy] epsilon = '1'; give a number"),
    "epsilon a million": (NOISE, "epsilon = 1e6", "epsilon=1e+06 protects nobody; give at most 10000"),
    "delta zero": (NOISE, "epsilon = 1\ndelta = 0.0", "[privacy] delta = 0.0; give a number above 0"),
    "relation": (NOISE, 'epsilon = 1\nrelation = "add"', "relation = 'add'; known: '"),
    "noise": (NOISE, 'epsilon = 1\nnoise = "gauss"', "noise = 'gauss'; known: '"),
    "coalition of all": (NOISE, "epsilon = 1\ncollusion_threshold = 5", "collusion_threshold must lie between 0 and"),
    "indices": (NOISE, 'epsilon = 1\nbatch_indices = "secret"', "batch_indices = 'secret'; known: '"),
    "batch beyond N": ("batch_size = 50", "batch_size = 5000", "batch_size must lie between 1 and num_records=200"),
    "negative steps": (STEPS, "num_steps = -4", "[fit] num_steps = -4; give a number above 0"),
    "no clip": (STEPS, f"{STEPS}\nclip_norm = 0", "[fit] clip_norm = 0.0; give a number above 0"),
    "a huge clip": (STEPS, f"{STEPS}\nclip_norm = 1e30", "clip_norm 1e+30 does not fit the fixed-point formats"),
    "backend": (STEPS, f'{STEPS}\nbackend = "spdz"', "backend = 'spdz'; known: 'fixed_point'"),
    "guide": (STEPS, f"{STEPS}\nguide = 3", "[fit] guide = 3; known: 'diagonal'"),
    "rate": (STEPS, f"{STEPS}\nlearning_rate = -1", "[fit] learning_rate = -1.0; give a number above 0"),
    "block": (STEPS, f"{STEPS}\nblock_size = 0", "[fit] block_size = 0; give a number above 0"),
    "start": (STEPS, f'{STEPS}\nwarm_start = "yes"', "[fit] warm_start = 'yes'; give true or false"),
    "no component": (MODEL, "num_components = 0", "[model] num_components = 0; give a number above 0"),
    "components a text": (MODEL, 'num_components = "two"', "[model] num_components = 'two'; give a whole number"),
    "components in plenty": (MODEL, "num_components = 100000", "num_components=100000; give 1 to 2000"),
    "model a path": (MODEL, 'function = "models/health.py"', 'write "module:function"'),
    "model's folder": (MODEL, 'function = "own:model"\nfolder = "gone"', "no module 'own'; put own.py beside"),
    "ids a number": ("[data.files]", "[data]\nid_column = 3\n[data.files]", "[data] id_column = 3; give a text"),
    "ids of nobody": ("[data.files]", '[data.id_column]\nclinik = "x"\n[data.files]', "no party 'clinik' in the schema"),
    "ids that are not there": ("[data.files]", '[data.id_column]\nclinic = "patient"\n[data.files]',
                               "party 'clinic', column 'patient': is not in the table; add it, or rename it, or say"),
    "ids that are a column": ("[data.files]", '[data.id_column]\nclinic = "age"\n[data.files]',
                              "[data] id_column: 'age' is a column of the schema; name the column of 'clinic'"),
    "a section's value": ("[fit]\n", "[fitt]\n", "unknown key 'fitt'; did you mean 'fit'?"),
    "out": (LAST, f"{LAST}\n[run]\nout = 3", "[run] out = 3; give a text"),
    "half a seed": (LAST, f"{LAST}\n[run]\nseed = 1.5", "[run] seed = 1.5; give a whole number"),
    "a negative seed": (LAST, f"{LAST}\n[run]\nseed = -1", "[run] seed = -1; give 0 or more"),
    "no records": (LAST, f"{LAST}\n[run]\nnum_synthetic = 0", "[run] num_synthetic = 0; give a number above 0"),
    "method": (LAST, f'{LAST}\n[run]\nmethod = "dpvii"', "method = 'dpvii'; did you mean 'dpvi'?"),
    "one holder": ("[data.files]", '[data]\nholders = ["a"]\n[data.files]', "holders = ['a']; give two or more"),
    "holders of columns": ("[data.files]", '[data]\nholders = ["a", "b"]\n[data.files]', "[data] holders hold whole"),
    "ledger of nobody": ("[data.files]", '[data.ledgers]\nclinik = "x"\n[data.files]', "no party 'clinik' in"),
    "negative N": ("[data.files]", "[data]\nnum_records = -3\n[data.files]", "num_records = -3; give a number"),
    "no method for a label": (LAST, f'{LAST}\n[regression]\nlabel = "ill"', "name the regression, --method logistic"),
    "a key": (NOISE, "epsilom = 1", "[privacy]: unknown key 'epsilom'; did you mean 'epsilon'?"),
    "steps of a text": (STEPS, 'num_steps = "4"', "[fit] num_steps = '4'; give a whole number"),
    "steps of a flag": (STEPS, "num_steps = true", "[fit] num_steps = True; give a whole number"),
    "a billion steps": (STEPS, "num_steps = 1000000000", "num_steps must be at most 1,000,000"),
    "a guide misspelt": (STEPS, f'{STEPS}\nguide = "diagnal"', "did you mean 'diagonal'?"),
    "no budget": (NOISE, "", "[privacy] needs either epsilon"),
    "delta of two": (NOISE, "epsilon = 1.0\ndelta = 2.0", "delta must lie in (0, 1)"),
    "adversary": (NOISE, 'epsilon = 1.0\nadversary = "bank"', "adversary must be one of outside analyst"),
    "unproven": (STEPS, f'{STEPS}\nbackend = "plaintext"', "UnprovenError"),
    "files of nobody": ('clinic = "', 'clinik = "', "no party 'clinik' in the schema; did you mean 'clinic'?"),
    "a party without a file": ('clinic = "clinic.csv"', "", "[data.files] has no file for party 'clinic'"),
    "no such schema": ("schema.toml", "none.toml", "SchemaError"),
    "separator": ("[data.files]", '[data]\nseparator = ";;"\n[data.files]', "separator = ';;'; give one character"),
    "separator a number": ("[data.files]", "[data]\nseparator = 5\n[data.files]", "separator = 5; give a text"),
    "decimal": ("[data.files]", '[data]\ndecimal = "·"\n[data.files]', "[data] decimal = '·'; give \".\" or"),
    "encoding": ("[data.files]", '[data]\nencoding = "utf8000"\n[data.files]', "encoding = 'utf8000' is unknown"),
    "encoding a number": ("[data.files]", "[data.encoding]\nclinic = 5\n[data.files]", "clinic = 5; give a text"),
    "encoding of nobody": ("[data.files]", '[data.encoding]\nclinik = "cp1252"\n[data.files]',
                           "[data.encoding]: no party 'clinik' in the schema; did you mean 'clinic'?"),
    "no TOML": ("[fit]", "[fit", "config.toml is not TOML"),
    "another N": ("[data.files]", "[data]\nnum_records = 7\n[data.files]", "num_records = 7, and the tables hold 200"),
    "kwargs of no function": ("[model]", "[model]\nkwargs = {a = 1}", "kwargs belong to a function"),
    "another method's key": (NOISE, f'{NOISE}\n[run]\nmethod = "vertimrf"', "is nothing that --method"),
}  # fmt: skip

FILES = """
schema = "schema.toml"
data.files = {insurer = "insurer.csv", clinic = "clinic.csv"}
privacy.epsilon = 1
"""
LOGISTIC, FIELD = (f'{FILES}run.method = "{method}"\n' for method in ("logistic", "vertimrf"))
OF_METHODS = {
    "no label": (LOGISTIC, "[regression] label: --method logistic"),
    "label": (LOGISTIC + 'regression.label = "il"', "no party holds column 'il'; did you mean 'ill'?"),
    "label of no two": (LOGISTIC + 'regression.label = "age"', "'age' must be a binary column"),
    "features": (LOGISTIC + 'regression = {label = "ill", features = ["agee"]}', "no party holds column 'agee'"),
    "features a number": (LOGISTIC + 'regression = {label = "ill", features = 3}', "features = 3; give a list"),
    "bins of nobody": (FIELD + "mrf.bins = {agee = 4}", "bins names ['agee'], which are no columns"),
    "bins a text": (FIELD + 'mrf.bins = {age = "4"}', "bins of ['age'] must be whole numbers"),
    "no pair": (FIELD + 'mrf.workload = ["age"]', "workload: 'age' is neither a pair of columns nor one of"),
    "encoder": (FIELD + 'mrf.encoder = "hash"', "encoder = 'hash'; known: 'secure_marginals'"),
    "share": (FIELD + "mrf.cross_share = 1.5", "cross_share"),
    "memory": (FIELD + "mrf.memory_limit = 1000", "memory_limit"),
}

FLAGS = {
    "a command": (["fitt"], "No such command 'fitt'. Did you mean 'fit'?"),
    "no file": (["fit"], "Missing argument 'CONFIG.toml'"),
    "a file that is not there": (["fit", "FOLDER/gone.toml"], "No such file or directory"),
    "an option": (["fit", "CONFIG", "--epsilon", "1"], "No such option: --epsilon"),
    "a method": (["fit", "CONFIG", "--method", "gan"], "--method gan: choose one of dpvi, vertimrf"),
    "a backend": (["fit", "CONFIG", "--backend", "tf"], "backend = 'tf'; known: 'fixed_point'"),
    "nothing to resume": (["fit", "CONFIG", "--resume"], "there is no run to continue; leave --resume out"),
    "no run": (["synthesize", "FOLDER/gone"], "is not the folder of a fit: it has no config.toml"),
    "no record": (["synthesize", "FOLDER"], "privacy.json does not exist: without its record a plan counts as spent"),
    "no records": (["synthesize", "FOLDER", "-n", "0"], "Invalid value for '--num-records'"),
    "a number in words": (["synthesize", "FOLDER", "-n", "many"], "Invalid value for '--num-records'"),
    "a seed": (["synthesize", "FOLDER", "--seed", "-1"], "Invalid value for '--seed'"),
    "draft of nothing": (["schema", "draft", "FOLDER/gone.csv", "--party", "a"], "party 'a': there is no file"),
    "draft for nobody": (["schema", "draft", "FOLDER/clinic.csv"], "Missing option '--party'"),
    "draft without ids": (["schema", "draft", "FOLDER/clinic.csv", "--party", "a", "--id", "name"], "column 'name'"),
    "no party here": (["budget"], "party.toml"),
    "no study": (["join", "FOLDER/gone.toml"], "No such file or directory"),
    "a party's name": (["party", "init", "a/b"], "name='a/b' must be up to 64 letters, digits"),
    "a schema for a configuration": (["plan", "FOLDER/schema.toml"], "schema.toml: unknown key 'id_column'"),
    "a table for a configuration": (["check", "FOLDER/clinic.csv"], "clinic.csv is not TOML"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), SETTINGS.values(), ids=SETTINGS.keys())
def test_settings(project: Project, old: str, new: str, message: str):
    project.replace(old, new)
    assert message in project.fails("check", project.config)


@pytest.mark.parametrize(("text", "message"), OF_METHODS.values(), ids=OF_METHODS.keys())
def test_settings_of_methods(project: Project, text: str, message: str):
    project.config.write_text(text)
    assert message in project.fails("check", project.config)


@pytest.mark.parametrize(("arguments", "message"), FLAGS.values(), ids=FLAGS.keys())
def test_flags(project: Project, elsewhere: Path, arguments: list[str], message: str):
    places = {"CONFIG": str(project.config)}
    given = [places.get(word, word.replace("FOLDER", str(project.folder))) for word in arguments]
    assert message in project.fails(*given)


def test_a_budget_of_nearly_nothing_is_planned_for_soon(project: Project):
    project.replace(NOISE, "epsilon = 1e-9")
    result = project.run("plan", project.config)
    assert result.exit_code == 0, result.stderr
    assert "Nothing was spent" in result.output


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_cannot_be_written(project: Project):
    out = project.folder / "locked"
    out.mkdir(mode=0o500)
    message = project.fails("fit", project.config, "--out", out / "run")
    assert "cannot write to the run's folder" in message


@pytest.mark.parametrize("what", ["a file", "below a file", "/dev/null/run", "/proc/run"])
def test_outputs_that_can_be_nowhere(project: Project, what: str):
    place = {"a file": project.folder / "clinic.csv", "below a file": project.folder / "clinic.csv" / "run"}
    message = project.fails("fit", project.config, "--out", place.get(what, Path(what)))
    assert "cannot write to the run's folder" in message


def test_two_runs_at_once_in_one_folder(project: Project):
    """One of them runs as if it were alone; the other says so, whenever it comes, and spends nothing."""
    command = [sys.executable, "-m", "vertinumpyro", "fit", str(project.config)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [run.communicate() for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2], told
    (refused,) = [err for run, (_, err) in zip(runs, told, strict=True) if run.returncode]
    assert "Traceback" not in refused
    message = one_line(refused)
    assert "another process; wait until that has ended" in message or "another folder with --out" in message
    record = json.loads((project.run_dir / "privacy.json").read_text())
    assert (record["status"], record["steps_spent"]) == ("finished", 4)
