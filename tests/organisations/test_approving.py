"""What is signed is what is shown: the screen of an approval, and the code that a study's digest covers."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.text import Text

from tests.cli.conftest import invoke, one_line
from tests.privacy.test_records import GOLDEN
from vertinumpyro.cli.config import config_of
from vertinumpyro.cli.methods.base import METHODS, method_of
from vertinumpyro.cli.model_loading import Sources, import_model
from vertinumpyro.cli.party_file import make_party
from vertinumpyro.cli.terminal import _Door
from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, Schema, TableFacts
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy import Ledger, LedgerRegistry
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.regression import VerticalLinearRegression
from vertinumpyro.reports.plain_language import headline, rounded_up
from vertinumpyro.study import Agreement, Member, Policy
from vertinumpyro.transport import Address

PLANS = {path.stem: read_record(path).plan for path in GOLDEN}
DPVI = PLANS["dpvi_poisson"]
SUMMED = dataclasses.replace(DPVI, clip_parts=(1,) * len(DPVI.parties))  # as of a model with a `party_sum`
SGR = re.compile(r"\x1b\[[\d;]*m")  # what rich may say to a terminal: colours


def study_of(folder, plan, method, *, columns=None, helper="dealer", name="study", **content):
    """A study with this plan, every party's folder beside it; its file."""
    holders = getattr(plan, "holders", ())
    held = ("table",) if holders else plan.parties
    parts = {party: PartySchema({f"{party}_ill": BinaryColumn(), **(columns or {})}) for party in held[:1]}
    parts |= {party: PartySchema({f"{party}_ill": BinaryColumn()}) for party in held[1:]}
    taking_part = [*(holders or plan.parties), helper]
    made = [
        make_party(folder / f"at{i}", f"at{i}", table="t.csv", listen=None, days=9) for i in range(len(taking_part))
    ]
    for own, party in zip(made, taking_part, strict=True):
        own.path.write_text(own.path.read_text().replace(f'"{own.name}"', f"'{party}'"))
    members = {
        party: Member(certificate=own.identity.certificate, address=Address("h", 1 + rank))
        for rank, (own, party) in enumerate(zip(made, taking_part, strict=True))
    }
    helpers = {} if holders else {helper: members[helper]}
    del members[helper]
    agreement = Agreement(
        name=name, schema=Schema(parts), method=method, plan=plan, members=members, helpers=helpers,
        **{"settings": {} if holders else {"fit": {"backend": "crypten"}}, **content},
    )  # fmt: skip
    agreement.save(folder / "study.toml")
    return folder / "study.toml"


@pytest.fixture
def crashing(tmp_path):
    """A model whose code must not run: its agreement's settings and digest."""
    (tmp_path / "crashing.py").write_text("raise SystemExit('ran')\n")
    settings = {"fit": {"backend": "crypten"}, "model": {"function": "crashing:model"}}
    config = config_of(tmp_path / "study.toml", {"parties": {"a": {"columns": {"b": {"type": "binary"}}}}}, settings)
    return {"settings": settings, "model_digest": Sources.of(config).digest}


def of_holders(plan):
    clients = {"num_clients": 2, "participation": "hidden", "max_unreliable": 0}
    return dataclasses.replace(plan, holders=("a", "b"), **{k: v for k, v in clients.items() if hasattr(plan, k)})


@pytest.mark.parametrize("method", METHODS)
def test_every_methods_plan_is_shown_and_approved_without_its_code(method, tmp_path, crashing):
    found = method_of(method)
    plans = [plan for plan in (SUMMED, *PLANS.values()) if isinstance(plan, found.plan_class)]
    plans = [of_holders(plan) if found.for_holders else plan for plan in plans]
    assert plans, f"a record of a plan of --method {method} in tests/privacy/golden"
    for i, plan in enumerate(plans):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "crashing.py").write_bytes((tmp_path / "crashing.py").read_bytes())
        study = study_of(folder, plan, method, **crashing)
        for command in (["show", study], ["approve", study, "--party", folder / "at0" / "party.toml", "--yes"]):
            result = invoke("study", *command)
            assert result.exit_code == 0, result.output + result.stderr
            text = one_line(result.output)
            assert one_line(headline(plan)) in text
            assert "crashing:model" in text
        assert "Files of the model, whose code will run here crashing.py" in text
        assert "nobody has approved its code yet" in text
    assert "crashing" not in sys.modules


