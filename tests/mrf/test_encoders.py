import ast
import dataclasses
import json
import math
import os
import pathlib
import tracemalloc
import warnings
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")

import vertinumpyro
from tests.mrf.conftest import SCHEMA
from vertinumpyro.core.errors import ArgumentError, UnprovenError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.evaluation import pairwise_tvd
from vertinumpyro.mrf import MRFPlan, VertiMRF
from vertinumpyro.mrf.encoders import ENCODERS, encoding_from_dict
from vertinumpyro.mrf.encoders import sketch as sketch_estimate
from vertinumpyro.mrf.encoders.base import encoded_tables
from vertinumpyro.mrf.encoders.randomized_response import ResponseDesign, estimate_pair, response_pld
from vertinumpyro.mrf.encoders.shared_key import SharedKeyDesign, harmonic_pair
from vertinumpyro.mrf.encoders.sketch import (
    KEY_BYTES,
    SketchDesign,
    count_pair,
    count_single,
    estimator_bytes,
    sketch_column_pair,
)
from vertinumpyro.mrf.measurements import count_table
from vertinumpyro.privacy import OUTSIDE_ANALYST, PrivacyWarning
from vertinumpyro.session import Session

SMALL: dict[str, Any] = {"max_cells": 4, "iterations": 100, "clique_limit": 3_000}
DESIGN = SketchDesign(num_keys=400, phantoms=400, lower=10, upper=12)
SOURCE = SystemRandomSource()


def columns(num_records=3000, seed=0):
    rng = np.random.default_rng(seed)
    first = rng.integers(3, size=num_records)
    return first, np.where(rng.random(num_records) < 0.5, first % 2, rng.integers(2, size=num_records))


# -- sketches -------------------------------------------------------------------------------------


def test_levels_follow_the_law_of_the_maximum():
    """One value with 3000 records and 400 phantoms: a chi-square test that fails by chance once in 10^6 runs."""
    codes = np.zeros(3000, np.int64)
    many = dataclasses.replace(DESIGN, num_keys=4000)
    sketch, _ = sketch_column_pair((codes, codes), (1, 1), many, os.urandom(KEY_BYTES), (SOURCE, SOURCE))
    law = np.diff(np.exp((3000 + many.phantoms) * many.log_cdf()), prepend=0.0)
    seen = np.array([(sketch == level).sum() for level in (10, 11, 12)])
    assert ((seen - 4000 * law) ** 2 / (4000 * law)).sum() < 27.6


def test_two_parties_hash_alike_and_only_with_the_same_key():
    codes = np.zeros(3000, np.int64)
    few = dataclasses.replace(DESIGN, phantoms=1, upper=20)
    key = os.urandom(KEY_BYTES)
    a, b = sketch_column_pair((codes, codes), (1, 1), few, key, (SOURCE, SOURCE))
    c, _ = sketch_column_pair((codes, codes), (1, 1), few, os.urandom(KEY_BYTES), (SOURCE, SOURCE))
    assert (a == b).mean() > 0.95
    assert (a == c).mean() < 0.6


def test_estimates_are_as_precise_as_they_say():
    """Twelve runs: the mean error lies within five of its standard deviations, their size within a factor of 2."""
    first, second = columns()
    exact = count_table([first, second], [3, 2])
    counts = (exact.sum(1).astype(float), exact.sum(0).astype(float))
    errors = []
    for _ in range(12):
        sketches = sketch_column_pair((first, second), (3, 2), DESIGN, os.urandom(KEY_BYTES), (SOURCE, SOURCE))
        table, stddev = count_pair(sketches, counts, 3000, DESIGN)
        errors.append(table - exact)
    errors = np.array(errors)
    assert abs(errors.mean()) < 5 * stddev / math.sqrt(errors.size)
    assert stddev / 2 < errors.std() < 2 * stddev
    single = count_single(sketches[0], 3000, DESIGN)
    np.testing.assert_allclose(single, counts[0], atol=6 * 3000 / math.sqrt(400))


def test_the_papers_estimate_is_near():
    first, second = columns()
    design = SharedKeyDesign(num_keys=2000, claimed_epsilon=20.0, delta=1e-4, num_columns=2).sketch
    sketches = sketch_column_pair((first, second), (3, 2), design, os.urandom(KEY_BYTES), (SOURCE, SOURCE))
    table, stddev = harmonic_pair(sketches, 3000, design)
    assert np.abs(table - count_table([first, second], [3, 2])).max() < 6 * stddev


@pytest.mark.parametrize("changes", [{"num_keys": 0}, {"phantoms": 0}, {"lower": 12}, {"upper": 33}])
def test_bad_designs(changes):
    with pytest.raises(ArgumentError, match=r"num_keys|levels"):
        dataclasses.replace(DESIGN, **changes)


# -- randomised response --------------------------------------------------------------------------


def test_responses_keep_values_as_often_as_they_say():
    design = ResponseDesign(epsilon_per_column=1.0, cells=((4,), ()))
    codes = np.full(40_000, 2)
    seen = np.bincount(design.respond(codes, 4, SOURCE), minlength=4) / 40_000
    keep = math.e / (math.e + 3)
    np.testing.assert_allclose(seen, [(1 - keep) / 3, (1 - keep) / 3, keep, (1 - keep) / 3], atol=0.015)
    assert math.log(keep / design.other_probability(4)) == pytest.approx(1.0)


