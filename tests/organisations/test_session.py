"""The same program at every organisation, over real TLS: what each ends with and has on record, and after a crash."""

from __future__ import annotations

import functools
import json
import socket
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.organisations.member import take_part
from tests.organisations.programs import Program
from tests.session.conftest import three, two  # noqa: F401
from tests.session.parties import INSTALLED, method
from tests.session.test_processes import plan_for, released
from vertinumpyro.core.files import load_arrays
from vertinumpyro.privacy.ledger import Ledger, read_record
from vertinumpyro.session import PRIVACY_RECORD, PartyTask, estimate_cost
from vertinumpyro.transport import NetworkProfile, make_identity

pytestmark = pytest.mark.skipif("crypten" not in INSTALLED, reason="parties apart: extra `crypten`")


class Study:
    """Organisations with keys, files and ledgers of their own, and a dealer."""

    def __init__(self, tables, folder, name):
        self.tables, self.folder, self.name = tables, folder, name
        self.parties = list(tables.schema.parties)
        self.members = [*self.parties, None]
        identities = [
            make_identity(folder / "keys" / str(i), member or "dealer") for i, member in enumerate(self.members)
        ]
        self.certificates = [identity.certificate.pem for identity in identities]
        self.plan = plan_for(name, method(name, "crypten"), tables.dataset)
        self.attempt = 0

    def run(self, *, resume=False, changes=None, timeout=120, timeout_s=60):
        """Exit codes and what each member said, one attempt of all.

        :param changes: of a member's order; a function gets what stands there.
        """
        self.attempt += 1
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in self.members]
        common = {
            "certificates": self.certificates,
            "ports": [listener.getsockname()[1] for listener in listeners],
            "schema": self.tables.schema.to_dict(),
            "method": self.name,
            "plan": self.plan.to_dict(),
            "approved": self.plan.fingerprint(),
            "topic": f"{self.plan.fingerprint()} {self.attempt}",
            "resume": resume,
            "timeout_s": timeout_s,
        }
        processes, self.pids = [], {}
        for rank, member in enumerate(self.members):
            own = (
                {} if member is None else {"table": str(self.tables.files[member]), "ledger": str(self.ledger(member))}
            )
            order = {
                **common,
                **own,
                "rank": rank,
                "party": member,
                "identity": str(self.folder / "keys" / str(rank)),
                "out": str(self.out(member)),
            }
            for key, change in (changes or {}).get(member, {}).items():
                order[key] = change(order[key]) if callable(change) else change
            path = self.folder / f"order {rank}.json"
            path.write_text(json.dumps(order))
            processes.append(Program(take_part, path, listeners[rank]))
            self.pids[member] = processes[-1].pid
        for listener in listeners:
            listener.close()
        said = [process.communicate(timeout=timeout)[0] for process in processes]
        return [process.returncode for process in processes], said

    def out(self, party):
        return self.folder / "out" / str(party)

    def ledger(self, party):
        return self.folder / "ledgers" / str(party)

    def records(self):
        """Every party's own record, and that of its run."""
        own = [read_record(self.ledger(p) / self.plan.plan_id / PRIVACY_RECORD) for p in self.parties]
        return own + [read_record(self.out(p) / PRIVACY_RECORD) for p in self.parties]

    def found(self):
        return [load_arrays(self.out(party) / "found.npz") for party in self.parties]

    def all_ended_with_the_same(self):
        (words, first), *others = self.found()
        for other_words, other in others:
            assert other_words == words
            assert other.keys() == first.keys()
            assert all(np.array_equal(first[name], other[name]) for name in first)
        for record in self.records():
            assert record.steps_spent == self.plan.num_steps
            assert record.plan == self.plan
        return first


@pytest.mark.parametrize("name", ["linear", "all", "dpvi"])
def test_every_method_ends_with_the_same_and_nothing_but_masked_words_and_releases_is_received(
    two,  # noqa: F811
    tmp_path,
    name,
):
    study = Study(two, tmp_path, name)
    codes, said = study.run(changes={party: {"keep_received": True} for party in study.parties})
    assert codes[:-1] == [0, 0], said
    study.all_ended_with_the_same()
    for party, other in (("clinic", "bank"), ("bank", "clinic")):
        assert_holds_no_column((study.out(party) / "received.bin").read_bytes(), two, other)
    if name == "linear":
        spent_at_every_organisation(study)
    else:
        assert_rehearsed(study)