@pytest.mark.parametrize("method", ["vertimrf", "linear"])
def test_who_approves_sees_what_the_budget_buys_and_how_long_it_takes(method, tmp_path):
    columns = {"a_score": BinaryColumn()}
    parts = {"a": PartySchema({"a_ill": BinaryColumn(), **columns}), "b": PartySchema({"b_ill": BinaryColumn()})}
    made, facts = {"vertimrf": VertiMRF(), "linear": VerticalLinearRegression()}, TableFacts(Schema(parts), 2000)
    label = {} if method == "vertimrf" else {"label": "a_score"}
    plan = made[method].plan(facts, epsilon=3.0, **label)
    settings = {"fit": {"backend": "crypten"}, **({"regression": label, "privacy": {"epsilon": 3.0}} if label else {})}
    study = study_of(tmp_path, plan, method, columns=columns, settings=settings)
    told = (
        "Pairs of columns that it will hold: about 3 of 3" if method == "vertimrf" else "Noise will hide correlations"
    )
    for command in (["show", study], ["approve", study, "--party", tmp_path / "at0" / "party.toml", "--yes"]):
        text = one_line(invoke("study", *command).output)
        assert told in text
        assert re.search(r"A run takes about \d+ s on this machine.* not in it: .*parties compute together", text)


@pytest.mark.parametrize("security", [None, "malicious", "semi-honest"])
@pytest.mark.parametrize("method", ["vertimrf", "linear", "dpvi"])
def test_an_approval_says_against_which_behaviour_the_rows_hold(method, security, tmp_path):
    plans = [plan for plan in PLANS.values() if isinstance(plan, method_of(method).plan_class)]
    rounds = [plan for plan in plans if getattr(plan, "num_rounds", 0)]
    at_once = next(plan for plan in plans if not getattr(plan, "num_rounds", 0))
    settings = {"fit": {"backend": "crypten", **({"security": security} if security and method != "dpvi" else {})}}
    for plan in [at_once, *rounds[:1]]:
        folder = tmp_path / f"rounds {plan is not at_once}"
        folder.mkdir()
        text = one_line(invoke("study", "show", study_of(folder, plan, method, settings=settings)).output)
        holds = method != "dpvi" and security != "semi-honest"
        assert ("rows hold against parties that cheat, up to all but one" in text) == holds
        assert ("rows hold against parties that follow the protocol" in text) == (not holds)


@pytest.mark.parametrize("method", ["bayesian_linear", "horizontal"])
def test_holders_rows_hold_against_holders_that_cheat(method, tmp_path):
    plan = of_holders(next(plan for plan in PLANS.values() if isinstance(plan, method_of(method).plan_class)))
    study, own = study_of(tmp_path, plan, method), tmp_path / "at0" / "party.toml"
    with own.open("a") as file:
        file.write("[policy]\nagainst_cheats = true\n")
    approved = invoke("study", "approve", study, "--party", own, "--yes")
    assert approved.exit_code == 0, approved.output + approved.stderr
    assert "rows hold against parties that cheat, up to all but one" in (text := one_line(approved.output))
    assert "how many it says it has" in text
    assert "linkage" not in text


@pytest.mark.parametrize(
    ("method", "fit", "why"),
    [
        ("vertimrf", {"backend": "crypten"}, None),
        ("vertimrf", {"backend": "crypten", "security": "semi-honest"}, 'say security = "semi-honest"'),
        ("vertimrf", {"backend": "spu"}, "backend spu (ABY3) verifies nothing"),
        ("dpvi", {"backend": "crypten"}, "--method dpvi computes under this plan is not verified"),
    ],
)
def test_a_policy_wants_rows_that_hold_against_parties_that_cheat(method, fit, why, tmp_path):
    plan = next(plan for plan in PLANS.values() if isinstance(plan, method_of(method).plan_class))
    study, own = study_of(tmp_path, plan, method, settings={"fit": fit}), tmp_path / "at0" / "party.toml"
    with own.open("a") as file:
        file.write("[policy]\nagainst_cheats = true\n")
    approved = invoke("study", "approve", study, "--party", own, "--yes")
    assert (approved.exit_code == 0) == (why is None)
    if why is not None:
        said = f"the policy wants rows that hold against parties that cheat, and {'what ' * (method == 'dpvi')}"
        assert said in one_line(approved.stderr)
        assert why in one_line(approved.stderr)
        with pytest.raises(PrivacyError, match="parties that cheat, and nobody says that they do"):
            Policy(against_cheats=True).check(Agreement.load(study))


