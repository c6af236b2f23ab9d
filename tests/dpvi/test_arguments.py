"""What `DPVI` refuses, in words that help, before anything is computed or spent."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.optim
import optax
import pytest
from numpyro.infer import init_to_median
from numpyro.infer.autoguide import AutoDAIS, AutoIAFNormal, AutoNormal

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.files import load_arrays
from vertinumpyro.core.rng import InsecureRandomnessWarning
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.horizontal import HorizontalDataset, HorizontalDPVI
from vertinumpyro.dpvi.posterior import state_leaves, state_of
from vertinumpyro.dpvi.training_loop import CHECKPOINT
from vertinumpyro.model import party_plate
from vertinumpyro.privacy import GradientPlan
from vertinumpyro.privacy.ledger import Ledger
from vertinumpyro.secure.crypten import Crypten

SCHEMA = Schema(
    {
        "clinic": PartySchema({"age": RealColumn(bounds=(0.0, 1.0))}),
        "insurer": PartySchema({"claims": BinaryColumn()}),
    }
)


def model(data: Any, num_records: int) -> None:
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(loc, scale), obs=data["age"])
    with party_plate("insurer", num_records):
        numpyro.sample("claims", dist.Bernoulli(logits=loc), obs=data["claims"])


@pytest.fixture(autouse=True)
def _as_users_run_it() -> Iterator[None]:
    """Without the tests' own type checker, which would answer first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def dataset() -> VerticalDataset:
    return VerticalDataset.example(SCHEMA, 100, np.random.default_rng(0))


def plan_of(dpvi: DPVI, dataset: VerticalDataset, num_steps: int = 4) -> GradientPlan:
    return dpvi.plan(dataset, noise_multiplier=2.0, batch_size=20, num_steps=num_steps)


def fit(dpvi: DPVI, dataset: VerticalDataset, key: Any = None, plan: Any = None, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        key = compat.random_key(0) if key is None else key
        return dpvi.fit(dataset, plan or plan_of(dpvi, dataset), key, progress_bar=False, **kwargs)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "crypten"}, ["backend='crypten'", "backend=vertinumpyro.secure.Crypten()"]),
        ({"backend": "FixedPoint"}, ["backend='FixedPoint'", "backend=vertinumpyro.secure.FixedPoint()"]),
        ({"backend": Crypten}, ["backend=Crypten (a class)", "backend=vertinumpyro.secure.Crypten()"]),
        ({"backend": "aby3"}, ["backend='aby3'", "vertinumpyro.secure.Spu()", "vertinumpyro.secure.Plaintext()"]),
        ({"backend": 1}, ["backend=1", "vertinumpyro.secure.FixedPoint()"]),
        ({"optimizer": "adam"}, ["optimizer='adam'", "optimizer=optax.adam(0.05)"]),
        ({"optimizer": 0.05}, ["optimizer=0.05", "optimizer=optax.adam(0.05)"]),
        ({"optimizer": optax.adam}, ["optimizer=function", "optimizer=optax.adam(0.05)"]),
        ({"optimizer": numpyro.optim.Minimize()}, ["optimizer=Minimize", "optax.adam(0.05)"]),
        ({"optimizer": numpyro.optim.optax_to_numpyro(optax.adam(0.1))}, ["optax_to_numpyro", "without the wrapper"]),
        ({"model": "models:mixture"}, ["model='models:mixture'", "model(data, num_records)"]),
        ({"model_kwargs": 3}, ["model_kwargs=3", "mapping"]),
        ({"warm_start": "tables"}, ["warm_start='tables'", "None to let the plan decide"]),
        ({"init_loc_fn": "median"}, ["init_loc_fn='median'", "init_to_median"]),
        ({"guide": "diagonal"}, ["guide='diagonal'", "AutoDiagonalNormal", "AutoNormal(model)"]),
        ({"guide": partial(AutoDAIS, K=2)}, ["guide=AutoDAIS", "AutoIAFNormal"]),
        ({"model": model, "guide": AutoNormal(lambda data, n: None)}, ["guide=AutoNormal(...)", "`model`"]),
        (
            {"guide": partial(AutoNormal, init_loc_fn=init_to_median), "init_loc_fn": init_to_median},
            ["init_loc_fn", "once"],
        ),
    ],
)
def test_the_constructor_names_what_it_cannot_use(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        DPVI(**settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("schema.toml", ["dataset='schema.toml'", "VerticalDataset.from_files", 'Schema.from_toml("schema.toml")']),
        (Path("schema.toml"), ["VerticalDataset.from_files"]),
        (SCHEMA, ["dataset=a Schema", "VerticalDataset.from_files"]),
        (None, ["dataset=None", "VerticalDataset.from_files"]),
    ],
)
def test_a_plan_wants_a_dataset(wrong: Any, words: list[str], dataset: VerticalDataset) -> None:
    dpvi = DPVI(model)
    plan = plan_of(dpvi, dataset)
    calls = (
        lambda: dpvi.plan(wrong, epsilon=1.0),
        lambda: dpvi.fit(wrong, plan, compat.random_key(0)),
    )
    for call in calls:
        with pytest.raises(ArgumentError) as caught:
            call()
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_split_wants_a_schema() -> None:
    with pytest.raises(ArgumentError, match=r"schema='schema.toml' is no Schema.*Schema.from_toml\(\"schema.toml\"\)"):
        DPVI(model).split("schema.toml")  # type: ignore[arg-type]


