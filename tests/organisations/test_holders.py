"""Organisations with whole records, from key generation to the same coefficients everywhere, over real TLS."""

from __future__ import annotations

import json
import time

import pandas as pd
import pytest

from tests.cli.conftest import invoke, one_line
from tests.cli.test_holders import SCHEMA, SIZES, tables
from tests.organisations import programs
from tests.organisations.programs import free_port
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.study import Agreement

CONFIG = """
schema = "schema.toml"
[data]
holders = ["north", "south", "west"]
num_records = 250
[privacy]
epsilon = 50.0
delta = 1e-4
"""
REGRESSION = CONFIG + '[regression]\nlabel = "pressure"\n'
NUM_STEPS = 600
MODEL = CONFIG + f"[model]\nnum_components = 2\n[fit]\nnum_steps = {NUM_STEPS}\nbatch_size = 20\n"


class Holders:
    """Folders of three organisations; nothing but certificates and the agreement passes between them."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "schema.toml").write_text(SCHEMA)
        self.ports = {name: free_port() for name in SIZES}
        for name, table in tables():
            self.ok("party", "init", name, "--folder", folder / name, "--table", "table.csv")
            table.to_csv(folder / name / "table.csv", index=False)

    @staticmethod
    def ok(*arguments):
        result = invoke(*arguments)
        assert result.exit_code == 0, result.output + result.stderr
        return one_line(result.output)

    def draft(self, config, *options):
        (self.folder / "config.toml").write_text(config)
        members = [f"{n}={self.folder / n / 'certificate.pem'}@127.0.0.1:{p}" for n, p in self.ports.items()]
        given = [part for text in members for part in ("--member", text)]
        return ["study", "draft", self.folder / "config.toml", *given, "--out", self.folder / "study.toml", *options]

    def approved(self, config):
        said = self.ok(*self.draft(config))
        for name in SIZES:
            self.ok("study", "approve", self.folder / "study.toml", "--party", self.party(name), "--yes")
        return said

    def party(self, name):
        return self.folder / name / "party.toml"

    def joining(self, *options):
        words = ["join", self.folder / "study.toml", "--wait", "60"]
        return [programs.command(*words, "--party", self.party(name), *options) for name in SIZES]

    def all_join(self, *options):
        processes = self.joining(*options)
        said = [process.communicate(timeout=300)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], "\n".join(said)
        return said

    def records(self):
        """What every holder's own ledger says."""
        plan_id = Agreement.load(self.folder / "study.toml").plan.plan_id
        return [read_record(self.folder / name / "ledger" / plan_id / "privacy.json") for name in SIZES]


@pytest.fixture
def holders(tmp_path):
    return Holders(tmp_path)


def test_every_holder_ends_with_the_same_coefficients(holders):
    holders.approved(REGRESSION)
    agreement = Agreement.load(holders.folder / "study.toml")
    assert (agreement.holders, list(agreement.members), agreement.helpers) == (tuple(SIZES), list(SIZES), {})
    said = holders.all_join()
    assert all("250 records together" in text for text in said)
    found = [pd.read_csv(holders.folder / name / "run" / "coefficients.csv") for name in SIZES]
    assert all(table.equals(found[0]) for table in found)
    assert [record.steps_spent for record in holders.records()] == [2, 2, 2]
    for name in SIZES:
        budget = holders.ok("budget", "--party", holders.party(name))
        assert all(other in budget for other in SIZES if other != name)
    # how many records another has is nowhere
    events = [json.loads(line) for line in (holders.folder / "north" / "run" / "log.jsonl").read_text().splitlines()]
    assert not {SIZES["south"], SIZES["west"]} & {value for event in events for value in event.values()}


def test_a_model_goes_on_after_one_of_them_died_and_ends_in_the_same_twin(holders):
    holders.approved(MODEL)
    processes, first = holders.joining(), holders.folder / "south" / "ledger"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not [p for p in first.rglob("privacy.json") if read_record(p).steps_spent]:
        time.sleep(0.05)
    processes[1].kill()
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert all(process.returncode for process in processes), "\n".join(said)
    assert "south" in one_line(said[0])
    assert 0 < holders.records()[1].steps_spent < NUM_STEPS
    holders.all_join("--resume")
    assert [record.steps_spent for record in holders.records()] == [NUM_STEPS] * 3
    found = [pd.read_parquet(holders.folder / name / "run" / "synthetic.parquet") for name in SIZES]
    assert all(table.equals(found[0]) for table in found)
    assert len(found[0]) == 250


def test_what_does_not_fit_is_refused_before_anybody_meets(holders):
    members = holders.draft(REGRESSION)
    where = next(index for index, part in enumerate(members) if str(part).startswith("west="))
    without = [*members[: where - 1], *members[where + 1 :]]
    assert "give one for each of north, south, west" in one_line(invoke(*without).stderr)
    holders.ok("party", "init", "dealer", "--folder", holders.folder / "dealer")
    helper = f"dealer={holders.folder / 'dealer' / 'certificate.pem'}"
    assert "none wanted" in one_line(invoke(*members, "--helper", helper).stderr)
    linkage = ["study", "draft-linkage", *members[2:], "--helper", helper]
    assert "no common records to find" in one_line(invoke(*linkage).stderr)


def test_doctor_estimates_the_run_of_a_holder(holders):
    holders.approved(REGRESSION)
    told = invoke("doctor", holders.folder / "study.toml", "--party", holders.party("south"), "--alone")
    assert told.exit_code == 0, told.output + told.stderr
    assert "80 records" in told.output
