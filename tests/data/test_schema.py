import pickle
from pathlib import Path

import pytest
from hypothesis import given

from tests.data.strategies import schemas
from vertinumpyro.core.errors import SchemaError
from vertinumpyro.data import BinaryColumn, BinnedColumn, PartySchema, RealColumn, Schema

TEXT = """
id_column = "person_id"

[parties.insurer.columns.lncoins]
type = "real"
bounds = [0.0, 4.7]
transform = "log1p"

[parties.insurer.columns.plan]
type = "categorical"
categories = ["a", "b"]
unknown = "b"

[parties.clinic.columns.visits]
type = "count"
upper = 100

[parties.clinic.columns.disea]
type = "real"
bounds = [0, 60]
bins = 16

[parties.clinic.columns.hlthp]
type = "binary"

[parties.clinic.columns.grade]
type = "integer"
bounds = [1, 16]
"""


def two_parties(**clinic):
    return {"parties": {"insurer": {"columns": {"plan": {"type": "binary"}}}, "clinic": {"columns": clinic}}}


@given(schemas())
def test_toml_and_dict_round_trip(schema):
    assert Schema.from_toml(schema.to_toml()) == schema
    assert Schema.from_dict(schema.to_dict()) == schema
    assert Schema.from_toml(schema.to_toml()).columns == schema.columns
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert hash(Schema.from_dict(schema.to_dict())) == hash(schema)


HIDDEN = {
    "\x1b": r"\x1b", "\n": r"\n", "\x7f": r"\x7f", "\x9b": r"\x9b", "\u202e": r"\u202e", "\u200b": r"\u200b",
    "\u2066": r"\u2066", "\u2028": r"\u2028", "\ue000": r"\ue000", "\U000e0041": r"\U000e0041", "\u0378": r"\u0378",
}  # fmt: skip


@pytest.mark.parametrize("character", HIDDEN, ids=HIDDEN.values())
def test_characters_that_nobody_sees_are_in_no_name_and_no_label(character):
    hidden = f"a{character}b"
    labels = {"type": "categorical", "categories": ["a", hidden]}
    specs = [
        (two_parties(**{hidden: {"type": "binary"}}), "rename it, here and in the party's table"),
        ({"parties": {hidden: {"columns": {"a": {"type": "binary"}}}}}, "rename it"),
        ({**two_parties(a={"type": "binary"}), "id_column": hidden}, "rename it, here and in the tables"),
        (two_parties(a=labels), "'clinic', column 'a': categories: .* take it out, here and in the party's table"),
        (two_parties(a={"type": "binary", "categories": ["a", hidden]}), "categories: "),
    ]
    for spec, fix in specs:
        with pytest.raises(SchemaError, match=fix) as caught:
            Schema.from_dict(spec)
        assert f": {HIDDEN[character]};" in str(caught.value)
        assert character not in str(caught.value)


def test_letters_of_every_script_are_names():
    names = ["Größe", "年龄", "العمر", "naïve", "cafe\u0301", "a b", "😀"]
    assert list(Schema.from_dict(two_parties(**{name: {"type": "binary"} for name in names})).columns)[1:] == names


def test_reads_the_documented_shape():
    schema = Schema.from_toml(TEXT)
    assert schema.id_column == "person_id"
    assert list(schema.columns) == ["lncoins", "plan", "visits", "disea", "hlthp", "grade"]
    assert schema.column_names("insurer") == ("lncoins", "plan")
    assert schema.party_of("disea") == "clinic"
    assert len(schema.parties) == 2
    assert isinstance(schema.columns["disea"], BinnedColumn)
    assert [c.kind for c in schema.columns.values()] == [
        *("real", "categorical", "count", "categorical", "binary", "categorical")
    ]