def test_response_estimates_are_unbiased_and_as_precise_as_they_say():
    first, second = columns(20_000)
    exact = count_table([first, second], [3, 2])
    design = ResponseDesign(epsilon_per_column=1.5, cells=((3,), (2,)))
    errors = []
    for _ in range(20):
        reports = design.respond(first, 3, SOURCE), design.respond(second, 2, SOURCE)
        table, stddev = estimate_pair(reports, (3, 2), design)
        errors.append(table - exact)
    cell = stddev * math.sqrt(2 * 1 / 6)  # of interactions spread over all cells
    assert abs(np.mean(errors, axis=0)).max() < 5 * cell * 2 / math.sqrt(20)
    assert cell / 1.6 < np.std(errors) < cell * 1.6


@pytest.mark.parametrize("estimator", ["sketch", "response", "shared_key"])
def test_estimates_of_wide_columns_take_little_memory(estimator):
    """The largest array that is not chunked would be of 200 x 200 x 33 x 9, 150 x 200 x 200 or 6,000 x 6,000 floats."""
    rng = np.random.default_rng(0)
    sizes = (6_000, 3) if estimator == "response" else (200, 200)
    codes = [rng.integers(size, size=3000) for size in sizes]
    if estimator == "sketch":
        drawn = [rng.integers(10, 13, size=(20, size)).astype(np.int8) for size in sizes]
        design = dataclasses.replace(DESIGN, num_keys=20)
        most = estimator_bytes(20, 3, 200)

        def run():
            return count_pair((drawn[0][:, :100], drawn[1]), (np.full(100, 30.0), np.full(200, 15.0)), 3000, design)
    elif estimator == "response":
        design, most = ResponseDesign(epsilon_per_column=1.0, cells=((6_000,), (3,))), 2**23

        def run():
            return estimate_pair(codes, sizes, design)
    else:
        drawn = [rng.integers(10, 13, size=(150, size)).astype(np.int8) for size in sizes]
        most = 2**22

        def run():
            return harmonic_pair((drawn[0], drawn[1]), 3000, dataclasses.replace(DESIGN, num_keys=150))

    tracemalloc.start()
    try:
        table, stddev = run()
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert np.isfinite(table).all()
    assert 0 < stddev < math.inf


def test_rows_are_estimated_one_by_one_as_together(monkeypatch):
    first, second = columns()
    counts = (np.bincount(first, minlength=3).astype(float), np.bincount(second, minlength=2).astype(float))
    sketches = sketch_column_pair((first, second), (3, 2), DESIGN, os.urandom(KEY_BYTES), (SOURCE, SOURCE))
    together, stddev = count_pair(sketches, counts, 3000, DESIGN)
    monkeypatch.setattr(sketch_estimate, "_BLOCK", 1)
    table, one_by_one = count_pair(sketches, counts, 3000, DESIGN)
    np.testing.assert_allclose(table, together)
    assert one_by_one == pytest.approx(stddev)


def test_columns_compose_and_only_those_of_others():
    design = ResponseDesign(epsilon_per_column=0.5, cells=((2, 2), (2,)))
    assert response_pld(design, (0, 1)).get_epsilon_for_delta(1e-12) == pytest.approx(1.5, rel=0.03)
    assert response_pld(design, (1,)).get_epsilon_for_delta(1e-12) == pytest.approx(0.5, rel=0.03)


# -- plans and fits -------------------------------------------------------------------------------


EACH_ENCODER = list(ENCODERS.values())


def declared_encoders():
    """Names of the library's classes that derive from Encoding, by the source."""
    root = pathlib.Path(vertinumpyro.__file__).parent
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in root.rglob("*.py"))
    classes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {node.name for node in classes if "Encoding" in {ast.unparse(base) for base in node.bases}}


def test_no_encoder_is_missing():
    assert declared_encoders() == {kind.__name__ for kind in EACH_ENCODER}
    assert all(name == kind.name for name, kind in ENCODERS.items())


@pytest.mark.parametrize("kind", EACH_ENCODER, ids=lambda kind: kind.name)
def test_an_encoder_keeps_its_contract(kind, dataset):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        system = VertiMRF(encoder=kind.name, allow_unproven=True, num_keys=50, **SMALL)
    plan, columns = system.plan(dataset, epsilon=5.0, adversary=OUTSIDE_ANALYST), system.columns(SCHEMA)
    encoding = plan.encoding
    assert type(encoding) is kind
    assert encoding_from_dict(json.loads(json.dumps(encoding.to_dict()))) == encoding
    assert plan.delta_at(5.0) <= plan.delta < plan.delta_at(2.0)
    assert (plan.delta_at(5.0, "clinic") == 1.0) == (not kind.holds_against_parties)
    assert all(row.unproven == kind.unproven for row in plan.adversaries)
    sent = encoding.reported_bytes(columns, 100)
    assert set(sent) == set(dataset.parties)
    assert min(sent.values()) > 0
    found = encoded_tables(dataset, columns, encoding, (), SOURCE)
    cells = {column.name: column.num_cells for column in columns}
    assert len(found) == plan.num_cross_pairs
    assert all(m.values.shape == tuple(cells[name] for name in m.columns) and m.stddev > 0 for m in found)


