"""The public schema, the parties' tables, their alignment, and data sets to start with.

Short because it says what others may use, and nothing else.
"""

from vertinumpyro.data.alignment import Linkage, align, alignment_digest, check_digests, normalised_ids, record_ids
from vertinumpyro.data.category_columns import BinaryColumn, CategoricalColumn
from vertinumpyro.data.column import Cells, CodedColumn, Column, Kind, Missing, OutOfBounds
from vertinumpyro.data.constraints import Determined, Impossible, Order
from vertinumpyro.data.dataset import VerticalDataset
from vertinumpyro.data.datasets import (
    load_abalone,
    load_adult,
    load_dutch,
    load_nltcs,
    load_rand_hie,
    load_wine,
)
from vertinumpyro.data.date_columns import DateColumn
from vertinumpyro.data.files import CsvFormat, read_everything, read_ids, read_table
from vertinumpyro.data.number_columns import BinnedColumn, CountColumn, IntegerColumn, RealColumn
from vertinumpyro.data.row_rules import Rows, Take
from vertinumpyro.data.schema import DatasetInfo, PartySchema, Schema, TableFacts
from vertinumpyro.data.schema_inference import SchemaDraft, draft_schema
from vertinumpyro.data.schema_parsing import OBSERVED_SUFFIX
from vertinumpyro.data.table import decode_table

Facts = DatasetInfo  # its name before 0.2

__all__ = [
    "OBSERVED_SUFFIX",
    "BinaryColumn",
    "BinnedColumn",
    "CategoricalColumn",
    "Cells",
    "CodedColumn",
    "Column",
    "CountColumn",
    "CsvFormat",
    "DatasetInfo",
    "DateColumn",
    "Determined",
    "Impossible",
    "IntegerColumn",
    "Kind",
    "Linkage",
    "Missing",
    "Order",
    "OutOfBounds",
    "PartySchema",
    "RealColumn",
    "Rows",
    "Schema",
    "SchemaDraft",
    "TableFacts",
    "Take",
    "VerticalDataset",
    "align",
    "alignment_digest",
    "check_digests",
    "decode_table",
    "draft_schema",
    "load_abalone",
    "load_adult",
    "load_dutch",
    "load_nltcs",
    "load_rand_hie",
    "load_wine",
    "normalised_ids",
    "read_everything",
    "read_ids",
    "read_table",
    "record_ids",
]
