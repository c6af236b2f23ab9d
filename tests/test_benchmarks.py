"""The benchmarks' shared parts and command lines; `--quick` runs take longer than a unit test may."""

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from vertinumpyro.core.errors import BackendError
from vertinumpyro.data import CategoricalColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.evaluation import k_way_tvd

pytest.importorskip("matplotlib", reason="the benchmarks draw figures: extra `report`")

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(p for p in FOLDER.glob("*.py") if p.name != "common.py")


def load(name):
    """A benchmark as a module; the scripts import their neighbour `common`."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


common = load("common")


def test_there_are_benchmarks():
    assert {"dpvi_adult.py", "dpvi_speed.py"} <= {path.name for path in SCRIPTS}


ASK_ALL = """
import contextlib, io, json, runpy, sys
told = {}
for path in sys.argv[1:]:
    sys.argv, shown = [path, "--help"], io.StringIO()
    with contextlib.redirect_stdout(shown):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            told[path] = [end.code, shown.getvalue()]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told():
    """What every benchmark answers to `--help`, by its path: in one process, which imports the libraries once."""
    command = [sys.executable, "-c", ASK_ALL, *map(str, SCRIPTS)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_names_the_common_arguments_and_the_keys(told, script):
    code, shown = told[str(script)]
    assert code == 0
    assert all(text in shown for text in ("--quick", "--json", "--out", "python benchmarks/"))
    assert "keys" in shown.lower()


def test_results_are_one_json_line_and_parts_are_merged(tmp_path, capsys):
    path = tmp_path / "deeper" / "results.json"
    args = common.parser("").parse_args(["--json", str(path)])
    common.finish({"a": float("nan"), "b": True}, args, {})
    common.finish({"c": {"d": [1, 2.5]}}, args, {})
    last = capsys.readouterr().out.splitlines()[-1]
    expected = {"a": None, "b": True, "c": {"d": [1, 2.5]}}
    assert json.loads(last) == json.loads(path.read_text()) == expected


def test_a_fit_that_is_kept_is_not_done_again(tmp_path):
    path, made = tmp_path / "deeper" / "fits.json", []

    def fit(value):
        made.append(value)
        return value

    assert [common.kept(path, key, lambda: fit(0.5)) for key in ("a", "b", "a")] == [0.5] * 3
    assert [common.kept(path, "failed", lambda: fit(None)) for _ in range(2)] == [None] * 2
    assert [common.kept(None, "a", lambda: fit([1.0])) for _ in range(2)] == [[1.0]] * 2
    assert made == [0.5, 0.5, None, [1.0], [1.0]]


def test_runs_side_by_side_keep_each_others_fits(tmp_path):
    path = tmp_path / "fits.json"
    assert common.kept(path, "slow", lambda: common.kept(path, "of another run", lambda: 1) + 1) == 2
    assert json.loads(path.read_text()) == {"of another run": 1, "slow": 2}


def test_figures_are_beside_the_json(tmp_path):
    figure = common.Figure()
    args = common.parser("").parse_args(["--json", str(tmp_path / "results.json")])
    common.finish({}, args, {"box": figure})
    assert (tmp_path / "box.png").read_bytes().startswith(b"\x89PNG")


def test_arms_take_turns():
    order = []
    arms = {name: lambda name=name: order.append(name) or 1.0 for name in ("a", "b")}
    times = common.interleaved(arms, rounds=2, label="test")
    assert times == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert sorted(order[:2]) == ["a", "b"]
    assert order[2:4] == order[4:6][::-1]


def test_growth_fit_recovers_a_line():
    speed = load("dpvi_speed")

    def cell(n, K, columns):
        milliseconds = 0.5 + 0.1 * K + 3e-6 * n * K * columns
        return {"padded_n": n, "K": K, "columns": columns, "D": 140 * K, "processor_ms": milliseconds}

    fit = speed._fit([cell(184, 20, 13), cell(184, 10, 13), cell(1240, 20, 13), cell(1240, 20, 6)])
    assert fit["fixed_ms"] == pytest.approx(0.5)
    assert fit["ms_per_component"] == pytest.approx(0.1)
    assert fit["ns_per_weight"] == pytest.approx(3.0)
    assert fit["largest_relative_error"] < 1e-9
    assert fit["slowest_per_unit_over_base"] == 1  # the fixed part makes the base the slowest for its size


# -- faults: what the witness saw, against what was counted ----------------------------------------


def faults_folder(folder, lines, ledgers):
    """What a run of `faults.py` leaves: a witness's lines by name, and steps on record by file."""
    (folder / "witness").mkdir()
    for who, entries in lines.items():
        (folder / "witness" / f"{who}.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    for name, steps in ledgers.items():
        path = folder / name / "privacy.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"steps_spent": steps}))
    return folder


def sent(step, content, count=1, what="opening"):
    return {"what": what, "step": step, "count": count, "content": content}


def test_faults_finds_ledgers_below_what_was_seen(tmp_path):
    faults = load("faults")
    lines = {"run": [sent(0, "a", 3)], "clinic": [sent(4, "b")], "bank": [sent(0, "c")]}
    ledgers = {"run": 3, "tables/clinic.csv.ledger/plan": 4, "tables/bank.csv.ledger/plan": 1}
    assert faults._under_counted(faults_folder(tmp_path, lines, ledgers)) == 1  # the clinic's fifth step
    (tmp_path / "run" / "privacy.json").unlink()
    assert faults._under_counted(tmp_path) == 2


def test_faults_finds_steps_of_two_contents_by_one_sender(tmp_path):
    faults = load("faults")
    lines = {
        "clinic": [sent(0, "a"), sent(0, "a"), sent(1, "b"), sent(1, "c")],
        "bank": [sent(0, "other"), sent(0, "published", what="published")],
        "run": [sent(0, "d", 3), sent(2, "e", 2)],  # step 2 is in both
    }
    folder = faults_folder(tmp_path, lines, {})
    with open(folder / "witness" / "bank.jsonl", "a") as file:
        file.write('{"what": "opening", "st')  # cut off while it was written: it had not left
    assert faults._released_twice(folder) == 2


def test_faults_has_all_keys_for_each_method_and_place():
    faults = load("faults")
    keys = {"kills", "released_twice", "under_counted", "lost", "longest_lost_s", "runs"}
    assert set(faults.Arm("linear", "in_process", 0, {}).found) == keys
    assert all(key in faults.__doc__ for key in keys)
    assert set(faults.BETWEEN) <= set(faults.METHODS)


def test_whole_methods_have_a_key_for_each_backend_that_is_not_here():
    backends = load("secure_backends")
    stored = {"linear": {"adult": {"spu": {"equal": True}}}}
    found = backends.with_nulls(stored)
    assert found["linear"]["adult"] == {"crypten": None, "spu": {"equal": True}}
    assert set(found["vertimrf"]) == {"nltcs", "adult"}
    assert set(found) == {"vertimrf", "logistic", "linear", "dpvi"}


# -- pooled peers: which tables, and what is compared ----------------------------------------------


def test_pooled_peers_names_its_tables_and_which_were_tuned_on():
    peers = load("pooled_peers")
    tuned = {name for name, table in peers.TABLES.items() if table.tuned}
    assert len(tuned) <= 4
    assert len(peers.TABLES) >= 8
    named = re.search(r"chosen with: (.*?)\. Untouched.*?: (.*?)\. FOLDER", peers.__doc__, re.DOTALL)
    assert [set(names.split(", ")) for names in named.groups()] == [tuned, set(peers.TABLES) - tuned]


def test_pooled_peers_reads_a_table_in_public_cells_and_no_other_file(tmp_path):
    PeerTable = type(load("pooled_peers").TABLES["acs"])
    text = "id,sex,age,code\n7,m,20,0\n8,f,,1\n9,NA,30,1\n"
    (tmp_path / "t.csv").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    table = PeerTable(
        path="t.csv", home="home", sha256=digest, dropped=("id",), edges={"age": (25, 30)}, cells={"code": 4}
    )
    dataset = table.read(tmp_path)
    assert [len(column.categories) for column in dataset.schema.columns.values()] == [3, 4, 4]  # NA is a label
    assert dataset.to_frame().to_numpy().tolist() == [[2, 0, 0], [1, 3, 1], [0, 2, 1]]
    assert dataclasses.replace(table, path="absent.csv").read(tmp_path) is None
    with pytest.raises(SystemExit, match="another file than home"):
        dataclasses.replace(table, sha256="0").read(tmp_path)


def test_pooled_peers_keeps_means_of_untouched_tables_apart():
    peers = load("pooled_peers")
    arms = {"nltcs": (1.0, 4.0), "acs": (2.0, 4.0), "bank": (4.0, 2.0)}
    tvd = {name: {"ours": {"0.8": ours}, "aim": {"0.8": theirs}, "swift": {}} for name, (ours, theirs) in arms.items()}
    tvd["acs"]["aim_twin"] = {"0.8": 8.0}
    found = peers.compared({**tvd, "german": {"ours": {"0.8": 1.0, "1.6": 0.5}, "aim": {}, "swift": {"1.6": 2.0}}})
    assert found["ratio_aim_twin"]["acs"] == found["geomean_aim_twin"] == {"0.8": 0.25}
    assert found["ratio"] == {"nltcs": {"0.8": 0.25}, "acs": {"0.8": 0.5}, "bank": {"0.8": 2.0}, "german": {}}
    assert found["geomean"] == {"0.8": pytest.approx(1.0)}
    assert found["geomean_all"] == {"0.8": pytest.approx(0.25 ** (1 / 3))}
    assert found["ratio_swift"] == {"nltcs": {}, "acs": {}, "bank": {}, "german": {"1.6": 0.25}}
    assert found["geomean_swift"] == found["geomean_all_swift"] == {"1.6": pytest.approx(0.25)}


@pytest.fixture
def peer_run(tmp_path, monkeypatch):
    """The benchmark with a stand-in for peers and their environments, a table of five columns, settings, fits made."""
    peers = load("pooled_peers")
    schema = Schema({"all": PartySchema({name: CategoricalColumn(categories=(0, 1)) for name in "abcde"})})
    frame = pd.DataFrame({"a": [0, 1], "b": [1, 1], "c": [0, 0], "d": [1, 0], "e": [1, 1]})
    made = []

    def twin(dataset, arm, epsilon, seed, *, pooled_by, triples):
        made.append((arm.kind, epsilon, seed))
        even = np.full(8 * len(triples), 1 / 8)
        return SimpleNamespace(table=frame, seconds=2.0, tables=even if arm.kind == "aim" else None)

    monkeypatch.setattr(peers, "make_twin", twin)
    figures = peers.PeerFigures(tmp_path / "fits.json")
    pooled_by = {"aim": (sys.executable, str(tmp_path))}
    settings = peers.Settings(tmp_path / "fits", None, pooled_by, 2, (0.8,), figures=figures)
    return peers, VerticalDataset.from_pooled(schema, frame), settings, made


def test_pooled_peers_finds_the_fits_that_it_kept(peer_run):
    peers, table, settings, made = peer_run
    for _ in range(2):
        peers.run_peers({"acs": table}, settings)
    assert made == [("aim", 0.8, 0), ("aim", 0.8, 1)]
    assert settings.peer_fits("acs", table, "aim", 0.8) == [peers.Fit(0.0, 2.0)] * 2


def test_pooled_peers_needs_no_twin_whose_figures_are_kept(peer_run):
    peers, table, settings, made = peer_run
    peers.run_peers({"acs": table}, settings)
    for path in settings.peers.glob("acs/*.npz"):
        path.unlink()
    assert settings.peer_fits("acs", table, "aim", 0.8) == [peers.Fit(0.0, 2.0)] * 2
    assert settings._replace(peers=None).peer_fits("acs", table, "aim", 0.8) == [peers.Fit(0.0, 2.0)] * 2
    peers.run_peers({"acs": table}, settings)
    assert len(made) == 2
    stored = json.loads(settings.figures.path.read_text())["acs"]["aim"]["0.8"]["1"]
    assert stored["packages"]["numpy"] == np.__version__
    assert stored["tvd"] == 0 < stored["model_tvd"]
    assert set(stored) == {*("tvd", "model_tvd", "sampled_tvd", "seconds", "processor_seconds", "version", "packages")}


def test_pooled_peers_keeps_each_peers_fits_apart(peer_run):
    peers, table, settings, made = peer_run
    peers.run_peers({"acs": table}, settings)
    of_swift = settings._replace(pooled_by={"swift": settings.pooled_by["aim"]}, repeats=1)
    for _ in range(2):
        peers.run_peers({"acs": table}, of_swift)
    assert made == [("aim", 0.8, 0), ("aim", 0.8, 1), ("swift", 0.8, 0)]
    assert len(settings.peer_fits("acs", table, "aim", 0.8)) == 2
    assert settings.peer_fits("acs", table, "swift", 0.8) == [peers.Fit(0.0, 2.0)]
    stored = json.loads(settings.figures.path.read_text())["acs"]["swift"]["0.8"]["0"]
    assert set(stored) == {"tvd", "seconds", "processor_seconds", "version", "packages"}
    with pytest.raises(SystemExit, match=r"swift not fitted: acs at 0\.8, seed 1;.*--swift"):
        peers.run_peers({"acs": table}, settings._replace(pooled_by={}))


def test_pooled_peers_takes_over_figures_of_twins_without_their_environment(peer_run):
    peers, table, settings, made = peer_run
    peers.run_peers({"acs": table}, settings)
    settings.figures.path.unlink()
    with pytest.raises(SystemExit, match=r"acs at 1\.6, seeds 0 and 1.*--private-pgm"):
        peers.run_peers({"acs": table}, settings._replace(pooled_by={}, epsilons=(0.8, 1.6)))
    assert len(made) == 2
    assert set(json.loads(settings.figures.path.read_text())["acs"]["aim"]["0.8"]) == {"0", "1"}


def test_pooled_peers_refuses_figures_of_another_table_or_other_triples(peer_run, monkeypatch):
    peers, table, settings, _ = peer_run
    peers.run_peers({"acs": table}, settings)
    other = VerticalDataset.from_pooled(table.schema, table.to_frame().assign(a=[1, 1]))
    arguments = ("acs", other, "aim", 0.8)
    for use in (lambda: settings.peer_fits(*arguments), lambda: peers.run_peers({"acs": other}, settings)):
        with pytest.raises(SystemExit, match=r"acs.*other codes"):
            use()
    monkeypatch.setattr(peers, "NUM_MARGINALS", 4)  # of ten
    with pytest.raises(SystemExit, match=r"acs.*other triples"):
        settings.peer_fits("acs", table, "aim", 0.8)


def test_tables_of_a_model_are_as_far_as_a_twin_that_has_them(peer_run):
    peers, table, _, _ = peer_run
    twin = pd.DataFrame({"a": [1, 1], "b": [0, 1], "c": [0, 1], "d": [1, 0], "e": [1, 1]})
    triples = peers.draw_triples(table, 5, peers.MARGINALS_SEED)
    tables = [np.histogramdd(twin.to_numpy()[:, triple], bins=2, range=[(0, 1)] * 3)[0] / 2 for triple in triples]
    far = peers.distance_of_tables(table, triples, np.concatenate([table.ravel() for table in tables]))
    as_twin = k_way_tvd(table.to_frame(), twin, table.schema, 3, rng=peers.MARGINALS_SEED, num_marginals=5).mean
    assert far == pytest.approx(as_twin)
    assert 0 < far < 1


def test_records_drawn_from_a_model_are_as_far_as_its_tables_and_their_chance(peer_run):
    """A peer whose sampler loses what its model has is measured by such records, which chance moves."""
    peers, _, _, _ = peer_run
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(2, size=(500, 3)), columns=["a", "b", "c"])
    schema = Schema({"all": PartySchema({name: CategoricalColumn(categories=(0, 1)) for name in "abc"})})
    table, even = VerticalDataset.from_pooled(schema, frame), np.full(8, 1 / 8)
    drawn = [peers.draw_records(table, [(0, 1, 2)], even, seed) for seed in range(300)]
    assert np.mean(drawn, axis=0) == pytest.approx(even, abs=0.005)
    assert np.std(drawn, axis=0) == pytest.approx(np.sqrt(7 / 64 / 500), rel=0.2)
    assert peers.nearer({"tvd": 0.3, "model_tvd": 0.1, "sampled_tvd": 0.2, "seconds": 1.0}).tvd == 0.2
    assert peers.nearer({"tvd": 0.15, "sampled_tvd": 0.2, "seconds": 1.0}).tvd == 0.15


IN_SET_ORDER = """
import sys
import numpy as np
given = np.load(sys.argv[3])["codes"]
order = [int(word) for word in {str(i) for i in range(len(given))}]
np.savez(sys.argv[4], codes=given[order])
"""


def test_pooled_mechanisms_draw_the_same_from_the_same_seed(tmp_path, monkeypatch):
    load("pooled_peers")
    arms = sys.modules["vertimrf_parts.arms"]
    script = tmp_path / "mechanism.py"
    script.write_text(IN_SET_ORDER)
    monkeypatch.setattr(arms, "_POOLED_SCRIPT", script)
    schema = Schema({"all": PartySchema({"a": CategoricalColumn(categories=tuple(range(30)))})})
    table = VerticalDataset.from_pooled(schema, pd.DataFrame({"a": range(30)}))
    drawn = []
    for hashes in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hashes)
        twin = arms.make_twin(table, arms.ARMS["aim"], 1.0, 0, pooled_by=(sys.executable, str(tmp_path)))
        drawn.append(twin.table["a"].tolist())
    assert sorted(drawn[0]) == list(range(30))
    assert drawn[0] == drawn[1]


