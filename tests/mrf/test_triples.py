"""Tables of three columns across parties: chosen from a first look, paid for by the plan, and kept by what follows."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest

from tests.mrf.test_cross_tables import engaged, like_the_noise, split, uniform  # noqa: F401
from vertinumpyro.data import BinaryColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.evaluation import k_way_tvd
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.field import has_engine

needs_engine = pytest.mark.skipif(not has_engine(), reason="the engine mbi 2 needs jax 0.9: extra `mrf`")


def binaries(clinic, insurer):
    made = [PartySchema({name: BinaryColumn() for name in names.split()}) for names in (clinic, insurer)]
    return Schema(dict(zip(("clinic", "insurer"), made, strict=True)))


def parity(num_records=20_000, seed=0):
    """b is a1 xor a2 in nine of ten records: no pair shows anything of it."""
    rng = np.random.default_rng(seed)
    a1, a2, c = rng.integers(2, size=(3, num_records))
    b = a1 ^ a2 ^ (rng.random(num_records) < 0.1)
    frame = pd.DataFrame({"a1": a1, "a2": a2, "b": b.astype(int), "c": c})
    return VerticalDataset.from_pooled(binaries("a1 a2", "b c"), frame)


@needs_engine
@pytest.mark.promise
def test_what_no_pair_shows_is_kept_where_all_triples_can_be_had():
    data, found = parity(), {}
    for triples in ("auto", False):
        system = VertiMRF(triples=triples)
        plan = system.plan(data, epsilon=1.0)
        assert plan.worst.epsilon <= 1.0
        twin = system.fit(data, plan, insecure_seed=1).sample_synthetic(rng_key=jax.random.key(0))
        found[triples] = k_way_tvd(data.to_frame(), twin, data.schema, 3, rng=0).mean
        assert (plan.num_triples > 0) == (triples == "auto")
    assert found["auto"] < 0.02
    assert found[False] > 0.09  # (.4 + 0 + 0 + 0) / 4