def test_a_fit_wants_a_plan_and_a_key(dataset: VerticalDataset) -> None:
    dpvi = DPVI(model)
    with pytest.raises(ArgumentError, match=r"plan=1.0 is no GradientPlan.*dpvi.plan\(dataset, epsilon="):
        dpvi.fit(dataset, 1.0, compat.random_key(0))  # type: ignore[arg-type]
    for wrong in (0, None, jnp.zeros(2), jax.random.split(compat.random_key(0))):
        with pytest.raises(ArgumentError, match=r"rng_key=.* is no key; give one, jax.random.key\(seed\)"):
            dpvi.fit(dataset, plan_of(dpvi, dataset), wrong)  # type: ignore[arg-type]


def test_horizontal_data_has_its_own_class(dataset: VerticalDataset) -> None:
    dpvi = HorizontalDPVI(DPVI(model))
    with pytest.raises(ArgumentError, match=r"dataset=a VerticalDataset is no HorizontalDataset.*HorizontalDataset\("):
        dpvi.plan(dataset, epsilon=1.0)  # type: ignore[arg-type]
    vertical = plan_of(dpvi.dpvi, dataset)
    with pytest.raises(ArgumentError, match="plan=a GradientPlan is no ClientPlan"):
        dpvi.fit(HorizontalDataset(dataset), vertical, compat.random_key(0))  # type: ignore[arg-type]


def test_a_typed_key_is_the_key_of_its_numbers(dataset: VerticalDataset, tmp_path: Path) -> None:
    """`jax.random.key`, which no file can hold: the checkpoint of a run would fail after its first steps."""
    dpvi = DPVI(model)
    typed = fit(dpvi, dataset, jax.random.key(3), insecure_seed=1, run_dir=tmp_path)
    plan = plan_of(dpvi, dataset)
    states = [dpvi.kernel(dataset, plan, make(3))[1] for make in (jax.random.key, jax.random.PRNGKey)]
    for leaf, other in zip(*(jax.tree_util.tree_leaves(state) for state in states), strict=True):
        np.testing.assert_array_equal(leaf, other)
    twin = typed.sample_synthetic(10, rng_key=jax.random.key(4))
    assert twin.equals(typed.sample_synthetic(10, rng_key=jax.random.key(4)))
    with pytest.raises(ArgumentError, match="rng_key=4 is no key"):
        typed.sample_synthetic(10, rng_key=4)


UNUSABLE = {
    "lookahead": (optax.lookahead(optax.sgd(0.1), 5, 0.5), ["AttributeError", "fast"]),
    "lbfgs": (optax.lbfgs(), ["value_fn"]),
    "polyak": (optax.polyak_sgd(), ["value"]),
    "plateau": (optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau()), ["value"]),
    "momo": (optax.contrib.momo(), ["value"]),
    "other_names": (optax.multi_transform({"all": optax.adam(0.1)}, {"loc": "all"}), ["'auto_loc', 'auto_scale'"]),
    "growing": (
        optax.GradientTransformation(lambda p: (), lambda g, s, p=None: (g, (*s, jnp.zeros(2)))),
        ["changes", "structure"],
    ),
    "widening": (
        optax.GradientTransformation(lambda p: jnp.int32(0), lambda g, s, p=None: (g, s + 0.5)),
        ["changes", "type"],
    ),
    "infinite": (optax.scale(jnp.inf), ["not finite"]),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_optimizer_that_cannot_step_spends_nothing(name: str, dataset: VerticalDataset, tmp_path: Path) -> None:
    optimizer, words = UNUSABLE[name]
    dpvi = DPVI(model, optimizer=optimizer)
    plan = plan_of(dpvi, dataset)
    logging.getLogger("absl").setLevel(logging.ERROR)
    with pytest.raises(ArgumentError) as caught:
        dpvi.fit(dataset, plan, compat.random_key(0), run_dir=tmp_path, progress_bar=False)
    assert str(caught.value).startswith("optimizer")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not list(tmp_path.iterdir()), "the plan is untouched"
    with Ledger.start(plan):
        pass  # it can still be spent


