"""Backends between processes in one process: refused as they are, with the way to go; rehearsed, they fit."""

import jax
import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.privacy import PoissonSampling
from vertinumpyro.secure import Crypten, FixedPoint, InsecureSimulation, Spu

SCHEMA = Schema(
    {
        "clinic": PartySchema({"age": RealColumn(bounds=(0.0, 1.0))}),
        "insurer": PartySchema({"plan": CategoricalColumn(categories=("a", "b", "c"))}),
    }
)
INSTALLED = [kind for kind in (Crypten(), Spu()) if kind.missing() is None]


@pytest.fixture(scope="module")
def dataset():
    return VerticalDataset.example(SCHEMA, 30, np.random.default_rng(0))


def planned(backend, dataset):
    dpvi = DPVI(num_components=2, backend=backend)
    everyone = PoissonSampling(sampling_prob=1.0, num_steps=3, max_batch_size=30)
    return dpvi, dpvi.plan(dataset, noise_multiplier=1e-4, sampling=everyone, clip_norm=1.0)


@pytest.mark.parametrize("backend", [Crypten(), Spu()], ids=["crypten", "spu"])
def test_one_process_may_not_hold_every_partys_columns(backend, dataset, tmp_path):
    dpvi, plan = planned(backend, dataset)
    remedy = rf"fit --backend {backend.option}.*InsecureSimulation\({type(backend).__name__}\(\)\)"
    with pytest.raises(ArgumentError, match=remedy):
        dpvi.fit(dataset, plan, jax.random.key(0), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()  # nothing was begun


@pytest.mark.skipif(not INSTALLED, reason=f"{Crypten().missing()}; or: {Spu().missing()}")
def test_a_rehearsal_learns_what_fixed_point_learns(dataset):
    with InsecureSimulation(INSTALLED[0]) as rehearsal:
        dpvi, plan = planned(rehearsal, dataset)
        ours = dpvi.fit(dataset, plan, jax.random.key(1), progress_bar=False).params
    assert rehearsal.traffic.bytes_sent == 0  # its processes ended
    reference, plan = planned(FixedPoint(), dataset)
    theirs = reference.fit(dataset, plan, jax.random.key(1), progress_bar=False).params
    for one, other in zip(jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)