def test_a_plan_that_a_failed_check_closed_is_refused_before_anybody_is_met(tmp_path):
    plan = next(plan for plan in PLANS.values() if isinstance(plan, method_of("vertimrf").plan_class))
    study, folder = study_of(tmp_path, plan, "vertimrf"), tmp_path / "at0"
    record = folder / "ledger" / plan.plan_id / "privacy.json"
    record.parent.mkdir(parents=True)
    Ledger.start(plan, record, book=LedgerRegistry()).fail("'b' failed a check", 1)
    for resume in ([], ["--resume"]):
        refused = invoke("join", study, "--party", folder / "party.toml", "--wait", "1", *resume)
        assert "was closed when a check failed: 'b' failed a check" in one_line(refused.stderr)
        assert "make a new plan, whose cost adds to this one's" in one_line(refused.stderr)


def test_a_plan_of_another_method_is_not_shown_as_this_ones(tmp_path):
    result = invoke("study", "show", study_of(tmp_path, DPVI, "vertimrf"))
    assert (result.exit_code, "its plan is of another method" in one_line(result.stderr)) == (2, True)


# -- the screen -----------------------------------------------------------------------------------

HOSTILE = {
    "markup": "[bold]x[/] [/]",
    "emoji": ":bomb: [link=x]l",
    "mirrored": "אב 0.001 proved",
    "long": "W" * 300,
}


def on_a_terminal(words, said, width=100):
    """What a command prints to a terminal, where somebody says something."""
    leader, follower = pty.openpty()
    terminal = {"COLUMNS": str(width), "LINES": "50", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "vertinumpyro", *map(str, words)]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
    with subprocess.Popen(command, **streams, env={**os.environ, **terminal}):
        os.close(follower)
        os.write(leader, said)
        found = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(leader, 2**16):
                found += part
    os.close(leader)
    return found.decode()


def test_numbers_stand_in_their_rows_whatever_the_texts_are(tmp_path):
    parties = ("[red]clinic[/]", "ב 0.001 ε", "W" * 60)
    plan = dataclasses.replace(DPVI, parties=parties)
    columns = {text: CategoricalColumn(categories=("a", f"b{text}")) for text in HOSTILE.values()}
    study = study_of(
        tmp_path, plan, "dpvi", columns=columns, helper="dealer [/] outside analyst nothing DP replace 0.001 1e-05",
        name="[blink]s", settings={"fit": {"backend": "crypten"}, "model": {"kwargs": {"[/x]": HOSTILE["markup"]}}},
    )  # fmt: skip
    text = on_a_terminal(["study", "approve", study, "--party", tmp_path / "at0" / "party.toml"], b"n\n")
    plain = SGR.sub("", text).replace("\r\n", "\n")
    assert all(one.isprintable() or one == "\n" for one in plain)
    assert "Approve? [y/N]" in plain
    assert f"ε ≤ {rounded_up(plan.worst.epsilon)}, δ = 1e-05, against everyone" in plain
    for name in (*parties[:2], *HOSTILE.values()):
        assert name[:20] in plain.replace("\n", "")
    table = plain[plain.index("knows besides the releases") : plain.index("replace: one record")]
    lines = [line for line in table.splitlines() if re.search(r"\d e-05|\d\.\d+ .*1e-05|ε \d", line)]
    shown = [re.search(r"\b\d+\.\d{3}\b(?= +1e-05|, δ)", line) for line in lines]
    assert [found.group() for found in shown if found] == [rounded_up(row["epsilon"]) for row in plan.table_rows()]


def test_whatever_is_printed_cannot_command_the_terminal():
    for text in ("a\x1b[35Ab", Text("a\x1b]0;t\x07b"), "a\u202eb\u200bc\x9b1m"):
        file = io.StringIO()
        _Door(file=file, force_terminal=True, emoji=False).print(text)
        assert SGR.sub("", file.getvalue()).rstrip("\n").isprintable()
    assert r"\x1b[35A" in one_line(invoke("study", "show", "a\x1b[35A.toml").stderr)


