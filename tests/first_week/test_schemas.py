"""What a statistician gets wrong in a schema: each told with file, line, party, column and what to write."""

import pytest

from tests.cli.conftest import Project

VISITS, AGE, ILL, PLAN = (
    f"schema.toml, line {line}, party '{party}', column '{name}': "
    for line, party, name in (
        (8, "insurer", "visits"),
        (12, "clinic", "age"),
        (16, "clinic", "ill"),
        (4, "insurer", "plan"),
    )
)
INTEGER, REAL, BINARY, CATEGORIES = "bounds = [0, 9]", "bounds = [0, 100]", 'type = "binary"', '["a", "b", "c"]'
DATE = 'type = "date"\n'

MISTAKES = {
    "no type": ('type = "integer"\n', "", VISITS + "has no type; known: 'integer', 'count'"),
    "type of a number": ('"integer"', "5", VISITS + "unknown type 5; known:"),
    "type misspelt": ('"integer"', '"integre"', VISITS + "unknown type 'integre'; did you mean 'integer'?"),
    "type in capitals": ('"integer"', '"Integer"', "did you mean 'integer'?"),
    "type of another program": ('"integer"', '"numeric"', VISITS + "unknown type 'numeric'; known:"),
    "no bounds": (INTEGER + "\n", "", VISITS + "an integer column needs bounds = [lo, hi]"),
    "bounds swapped": ("[0, 9]", "[9, 0]", VISITS + "bounds = [9, 0]; lo must be less than hi"),
    "bounds equal": ("[0, 9]", "[9, 9]", VISITS + "bounds = [9, 9]; lo must be less than hi"),
    "bounds of texts": ("[0, 9]", '["0", "9"]', VISITS + "bounds = ['0', '9']; give integers"),
    "one bound": ("[0, 9]", "[9]", VISITS + "bounds = [9]; give [lo, hi]"),
    "three bounds": ("[0, 9]", "[0, 5, 9]", VISITS + "bounds = [0, 5, 9]; give [lo, hi]"),
    "a number for bounds": ("[0, 9]", "9", VISITS + "bounds = 9; give a list"),
    "a table for bounds": ("[0, 9]", "{low = 0}", VISITS + "bounds = a dict; give a list"),
    "no upper end": ("[0, 100]", "[0, inf]", AGE + "bounds = [0.0, inf]; real bounds are finite"),
    "no number": ("[0, 100]", "[nan, 1]", AGE + "bounds = [nan, 1.0]; real bounds are finite"),
    "too many integers": ("[0, 9]", "[0, 100000]", VISITS + "100001 integers are too many; give bins"),
    "beyond integers": ("[0, 9]", "[0, 1e300]", VISITS + "bounds = [0, 1e+300]; give integers of magnitude"),
    "half an integer": ("[0, 9]", "[0, 9.5]", VISITS + "bounds = [0, 9.5]; give integers"),
    "min and max": (INTEGER, "min = 0\nmax = 9", "2 mistakes in the schema: " + VISITS + "unknown key 'min'"),
    "no categories": (f"categories = {CATEGORIES}\n", "", PLAN + "needs categories"),
    "empty categories": (CATEGORIES, "[]", PLAN + "categories is empty; list every category"),
    "one category": (CATEGORIES, '["a"]', PLAN + "a single category leaves nothing to learn; list the others"),
    "a category twice": (CATEGORIES, '["a", "b", "a"]', PLAN + "categories list 'a' twice; list each once"),
    "mixed categories": (CATEGORIES, '["a", 1]', PLAN + "categories mix types; list text, numbers or booleans"),
    "a text for categories": (CATEGORIES, '"a, b"', PLAN + "categories = 'a, b'; give a list"),
    "categories of a number": (INTEGER, "categories = [1, 2]", VISITS + "unknown key 'categories'; known:"),
    "unknown not listed": (CATEGORIES, CATEGORIES + '\nunknown = "d"', PLAN + "unknown = 'd'; give \"error\" or one"),
    "unknown a list": (CATEGORIES, CATEGORIES + '\nunknown = ["a"]', PLAN + 'unknown = a tuple; give "error" or one'),
    "no bins": (REAL, REAL + "\nbins = 0", AGE + "bins = 0; give an integer from 2 to 1000"),
    "bins as text": (REAL, REAL + '\nbins = "16"', AGE + "bins = '16'; give an integer from 2 to 1000"),
    "a million bins": (REAL, REAL + "\nbins = 1000000", AGE + "bins = 1000000; give an integer from 2"),
    "edges unsorted": (REAL, "edges = [0, 50, 20]", AGE + "edges = [0.0, 50.0, 20.0]; give them in ascending order"),
    "edges and bins": (REAL, REAL + "\nedges = [0, 50]\nbins = 4", AGE + "give bounds and bins, or edges, not both"),
    "missing": (REAL, REAL + '\nmissing = "allow"', AGE + "missing = 'allow'; choose one of 'forbid', 'mask'"),
    "missing misspelt": (REAL, REAL + '\nmissing = "categories"', "missing = 'categories'; choose one of 'forbid', 'mask'"),
    "missing a flag": (REAL, REAL + "\nmissing = true", AGE + "missing = True; choose one of 'forbid', 'mask'"),
    "out of bounds": (REAL, REAL + '\nout_of_bounds = "drop"', "out_of_bounds = 'drop'; choose one of 'error', 'clip'"),
    "transform": (REAL, REAL + '\ntransform = "log2"', AGE + "transform = 'log2'; choose one of 'identity'"),
    "storage": (REAL, REAL + '\ndtype = "float7"', AGE + "dtype = 'float7' is unknown; give e.g. \"int16\""),
    "not confirmed": (REAL, REAL + "\nconfirmed = false", AGE + "its domain was read from private records"),
    "confirmed by a word": (REAL, REAL + '\nconfirmed = "yes"', AGE + "confirmed = 'yes'; give true once"),
    "unknown key": (REAL, REAL + '\nunit = "years"', AGE + "unknown key 'unit'; known:"),
    "the id as a column": ("columns.ill]", "columns.person]", "column 'person': is the id column; rename it"),
    "a column at two": ("columns.ill]", "columns.visits]", "column 'visits' is at 'insurer' and at 'clinic'; rename"),
    "a party without columns": ("[parties.clinic.columns.age]", "[parties.bank]\n[parties.clinic.columns.age]",
                                "schema.toml, line 12, party 'bank': has no columns; list at least one, or drop"),
    "a level left out": ("[parties.clinic.columns.age]", "[parties.clinic.age]", "'clinic': unknown key 'age'; known"),
    "a key of a party": ("clinic.columns.age]", "clinic.colums.age]", "'clinic': unknown key 'colums'; did you mean 'columns'?"),
    "a column of a list": (f"[parties.clinic.columns.ill]\n{BINARY}", '[parties.clinic.columns]\nill = ["binary"]',
                           "column 'ill': is not a table; write [parties.NAME.columns.NAME]"),
    "no id": ('"person"', '""', "schema.toml: id_column = ''; give a non-empty text"),
    "two ids": ('"person"', '["person"]', "schema.toml: id_column = a list; give a non-empty text"),
    "id misspelt": ("id_column", "id_colum", "unknown key 'id_colum'; did you mean 'id_column'?"),
    "name of a mask": ("columns.ill]", "columns.ill_observed]", "column 'ill_observed' ends in '_observed'"),
    "no quotes": (BINARY, "type = binary", "the schema, schema.toml, is not valid TOML: Invalid value (at line 17"),
    "a column twice": ("clinic.columns.ill]", "clinic.columns.age]", "schema.toml, is not valid TOML: Cannot declare"),
    "dates reversed": (BINARY, DATE + 'bounds = ["2024-01-01", "2020-01-01"]\nunit = "month"',
                       ILL + "bounds = ['2024-01-01', '2020-01-01']; the first must lie before the last"),
    "no date": (BINARY, DATE + 'bounds = ["yesterday", "2020-01-01"]\nunit = "month"',
                ILL + "bounds hold 'yesterday'; give dates"),
    "unit of a date": (BINARY, DATE + 'bounds = ["2019-01-01", "2020-01-01"]\nunit = "fortnight"',
                       ILL + "unit = 'fortnight'; choose one of 'minute'"),
    "format of a date": (BINARY, DATE + 'bounds = ["2019-01-01", "2020-01-01"]\nunit = "month"\nformat = "dd.mm.yyyy"',
                         ILL + "format = 'dd.mm.yyyy'; give strptime's letters"),
    "too many minutes": (BINARY, DATE + 'bounds = ["1919-01-01", "2020-01-01"]\nunit = "minute"',
                         ILL + "bounds = ['1919-01-01', '2020-01-01']: too many units of a minute; take longer ones"),
    "a count without end": (f'type = "integer"\n{INTEGER}', 'type = "count"', VISITS + "needs upper"),
    "a negative count": (f'type = "integer"\n{INTEGER}', 'type = "count"\nupper = -3',
                         VISITS + "upper = -3; give an integer"),
    "three of two": (BINARY, BINARY + '\ncategories = ["a", "b", "c"]', ILL + "categories = ['a', 'b', 'c']; give two"),
}  # fmt: skip

FILES = {
    "YAML": ("parties:\n  clinic:\n", "schema.toml, is not valid TOML: Expected '='"),
    "JSON": ('{"parties": {}}', "schema.toml, is not valid TOML: Invalid statement"),
    "empty": ("", "schema.toml: the schema has no parties; list at least one"),
    "no party": ('id_column = "person"\n', "schema.toml: the schema has no parties; list at least one"),
    "binary": ("\0\1\2", "schema.toml looks like utf-16"),
}


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes(project: Project, old: str, new: str, message: str):
    schema = project.folder / "schema.toml"
    assert old in schema.read_text()
    schema.write_text(schema.read_text().replace(old, new, 1))
    assert message in project.fails("plan", project.config)


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES.keys())
def test_files(project: Project, text: str, message: str):
    (project.folder / "schema.toml").write_text(text)
    assert message in project.fails("plan", project.config)


def test_ten_thousand_categories_are_planned_for(project: Project):
    schema = project.folder / "schema.toml"
    schema.write_text(schema.read_text().replace(CATEGORIES, str([f"c{n}" for n in range(10_000)]).replace("'", '"')))
    result = project.run("plan", project.config)
    assert result.exit_code == 0, result.stderr
    assert "10000 categories" in result.output
