import pickle

import jax
import numpy as np
import pandas as pd
import pytest

import vertinumpyro as vnp
from vertinumpyro.core.errors import ArgumentError, InferenceWarning, SchemaError
from vertinumpyro.data import Determined, Impossible, Order, Schema, VerticalDataset
from vertinumpyro.data.constraints import drawn_within

TEXT = """
[[constraint]]
impossible = { sex = ["m"], pregnant = [true] }

[[constraint]]
impossible = { age = { max = 14 }, plan = ["own"] }

[[constraint]]
order = ["born", "admitted"]

[[constraint]]
column = "region"
by = "town"
values = { "Ede" = "GE", "Breda" = "NB" }

[parties.clinic.columns.sex]
type = "categorical"
categories = ["m", "f"]

[parties.clinic.columns.born]
type = "date"
bounds = ["2000-01-01", "2010-12-31"]
unit = "year"

[parties.clinic.columns.town]
type = "categorical"
categories = ["Ede", "Breda", "elsewhere"]
missing = "category"

[parties.insurer.columns.pregnant]
type = "binary"

[parties.insurer.columns.age]
type = "integer"
bounds = [0, 30]

[parties.insurer.columns.plan]
type = "categorical"
categories = ["own", "parents"]

[parties.insurer.columns.admitted]
type = "date"
bounds = ["2000-01-01", "2010-12-31"]
unit = "year"
format = "%d.%m.%Y"

[parties.insurer.columns.region]
type = "categorical"
categories = ["GE", "NB", "ZH"]
"""
SCHEMA = Schema.from_toml(TEXT)


def broken(table: pd.DataFrame) -> dict[str, int]:
    """How many records do not hold, said without the library."""
    born, admitted = pd.to_datetime(table["born"]), pd.to_datetime(table["admitted"], format="%d.%m.%Y")
    follows = table["town"].astype(object).map({"Ede": "GE", "Breda": "NB"})
    return {
        "pregnant": int(((table["sex"] == "m") & (table["pregnant"] == 1)).sum()),
        "own plan": int(((table["age"] <= 14) & (table["plan"] == "own")).sum()),
        "order": int((born > admitted).sum()),
        "region": int((follows.notna() & (follows != table["region"].astype(object))).sum()),
    }


