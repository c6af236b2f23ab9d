"""A party's own Dask cluster: the same releases bit for bit, whoever is lost in mid-run, and nothing spent twice."""

import functools
import os
import pickle
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.mrf.conftest import SCHEMA, frame
from vertinumpyro.cli.config_sections import DataSettings, read_section
from vertinumpyro.cli.party_file import PartyFile
from vertinumpyro.core import files as open_files
from vertinumpyro.core import row_blocks, workers
from vertinumpyro.core import workers as dask_workers
from vertinumpyro.core.errors import AlignmentError, ArgumentError, BackendError, DataError
from vertinumpyro.core.workers import Part, total, workers_of
from vertinumpyro.data import (
    CountColumn,
    Linkage,
    PartySchema,
    RealColumn,
    Rows,
    Schema,
    Take,
    VerticalDataset,
    normalised_ids,
    read_ids,
    streaming,
)
from vertinumpyro.data import streaming as spool
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf import contingency as exact_tables
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.regression import VerticalLogisticRegression
from vertinumpyro.session import PartyTask

distributed = pytest.importorskip("distributed", reason="dask is not installed (extra: dask)")

N = 300


@pytest.fixture(scope="module")
def client():
    """Two processes; who is killed is started again."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(**options) as made, distributed.Client(made, set_as_default=False) as connected:
        yield connected


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Parquet file at each party, in row groups of 70 records."""
    folder, table = tmp_path_factory.mktemp("tables"), frame(num_records=N).assign(id=range(N))
    for place, (party, part) in enumerate(SCHEMA.parties.items()):
        own = pd.DataFrame(table[["id", *part.columns]]).sample(frac=1, random_state=place)
        own.to_parquet(folder / f"{party}.parquet", index=False, row_group_size=70)
    return folder


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(streaming, "ROWS_READ", 50)
    monkeypatch.setattr(row_blocks, "ROWS", 64)


def read(folder, by=None, schema=SCHEMA):
    return VerticalDataset.from_files(
        schema, {party: folder / f"{party}.parquet" for party in schema.parties}, spool=folder, workers=by
    )


def released(dataset, run_dir=None):
    system = VertiMRF()
    plan = system.plan(dataset, epsilon=2.0)
    return system.release(dataset, plan, run_dir=run_dir, insecure_seed=1), plan


def assert_alike(one, other):
    assert [a.columns for a in one.measurements] == [b.columns for b in other.measurements]
    for a, b in zip(one.measurements, other.measurements, strict=True):
        np.testing.assert_array_equal(a.values, b.values)
    assert one.fine.keys() == other.fine.keys() != set()
    for name, values in one.fine.items():
        np.testing.assert_array_equal(values, other.fine[name])


def coefficients(dataset):
    kept = [name for name, column in SCHEMA.columns.items() if column.missing != "mask"]
    schema = Schema({
        party: PartySchema({name: column for name, column in part.columns.items() if name in kept})
        for party, part in SCHEMA.parties.items()
    })  # fmt: skip
    held = {p: {n: dataset.arrays(p)[n] for n in part.columns} for p, part in schema.parties.items()}
    model = VerticalLogisticRegression(insecure_seed=2)
    plan = model.plan(schema, "ill", num_records=N, epsilon=5.0, delta=1e-5)
    return model.fit(VerticalDataset(schema, held, dataset.workers), plan).moments_.matrix


@pytest.mark.parametrize("found", [True, False])
def test_the_same_releases_whether_workers_find_the_columns_or_are_sent_them(
    client, folder, small_blocks, monkeypatch, found
):
    serial = read(folder)
    if not found:  # the workers are then on another machine
        monkeypatch.setattr(open_files, "_machine", lambda: "another")
    parts, ordered, gather = [], [], spool._Gather
    monkeypatch.setattr(workers, "Part", lambda *args, **kwargs: parts.append(Part(*args, **kwargs)) or parts[-1])
    monkeypatch.setattr(spool, "_Gather", lambda *args: ordered.append(gather(*args)) or ordered[-1])
    spread = read(folder, client)
    assert spread.schema.dtypes == serial.schema.dtypes
    for party in SCHEMA.parties:
        for name, column in serial.arrays(party).items():
            np.testing.assert_array_equal(spread.arrays(party)[name], column)
    assert_alike(released(serial)[0], released(spread)[0])
    np.testing.assert_array_equal(coefficients(serial), coefficients(spread))
    assert len(parts) >= 20  # five of each pass over the records
    assert len(ordered) == 2 * 8  # at each party, four of each worker


def test_a_part_is_passed_on_as_it_was_sent(monkeypatch):
    with tempfile.TemporaryFile() as file:
        file.write(np.arange(10**6).data)
        column = open_files.mapped(file, np.dtype(np.int64), 10**6, findable=True)
        sent = pickle.dumps(Part([{"x": column}], slice(5, 10**6)))
        monkeypatch.setattr(open_files, "_machine", lambda: "the scheduler's")
        passed_on = pickle.dumps(pickle.loads(sent))
        monkeypatch.undo()
        (block,) = next(pickle.loads(passed_on).blocks(3))
    assert len(sent) == len(passed_on) < 2_000  # where the rows are, and none of them
    np.testing.assert_array_equal(block["x"], [5, 6, 7])


