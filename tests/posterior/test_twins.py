"""Synthetic tables of models that read columns, leave columns out, or observe them in their own way."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoDelta

from tests.compilations import compilations
from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, DataError
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
)
from vertinumpyro.dpvi import DPVI, Diagnostics, Posterior, TwinWarning
from vertinumpyro.dpvi.horizontal import HorizontalDataset, HorizontalDPVI
from vertinumpyro.model import mixture_model, party_plate
from vertinumpyro.posterior.guide import ReparameterisedGuide
from vertinumpyro.privacy import GradientPlan

REAL = RealColumn(bounds=(0.0, 10.0))
SCHEMA = Schema(
    {
        "clinic": PartySchema({"x": REAL, "y": REAL, "visits": IntegerColumn(bounds=(0, 9))}),
        "insurer": PartySchema(
            {
                "cost": RealColumn(bounds=(0.0, 10.0), missing="mask"),
                "plan": CategoricalColumn(categories=("a", "b", "c")),
                "claims": CountColumn(upper=20),
                "paid": BinaryColumn(),
            }
        ),
    }
)
COLUMNS = tuple(SCHEMA.columns)
NUM_RECORDS = 60
B = [0.1, 0.3, 0.5]
TIGHT = 1e-4

Model = Callable[..., None]


@pytest.fixture(scope="module")
def dataset() -> VerticalDataset:
    return VerticalDataset.example(SCHEMA, NUM_RECORDS, np.random.default_rng(0))


def latent(name: str = "b", size: int = 3) -> Any:
    return numpyro.sample(name, dist.Normal(0.0, 1.0).expand([size]).to_event(1))


def unit(table: pd.DataFrame, name: str) -> np.ndarray:
    """A real column of bounds [0, 10] in the model's units."""
    return table[name].to_numpy(float) / 10


@functools.cache
def planned(model: Model) -> tuple[DPVI, GradientPlan]:
    dpvi = DPVI(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwinWarning)
        dataset = VerticalDataset.example(SCHEMA, NUM_RECORDS, np.random.default_rng(0))
        return dpvi, dpvi.plan(dataset, noise_multiplier=2.0, batch_size=20, num_steps=3)


@functools.cache
def posterior_at_b(model: Model) -> Posterior:
    return posterior_of(model)


def posterior_of(model: Model, **latents: Any) -> Posterior:
    """A posterior at a point, B by default, without a fit."""
    dpvi, plan = planned(model)
    start = init_to_value(values={"b": jnp.array(B), **latents})
    guide, params = ReparameterisedGuide.create(AutoDelta, dpvi.split(SCHEMA), start, compat.random_key(0))
    return Posterior(guide=guide, params=params, plan=plan, diagnostics=Diagnostics.empty(), secure_noise=False)


def synthetic(posterior: Posterior, *args: Any, **kwargs: Any) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwinWarning)
        return posterior.sample_synthetic(*args, rng_key=compat.random_key(1), **kwargs)


def test_a_long_twin_in_blocks(tmp_path, monkeypatch):
    """One block is the table at once; several have other records, of the same law, and their own covariates."""
    posterior, key = posterior_at_b(regression), compat.random_key(1)
    given = pd.DataFrame({"x": np.linspace(0, 10, 50)})
    whole = synthetic(posterior, covariates=given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwinWarning)
        (once,) = posterior.synthetic_blocks(rng_key=key, covariates=given)
        blocks = list(posterior.synthetic_blocks(rng_key=key, covariates=given, rows=20))
        monkeypatch.setattr("vertinumpyro.posterior.predictive.ROWS_DRAWN", 20)
        posterior.write_synthetic(tmp_path / "twin.parquet", rng_key=key, covariates=given)
        with pytest.raises(ArgumentError, match="rows=0"):
            posterior.synthetic_blocks(rng_key=key, covariates=given, rows=0)
    pd.testing.assert_frame_equal(once, whole)
    assert [len(block) for block in blocks] == [20, 20, 10]
    assert all(list(block.index) == list(range(len(block))) for block in blocks)
    joined = pd.concat(blocks, ignore_index=True)
    pd.testing.assert_series_equal(joined["x"], given["x"])
    np.testing.assert_allclose(unit(joined, "y"), B[0] + B[1] * unit(joined, "x"), atol=10 * TIGHT)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "twin.parquet"), joined)


# -- what the models do --------------------------------------------------------------------------------