@pytest.mark.parametrize("encoder", ["sketch", "randomized_response"])
def test_a_plan_meets_epsilon_and_is_stored(encoder, dataset):
    adversary = OUTSIDE_ANALYST if encoder == "sketch" else None
    plan = VertiMRF(encoder=encoder, num_keys=300, **SMALL).plan(dataset, epsilon=2.0, adversary=adversary)
    assert 1.9 < plan.epsilon(adversary) <= 2.0
    assert plan.num_steps == 2
    assert MRFPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    by_name = {row.adversary: row for row in plan.adversaries}
    assert all(row.proof == "proved" for row in plan.adversaries)
    # with a hash key only phantoms protect, and nothing is claimed; a response's randomness is its party's own
    assert math.isinf(by_name["clinic"].epsilon) == (encoder == "sketch")
    assert by_name["clinic"].knows[1] != by_name["outside analyst"].knows


def test_a_fit_spends_the_plan_and_learns_the_dependence(dataset, tmp_path):
    system = VertiMRF(encoder="sketch", num_keys=500, **SMALL)
    plan = system.plan(dataset, epsilon=30.0, adversary=OUTSIDE_ANALYST)
    twin = system.fit(dataset, plan, run_dir=tmp_path)
    record = json.loads((tmp_path / "privacy.json").read_text())
    assert (record["status"], record["steps_spent"]) == ("finished", 2)
    synthetic = twin.sample_synthetic(rng_key=jax.random.key(0))
    assert pairwise_tvd(dataset.to_frame(), synthetic, SCHEMA, max_bins=4).loc[("ill", "visits")] < 0.2
    with pytest.raises(ArgumentError, match="encoder"):
        VertiMRF(**SMALL).fit(dataset, system.plan(dataset, epsilon=30.0, adversary=OUTSIDE_ANALYST))


def test_without_local_tables_counts_come_from_the_sketches(dataset):
    system = VertiMRF(encoder="sketch", num_keys=300, **SMALL)
    twin = system.fit(dataset, system.plan(dataset, epsilon=10.0, adversary=OUTSIDE_ANALYST, cross_share=1.0))
    assert len(twin.measurements) == 12


def test_the_papers_sketches_need_an_opt_in_and_claim_nothing(dataset):
    with pytest.raises(UnprovenError, match="reconstructed"):
        VertiMRF(encoder="sketch_shared_key")
    with pytest.warns(PrivacyWarning, match="reconstructed"):
        system = VertiMRF(encoder="sketch_shared_key", allow_unproven=True, num_keys=200, **SMALL)
    plan = system.plan(dataset, epsilon=2.0, adversary=OUTSIDE_ANALYST)
    assert not any(row["claim"] for row in plan.table_rows())
    assert all("reconstructed" in row.unproven[0] for row in plan.adversaries)
    assert len(system.fit(dataset, plan).sample_synthetic(50, rng_key=jax.random.key(0))) == 50


@pytest.mark.parametrize("encoder", ["sketch", "randomized_response", "sketch_shared_key"])
def test_parties_in_processes_of_their_own_are_refused_before_anything_is_opened(encoder, dataset):
    """Whatever a session of another kind would do is not reached: it has nothing but public facts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        system = VertiMRF(encoder=encoder, num_keys=300, allow_unproven=True, **SMALL)
    plan = system.plan(dataset, epsilon=2.0, adversary=OUTSIDE_ANALYST)
    with pytest.raises(ArgumentError, match=f"encoder='{encoder}'.*encoder=\"secure_marginals\""):
        system.fit(Elsewhere(dataset.schema, dataset.num_records), plan)
    plan = VertiMRF(**SMALL).plan(dataset, epsilon=2.0)
    with pytest.raises(Opened):
        VertiMRF(**SMALL).fit(Elsewhere(dataset.schema, dataset.num_records), plan)


class Opened(Exception):  # noqa: N818
    """A session was opened."""


class Elsewhere(Session):
    """Parties that are somewhere else."""

    schema, num_records = None, None

    def __init__(self, schema, num_records):
        self.schema, self.num_records = schema, num_records

    def open(self, *args, **kwargs):
        raise Opened

    step = publish = cross_products = sum = open


def test_what_an_encoder_cannot_do_is_said(dataset):
    with pytest.raises(ArgumentError, match="adaptive"):
        VertiMRF(encoder="sketch", selection="adaptive")
    for adversary in ("clinic", None):
        with pytest.raises(ArgumentError, match="hash keys"):
            VertiMRF(encoder="sketch").plan(dataset, epsilon=1.0, adversary=adversary)
    with pytest.raises(ArgumentError, match="replace"):
        VertiMRF(encoder="randomized_response").plan(dataset, epsilon=1.0, relation="add_remove")
