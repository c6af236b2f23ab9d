"""Files as they come from other programs: read when told how, and named for what they look like when not."""

import gzip

import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError, DataError
from vertinumpyro.data import Schema, VerticalDataset, read_everything, read_ids, read_table

SCHEMA = Schema.from_toml("""
[parties.clinic.columns.town]
type = "categorical"
categories = ["Köln", "Łódź", "Bonn"]
missing = "mask"

[parties.clinic.columns.cost]
type = "real"
bounds = [0, 100000]

[parties.clinic.columns.visits]
type = "count"
upper = 50
""")
TEXT = "id,town,cost,visits\n007,Köln,1.5,3\n010,Bonn,1299.25,40\n011,,7,0\n"
GERMAN = TEXT.replace(",", ";").replace(".", ",")
IDS = ["007", "010", "011"]


def write(folder, name, text, encoding="utf-8"):
    path = folder / name
    content = text if isinstance(text, bytes) else text.encode(encoding)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def read(path, **options):
    return VerticalDataset.from_files(SCHEMA, {"clinic": path}, **options)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return read(write(tmp_path_factory.mktemp("plain"), "t.csv", TEXT)).pooled()


READ = {
    "upper case": ("T.CSV", TEXT, "utf-8", {}),
    "compressed": ("t.csv.gz", TEXT, "utf-8", {}),
    "tabs": ("t.tsv", TEXT.replace(",", "\t"), "utf-8", {}),
    "compressed tabs": ("t.tsv.gz", TEXT.replace(",", "\t"), "utf-8", {}),
    "tabs in a .csv": ("t.csv", TEXT.replace(",", "\t"), "utf-8", {"separator": "\t"}),
    "byte order mark": ("t.csv", TEXT, "utf-8-sig", {}),
    "byte order mark, said": ("t.csv", TEXT, "utf-8-sig", {"encoding": "UTF8"}),
    "German": ("t.csv", GERMAN, "cp1252", {"separator": ";", "decimal": ",", "encoding": "cp1252"}),
    "UTF-16": ("t.csv", TEXT, "utf-16", {"encoding": "utf-16"}),
    "UTF-16 without a mark": ("t.csv", TEXT, "utf-16-le", {"encoding": "utf-16-le"}),
    "quoted commas": ("t.csv", TEXT.replace("1.5", '"1,5"').replace("1299.25", '"1299,25"'), "utf-8", {"decimal": ","}),
    "trailing separators": ("t.csv", TEXT.replace("3\n", "3,\n").replace("40\n", "40,,\n"), "utf-8", {}),
    "Windows line ends": ("t.csv", TEXT.replace("\n", "\r\n"), "utf-8", {}),
    "Excel's line": ("t.csv", "sep=,\r\n" + TEXT, "utf-8", {}),
    "Excel's line, marked": (
        "t.csv",
        '"sep=;"\n' + TEXT.replace(",", ";"),
        "utf-16",
        {"encoding": "utf-16", "separator": ";"},
    ),
    "a nameless column": ("t.csv", TEXT.replace("\n", ",\n"), "utf-8", {}),
}


@pytest.mark.parametrize("case", READ)
def test_a_file_that_is_described_is_read(tmp_path, expected, case):
    name, text, encoding, options = READ[case]
    path = write(tmp_path, name, text, encoding)
    for column, array in read(path, **options).pooled().items():
        np.testing.assert_array_equal(array, expected[column])
    assert read_ids(path, SCHEMA, "clinic", **options)["id"].tolist() == IDS


