"""The commands from key generation to the twin, every organisation in a folder of its own, over real TLS."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import one_line
from tests.organisations import programs
from tests.organisations.programs import free_port
from tests.session.conftest import two  # noqa: F401
from tests.session.parties import INSTALLED
from vertinumpyro.cli.main import app
from vertinumpyro.cli.organisation_run import task_of
from vertinumpyro.cli.party_file import PartyFile
from vertinumpyro.core.errors import PrivacyError
from vertinumpyro.privacy import FitTime, Ledger, LedgerRegistry
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.regression import VerticalLinearRegression
from vertinumpyro.study import Agreement

CONFIG = """
schema = "schema.toml"
[data]
num_records = 60
[privacy]
epsilon = 3.0
delta = 1e-4
[fit]
backend = "crypten"
[mrf]
max_cells = 4
iterations = 50
[regression]
label = "debt"
"""


class Organisations:
    """Folders of two parties and a dealer; nothing but certificates and the agreement passes between them."""

    def __init__(self, folder, tables, run):
        self.folder, self.run = folder, run
        self.ports = {"clinic": free_port(), "bank": free_port()}
        self.names = ["clinic", "bank", "dealer"]
        for name in self.names:
            own = folder / name
            table = ["--table", "table.csv"] if name != "dealer" else []
            self.ok("party", "init", name, "--folder", own, *table)
            if table:
                shutil.copy(tables.files[name], own / "table.csv")
        (folder / "schema.toml").write_text(tables.schema.to_toml())
        (folder / "config.toml").write_text(CONFIG)

    def ok(self, *arguments):
        code, text = self.run(*arguments)
        assert code == 0, text
        return text

    def draft(self, method="linear", out="study.toml", options=(), **changes):
        members = {n: f"{n}={self.folder / n / 'certificate.pem'}@127.0.0.1:{p}" for n, p in self.ports.items()}
        given = [part for text in {**members, **changes}.values() for part in ("--member", text)]
        helper = f"dealer={self.folder / 'dealer' / 'certificate.pem'}"
        words = ["draft-linkage"] if method is None else ["draft", "--method", method]
        return self.run(
            "study", words[0], self.folder / "config.toml", *words[1:], *given, "--helper", helper,
            "--out", self.folder / out, *options,
        )  # fmt: skip

    def party(self, name):
        return self.folder / name / "party.toml"

    def all_do(self, what, study, *options):
        """One command at all three at the same time: their exit codes, and what they printed."""
        words = [what, self.folder / study, "--wait", "60"]
        processes = [programs.command(*words, "--party", self.party(name), *options) for name in self.names]
        said = [process.communicate(timeout=200)[0] for process in processes]
        return [process.returncode for process in processes], said


@pytest.fixture
def run(monkeypatch):
    """One command in this process: its exit code and what it printed."""
    from typer.testing import CliRunner

    monkeypatch.setenv("COLUMNS", "200")
    runner = CliRunner()

    def call(*arguments, input=None):
        result = runner.invoke(app, [str(argument) for argument in arguments], input=input)
        return result.exit_code, result.output

    return call


@pytest.fixture
def organisations(two, tmp_path, run):  # noqa: F811
    return Organisations(tmp_path, two, run)


def test_an_agreement_is_drafted_shown_and_approved_without_a_table(organisations):
    for name in ("clinic", "bank"):
        (organisations.folder / name / "table.csv").unlink()
    code, text = organisations.draft()
    assert code == 0, text
    study = organisations.folder / "study.toml"
    agreement = Agreement.load(study)
    assert agreement.plan.num_records == 60
    assert agreement.digest in text
    shown = organisations.ok("study", "show", study)
    assert agreement.digest in shown
    assert agreement.members["bank"].certificate.fingerprint in shown
    assert f"127.0.0.1:{organisations.ports['clinic']}" in shown
    assert "dials the others" in shown
    organisations.ok("study", "approve", study, "--party", organisations.party("clinic"), "--yes")
    (kept,) = (organisations.folder / "clinic" / "approvals").iterdir()
    assert json.loads(kept.read_text())["digest"] == agreement.digest
    told = " ".join(organisations.ok("study", "status", study, "--party", organisations.party("clinic")).split())
    assert "approval given" in told
    assert "not begun" in told
    assert "approval not given" in " ".join(
        organisations.ok("study", "status", study, "--party", organisations.party("bank")).split()
    )
    code, text = organisations.run("study", "approve", study, "--party", organisations.party("bank"), input="n\n")
    assert (code, "nothing was signed" in text) == (2, True)
    code, text = organisations.run("study", "approve", study, "--party", organisations.party("dealer"))
    assert (code, "approve nothing" in text) == (2, True)


def test_a_policy_refuses_what_is_beyond_it(organisations):
    organisations.draft()
    with organisations.party("bank").open("a") as file:
        file.write("[policy]\nlargest_epsilon = 1.0\n")
    code, text = organisations.run(
        "study", "approve", organisations.folder / "study.toml", "--party", organisations.party("bank"), "--yes"
    )
    assert code == 2
    assert "not approved: ε against" in text
    assert "the policy allows 1" in text


def test_a_total_beyond_the_policy_is_refused_when_it_is_approved_and_when_it_begins(organisations):
    organisations.draft()
    study, party = organisations.folder / "study.toml", organisations.party("bank")
    plan = Agreement.load(study).plan
    with party.open("a") as file:
        file.write("[policy]\nlargest_total_epsilon = 4.0\n")
    shown = organisations.ok("budget", study, "--party", party)
    assert "No plan was ever begun on it." in shown
    assert "outside analyst 0.000 3.000" in " ".join(shown.split())
    assert "The policy allows 4 in all." in " ".join(shown.split())
    organisations.ok("study", "approve", study, "--party", party, "--yes")

    own = PartyFile.load(party)
    with Ledger.start(
        dataclasses.replace(plan, plan_id="another"), book=LedgerRegistry(), account=own.account
    ) as ledger:
        ledger.reserve(plan.num_steps)  # another study, in the meantime
    for command in (["budget", study], ["study", "approve", study, "--yes"], ["join", study, "--wait", "1"]):
        code, text = organisations.run(*command, "--party", party)
        text = " ".join(text.replace("│", " ").split())
        assert code == 2
        assert "the total ε of the data set 'table.csv' would be" in text
        assert "bank's policy allows 4; nothing was begun" in text
    with pytest.raises(PrivacyError, match="nothing was begun"):
        Ledger.start(plan, book=LedgerRegistry(), account=task_of(Agreement.load(study), own, study).account)
    assert "another  " in organisations.ok("budget", "--party", party)
    assert "another  " in organisations.ok("budget", "--ledger", own.folder / own.ledger)
    code, text = organisations.run("budget", "--ledger", organisations.folder)
    assert (code, "holds no account.sqlite" in text) == (2, True)


def test_two_files_of_one_study_are_compared(organisations):
    organisations.draft()
    organisations.draft(out="other.toml")
    study = organisations.folder / "study.toml"
    assert "one agreement" in organisations.ok("study", "diff", study, study)
    code, text = organisations.run("study", "diff", study, organisations.folder / "other.toml")
    assert code == 2
    assert "plan.plan_id" in text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bank": "bank"}, "write name=certificate.pem@host:port"),
        ({"bank": "bank=nowhere.pem@h:1"}, "cannot read the certificate"),
        ({"bank": "shop={folder}/bank/certificate.pem@h:1"}, "give one for each of clinic, bank"),
        ({"bank": "bank={folder}/bank/certificate.pem@h"}, "is no address"),
        ({"bank": "bank={folder}/bank/certificate.pem"}, "neither 'bank' nor 'dealer' can be reached"),
        ({"bank": "bank={folder}/clinic/certificate.pem@h:1"}, "show the same certificate"),
    ],
)
def test_a_draft_that_cannot_be_says_why(organisations, changes, why):
    code, text = organisations.draft(**{k: v.format(folder=organisations.folder) for k, v in changes.items()})
    assert code == 2
    assert why in " ".join(text.split())


def test_what_takes_long_is_asked_for_when_it_is_drafted_and_of_no_party_later(organisations, monkeypatch):
    long = FitTime(before={"the products": 7000.0}, shorter="Give fewer features. ")
    monkeypatch.setattr(VerticalLinearRegression, "time", lambda self, facts, plan: long)
    code, text = organisations.draft()
    assert code == 2
    assert "--allow-long" in text
    assert not (organisations.folder / "study.toml").exists()
    code, text = organisations.draft(options=("--allow-long",))
    assert code == 0, text
    assert "allow_long" not in (organisations.folder / "study.toml").read_text()


def test_nothing_runs_without_this_partys_approval(organisations):
    organisations.draft()
    code, text = organisations.run(
        "join", organisations.folder / "study.toml", "--party", organisations.party("clinic")
    )
    assert code == 2
    assert "has not approved" in text


@pytest.mark.parametrize(("backend", "method"), [("crypten", "linear"), ("crypten", "vertimrf"), ("spu", "linear")])
def test_from_keys_to_results_at_every_organisation(organisations, backend, method):
    if backend not in INSTALLED:
        pytest.skip(f"parties apart: extra `{backend}`")
    if method == "vertimrf":
        pytest.importorskip("mbi")
    configuration = organisations.folder / "config.toml"
    configuration.write_text(configuration.read_text().replace("crypten", backend))
    with organisations.party("clinic").open("a") as file:  # its own business: it reads in blocks, with a worker
        file.write('spool = "."\nworkers = 1\n')
    code, text = organisations.draft(method)
    assert code == 0, text
    study = organisations.folder / "study.toml"
    for name in ("clinic", "bank"):
        organisations.ok("study", "approve", study, "--party", organisations.party(name), "--yes")
    codes, said = organisations.all_do("join", "study.toml")
    assert codes == [0, 0, 0], "\n".join(said)
    plan = Agreement.load(study).plan
    result = {"linear": "coefficients.csv"}.get(method, "synthetic.csv")
    tables = [pd.read_csv(organisations.folder / name / "run" / result) for name in ("clinic", "bank")]
    pd.testing.assert_frame_equal(*tables)
    for name in ("clinic", "bank"):
        assert (organisations.folder / name / "run" / "report.html").exists()
        own = organisations.folder / name / "ledger" / plan.plan_id / "privacy.json"
        assert read_record(own).steps_spent == read_record(Path(own)).plan.num_steps
    for name in ("clinic", "bank"):
        log = [
            json.loads(line) for line in (organisations.folder / name / "run" / "log.jsonl").read_text().splitlines()
        ]
        assert [line["event"] for line in log if line["event"] != "steps"] == [
            "join",
            "together",
            "released",
            "finished",
        ]
        assert [line["on_record"] for line in log if line["event"] == "steps"][-1] == plan.num_steps
        (released,) = [line for line in log if line["event"] == "released"]
        assert released["bytes_received"] > 0
    told = " ".join(organisations.ok("study", "status", study, "--party", organisations.party("clinic")).split())
    assert "approval given" in told
    assert "on account, finished" in told
    assert "finished seconds" in told
    shown = organisations.ok("budget", study, "--party", organisations.party("clinic"))
    assert "The study's plan is among them." in shown
    assert "steps, finished" in " ".join(shown.split())
    codes, said = organisations.all_do("join", "study.toml", "--wait", "3")  # spent: refused before anybody is called
    assert codes[:2] == [2, 2], said
    assert "has begun to spend its budget" in said[0]


@pytest.fixture
def linked(organisations):
    """Each party has people whom the other does not know, in an order and a writing of its own."""
    for name, missing, writing in (("clinic", [3, 40], "p{}"), ("bank", [5], "P{} ")):
        path = organisations.folder / name / "table.csv"
        frame = pd.read_csv(path, dtype=str).sort_values("id").reset_index(drop=True).drop(index=missing)
        frame["id"] = [writing.format(identifier) for identifier in frame["id"]]
        frame.sample(frac=1.0, random_state=len(name)).to_csv(path, index=False)
    code, text = organisations.draft(None, out="linkage.toml", options=["--pad-to", "64"])
    assert code == 0, text
    linkage = organisations.folder / "linkage.toml"
    for name in ("clinic", "bank"):
        said = organisations.ok("study", "approve", linkage, "--party", organisations.party(name), "--yes")
        assert "This is not DP." in " ".join(said.split())
        assert "padded to 64 ids" in said
    codes, said = organisations.all_do("link", "linkage.toml")
    assert codes == [0, 0, 0], "\n".join(said)
    return said


def test_common_records_are_found_and_nothing_else_is_told(organisations, linked):
    for text in linked[:2]:
        assert "57 records are at all parties" in text
        assert "num_records = 57" in text
    assert "57 records in common" in linked[2]
    code, text = organisations.run(
        "link", organisations.folder / "linkage.toml", "--party", organisations.party("clinic")
    )
    assert (code, "are linked already" in one_line(text)) == (2, True)
    code, text = organisations.run(
        "join", organisations.folder / "linkage.toml", "--party", organisations.party("clinic")
    )
    assert (code, "links records and releases nothing" in text) == (2, True)


@pytest.mark.skipif("crypten" not in INSTALLED, reason="parties apart: extra `crypten`")
def test_a_study_of_linked_records_runs_on_these(organisations, linked):
    config = organisations.folder / "config.toml"
    config.write_text(config.read_text().replace("num_records = 60", "num_records = 57"))
    linkage, study = organisations.folder / "linkage.toml", organisations.folder / "study.toml"
    code, text = organisations.draft(options=["--linkage", linkage])
    assert code == 0, text
    for name in ("clinic", "bank"):
        organisations.ok("study", "approve", study, "--party", organisations.party(name), "--yes")
    (kept,) = (organisations.folder / "bank" / "linkages").iterdir()
    aside = kept.rename(organisations.folder / "aside")
    code, text = organisations.run("join", study, "--party", organisations.party("bank"))
    assert (code, "has no result of that" in " ".join(text.replace("│", " ").split())) == (2, True)
    aside.rename(kept)
    codes, said = organisations.all_do("join", "study.toml")
    assert codes == [0, 0, 0], "\n".join(said)
    assert "57 records matched" in said[0]


def test_a_models_code_runs_nowhere_before_its_source_is_the_one_agreed_on(organisations):
    model = organisations.folder / "ours.py"
    source = """