def regression(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("y", dist.Normal(b[0] + b[1] * data["x"], TIGHT), obs=data["y"])


def several_covariates(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        loc = b[0] + b[1] * data["x"] + 0.02 * data["visits"]
        numpyro.sample("y", dist.Normal(loc, TIGHT), obs=data["y"])
    with party_plate("insurer", num_records), handlers.mask(mask=data["cost_observed"]):
        numpyro.sample("cost", dist.Normal(b[data["plan"]], TIGHT), obs=data["cost"])


def masked_covariate(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("insurer", num_records):
        cost = jnp.where(data["cost_observed"], data["cost"], -1.0)
        numpyro.sample("plan", dist.Categorical(logits=100 * (jnp.arange(3) - cost[:, None] - b[0])), obs=data["plan"])


def indexed(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records) as batch:
        numpyro.sample("y", dist.Normal(b[1] + b[0] * data["x"][batch], TIGHT), obs=data["y"][batch])
    with party_plate("insurer", num_records) as batch:
        numpyro.sample("plan", dist.Categorical(logits=b), obs=data["plan"][batch])


def other_names(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("outcome", dist.Normal(b[1], TIGHT), obs=data["y"])
        numpyro.sample("count", dist.Poisson(jnp.exp(b[0])), obs=data["visits"])


def vector_site(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        both = jnp.stack([data["y"], data["x"]], axis=-1)
        numpyro.sample("both", dist.MultivariateNormal(b[:2], TIGHT**2 * jnp.eye(2)), obs=both)


def chained(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("y", dist.Normal(b[0] + b[1] * data["x"], TIGHT), obs=data["y"])
        numpyro.sample("x", dist.Beta(2.0, 2.0 + b[0] ** 2), obs=data["x"])
        visits = 30 * (data["y"] - b[0])  # numbers, which the integer column takes to the nearest
        numpyro.sample("visits", dist.Normal(visits, TIGHT), obs=data["visits"])


def mixture_of_regressions(data: Any, num_records: int) -> None:
    b = latent()
    with numpyro.plate("records", num_records):
        z = numpyro.sample("z", dist.Categorical(probs=jnp.ones(3) / 3), infer={"enumerate": "parallel"})
    with party_plate("clinic", num_records):
        numpyro.sample("x", dist.Normal(b[z], TIGHT), obs=data["x"])
        numpyro.sample("y", dist.Normal(data["x"] + 0.1 * z, TIGHT), obs=data["y"])
    with party_plate("insurer", num_records):
        logits = 100.0 * (z[..., None] == jnp.arange(3)) + 0.0 * data["claims"][:, None]
        numpyro.sample("plan", dist.Categorical(logits=logits), obs=data["plan"])
        numpyro.sample("claims", dist.Poisson(jnp.exp(b[0])), obs=data["claims"])


def logarithm(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("log_x", dist.Normal(b[0], TIGHT), obs=jnp.log(data["x"]))
        numpyro.sample("y", dist.Normal(b[1], TIGHT), obs=data["y"])


def logarithm_turned_back(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        log_x = numpyro.sample("log_x", dist.Normal(-b[1], TIGHT), obs=jnp.log(data["x"]))
        numpyro.deterministic("x", jnp.exp(log_x))
        numpyro.sample("y", dist.Normal(data["x"] - b[0], TIGHT), obs=data["y"])


def ratio_turned_back(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        ratio = numpyro.sample("ratio", dist.Normal(b[0], TIGHT), obs=data["x"] / (1 + data["y"]))
        numpyro.deterministic("x", ratio * (1 + data["y"]))
        numpyro.sample("visits", dist.Poisson(jnp.exp(b[1])), obs=data["visits"])


def factor(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        numpyro.factor("likelihood", -((data["y"] - b[0] * data["x"]) ** 2))


def circle(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("x", dist.Normal(b[0] * data["y"], 1.0), obs=data["x"])
        numpyro.sample("y", dist.Normal(b[1] * data["x"], 1.0), obs=data["y"])
    with party_plate("insurer", num_records):
        numpyro.sample("plan", dist.Categorical(logits=b), obs=data["plan"])


def reads_itself(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("y", dist.Normal(b[0], 1.0 + data["y"]), obs=data["y"])


class NoDraws(dist.Normal):
    """A likelihood that somebody wrote for a fit alone."""

    def sample(self, key: Any, sample_shape: Any = ()) -> Any:
        raise NotImplementedError("no sampler")


def undrawable(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("y", NoDraws(b[0], 1.0), obs=data["y"])


def too_many_codes(data: Any, num_records: int) -> None:
    b = latent(size=5)
    with party_plate("insurer", num_records):
        numpyro.sample("plan", dist.Categorical(logits=b), obs=data["plan"])


def counts_for_categories(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("insurer", num_records):
        numpyro.sample("plan", dist.Poisson(jnp.exp(b[0])), obs=data["plan"])


def numbers_for_categories(data: Any, num_records: int) -> None:
    b = latent()
    with party_plate("insurer", num_records):
        numpyro.sample("plan", dist.Normal(b[0], 1.0), obs=data["plan"].astype(float))


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, the columns that it needs and draws, and words of what the plan says about the others."""

    model: Model
    given: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    rounds: int = 1


CASES = {
    "mixture": Case(mixture_model(SCHEMA, 2), drawn=COLUMNS),
    "regression": Case(regression, ("x",), ("y",), ("reads 'x'", "covariates=", "'cost', 'plan', 'claims', 'paid'")),
    "several_covariates": Case(several_covariates, ("x", "visits", "plan"), ("y", "cost"), ("'x', 'visits', 'plan'",)),
    "masked_covariate": Case(masked_covariate, ("cost",), ("plan",), ("reads 'cost'",)),
    "indexed": Case(indexed, ("x",), ("y", "plan"), ("reads 'x'",)),
    "other_names": Case(other_names, (), ("y", "visits"), ("will lack 'x', 'cost', 'plan',", "no site reads")),
    "vector_site": Case(vector_site, (), ("x", "y"), ("will lack 'visits'",)),
    "chained": Case(chained, (), ("x", "y", "visits"), ("will lack 'cost'",), rounds=3),
    "mixture_of_regressions": Case(
        mixture_of_regressions, (), ("x", "y", "plan", "claims"), ("will lack 'visits'",), rounds=2
    ),
    "logarithm": Case(logarithm, (), ("y",), ("'x': site 'log_x' draws something else", "deterministic('x', ...)")),
    "logarithm_turned_back": Case(logarithm_turned_back, (), ("x", "y"), ("will lack 'visits'",), rounds=2),
    "ratio_turned_back": Case(ratio_turned_back, (), ("visits",), ("'x': site 'ratio' draws something else",)),
    "factor": Case(factor, says=("no synthetic table", "'likelihood'", "posterior alone")),
    "circle": Case(circle, (), ("plan",), ("'x': its site reads 'y'", "'y': its site reads 'x'")),
    "reads_itself": Case(reads_itself, says=("no synthetic table", "'y': its site reads 'y'")),
    "undrawable": Case(undrawable, says=("no synthetic table", "NotImplementedError: no sampler")),
    "too_many_codes": Case(too_many_codes, says=("no synthetic table", "codes up to 4", "'plan' has 3 categories")),
    "counts_for_categories": Case(counts_for_categories, says=("codes up to inf", "'plan' has 3 categories")),
    "numbers_for_categories": Case(numbers_for_categories, says=("not integers", "'plan' has 3 categories")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_says_what_a_model_cannot_give(name: str, dataset: VerticalDataset) -> None:
    case, (dpvi, _) = CASES[name], planned(CASES[name].model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dpvi.plan(dataset, noise_multiplier=2.0, batch_size=20, num_steps=3)
    said = [w for w in caught if issubclass(w.category, TwinWarning)]
    assert len(said) == bool(case.says)
    for warning in said:
        assert all(words in str(warning.message) for words in case.says), str(warning.message)
    twin = dpvi.twin_columns(SCHEMA)
    assert (set(twin.given), set(twin.drawn)) == (set(case.given), set(case.drawn))
    assert sorted([*twin.given, *twin.drawn, *twin.left_out]) == sorted(COLUMNS)
    assert len(twin.rounds) == (case.rounds if case.drawn else 0)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.drawn])
def test_a_twin_has_the_given_and_the_drawn_columns(name: str, dataset: VerticalDataset) -> None:
    case, table = CASES[name], dataset.to_frame()
    posterior = posterior_at_b(case.model)
    covariates = table[list(case.given)] if case.given else None
    twin = synthetic(posterior, None if case.given else 45, covariates=covariates)
    assert len(twin) == (NUM_RECORDS if case.given else 45)
    assert list(twin.columns) == [name for name in COLUMNS if name in (*case.given, *case.drawn)]
    for column in case.given:
        pd.testing.assert_series_equal(twin[column], table[column])
    for column in case.drawn:
        spec = SCHEMA.columns[column]
        spec.encode(twin[column], party="twin", name=column)  # inside the public domain
        assert twin[column].dtype == table[column].dtype
    again = synthetic(posterior, None if case.given else 45, covariates=covariates)
    pd.testing.assert_frame_equal(twin, again)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.drawn])
def test_a_model_that_draws_nothing_still_has_a_posterior(name: str) -> None:
    case = CASES[name]
    posterior = posterior_of(case.model, b=jnp.array(B) if name != "too_many_codes" else jnp.zeros(5))
    assert posterior.sample(compat.random_key(0), 4)["b"].shape[0] == 4
    with pytest.raises(ArgumentError) as caught:
        synthetic(posterior, 200)
    assert "draw" in str(caught.value)


def test_every_row_is_drawn_at_its_own_covariates(dataset: VerticalDataset) -> None:
    table = dataset.to_frame()
    for model in (regression, indexed):
        twin = synthetic(posterior_at_b(model), covariates=table[["x"]], num_posterior_samples=7)
        slope, constant = (0.3, 0.1) if model is regression else (0.1, 0.3)
        np.testing.assert_allclose(unit(twin, "y"), constant + slope * unit(table, "x"), atol=2e-3)
    given = table[["plan", "visits", "x"]]
    twin = synthetic(posterior_at_b(several_covariates), covariates=given)
    expected = 0.1 + 0.3 * unit(table, "x") + 0.02 * table["visits"].to_numpy()
    np.testing.assert_allclose(unit(twin, "y"), expected, atol=2e-3)
    np.testing.assert_allclose(unit(twin, "cost"), table["plan"].map({"a": 0.1, "b": 0.3, "c": 0.5}), atol=2e-3)


def test_a_missing_covariate_is_masked_in_the_model() -> None:
    cost = pd.DataFrame({"cost": [None, 0.5, 9.5, None]})
    twin = synthetic(posterior_at_b(masked_covariate), covariates=cost)
    assert list(twin["plan"]) == ["c", "c", "c", "c"]
    np.testing.assert_array_equal(twin["cost"].isna(), cost["cost"].isna())


def test_a_column_is_drawn_after_those_that_its_site_reads() -> None:
    twin = synthetic(posterior_at_b(chained), 200)
    np.testing.assert_allclose(unit(twin, "y"), 0.1 + 0.3 * unit(twin, "x"), atol=2e-3)
    np.testing.assert_array_equal(twin["visits"], np.clip(np.rint(30 * (unit(twin, "y") - 0.1)), 0, 9))
    assert twin["x"].std() > 1
    turned = synthetic(posterior_at_b(logarithm_turned_back), 50)
    np.testing.assert_allclose(unit(turned, "x"), np.exp(-0.3), atol=2e-3)
    np.testing.assert_allclose(unit(turned, "y"), np.exp(-0.3) - 0.1, atol=2e-3)


def test_a_record_keeps_its_component_from_round_to_round() -> None:
    twin = synthetic(posterior_at_b(mixture_of_regressions), 300)
    z = twin["plan"].map({"a": 0, "b": 1, "c": 2}).to_numpy()
    assert set(z) == {0, 1, 2}
    np.testing.assert_allclose(unit(twin, "x"), np.array(B)[z], atol=2e-3)
    np.testing.assert_allclose(unit(twin, "y"), np.array(B)[z] + 0.1 * z, atol=2e-3)


def test_rounds_have_randomness_of_their_own() -> None:
    def model(data: Any, num_records: int) -> None:
        b = latent()
        with party_plate("clinic", num_records):
            numpyro.sample("x", dist.Uniform(0.0, 0.5 + jnp.exp(-(b[0] ** 2)) / 2), obs=data["x"])
            numpyro.sample("y", dist.Uniform(0.0, 1.0 + 0.0 * data["x"] * b[1]), obs=data["y"])

    twin = synthetic(posterior_of(model), 2000)
    assert abs(np.corrcoef(twin["x"], twin["y"])[0, 1]) < 0.1


def test_covariates_may_be_of_any_library(dataset: VerticalDataset) -> None:
    table = dataset.to_frame()
    posterior = posterior_at_b(regression)
    expected = synthetic(posterior, covariates=table[["x"]])
    for other in ({"x": table["x"].to_numpy()}, {"x": list(table["x"])}, table[["x"]].set_index(table["x"].to_numpy())):
        pd.testing.assert_frame_equal(synthetic(posterior, covariates=other), expected)
    with_ids = table[["x"]].assign(**{posterior.split.schema.id_column: range(len(table))})
    pd.testing.assert_frame_equal(synthetic(posterior, covariates=with_ids), expected)


@pytest.mark.parametrize(
    ("covariates", "num_records", "error", "words"),
    [
        (None, None, ArgumentError, ["'x'", "covariates="]),
        ({}, None, ArgumentError, ["no column 'x'"]),
        ({"X": [1.0]}, None, ArgumentError, ["no column 'x'", "'X'"]),
        ({"x": [1.0], "y": [2.0]}, None, ArgumentError, ["'y'", "draws itself", "covariates=table[['x']]"]),
        ({"x": [1.0], "cost": [2.0]}, None, ArgumentError, ["'cost'", "does not read", "leave it out"]),
        ({"x": [1.0], "age": [2.0]}, None, ArgumentError, ["'age'", "schema"]),
        ({"x": [1.0, 2.0]}, 3, ArgumentError, ["num_records=3", "2 rows"]),
        ({"x": []}, None, ArgumentError, ["no row"]),
        ({"x": [11.25]}, None, DataError, ["'clinic'", "'x'", "public bounds"]),
        ({"x": [None]}, None, DataError, ["'clinic'", "'x'", "missing"]),
        ({"x": ["much"]}, None, DataError, ["'clinic'", "'x'", "numbers"]),
        ([1.0], None, ArgumentError, ["covariates", "list"]),
    ],
)
def test_covariates_are_checked(covariates: Any, num_records: Any, error: type, words: list[str]) -> None:
    posterior = posterior_at_b(regression)
    with pytest.raises(error) as caught:
        synthetic(posterior, num_records, covariates=covariates)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "11.25" not in str(caught.value)
    assert "much" not in str(caught.value)


def test_a_model_without_covariates_takes_none() -> None:
    posterior = posterior_at_b(other_names)
    with pytest.raises(ArgumentError, match="covariates has 'x', which the model does not read"):
        synthetic(posterior, covariates={"x": [1.0]})
    with pytest.raises(ArgumentError, match="num_posterior_samples=0"):
        synthetic(posterior, 5, num_posterior_samples=0)


def test_a_table_that_lacks_columns_says_so() -> None:
    with pytest.warns(TwinWarning, match="will lack 'x', 'cost', 'plan', 'claims', 'paid'"):
        posterior_at_b(other_names).sample_synthetic(5, rng_key=compat.random_key(0))


def test_a_conditional_model_from_plan_to_loaded_posterior(dataset: VerticalDataset, tmp_path: Any) -> None:
    dpvi = DPVI(several_covariates)
    with pytest.warns(TwinWarning, match="reads 'x', 'visits', 'plan' and does not draw them"):
        plan = dpvi.plan(dataset, noise_multiplier=2.0, batch_size=20, num_steps=3)
    posterior = dpvi.fit(dataset, plan, compat.random_key(0), progress_bar=False)
    posterior.save(tmp_path / "posterior.npz")
    covariates = dataset.to_frame()[["x", "visits", "plan"]]
    twin = synthetic(posterior, covariates=covariates)
    pd.testing.assert_frame_equal(synthetic(dpvi.load(tmp_path / "posterior.npz"), covariates=covariates), twin)
    assert np.isfinite(posterior.held_out_nll(dataset))


def test_horizontal_plans_say_it_too(dataset: VerticalDataset) -> None:
    with pytest.warns(TwinWarning, match="reads 'x'"):
        HorizontalDPVI(DPVI(regression)).plan(
            HorizontalDataset(dataset), noise_multiplier=2.0, batch_size=20, num_steps=3
        )


def test_the_draw_compiles_once_for_a_size() -> None:
    posterior, draws = posterior_of(regression), []
    covariates = pd.DataFrame({"x": np.linspace(0, 10, 1301)})  # of no other test's length
    for seed in range(3):
        with warnings.catch_warnings(), compilations() as compiled:
            warnings.simplefilter("ignore", TwinWarning)
            posterior.sample_synthetic(rng_key=jax.random.key(seed), covariates=covariates)
        draws.append(compiled["_of_all"])
    assert draws == [1, 0, 0]

    another = dataclasses.replace(posterior, secure_noise=False)
    assert another._records is posterior._records  # programs are the model's: posteriors of it share them