def test_a_file_of_empty_row_groups_has_no_records(client, tmp_path):
    parts = {party: [*part.columns] for party, part in SCHEMA.parties.items()}
    for party, names in parts.items():
        table = pa.Table.from_pandas(frame(num_records=2).assign(id=range(2))[["id", *names]], preserve_index=False)
        with pq.ParquetWriter(tmp_path / f"{party}.parquet", table.schema) as writer:
            for _ in range(2):
                writer.write_table(table.slice(0, 0))
        assert pq.ParquetFile(tmp_path / f"{party}.parquet").num_row_groups == 2
    with pytest.raises(DataError, match="no records"):
        read(tmp_path, client)


def killing(counted, flag: Path, spared: int, *args):
    """What `counted` makes, at the worker that is the first to make it: it dies of it."""
    made = counted(*args)
    if not flag.exists() and os.getpid() != spared:  # a rehearsal on stand-ins needs no workers
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return made


def test_a_worker_that_is_killed_changes_nothing_and_costs_nothing(client, folder, small_blocks, monkeypatch, tmp_path):
    expected, _ = released(read(folder))
    spread, before = read(folder, client), worker_pids(client)
    flags = [tmp_path / name for name in ("tables", "products")]
    for module, name, flag in ((exact_tables, "_counted", flags[0]), (row_blocks, "_summed", flags[1])):
        monkeypatch.setattr(module, name, functools.partial(killing, getattr(module, name), flag, os.getpid()))
    found, plan = released(spread, tmp_path / "run")
    assert_alike(expected, found)
    assert all(flag.exists() for flag in flags)
    assert len(before - worker_pids(client)) == 2  # who counted own tables, and who counted those across parties
    assert read_record(tmp_path / "run" / "privacy.json").steps_spent == plan.num_steps == 2


def worker_pids(client):
    client.wait_for_workers(2)
    return set(client.run(os.getpid).values())


def test_a_mistake_in_a_table_is_told_as_here_and_is_in_no_log(client, folder, small_blocks, tmp_path):
    for party in SCHEMA.parties:
        table = pd.read_parquet(folder / f"{party}.parquet")
        if party == "clinic":
            table["smoker"] = table["smoker"].astype(object)
            table.loc[150, "smoker"] = "grandmother"
        table.to_parquet(tmp_path / f"{party}.parquet", index=False, row_group_size=70)
    told = []
    for by in (None, client):
        with pytest.raises(DataError) as caught:
            read(tmp_path, by)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "smoker" in told[0]
    assert "grandmother" not in str(client.get_worker_logs())


def broken(blocks):
    raise KeyError("grandmother")


def test_what_fails_at_a_worker_is_named_without_a_value(client, folder):
    with pytest.raises(BackendError, match="KeyError") as caught:
        total(broken, 64, read(folder, client).arrays("clinic"))
    assert "grandmother" not in str(caught.value)
    assert "grandmother" not in str(client.get_worker_logs())


def test_a_lost_cluster_is_an_error_and_no_wait_without_end(folder, small_blocks, monkeypatch):
    monkeypatch.setattr(dask_workers, "START_S", 1)
    monkeypatch.setattr(dask_workers, "_POLL_S", 0.2)
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as empty:
        with pytest.raises(ArgumentError, match="no workers"):
            workers_of(empty.scheduler_address)
        empty.scale(1)
        with workers_of(empty.scheduler_address) as one:
            columns = read(folder, one).arrays("clinic")
            empty.scale(0)
            while empty.scheduler.workers:
                time.sleep(0.01)
            with pytest.raises(BackendError, match="resume=True"):
                exact_tables.exact_tables(VertiMRF().columns(SCHEMA)[:3], columns, [(0,)])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (0, "from 1 on"), (True, "from 1 on"), (2.0, "distributed.Client"),
        ("tcp://127.0.0.1:1", "no Dask scheduler"), ("nowhere", "no Dask scheduler"),
    ],
)  # fmt: skip
def test_workers_that_are_none(given, match, monkeypatch):
    monkeypatch.setattr(dask_workers, "CONNECT_S", 0.5)
    with pytest.raises(ArgumentError, match=match):
        workers_of(given)


@pytest.mark.parametrize(("text", "value"), [("2", 2), ('"tls://scheduler:8786"', "tls://scheduler:8786")])
def test_the_keys_of_both_files(tmp_path, text, value):
    assert read_section(DataSettings, "[data]", {"workers": value}).workers == value
    (tmp_path / "party.toml").write_text(f'name = "clinic"\nspool = "big"\nworkers = {text}\n')
    own = PartyFile.load(tmp_path / "party.toml")
    assert (own.workers, own.spool_path) == (value, tmp_path / "big")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("2.5", 2.5)])
def test_keys_that_name_no_workers(tmp_path, text, value):
    with pytest.raises(ArgumentError, match=r"\[data\] workers"):
        read_section(DataSettings, "[data]", {"workers": value})
    (tmp_path / "party.toml").write_text(f'name = "clinic"\nworkers = {text}\n')
    with pytest.raises(ArgumentError, match="workers ="):
        PartyFile.load(tmp_path / "party.toml")


