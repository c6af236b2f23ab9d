"""How a party's file is written goes to its process; the storage types of its columns come back."""

import functools

import pytest

from tests.cli.conftest import SCHEMA, draw_tables
from vertinumpyro.data import Schema
from vertinumpyro.dpvi import DPVI
from vertinumpyro.secure.crypten import Crypten
from vertinumpyro.session import PartyTask, ProcessSession

pytestmark = pytest.mark.skipif(Crypten().missing() is not None, reason=Crypten().missing() or "")


def test_a_file_is_read_as_written_and_its_types_reach_the_stand_in(tmp_path):
    pytest.importorskip("pyarrow", exc_type=ImportError)
    schema, tables = Schema.from_toml(SCHEMA), draw_tables()
    tables["insurer"].to_csv(tmp_path / "insurer.csv", sep=";", index=False)
    tables["clinic"].astype({"age": "float32", "ill": "bool"}).to_parquet(tmp_path / "clinic.parquet")
    facts = {"schema": schema.to_dict(), "build": functools.partial(DPVI, backend=Crypten(), num_components=2)}
    tasks = [
        PartyTask(party="insurer", table=tmp_path / "insurer.csv", read_options={"separator": ";"}, **facts),
        PartyTask(party="clinic", table=tmp_path / "clinic.parquet", **facts),
    ]
    with ProcessSession(tasks) as session:
        found = session.schema
    assert found.dtypes == {"plan": None, "visits": None, "age": "float32", "ill": "bool"}
    assert found.digest() == schema.digest()
