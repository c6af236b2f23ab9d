"""Files as other programs write them: what is wrong with one is named, with the remedy and without a record of it.

How the text of one is encoded and separated is asked of the reader itself, in tests/data/test_files.py.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import Project, draw_tables

CLINIC = draw_tables()["clinic"]
TEXT = CLINIC.to_csv(index=False)
LINES = TEXT.splitlines()
FIFTH = LINES[5]
AGE, ILL, PERSON = (f"party 'clinic', column '{name}': " for name in ("age", "ill", "person"))
FILE = "party 'clinic': 'clinic.csv' "
NO_HEADER = PERSON + "is not in the table, and neither is any other; does the first line hold the names?"


def parquet(folder: Path) -> bytes:
    pytest.importorskip("pyarrow")
    CLINIC.to_parquet(folder / "other.parquet")
    return (folder / "other.parquet").read_bytes()


CONTENTS = {
    "nothing": (b"", FILE + "is empty"),
    "empty lines": (b"\n\n\n", FILE + "is empty"),
    "names alone": (LINES[0], "party 'clinic': the table has no records; give at least one"),
    "lines before the names": ("exported in 2024\n" + TEXT, NO_HEADER),
    "Excel": (b"PK\x03\x04" + bytes(200), FILE + "is an Excel workbook, or a zip archive: save the sheet as CSV"),
    "old Excel": (b"\xd0\xcf\x11\xe0" + bytes(200), FILE + "is an old Excel workbook: save the sheet as CSV"),
    "gzip": (gzip.compress(TEXT.encode()), FILE + "is compressed by gzip: let its name end in .csv.gz"),
    "Parquet": (parquet, FILE + "is a Parquet file: let its name end in .parquet"),
    "Arrow": (b"ARROW1\0\0" + bytes(90), FILE + "is an Arrow file: convert it to Parquet"),
    "a database": (b"SQLite format 3\0" + bytes(90), FILE + "is a database: export the table as CSV"),
    "a page": ("<html><body>not found</body></html>", FILE + "is a web page or XML: export the table as CSV"),
    "JSON": ('[{"person": "p0001"}]', FILE + "is JSON: export the table as CSV"),
    "a longer row": (TEXT.replace(FIFTH, FIFTH + ",7,7"), FILE + "has rows of more fields than the header; set the"),
    "a shorter row": (TEXT.replace(FIFTH, "p0004"), AGE + "has missing values; fill them, or set missing"),
    "an open quote": (TEXT.replace(FIFTH, 'p0004,"33.1,1'), FILE + "has a quote that does not close"),
    "a name twice": (TEXT.replace("age,ill", "age,age"), AGE + "occurs twice in the table; keep one"),
    "a name with a space": (TEXT.replace("age", " age"), AGE + "is not in the table; add it, or rename it (did you mean ' age'?)"),
    "a name in capitals": (TEXT.replace("age", "Age"), AGE + "is not in the table; add it, or rename it (did you mean 'Age'?)"),
    "a line of totals": (TEXT + "Total,50.0,1\n", "1 of party 'clinic'; keep the common records only"),
    "no id": (TEXT.replace("person", "patient"), PERSON + "is not in the table; add it, or rename it"),
    "fewer records": ("\n".join(LINES[:-20]), "20 of party 'insurer'; keep the common records only"),
    "more records": (TEXT + "q1,33.0,1\n", "1 of party 'clinic'; keep the common records only"),
}  # fmt: skip

Change = Callable[[pd.Series], pd.Series]
AMONG = "holds texts among its numbers: where they stand for a missing value, leave the cell empty and set missing"
VALUES: dict[str, tuple[str, Change, str]] = {
    "percent": ("age", lambda s: s.astype(str) + "%", AGE + "holds numbers with a sign or a unit at each: leave it out"),
    "a currency": ("age", lambda s: "€" + s.astype(str), AGE + "holds numbers with a sign or a unit at each: leave it out"),
    "a unit": ("age", lambda s: s.astype(str) + " years", AGE + "holds numbers with a sign or a unit at each: leave it out"),
    "a question mark": ("age", lambda s: s.astype(str).where(s > 30, "?"), AGE + AMONG),
    "a word for none": ("age", lambda s: s.astype(str).where(s > 30, "unknown"), AGE + AMONG),
    "NA": ("age", lambda s: s.astype(str).where(s > 30, "NA"), AGE + 'has missing values; fill them, or set missing = "mask"'),
    "a number for none": ("age", lambda s: s.where(s > 30, -999), AGE + "holds a value outside the public bounds [0.0, 100.0]; widen"),
    "infinite": ("age", lambda s: s.where(s > 30, np.inf), AGE + "holds a value that is not a finite number; repair it"),
    "yes and no": ("ill", lambda s: s.map({0: "no", 1: "yes"}), ILL + "holds two texts: list them in the schema as categories"),
    "one and two": ("ill", lambda s: s + 1, ILL + "holds a value that is neither of the two the schema lists; recode it"),
    "halves": ("ill", lambda s: s / 2, ILL + "holds a value that is neither of the two the schema lists; recode it"),
    "a missing id": ("person", lambda s: s.where(s != "p0003", ""), PERSON + "has missing ids; give every record one"),
    "an id twice": ("person", lambda s: s.where(s != "p0003", "p0004"), PERSON + "has duplicate ids; keep one record per id"),
    "ids in capitals": ("person", lambda s: s.str.upper(), "ids at 'clinic' have capital letters: write ids alike"),
    "ids with spaces": ("person", lambda s: " " + s, "ids at 'clinic' have spaces around them: write ids alike"),
    "other ids": ("person", lambda s: "x" + s, "0 of 200 ids match; does the id column name the same records"),
}  # fmt: skip

PLACES = {
    "nowhere": ("gone.csv", None, "there is no file"),
    "an address": ("https://example.org/clinic.csv", None, "there is no file"),
    "a folder": (".", None, "is a folder; give the file in it"),
    "another format": ("clinic.dta", b"x", "'clinic.dta' is neither .csv, .tsv, .csv.gz, .tsv.gz nor .parquet; convert it"),
    "no ending": ("clinic", b"x", "'clinic' is neither .csv"),
    "broken Parquet": ("clinic.parquet", b"PAR1oops", "'clinic.parquet' cannot be read as .parquet; check its format"),
    "broken gzip": ("clinic.csv.gz", b"\x1f\x8b\x08\0abc", "'clinic.csv.gz' cannot be read as .csv.gz; check its format"),
    "text named gzip": ("clinic.csv.gz", TEXT.encode(), "'clinic.csv.gz' is not compressed: let its name end in .csv"),
    "the other party's": ("insurer.csv", None, AGE + "is not in the table; add it, or rename it"),
}  # fmt: skip


def fails(project: Project) -> str:
    """What `check` says, with no id and no value of a record in it."""
    message = project.fails("check", project.config)
    assert not any(id_ in message for id_ in ("p0003", "p0004", "P0003", "q1", FIFTH.split(",")[1]))
    return message


@pytest.mark.parametrize(("content", "message"), CONTENTS.values(), ids=CONTENTS.keys())
def test_contents(project: Project, content, message: str):
    made = content(project.folder) if callable(content) else content
    (project.folder / "clinic.csv").write_bytes(made.encode() if isinstance(made, str) else made)
    assert message in fails(project)


@pytest.mark.parametrize(("column", "change", "message"), VALUES.values(), ids=VALUES.keys())
def test_values(project: Project, column: str, change: Change, message: str):
    CLINIC.assign(**{column: change(CLINIC[column])}).to_csv(project.folder / "clinic.csv", index=False)
    assert message in fails(project)


@pytest.mark.parametrize(("name", "content", "message"), PLACES.values(), ids=PLACES.keys())
def test_places(project: Project, name: str, content: bytes | None, message: str):
    if content is not None:
        (project.folder / name).write_bytes(content)
    project.replace('"clinic.csv"', f'"{name}"')
    assert message in fails(project)


def test_a_byte_order_mark_and_whole_floats_are_no_mistakes(project: Project):
    text = CLINIC.assign(ill=CLINIC["ill"].astype(float)).to_csv(index=False)
    (project.folder / "clinic.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert project.run("plan", project.config).exit_code == 0