def test_gaussian_rho_is_as_large_as_epsilon_and_delta_allow():
    load("pooled_peers")
    mechanisms = importlib.import_module("vertimrf_parts.pooled_mechanisms")
    for epsilon, delta in ((0.2, 1e-3), (0.8, 1e-4), (100.0, 1e-5)):
        mu = math.sqrt(2 * mechanisms.gaussian_rho(epsilon, delta))
        spent = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        assert spent == pytest.approx(delta, rel=1e-4)


def test_what_replacing_costs_a_peer_is_what_its_parts_cost():
    load("pooled_peers")
    costs = importlib.import_module("vertimrf_parts.pooled_mechanisms").REPLACE_COST
    assert costs == pytest.approx({"aim": 2.2, "mst": 8 / 3, "swift": 2.18})


def test_pooled_peers_figures_in_the_repository_are_of_its_tables():
    peers = load("pooled_peers")
    stored = json.loads(peers.FIGURES.read_text())
    assert stored
    for name, found in stored.items():
        assert found["compared"]["sha256"] == peers.TABLES[name].sha256
        assert set(found) <= {"compared", *peers.PEERS}
        by_epsilon = [of for peer in peers.PEERS for of in found.get(peer, {}).items()]
        fits = [(e, seed, fit) for e, by_seed in by_epsilon for seed, fit in by_seed.items()]
        assert fits
        for epsilon, seed, fit in fits:
            assert epsilon == f"{float(epsilon):g}"
            assert seed == str(int(seed))
            assert 0 < fit["tvd"] < 1
            assert fit["seconds"] > 0
            assert re.fullmatch("[0-9a-f]{40}", fit["version"])
            assert {"jax", "numpy"} <= set(fit["packages"])


