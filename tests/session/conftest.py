import dataclasses

import numpy as np
import pytest

from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.session import PartyTask

NUM_RECORDS = 60


@pytest.fixture(scope="session")
def linear_schema():
    real = RealColumn(bounds=(0.0, 1.0))
    return Schema({"clinic": PartySchema({"age": real}), "bank": PartySchema({"debt": real})})


@dataclasses.dataclass(frozen=True)
class Tables:
    """A folder with the parties' tables, whose rows stand in different orders."""

    schema: Schema
    dataset: VerticalDataset
    files: dict

    def tasks(self, build, folder, **settings):
        """Tasks whose ledgers lie in a folder of the test's own."""
        return [
            PartyTask(
                party=party,
                schema=self.schema.to_dict(),
                table=self.files[party],
                build=build,
                ledger=folder / f"{party}.ledger",
                **settings,
            )
            for party in self.schema.parties
        ]


def make_tables(folder, num_parties, num_records=NUM_RECORDS):
    real = RealColumn(bounds=(0.0, 1.0))
    parts = {
        "clinic": PartySchema({"age": real, "ill": BinaryColumn()}),
        "bank": PartySchema({"debt": real, "kind": CategoricalColumn(categories=("a", "b", "c"))}),
        "shop": PartySchema({"visits": real}),
    }
    schema = Schema(dict(list(parts.items())[:num_parties]))
    frame = VerticalDataset.example(schema, num_records, np.random.default_rng(0)).to_frame()
    frame.insert(0, schema.id_column, [f"{i:05d}" for i in range(num_records)])
    files = {party: folder / f"{party}.csv" for party in schema.parties}
    for party, part in schema.parties.items():
        own = frame[[schema.id_column, *part.columns]].sample(frac=1.0, random_state=len(party))
        own.to_csv(files[party], index=False)
    return Tables(schema, VerticalDataset.from_files(schema, files), files)


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    return make_tables(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    return make_tables(tmp_path_factory.mktemp("three"), 3)
