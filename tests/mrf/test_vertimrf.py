import dataclasses
import json
import os

import jax
import numpy as np
import pytest

pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")

from tests.mrf.conftest import SCHEMA, frame
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import PartySchema, Schema, VerticalDataset, load_nltcs
from vertinumpyro.evaluation import k_way_tvd, pairwise_tvd
from vertinumpyro.mrf import MarkovTwin, VertiMRF
from vertinumpyro.mrf.twin import Gap
from vertinumpyro.privacy import PrivacyWarning
from vertinumpyro.reports.release import _missed

SYSTEM = VertiMRF(max_cells=6, iterations=100, clique_limit=3_000)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def fitted(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    plan = SYSTEM.plan(dataset, epsilon=3.0)
    return plan, SYSTEM.fit(dataset, plan, run_dir=folder), folder


def test_a_fit_says_which_tables_it_misses_and_what_limits_it(fitted, monkeypatch):
    twin = MarkovTwin.of(fitted[1].marginals, fitted[1].model, {})
    assert max(twin.missed.values(), default=0.0) < 0.04  # hardly beyond noise, which is new in every run
    monkeypatch.setattr(twin._raking, "gaps", {})
    assert (twin.missed, twin.limited_by) == ({}, "noise")
    assert _missed(twin).startswith("none, beyond noise")
    held, other = next(c for c in twin.model.cliques if len(c) > 1)[:2], ("smoker", "nowhere")
    for far, near, limit in ((held, other, "steps"), (other, held, "capacity")):
        gaps = {near: Gap(9.0, 4.0, 0.1), far: Gap(9.0, 5.0, 0.2), ("a", "b"): Gap(9.0, 2.0, 0.3)}
        monkeypatch.setattr(twin._raking, "gaps", gaps)
        assert list(twin.missed.items()) == [(far, 0.2), (near, 0.1)]
        assert twin.limited_by == limit
        assert "2 of" in _missed(twin)


@pytest.mark.promise
def test_the_twin_has_the_schemas_types_and_values(fitted, dataset):
    twin = fitted[1].sample_synthetic(800, rng_key=KEY)
    assert len(twin) == 800
    real = dataset.to_frame()
    assert [str(t) for t in twin.dtypes] == [str(t) for t in real.dtypes]
    VerticalDataset.from_pooled(SCHEMA, twin)  # every value lies in the public domain
    again = fitted[1].sample_synthetic(800, rng_key=KEY)
    assert twin.equals(again)


def test_dependence_across_the_parties_survives_and_needs_the_cross_party_tables(fitted, dataset):
    real = dataset.to_frame()
    twin = fitted[1].sample_synthetic(rng_key=KEY)
    apart_plan = SYSTEM.plan(dataset, epsilon=3.0, cross_share=0.0)
    apart = SYSTEM.fit(dataset, apart_plan).sample_synthetic(rng_key=KEY)
    across = ("ill", "visits")
    joint, independent = (pairwise_tvd(real, t, SCHEMA, max_bins=6).loc[across] for t in (twin, apart))
    assert joint < 0.12 < 0.25 < independent
    assert k_way_tvd(real, twin, SCHEMA, 2, rng=0, max_bins=6).mean < 0.1


def test_everything_is_checked_before_anything_is_spent(dataset):
    plan = SYSTEM.plan(dataset, epsilon=1.0)
    fewer = dataset.take(np.arange(100))
    with pytest.raises(ArgumentError, match="num_records"):
        SYSTEM.fit(fewer, plan)
    with pytest.raises(ArgumentError, match="num_binned"):
        VertiMRF(max_cells=6, recovery=False).fit(dataset, plan)
    with pytest.raises(ArgumentError, match=r"'age'.*'visits'|'visits'.*'age'"):
        VertiMRF(max_cells=40, clique_limit=500).fit(dataset, plan)
    SYSTEM.fit(dataset, plan)  # still unspent


def test_secrets_stay_in(fitted, dataset):
    shown = repr(fitted[1]) + repr(SYSTEM) + repr(fitted[0])
    assert "array" not in shown
    assert fitted[1].secure_noise


def test_an_insecure_seed_is_said_aloud_and_repeats(dataset):
    twins = []
    for _ in range(2):
        with pytest.warns(UserWarning, match="no privacy"):
            model = SYSTEM.fit(dataset, SYSTEM.plan(dataset, epsilon=1.0), insecure_seed=3)
        assert not model.secure_noise
        twins.append(model.measurements)
    assert all(np.array_equal(a.values, b.values) for a, b in zip(*twins, strict=True))


def test_adaptive_rounds_measure_dependent_pairs_again(dataset, tmp_path):
    system = dataclasses.replace(SYSTEM, selection="adaptive", num_rounds=2, tables_per_round=3)
    plan = system.plan(dataset, epsilon=3.0)
    assert plan.num_steps == 4
    assert plan.epsilon() <= 3.0
    with pytest.raises(ArgumentError, match="num_rounds"):
        SYSTEM.fit(dataset, plan)
    model = system.fit(dataset, plan, run_dir=tmp_path)
    record = json.loads((tmp_path / "privacy.json").read_text())
    assert (record["status"], record["steps_spent"]) == ("finished", 4)
    across = [m.columns for m in model.measurements if {SCHEMA.party_of(n) for n in m.columns} == {"clinic", "insurer"}]
    assert len(across) == 12 + 2 * 3
    assert len(set(across)) == 12
    real, twin = dataset.to_frame(), model.sample_synthetic(rng_key=KEY)
    assert pairwise_tvd(real, twin, SCHEMA, max_bins=6).loc[("ill", "visits")] < 0.12


@pytest.mark.parametrize("parties", [1, 3])
def test_any_number_of_parties(dataset, parties):
    names = list(SCHEMA.columns)
    schema = Schema.from_dict(
        {"parties": {f"p{i}": {"columns": {n: _spec(n) for n in names[i::parties]}} for i in range(parties)}}
    )
    split = VerticalDataset.from_pooled(schema, frame())
    plan = SYSTEM.plan(split, epsilon=3.0)
    twin = SYSTEM.fit(split, plan).sample_synthetic(rng_key=KEY)
    assert k_way_tvd(split.to_frame(), twin, schema, 2, rng=0, max_bins=6).mean < 0.15


def _spec(name):
    party = SCHEMA.party_of(name)
    return SCHEMA.to_dict()["parties"][party]["columns"][name]


@pytest.mark.skipif("VERTINUMPYRO_DATA" not in os.environ, reason="VERTINUMPYRO_DATA names no folder with NLTCS")
def test_real_tables_at_a_small_epsilon():
    """Four items at each of two parties. Measured: 0.005; each party's tables alone give 0.147."""
    nltcs = load_nltcs()
    names = {party: nltcs.schema.column_names(party)[-4:] for party in nltcs.parties}
    schema = Schema({p: PartySchema({n: nltcs.schema.columns[n] for n in own}) for p, own in names.items()})
    split = VerticalDataset(schema, {p: {n: nltcs.arrays(p)[n] for n in own} for p, own in names.items()})
    system = VertiMRF(iterations=300)
    plan = system.plan(split, epsilon=0.8)
    twin = system.fit(split, plan).sample_synthetic(rng_key=KEY)
    assert k_way_tvd(split.to_frame(), twin, schema, 3, rng=0).mean < 0.015


def test_a_weak_delta_warns(dataset):
    with pytest.warns(PrivacyWarning, match="delta"):
        SYSTEM.plan(dataset, epsilon=1.0, delta=1 / dataset.num_records)


@pytest.mark.parametrize("settings", [{"encoder": "magic"}, {"iterations": 0}, {"selection": "best"}])
def test_bad_settings(settings):
    with pytest.raises(ArgumentError, match=next(iter(settings))):
        VertiMRF(**settings)


@pytest.mark.parametrize("changes", [{"relation": "swap"}, {"epsilon": -1.0}, {"adversary": "eve"}])
def test_bad_plans(dataset, changes):
    with pytest.raises(ArgumentError, match=next(iter(changes))):
        SYSTEM.plan(dataset, **{"epsilon": 1.0, **changes})