def test_reads_a_file(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(TEXT, encoding="utf-8")
    assert Schema.from_toml(path) == Schema.from_toml(str(path)) == Schema.from_toml(TEXT)


def test_restrict_keeps_one_party():
    schema = Schema.from_toml(TEXT).restrict("clinic")
    assert list(schema.parties) == ["clinic"]
    assert schema.id_column == "person_id"


def test_order_of_columns_matters_to_equality_and_digest():
    real = RealColumn(bounds=(0, 1))
    one = Schema({"p": PartySchema({"a": real, "b": real})})
    two = Schema({"p": PartySchema({"b": real, "a": real})})
    assert one != two
    assert one.digest() != two.digest()


def test_a_schema_cannot_be_changed():
    schema = Schema.from_toml(TEXT)
    with pytest.raises(TypeError):
        schema.parties["other"] = schema.parties["clinic"]  # type: ignore[index]


SEVERAL = """
id_column = "person"

[parties.insurer.columns.plan]
type = "categorical"
categories = [
    "a",
    "a",
]

[parties."old insurer".columns.cost]
type = "reel"

  [ parties . clinic . columns . "age at entry" ]
type = "real"
bounds = [3, 1]
trasform = "sqrt"
decimal = 1

[parties.clinic.columns.person]
type = "binary"

[parties.clinic.columns.plan]
type = "binary"
"""
WRONG = {
    "line 4, party 'insurer', column 'plan'": "'a' twice",
    "line 11, party 'old insurer', column 'cost'": "did you mean 'real'",
    "line 14, party 'clinic', column 'age at entry'": "did you mean 'transform'",
    "line 14, party 'clinic', column 'age at entry': unknown key 'decimal'": "did you mean 'decimals'",
    "line 20, party 'clinic', column 'person'": "is the id column",
    "column 'plan' is at 'insurer'": "and at 'clinic'",
}


def test_every_mistake_is_told_at_once_with_its_line():
    with pytest.raises(SchemaError) as caught:
        Schema.from_toml(SEVERAL)
    told = str(caught.value).splitlines()
    assert told[0] == f"{len(WRONG)} mistakes in the schema:"
    assert len(told) == 1 + len(WRONG)
    for place, problem in WRONG.items():
        assert [line for line in told if place in line and problem in line], place


def test_a_dict_has_no_lines_and_a_file_has_a_name(tmp_path):
    spec = two_parties(age={"type": "real", "bounds": [3, 1]}, sex={"type": "binry"})
    with pytest.raises(
        SchemaError, match=r"^2 mistakes in the schema:\n  party 'clinic', column 'age': .*\n  party 'c"
    ):
        Schema.from_dict(spec)
    path = tmp_path / "schema.toml"
    path.write_text('[parties.clinic.columns.sex]\ntype = "binry"\n')
    with pytest.raises(SchemaError, match=r"^schema\.toml, line 1, party 'clinic', column 'sex': unknown type"):
        Schema.from_toml(path)


def test_names_are_checked_beside_columns():
    spec = two_parties(age_observed={"type": "binary"}, sex={"type": "binry"})
    with pytest.raises(SchemaError) as caught:
        Schema.from_dict({**spec, "id_column": "", "partys": 1})
    told = str(caught.value)
    for words in ("4 mistakes", "age_observed", "'binary'", "id_column", "'partys'"):
        assert words in told


def test_a_folder_is_no_schema(tmp_path):
    with pytest.raises(SchemaError, match="folder"):
        Schema.from_toml(tmp_path)


def test_a_single_category_is_refused_unless_missing_is_another():
    spec = two_parties(sex={"type": "categorical", "categories": ["f"]})
    with pytest.raises(SchemaError, match=r"'sex'.*single category.*leave the column out"):
        Schema.from_dict(spec)
    spec["parties"]["clinic"]["columns"]["sex"]["missing"] = "category"
    assert Schema.from_dict(spec).columns["sex"].num_categories == 2


def test_unknown_names_get_a_suggestion():
    schema = Schema.from_toml(TEXT)
    with pytest.raises(SchemaError, match="did you mean 'visits'"):
        schema.party_of("visit")
    with pytest.raises(SchemaError, match="did you mean 'clinic'"):
        schema.column_names("clinics")


@pytest.mark.parametrize("source", ["a = = 1\n", Path("no/such/schema.toml"), "missing.toml"])
def test_unreadable_toml_is_a_schema_error(source):
    with pytest.raises(SchemaError):
        Schema.from_toml(source)


def test_python_objects_are_checked_too():
    with pytest.raises(SchemaError, match="not a Column"):
        PartySchema({"age": "real"})  # type: ignore[dict-item]
    with pytest.raises(SchemaError, match="PartySchema"):
        Schema({"clinic": {"age": BinaryColumn()}})  # type: ignore[dict-item]


def test_a_schema_s_text_has_the_keys_that_were_given_and_no_others():
    columns = {
        "born": {"type": "date", "bounds": ["1990-01-01", "1999-12-31"], "unit": "year"},
        "paid": {"type": "real", "edges": [0.0, 0.0, 5.0, 9.0]},
        "age": {"type": "integer", "bounds": [18, 98]},
    }
    given = {"id_column": "id", "parties": {"p": {"columns": columns}}}
    assert Schema.from_dict(given).to_dict() == given
    columns["born"] |= {"timezone": "Europe/Helsinki", "missing": "mask", "missing_codes": ["9999-12-31"]}
    columns["paid"] |= {"decimals": 2}
    columns["age"] |= {"missing": "category", "missing_codes": [-1, 99.5, "none"]}
    schema = Schema.from_dict(given)
    assert {name: set(spec) for name, spec in schema.to_dict()["parties"]["p"]["columns"].items()} == {
        name: set(spec) for name, spec in columns.items()
    }
    assert Schema.from_toml(schema.to_toml()) == Schema.from_dict(schema.to_dict()) == schema
    assert schema.digest() != Schema.from_dict({**given, "parties": {"p": {"columns": columns | {"age": {
        "type": "integer", "bounds": [18, 98]}}}}}).digest()  # fmt: skip