import numpyro, numpyro.distributions as dist
import vertinumpyro as vnp


def model(data, num_records):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("ill", dist.Bernoulli(p), obs=data["ill"])
"""
    model.write_text(source)
    config = organisations.folder / "config.toml"
    settings = CONFIG.replace('[regression]\nlabel = "debt"\n', "").replace(
        "[mrf]\nmax_cells = 4\niterations = 50\n", ""
    )
    config.write_text(settings + '[model]\nfunction = "ours:model"\n')
    code, text = organisations.draft("dpvi")
    assert code == 0, text
    study, ran = organisations.folder / "study.toml", organisations.folder / "ran"
    model.write_text(f"open({str(ran)!r}, 'w').close()\n" + source)
    assert Agreement.load(study).model_digest in organisations.ok("study", "show", study)
    for command in (["study", "approve", study, "--yes"], ["join", study]):
        code, text = organisations.run(*command, "--party", organisations.party("clinic"))
        assert code == 2
        if command[0] == "study":
            assert "take the file that was agreed on" in " ".join(text.replace("│", " ").split())
    assert not ran.exists()
    model.write_text(source)
    organisations.ok("study", "approve", study, "--party", organisations.party("clinic"), "--yes")
    model.write_text(f"open({str(ran)!r}, 'w').close()\n" + source)
    code, text = organisations.run("join", study, "--party", organisations.party("clinic"))
    assert code == 2
    assert "take the file that was agreed on" in " ".join(text.replace("│", " ").split())
    assert not ran.exists()