def test_a_typed_key_of_an_optimizer_is_stored_and_goes_on(dataset: VerticalDataset, tmp_path: Path) -> None:
    """In a run that stops after its first step: through the loop, the checkpoint, and messages between processes."""

    def stop(*_: Any) -> None:
        raise InterruptedError

    key = jax.random.key(5)
    dpvi = DPVI(model, optimizer=optax.chain(optax.add_noise(0.1, 0.1, key), optax.sgd(0.1)))
    settings = {"plan": plan_of(dpvi, dataset, num_steps=2), "run_dir": tmp_path}
    with pytest.raises(InterruptedError):
        fit(dpvi, dataset, after_chunk=stop, **settings)
    fit(dpvi, dataset, resume=True, **settings)
    stored = load_arrays(tmp_path / CHECKPOINT)[1][".optimizer_state[0].rng_key"]
    np.testing.assert_array_equal(stored, jax.random.key_data(jax.random.split(jax.random.split(key)[0])[0]))
    state = dpvi.kernel(dataset, settings["plan"], compat.random_key(0))[1]
    for leaf, other in zip(*map(jax.tree_util.tree_leaves, (state, state_of(state, state_leaves(state)))), strict=True):
        assert leaf.dtype == other.dtype
        assert (leaf == other).all()


def test_horizontal_fits_rehearse_too(dataset: VerticalDataset, tmp_path: Path) -> None:
    dpvi = HorizontalDPVI(DPVI(model, optimizer=optax.polyak_sgd()))
    clients = HorizontalDataset(dataset)
    plan = dpvi.plan(clients, noise_multiplier=2.0, batch_size=20, num_steps=2)
    record = tmp_path / "privacy.json"
    with pytest.raises(ArgumentError, match=r"optimizer: .*value"):
        dpvi.fit(clients, plan, compat.random_key(0), run_dir=record.parent, progress_bar=False)
    assert not record.exists()


@pytest.mark.filterwarnings("ignore:.*Out-of-support values")
def test_a_start_without_finite_parameters_spends_nothing(dataset: VerticalDataset, tmp_path: Path) -> None:
    def far(site: Any = None) -> Any:
        if site is None:
            return far
        return jnp.full(site["fn"].shape(), jnp.inf) if site["type"] == "sample" else None

    dpvi = DPVI(model, init_loc_fn=far)
    with pytest.raises(ArgumentError, match=r"init_loc_fn.*not finite.*\['loc', 'scale'\]"):
        fit(dpvi, dataset, run_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("optimizer", "same"),
    [
        (numpyro.optim.Adam(0.05), optax.adam(0.05)),
        (numpyro.optim.ClippedAdam(0.05, clip_norm=0.01), optax.chain(optax.clip(0.01), optax.adam(0.05))),
        (numpyro.optim.SGD(0.05), optax.sgd(0.05)),
        (numpyro.optim.Momentum(lambda i: 0.1 / (i + 1), 0.9), optax.sgd(lambda i: 0.1 / (i + 1), 0.9)),
        (optax.MultiSteps(optax.adam(0.05), 2), optax.MultiSteps(optax.adam(0.05), 2).gradient_transformation()),
    ],
    ids=["adam", "clipped_adam", "sgd", "momentum_schedule", "multi_steps"],
)
def test_numpyros_optimizers_step_as_optaxs(optimizer: Any, same: Any, dataset: VerticalDataset) -> None:
    guide = partial(AutoIAFNormal, num_flows=1, hidden_dims=[4])  # its parameters are a tree
    released = np.random.default_rng(0).normal(0.0, 3.0, (4, 3))
    found = []
    for given in (optimizer, same):
        dpvi = DPVI(model, guide=guide, optimizer=given)
        kernel, state = dpvi.kernel(dataset, plan_of(dpvi, dataset), compat.random_key(0))
        start = jax.tree_util.tree_leaves(state.params)
        update = jax.jit(lambda state, release, kernel=kernel: kernel.update(state, release)[0])
        for release in released:
            state = update(state, jnp.asarray(release, jnp.float32))
        found.append(jax.tree_util.tree_leaves(state.params))
    for leaf, other in zip(*found, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-6)
    assert any(not np.allclose(leaf, first, atol=1e-3) for leaf, first in zip(found[0], start, strict=True))