LATE = TEXT.replace("Köln", "Bonn") + "9,Bonn,1,1\n" * 20_000 + "8,Köln,1,1\n"
NAMED = {
    "cp1252": ("t.csv", TEXT, "cp1252", {}, 'looks like cp1252 text.*encoding = "cp1252"'),
    "cp1252 far down": ("t.csv", LATE, "cp1252", {}, 'encoding = "cp1252"'),
    "UTF-16": ("t.csv", TEXT, "utf-16", {}, 'looks like utf-16 text.*encoding = "utf-16"'),
    "UTF-16 without a mark": ("t.csv", TEXT, "utf-16-le", {}, 'encoding = "utf-16-le"'),
    "UTF-16, big": ("t.csv", TEXT.replace("ö", "o"), "utf-16-be", {}, 'encoding = "utf-16-be"'),
    "compressed": ("t.csv.gz", TEXT, "cp1252", {}, 'encoding = "cp1252"'),
    "UTF-8 as UTF-16": ("t.csv", TEXT, "utf-8", {"encoding": "utf-16"}, 'looks like utf-8 text.*encoding = "utf-8"'),
    "semicolons": ("t.csv", TEXT.replace(",", ";"), "utf-8", {}, 'semicolons.*separator = ";"'),
    "tabs": ("t.csv", TEXT.replace(",", "\t"), "utf-8", {}, r'tabs.*separator = "\\t".*\.tsv'),
    "bars": ("t.csv", TEXT.replace(",", "|"), "utf-8", {}, r'bars.*separator = "\|"'),
    "commas": ("t.csv", TEXT, "utf-8", {"separator": ";"}, 'commas.*separator = ","'),
    "a comma in a .tsv": ("t.tsv", TEXT, "utf-8", {}, 'commas.*separator = ","'),
    "both": ("t.csv", GERMAN, "cp1252", {}, 'encoding = "cp1252".*separator = ";"'),
    "decimal commas": ("t.csv", GERMAN, "utf-8", {"separator": ";"}, "column 'cost'.*decimal commas.*decimal = \",\""),
    "decimal commas in a .csv": ("t.csv", TEXT.replace(".", ","), "utf-8", {}, "more fields than the header.*decimal"),
    "thousands": ("t.csv", TEXT.replace("1299.25", '"1,299.25"'), "utf-8", {}, "column 'cost'.*thousands"),
    "thousands of an integer": ("t.csv", TEXT.replace(",40", ',"1,040"'), "utf-8", {}, "column 'visits'.*thousands"),
    "decimal points": ("t.csv", TEXT, "utf-8", {"decimal": ","}, "column 'cost'.*decimal points.*decimal = \".\""),
    "points": (
        "t.csv",
        GERMAN.replace(",", "."),
        "utf-8",
        {"decimal": ",", "separator": ";"},
        "column 'cost'.*decimal points",
    ),
    "no header": ("t.csv", TEXT.split("\n", 1)[1], "utf-8", {}, "first line hold the names"),
    "another name": ("t.csv", TEXT.replace("town", "towns"), "utf-8", {}, "column 'town'.*did you mean 'towns'"),
}


@pytest.mark.parametrize("case", NAMED)
def test_a_file_that_is_not_described_is_named_for_what_it_looks_like(tmp_path, case):
    name, text, encoding, options, message = NAMED[case]
    path = write(tmp_path, name, text.replace("1299", "31337"), encoding)
    with pytest.raises((DataError, ArgumentError), match=message) as caught:
        read(path, **options)
    for value in ("31337", "Bonn", "Köln", "007"):
        assert value not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("separator", ";;", "separator.*one character"),
        ("separator", "", "separator.*one character"),
        ("separator", ".", "differ"),
        ("decimal", ";", 'decimal.*"." or ","'),
        ("encoding", "latin-nine", "encoding.*unknown"),
        ("encoding", "rot13", "encoding.*unknown"),
    ],
)
def test_options_are_checked_before_the_file_is_opened(tmp_path, option, value, message):
    with pytest.raises(ArgumentError, match=message):
        read_table(tmp_path / "none.csv", SCHEMA, "clinic", **{option: value})


def test_a_broken_archive_is_a_data_error(tmp_path):
    for content in (b"31337", gzip.compress(TEXT.encode() * 99)[:-40]):
        (tmp_path / "t.csv.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"party 'clinic'.*t\.csv\.gz") as caught:
            read(tmp_path / "t.csv.gz")
        assert caught.value.__context__ is None


def test_ids_are_read_alone_and_as_text(tmp_path):
    path = write(tmp_path, "t.csv", "id,town,cost\nNA,31337,x\n007,,\n")
    assert read_ids(path, SCHEMA, "clinic").to_dict("list") == {"id": ["NA", "007"]}
    with pytest.raises(DataError, match="column 'id': is not in the table"):
        read_ids(write(tmp_path, "u.csv", "ident,town\n1,2\n"), SCHEMA, "clinic")
    with pytest.raises(DataError, match=r"party 'clinic'.*separator = \";\""):
        read_ids(write(tmp_path, "v.csv", "id;town\n1;2\n"), SCHEMA, "clinic")


def test_a_file_may_call_its_ids_otherwise(tmp_path, expected):
    path = write(tmp_path, "t.csv", TEXT.replace("id,", "Patient,"))
    table = read_table(path, SCHEMA, "clinic", id_column="Patient")
    assert table["id"].tolist() == read_ids(path, SCHEMA, "clinic", id_column="Patient")["id"].tolist() == IDS
    dataset = VerticalDataset.from_frames(SCHEMA, {"clinic": table})
    for name, array in dataset.pooled().items():
        np.testing.assert_array_equal(array, expected[name])
    with pytest.raises(
        DataError, match=r"column 'id': is not in the table; .* or say what it calls the ids \(id_column"
    ):
        read_table(path, SCHEMA, "clinic")
    with pytest.raises(ArgumentError, match="id_column = 'town' is a column of the schema"):
        read_table(path, SCHEMA, "clinic", id_column="town")


def test_everything_of_a_file_is_its_named_columns_each_once(tmp_path):
    path = write(tmp_path, "t.csv", "id,x,\n1,a,\n2,b,\n")
    assert list(read_everything(path, "clinic", "id").columns) == ["id", "x"]
    with pytest.raises(DataError, match="column 'x': occurs twice in the table; rename one"):
        read_everything(write(tmp_path, "u.csv", "id,x,x\n1,a,b\n"), "clinic", "id")