def assert_holds_no_column(received, tables, other):
    """Every byte that a party gets: none of them holds a column of the other's."""
    assert len(received) > 500
    frame = tables.dataset.restrict(other).to_frame()
    for column in frame.columns:
        codes_of = frame[column].astype("category").cat.codes.to_numpy()
        for kind in ("int8", "int32", "int64", "float32", "float64"):
            assert codes_of.astype(kind).tobytes() not in received
    ids = tables.files[other].read_text().splitlines()[1].split(",")[0]
    assert ids.encode() not in received


def spent_at_every_organisation(study):
    """A plan that has ended is refused by everybody."""
    codes, said = study.run()
    assert codes[:-1] == [2, 2], said
    assert all("PlanSpentError" in line for line in said[:-1])


def assert_rehearsed(study):
    """A rehearsal with nobody at the other end counts what the run took, without a table."""
    build = functools.partial(method, study.name, "crypten")
    task = PartyTask(party="clinic", schema=study.tables.schema.to_dict(), table=Path("no such file"), build=build)

    def release(session, folder):
        if study.name != "dpvi":
            return released(session, build(), study.plan, folder)
        return build().fit(session, study.plan, jax.random.key(3), run_dir=folder, progress_bar=False)

    cost = estimate_cost(task, study.plan, release)
    rounds, sent = cost.whole.traffic.rounds, cost.whole.traffic.bytes_sent
    if cost.step is not None:
        rounds += cost.further * cost.step.traffic.rounds
        sent += cost.further * cost.step.traffic.bytes_sent
    took = json.loads((study.out("clinic") / "traffic.json").read_text())
    exact = 0 if study.name != "dpvi" else 0.25  # how many steps are agreed on at once depends on their time
    assert took["rounds"] == pytest.approx(rounds, rel=exact)
    assert took["bytes_sent"] == pytest.approx(sent, rel=max(exact, 0.02))
    assert cost.on(NetworkProfile(round_trip_s=1.0, bits_per_second=1e9)) > rounds / 2
    Ledger.start(study.plan, secure_noise=True).finish()  # the plan is as unspent here as it was


def test_three_organisations_and_rounds_that_choose_by_what_was_released(three, tmp_path):  # noqa: F811
    study = Study(three, tmp_path, "adaptive")
    codes, said = study.run()
    assert codes[:-1] == [0, 0, 0], said
    tables = study.all_ended_with_the_same()
    assert any("age debt" in name for name in tables)


def test_one_that_dies_between_a_release_and_its_record_is_sent_the_same_again(two, tmp_path):  # noqa: F811
    """The others have it on record already; all go on, and nothing is released twice."""
    study = Study(two, tmp_path, "all")
    dies = {"bank": {"stops": "bank", "stop_before_keeping": 1}}
    codes, said = study.run(changes=dies)
    assert codes[1] == 9, said
    steps = [record.steps_spent for record in study.records()]
    assert max(steps) == study.plan.num_steps
    codes, said = study.run(resume=True)
    assert codes[:-1] == [0, 0], said
    study.all_ended_with_the_same()


def test_a_party_works_on_the_plan_that_it_agreed_to_alone(two, tmp_path):  # noqa: F811
    study = Study(two, tmp_path, "all")
    codes, said = study.run(changes={"clinic": {"approved": "another"}})
    assert codes[0] == 2
    assert "PlanSpentError: this party agreed to plan another" in said[0]
    assert codes[1] == 2, said
    assert not list(tmp_path.glob("ledgers/*/*"))


def test_other_records_are_refused_before_any_plan(two, tmp_path):  # noqa: F811
    study = Study(two, tmp_path, "all")
    table = tmp_path / "other.csv"
    lines = two.files["bank"].read_text().splitlines()
    table.write_text("\n".join(lines[:-1]) + "\n")
    codes, said = study.run(changes={"bank": {"table": str(table)}})
    assert codes[:-1] == [2, 2], said
    assert all("AlignmentError" in line for line in said[:-1])