def tasks_in_turn(folder, client, **settings):
    """The insurer's, which reads its file whole, in blocks, and in blocks by workers."""
    for how in ({}, {"spool": folder}, {"spool": folder, "workers": client.scheduler.address}):
        table = folder / "insurer.parquet"
        yield PartyTask(party="insurer", schema=SCHEMA.to_dict(), table=table, build=VertiMRF, **how, **settings)


@pytest.mark.parametrize("linked", [False, True])
def test_a_party_reads_alike_in_blocks_and_whole(folder, small_blocks, client, tmp_path, linked):
    schema = Schema.from_dict(SCHEMA.to_dict())
    file_ids = normalised_ids(pd.read_parquet(folder / "insurer.parquet"), schema, "insurer")
    rows = np.flatnonzero(np.arange(N) % 7 < 3) if linked else np.arange(N)
    Linkage.made("topic", file_ids, rows).save(tmp_path / "linkage.npz")
    settings = {"linkage": tmp_path / "linkage.npz"} if linked else {}
    (whole, ids), *others = [task.read_records(schema) for task in tasks_in_turn(folder, client, **settings)]
    assert list(ids) == sorted(file_ids[row] for row in rows)
    for other, theirs in others:
        assert list(theirs) == list(ids)
        assert (theirs[3], theirs[1:3]) == (ids[3], ids[1:3])
        assert other.schema.dtypes == whole.schema.dtypes
        for name, column in whole.arrays("insurer").items():
            np.testing.assert_array_equal(other.arrays("insurer")[name], column)
    assert repr(others[0][1]) == f"Ids({len(rows)})"


@pytest.mark.parametrize("linked", [False, True])
def test_rows_of_persons_are_the_same_records_at_a_party_and_with_workers(small_blocks, client, tmp_path, linked):
    rng, own = np.random.default_rng(0), tmp_path / "clinic.parquet"
    sums = Rows(per="id", take={"cost": Take(rule="sum"), "visits": Take(rule="count")})
    clinic = {"cost": RealColumn(bounds=(0, 500), out_of_bounds="clip"), "visits": CountColumn(upper=20)}
    schema = Schema({"clinic": PartySchema(clinic, sums), "bank": PartySchema({"age": CountColumn(upper=99)})})
    rows = pd.DataFrame({"id": rng.integers(0, 150, 1000), "cost": rng.gamma(1.0, 50.0, 1000)})
    rows.to_parquet(own, row_group_size=90)
    ids = read_ids(own, schema, "clinic")["id"]  # who links has these
    kept = np.flatnonzero(ids % 3 > 0) if linked else np.arange(len(ids))
    pd.DataFrame({"id": ids.iloc[kept], "age": 3}).to_parquet(tmp_path / "bank.parquet")
    paths = {party: tmp_path / f"{party}.parquet" for party in schema.parties}
    together = VerticalDataset.from_files(schema, paths, unmatched="drop").arrays("clinic")
    Linkage.made("topic", normalised_ids(ids.to_frame(), schema, "clinic"), kept).save(tmp_path / "linkage.npz")
    settings = {"linkage": tmp_path / "linkage.npz"} if linked else {}
    for how in ({}, {"spool": tmp_path}, {"spool": tmp_path, "workers": client.scheduler.address}):
        task = PartyTask(
            party="clinic", schema=schema.to_dict(), table=own, build=VertiMRF, **how, **settings
        )  # fmt: skip
        found, theirs = task.read_records(schema)
        assert list(theirs) == sorted(ids.iloc[kept].astype(str))
        for name, column in together.items():
            np.testing.assert_array_equal(found.arrays("clinic")[name], column)
    with_workers = VerticalDataset.from_files(
        schema, paths, spool=tmp_path, workers=client, unmatched="drop"
    )  # fmt: skip
    np.testing.assert_array_equal(with_workers.arrays("clinic")["cost"], together["cost"])
    if not linked:
        assert with_workers.moved["clinic"] == VerticalDataset.from_files(schema, paths).moved["clinic"]
        assert with_workers.moved["clinic"]["cost"].count > 0


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    for given in (2, "tcp://127.0.0.1:8786"):
        with pytest.raises(ArgumentError, match=r"vertinumpyro\[dask\]"):
            workers_of(given)


def test_a_table_whose_ids_have_changed_since_they_were_linked(folder, small_blocks, client, tmp_path):
    schema = Schema.from_dict(SCHEMA.to_dict())
    file_ids = normalised_ids(pd.read_parquet(folder / "insurer.parquet"), schema, "insurer")
    for other in ([*file_ids[:-1], "another"], file_ids[:-1], [*file_ids, "one more"]):
        Linkage.made("topic", other, np.arange(5)).save(tmp_path / "linkage.npz")
        for task in tasks_in_turn(folder, client, linkage=tmp_path / "linkage.npz"):
            with pytest.raises(AlignmentError, match="have changed since its records were linked"):
                task.read_records(schema)