def table(num_rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    born = rng.integers(2000, 2011, num_rows)
    town = rng.choice(["Ede", "Breda", "elsewhere", None], num_rows)
    sex = rng.choice(["m", "f"], num_rows)
    age = rng.integers(0, 31, num_rows)
    return pd.DataFrame(
        {
            "sex": sex,
            "born": [f"{year}-06-01" for year in born],
            "town": town,
            "pregnant": (sex == "f") & (rng.random(num_rows) < 0.3),
            "age": age,
            "plan": np.where(age <= 14, "parents", rng.choice(["own", "parents"], num_rows)),
            "admitted": [
                f"01.07.{min(2010, year + k)}" for year, k in zip(born, rng.integers(0, 4, num_rows), strict=True)
            ],
            "region": [{"Ede": "GE", "Breda": "NB"}.get(t, "ZH") for t in town],
        }
    )


@pytest.fixture(scope="module")
def twins():
    pytest.importorskip("mbi", reason="extra `mrf`")
    schema = Schema.from_dict(SCHEMA.to_dict() | {"constraint": []})
    dataset = {s: VerticalDataset.from_pooled(s, table(2000, 0)) for s in (schema, SCHEMA)}
    method = vnp.VertiMRF(iterations=50)
    plan = method.plan(dataset[SCHEMA], epsilon=1.0)
    return {
        name: method.fit(dataset[s], plan if s is SCHEMA else method.plan(dataset[s], epsilon=1.0), insecure_seed=1)
        for name, s in (("free", schema), ("kept", SCHEMA))
    }


def test_a_twin_keeps_what_is_known_and_is_the_free_one_otherwise(twins):
    free, kept = (twins[name].sample_synthetic(4000, rng_key=jax.random.key(0)) for name in ("free", "kept"))
    assert all(broken(free).values())
    assert not any(broken(kept).values())
    assert len(kept) == 4000
    assert kept.dtypes.equals(free.dtypes)
    for name in ("sex", "town"):
        shares = [frame[name].value_counts(normalize=True, dropna=False).sort_index() for frame in (free, kept)]
        assert np.abs(shares[0].to_numpy() - shares[1].to_numpy()).max() < 0.12


def test_blocks_and_the_same_key_keep_it_too(twins):
    blocks = list(twins["kept"].synthetic_blocks(900, rng_key=jax.random.key(1), rows=400))
    assert [len(block) for block in blocks] == [400, 400, 100]
    assert not any(broken(pd.concat(blocks)).values())
    one, other = (twins["kept"].sample_synthetic(500, rng_key=jax.random.key(2)) for _ in range(2))
    pd.testing.assert_frame_equal(one, other)


def test_a_model_s_twin_keeps_it():
    import numpyro
    import numpyro.distributions as dist

    schema = Schema.from_toml("""
[[constraint]]
impossible = { ill = ["yes"], plan = ["gold"] }
[parties.clinic.columns.ill]
type = "categorical"
categories = ["no", "yes"]
[parties.insurer.columns.plan]
type = "categorical"
categories = ["gold", "silver"]
""")

    def model(data, num_records):
        shares = numpyro.sample("shares", dist.Dirichlet(np.ones(2)))
        plans = numpyro.sample("plans", dist.Dirichlet(np.ones(2)))
        with vnp.party_plate("clinic", num_records):
            numpyro.sample("ill", dist.Categorical(shares), obs=data["ill"])
        with vnp.party_plate("insurer", num_records):
            numpyro.sample("plan", dist.Categorical(plans), obs=data["plan"])

    rng = np.random.default_rng(0)
    pooled = pd.DataFrame({"ill": rng.choice(["no", "yes"], 300), "plan": rng.choice(["gold", "silver"], 300)})
    dataset = VerticalDataset.from_pooled(schema, pooled)
    dpvi = vnp.DPVI(model, warm_start=False)
    plan = dpvi.plan(dataset, epsilon=5.0, num_steps=3)
    posterior = dpvi.fit(dataset, plan, jax.random.key(0), insecure_seed=1, progress_bar=False)
    twin = posterior.sample_synthetic(1000, rng_key=jax.random.key(1))
    assert len(twin) == 1000
    assert not ((twin["ill"] == "yes") & (twin["plan"] == "gold")).any()
    assert ((twin["ill"] == "yes") & (twin["plan"] == "silver")).any()


def test_a_record_with_covariates_is_drawn_again_at_its_place():
    columns = SCHEMA.columns

    def draw(attempt):
        rng = np.random.default_rng(attempt)
        return pd.DataFrame({"sex": ["m", "f"] * 50, "pregnant": rng.random(100) < 0.9})

    known = [Impossible({"sex": ["m"], "pregnant": [True]})]
    found = drawn_within(draw, known, columns, given=("sex",))
    assert list(found["sex"]) == ["m", "f"] * 50
    assert not broken(found.assign(**{c: table(100, 0)[c] for c in table(1, 0) if c not in found}))["pregnant"]


def test_what_hardly_ever_holds_is_said():
    def draw(_):
        return pd.DataFrame({"age": [20] * 10, "born": ["2001-01-01"] * 10, "admitted": ["01.01.2000"] * 10})

    with pytest.raises(ArgumentError, match="hardly a record that the model draws holds"):
        drawn_within(draw, SCHEMA.constraints, SCHEMA.columns)


def test_where_few_hold_a_twin_says_how_many_of_its_records_are_copies():
    def draw(attempt):
        rng = np.random.default_rng(attempt)
        return pd.DataFrame({"sex": ["m"] * 1000, "pregnant": rng.random(1000) < 0.9995})

    known = [Impossible({"sex": ["m"], "pregnant": [True]})]
    with pytest.warns(InferenceWarning, match=r"constraint: [0-9]+ of 1,000 records of the twin are copies of others"):
        found = drawn_within(draw, known, SCHEMA.columns)
    assert not found["pregnant"].any()


def test_constraints_are_part_of_the_schema():
    assert SCHEMA.constraints[2] == Order(("born", "admitted"))
    assert Schema.from_toml(SCHEMA.to_toml()) == SCHEMA == pickle.loads(pickle.dumps(SCHEMA))
    free = Schema(SCHEMA.parties)
    assert free.digest() != SCHEMA.digest()
    assert "constraint" not in free.to_toml()
    assert SCHEMA.restrict("clinic").constraints == ()
    assert SCHEMA.with_dtypes({"age": "Int64"}).constraints == SCHEMA.constraints
    assert SCHEMA.select(["town", "region", "sex"]).constraints == (SCHEMA.constraints[3],)
    assert isinstance(SCHEMA.constraints[3], Determined)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('order = ["born", "age"]', "constraint 1: order = .*dates are compared with dates"),
        ('order = ["born", "sex"]', "constraint 1: 'sex' has labels, which have no order"),
        ('order = ["born"]', "constraint 1: order = .*two columns or more"),
        ('order = ["born", "admited"]', "constraint 1: there is no column 'admited'; did you mean 'admitted'"),
        ('impossible = { sex = ["m"] }', "constraint 1: impossible = .*two columns or more"),
        ('impossible = { sex = ["man"], pregnant = [true] }', "constraint 1: 'man' is no label of 'sex'"),
        ('impossible = { sex = ["m"], age = [14] }', "constraint 1: .*'age'"),
        ('impossible = { sex = ["m"], age = { maximum = 14 } }', "constraint 1: impossible: age = .*min, max or both"),
        ('impossible = { sex = { max = 3 }, age = { max = 14 } }', "constraint 1: 'sex' has labels"),
        ('impossible = { sex = ["m"], born = { max = "soon" } }', "constraint 1: impossible: born = .*ends as"),
        ('column = "region"\nby = "town"\nvalues = { "Ede" = "XX" }', "constraint 1: 'XX' is no label of 'region'"),
        ('column = "region"\nby = "town"\nvalues = { "Edde" = "GE" }', "'Edde' is no label of 'town'"),
        ('columns = ["region"]', "constraint 1: .*give impossible = "),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(line, text):
    columns = SCHEMA.to_toml().split("\n[parties", 1)[1]
    with pytest.raises(SchemaError, match=text):
        Schema.from_toml(f"[[constraint]]\n{line}\n[parties{columns}")