# -- the model's code -----------------------------------------------------------------------------

FILES = {
    "ours.py": "import beside\nfrom pkg import *\ndef model():\n    import lazily\n    return lazily.value()\n",
    "beside.py": "",
    "lazily.py": "def value():\n    from pkg.deep import inner\n    return inner.VALUE\n",
    "pkg/__init__.py": "__all__ = ['named']\n",
    "pkg/named.py": "from . import sibling\nfrom .deep.inner import VALUE\n",
    "pkg/sibling.py": "import math, json",
    "pkg/deep/inner.py": "VALUE = 7\n",
    "never.py": "",
    "data/never.py": "",
}


@pytest.fixture
def model(tmp_path):
    """A folder with a model in several files."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("ours", "beside", "lazily", "pkg", "never", "data"):
            del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_OnlyThese"]


def config_in(folder, function="ours:model"):
    schema = {"parties": {"a": {"columns": {"b": {"type": "binary"}}}}}
    return config_of(folder / "study.toml", schema, {"model": {"function": function}})


def test_a_models_digest_covers_every_file_that_its_import_runs(model):
    config = config_in(model)
    sources = Sources.of(config)
    assert sources.names == sorted(name for name in FILES if "never" not in name)
    for name in FILES:
        (model / name).write_text(FILES[name] + "# another\n")
        assert (Sources.of(config).digest == sources.digest) == ("never" in name), name
        (model / name).write_text(FILES[name])
    assert Sources.of(config).digest == sources.digest
    for function, reached in (("pkg:model", "pkg/__init__.py"), ("pkg.sibling:model", "pkg/sibling.py")):
        assert reached in Sources.of(config_in(model, function)).names
    alone = Sources.of(config_in(model, "beside:model"))
    assert alone.digest == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # of the file itself


def test_what_was_read_runs_and_nothing_else_of_the_folder(model, monkeypatch):
    monkeypatch.syspath_prepend(str(model))  # as the current folder is, where Python runs a module
    config = config_in(model)
    sources = Sources.of(config)
    (model / "lazily.py").write_text("def value():\n    return 'changed since'\n")
    cache = importlib.util.cache_from_source(str(model / "ours.py"))
    os.makedirs(os.path.dirname(cache))
    compiled = importlib._bootstrap_external._code_to_hash_pyc(compile("model = None", "ours", "exec"), b"8" * 8, False)
    with open(cache, "wb") as file:
        file.write(compiled)
    sources.guard()
    function = import_model(config.model, config.model_folder)
    assert function() == 7
    assert sys.modules["pkg.deep.inner"].__file__ == str(model / "pkg/deep/inner.py")
    for name in ("never", "pkg.unseen", "data.never"):
        (model / "pkg/unseen.py").write_text("")
        with pytest.raises(ArgumentError, match=rf"{name} is a file of the study's folder that its digest does not"):
            importlib.import_module(name)
    (model / "data" / "below.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(str(model / "data"))
    with pytest.raises(ArgumentError, match="below is a file of the study's folder"):
        importlib.import_module("below")
    (model / "colorsys.py").write_text("raise SystemExit('ran')")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert importlib.import_module("colorsys").rgb_to_hsv  # Python's own, as if the folder were not searched


def test_a_study_with_another_file_of_the_model_is_not_approved(model):
    config = config_in(model)
    settings = {"fit": {"backend": "crypten"}, "model": {"function": "ours:model"}}
    study = study_of(model, DPVI, "dpvi", settings=settings, model_digest=Sources.of(config).digest)
    words = ["study", "approve", study, "--party", model / "at0" / "party.toml", "--yes"]
    (model / "pkg/sibling.py").write_text("open('/nowhere')")
    result = invoke(*words)
    assert result.exit_code == 2
    assert "take the file that was agreed on, and those that it imports" in one_line(result.stderr)
    (model / "pkg/sibling.py").write_text(FILES["pkg/sibling.py"])
    result = invoke(*words)
    assert result.exit_code == 0, result.stderr
    assert "beside.py lazily.py ours.py pkg/__init__.py" in one_line(result.output)
