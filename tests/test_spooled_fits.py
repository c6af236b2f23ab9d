"""Every method releases the same, bit for bit, from files read in blocks onto disk as from frames in memory."""

import jax
import numpy as np
import pandas as pd
import pytest

from tests.mrf.conftest import SCHEMA, frame
from vertinumpyro.core import row_blocks
from vertinumpyro.data import PartySchema, Schema, VerticalDataset, streaming
from vertinumpyro.dpvi import DPVI
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.regression import VerticalLogisticRegression

N = 300


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """(in memory, spooled): the same records, at the insurer in another order."""
    folder, table = tmp_path_factory.mktemp("tables"), frame(num_records=N).assign(id=range(N))
    frames, paths = {}, {}
    for place, (party, part) in enumerate(SCHEMA.parties.items()):
        frames[party] = pd.DataFrame(table[["id", *part.columns]]).sample(frac=1, random_state=place)
        paths[party] = folder / f"{party}.parquet"
        frames[party].to_parquet(paths[party], index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "ROWS_READ", 70)
        patch.setattr(row_blocks, "ROWS", 64)
        yield VerticalDataset.from_frames(SCHEMA, frames), VerticalDataset.from_files(SCHEMA, paths, spool=folder)


def test_tables(both, monkeypatch):
    whole, spooled = both
    monkeypatch.setattr("vertinumpyro.mrf.vertimrf.rehearse_tables", lambda *args: None)
    system = VertiMRF()
    first, second = (
        system.release(dataset, system.plan(dataset, epsilon=2.0), insecure_seed=1) for dataset in (whole, spooled)
    )
    assert len(first.measurements) > len(SCHEMA.columns)
    for a, b in zip(first.measurements, second.measurements, strict=True):
        assert a.columns == b.columns
        np.testing.assert_array_equal(a.values, b.values)
    assert first.fine.keys() == second.fine.keys() != set()
    for name, values in first.fine.items():
        np.testing.assert_array_equal(values, second.fine[name])


def some(both, kept):
    """Of these columns alone."""
    schema = Schema({
        party: PartySchema({name: column for name, column in part.columns.items() if name in kept})
        for party, part in SCHEMA.parties.items()
    })  # fmt: skip
    for dataset in both:
        held = {
            party: {n: a for n, a in dataset.arrays(party).items() if n.removesuffix("_observed") in part.columns}
            for party, part in schema.parties.items()
        }
        yield VerticalDataset(schema, held)


def test_moments(both):
    fits = []
    for dataset in some(both, [name for name, column in SCHEMA.columns.items() if column.missing != "mask"]):
        model = VerticalLogisticRegression(insecure_seed=2)
        plan = model.plan(dataset.schema, "ill", num_records=N, epsilon=5.0, delta=1e-5)
        fits.append(model.fit(dataset, plan))
    np.testing.assert_array_equal(fits[0].moments_.matrix, fits[1].moments_.matrix)
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)


def test_steps(both):
    posteriors = []
    for dataset in some(both, ("age", "visits", "income")):
        dpvi = DPVI(num_components=2, warm_start=False)
        plan = dpvi.plan(dataset, epsilon=5.0, num_steps=2, batch_size=N)
        posteriors.append(dpvi.fit(dataset, plan, jax.random.key(0), progress_bar=False, insecure_seed=3))
    for one, other in zip(*(jax.tree_util.tree_leaves(p.params) for p in posteriors), strict=True):
        np.testing.assert_array_equal(one, other)
