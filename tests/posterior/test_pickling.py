"""Posteriors and settings pickle and copy, without compiled programs and without secrets; datasets refuse."""

import copy
import dataclasses
import functools
import io
import pickle
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from numpyro.infer import init_to_median
from numpyro.infer.autoguide import AutoBNAFNormal, AutoDelta, AutoDiagonalNormal, AutoLowRankMultivariateNormal

from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.data import BinaryColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI, Diagnostics, Posterior
from vertinumpyro.marginals import MarginalInference
from vertinumpyro.model import mixture_model, party_plate, split_model
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.posterior.guide import ReparameterisedGuide
from vertinumpyro.privacy import GradientPlan, NoiseSource, PoissonSampling

KEY = jax.random.key(0)
SCHEMA = Schema({"clinic": PartySchema({"x": BinaryColumn()}), "insurer": PartySchema({"y": BinaryColumn()})})


def apart(data, num_records):
    """A model that a module has by its name."""
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    with party_plate("clinic", num_records):
        numpyro.sample("x", dist.Bernoulli(p), obs=data["x"])
    with party_plate("insurer", num_records):
        numpyro.sample("y", dist.Bernoulli(p), obs=data["y"])


def posterior_of(model: Any, factory: Any = AutoDiagonalNormal) -> Posterior:
    split = split_model(model, SCHEMA)
    guide, params = ReparameterisedGuide.create(factory, split, init_to_median, KEY)
    plan = GradientPlan(
        sampling=PoissonSampling.for_batch_size(20, 100, 2), clip_norm=1.0, num_records=100, parties=split.parties,
        noise=NoiseSource(kind="collaborative", num_parties=2), delta=1e-5, noise_multiplier=2.0, grid_bits=24,
    )  # fmt: skip
    traced = dataclasses.replace(Diagnostics.empty(), objective=np.array([0.123456]), seconds=7.0)
    return Posterior(guide=guide, params=params, plan=plan, diagnostics=traced, secure_noise=True)


def by_pickle(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def by_joblib(thing: Any) -> Any:
    joblib = pytest.importorskip("joblib")
    file = io.BytesIO()
    joblib.dump(thing, file)
    return joblib.load(file)


def by_cloudpickle(thing: Any) -> Any:
    return pickle.loads(pytest.importorskip("cloudpickle").dumps(thing))


WAYS = [by_pickle, copy.deepcopy, copy.copy, by_joblib, by_cloudpickle]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_posteriors_draws_are_the_same_after_the_way_there_and_back(way):
    made = posterior_of(mixture_model(SCHEMA, 2))
    expected = made.sample_synthetic(40, rng_key=KEY)  # after this it holds compiled programs
    found = way(made)
    pd.testing.assert_frame_equal(found.sample_synthetic(40, rng_key=KEY), expected)
    assert found.plan == made.plan
    assert np.array_equal(found.centre(), made.centre())


@pytest.mark.parametrize(
    "factory",
    [AutoDelta, functools.partial(AutoLowRankMultivariateNormal, rank=1, init_scale=0.2), AutoBNAFNormal],
    ids=["point", "low rank", "flow"],
)
def test_guides_of_every_kind_are_made_again(factory):
    made = posterior_of(mixture_model(SCHEMA, 2), factory)
    found = by_pickle(made)
    if factory is not AutoBNAFNormal:  # which takes long to be compiled
        assert np.array_equal(found.sample_flat(KEY, 3), made.sample_flat(KEY, 3))
    assert found.guide_params.keys() == made.guide_params.keys()


def test_what_is_not_released_is_in_no_pickle():
    made = posterior_of(apart)
    assert by_pickle(made).diagnostics.objective is None
    assert by_pickle(made).diagnostics.seconds == 0.0
    assert made.diagnostics.objective is not None


@pytest.mark.parametrize(
    "settings",
    [DPVI(num_components=2), DPVI(apart, guide=AutoDiagonalNormal(apart)), MarginalInference(apart), VertiMRF()],
    ids=["mixture", "model", "tables", "field"],
)
def test_settings_pickle_without_what_they_compiled(settings):
    before = len(pickle.dumps(settings))
    if isinstance(settings, DPVI):
        settings.twin_columns(SCHEMA)
    for way in WAYS:
        found = way(settings)
        assert type(found) is type(settings)
        assert len(pickle.dumps(found)) <= before + 64
    if isinstance(settings, DPVI):
        assert by_pickle(settings).split(SCHEMA).num_parameters == settings.split(SCHEMA).num_parameters


def test_a_model_without_a_name_is_named_and_copied_all_the_same():
    local = lambda data, num_records: apart(data, num_records)  # noqa: E731
    for holder in (posterior_of(local), DPVI(local), MarginalInference(local)):
        with pytest.raises(ArgumentError, match=r"model=test_a_model_without.*<lambda>: pickle cannot.*cloudpickle"):
            pickle.dumps(holder)
        copy.deepcopy(holder)
        by_cloudpickle(holder)
    with pytest.raises(ArgumentError, match="optimizer="):
        pickle.dumps(DPVI(apart, optimizer=optax.adam(0.1)))


def test_a_dataset_says_why_it_is_not_copied():
    dataset = VerticalDataset.example(SCHEMA, 4, np.random.default_rng(0))
    for way in (by_pickle, copy.deepcopy, by_joblib, by_cloudpickle):
        with pytest.raises(PrivacyError, match=r"secret.*files"):
            way(dataset)
    assert copy.copy(dataset) is dataset