# -- house: what is counted ------------------------------------------------------------------------


@pytest.fixture
def toy_package(tmp_path):
    """a and b import each other, one of them for the type checker and by way of their package; c is alone."""
    files = {
        "__init__": '"""Short."""\n',
        "low/__init__": '"""Two."""\nfrom toy.low.b import B\n\n__all__ = ["B"]\n',
        "low/a": '"""Says why.\n\nShort because it is a toy.\n"""\nimport typing\nif typing.TYPE_CHECKING:\n'
        "    from toy.low import B\n",
        "low/b": '"""B."""\n\n\ndef b(x):\n    """B.\n\n    :param x: no.\n    """\n    from .a import A\n',
        "c": '"""C."""\nfrom toy.low.b import B\n\n\ndef c():\n    """C.\n\n    Returns:\n        No.\n    """\n',
    }
    for name, text in files.items():
        path = tmp_path / "toy" / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return tmp_path / "toy"


def test_house_counts_circles_lines_and_styles(toy_package):
    found = load("house").Layout.of(toy_package)
    assert found.circles() == [["toy.low.a", "toy.low.b"]]
    assert (len(found.modules), found.lines, found.median) == (5, 31, 9)
    assert [module.name for module in found.short_without_reason] == ["toy.low.b", "toy.c"]
    assert found.styles == {"fields": 1, "google": 1}


def test_house_fails_where_a_target_is_missed_and_skips_what_is_not_there(capsys):
    house = load("house")
    found = {"modules": 235, "lines": 48_000, "median": 180, "circles_in": {"secure": 0, "dpvi": 0}}
    found |= {"docstrings": {"google": 0}, "step": {"files": 6}, **{n: house.counts(None) for n in house.NEEDS}}
    assert house.judged(found)
    assert not house.judged({**found, "median": 179.5})
    shown = capsys.readouterr().out
    assert "skipped dpvi.calls" in shown
    assert "FAIL    median: 179.5, at least 180" in shown


def test_house_imports_all_but_what_lacks_an_engine(monkeypatch):
    tracing, imported = load("house_parts/tracing"), []

    def without_crypten(name):
        if name.startswith("vertinumpyro.secure.crypten."):
            raise BackendError("not installed")
        imported.append(name)

    monkeypatch.setattr(tracing, "importlib", SimpleNamespace(import_module=without_crypten))
    tracing.import_everything()
    assert {"vertinumpyro.secure.fixed_point", "vertinumpyro.transport.tls"} <= set(imported)
