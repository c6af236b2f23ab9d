import itertools

import numpy as np
import pytest
from scipy import stats

from tests.mrf.conftest import NUM_RECORDS, SCHEMA
from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import PartySchema, Schema, VerticalDataset
from vertinumpyro.mrf.cells import cell_columns
from vertinumpyro.mrf.cross_tables import reveal_all, share_all
from vertinumpyro.mrf.release import GRID_BITS, TableRelease, count_table
from vertinumpyro.privacy import NoiseSource
from vertinumpyro.secure import FixedPoint, Plaintext

COLUMNS = cell_columns(SCHEMA)


def exact_tables(dataset, columns=COLUMNS):
    return {
        (a.name, b.name): count_table(
            [a.codes(dataset.arrays(a.party)), b.codes(dataset.arrays(b.party))], [a.num_cells, b.num_cells]
        )
        for a, b in itertools.combinations(columns, 2)
        if a.party != b.party
    }


def release(num_tables, mu=1.0, num_parties=2, num_records=NUM_RECORDS):
    noise = NoiseSource(num_parties=num_parties)
    return TableRelease(num_tables=num_tables, mu=mu, num_records=num_records, noise=noise)


@pytest.mark.parametrize("backend", [FixedPoint(), Plaintext()], ids=["fixed_point", "plaintext"])
def test_all_pairs_come_with_the_accounted_noise_and_no_less(backend, dataset):
    made, exact = release(12), exact_tables(dataset)
    found = reveal_all(dataset, COLUMNS, made, backend, SystemRandomSource())
    assert [m.columns for m in found] == list(exact)
    errors = np.concatenate([(m.values - exact[m.columns]).ravel() for m in found]) / made.stddev
    # false failure 1e-6; half or twice the variance would be far outside
    assert stats.chi2.ppf(5e-7, errors.size) < np.sum(errors**2) < stats.chi2.isf(5e-7, errors.size)


def test_shares_add_up_to_the_table_and_say_nothing_alone(dataset):
    shared = share_all(dataset, COLUMNS, release(12), FixedPoint(), SystemRandomSource())
    exact = exact_tables(dataset)
    for pair, shares in shared.shares.items():
        np.testing.assert_array_equal(shares[0] + shares[1], exact[pair] << GRID_BITS)
    assert repr(shared) == "SharedTables(12 tables)"
    for side in (0, 1):
        bits = np.concatenate([s[side].ravel() for s in shared.shares.values()])
        ones = np.unpackbits(bits.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(bits.size * 64)


def test_chosen_tables_are_revealed_with_noise_of_all_parties(dataset):
    exact = exact_tables(dataset)
    made = release(3)
    shared = share_all(dataset, COLUMNS, made, FixedPoint(), SystemRandomSource())
    pairs = [("age", "visits"), ("ill", "plan"), ("smoker", "income")]
    found = [m for _ in range(20) for m in shared.reveal(pairs, made, FixedPoint(), SystemRandomSource())]
    errors = np.concatenate([(m.values - exact[m.columns]).ravel() for m in found]) / made.stddev
    assert stats.chi2.ppf(5e-7, errors.size) < np.sum(errors**2) < stats.chi2.isf(5e-7, errors.size)
    with pytest.raises(ArgumentError, match="pays for 3"):
        shared.reveal([*pairs, ("age", "plan")], made, FixedPoint(), SystemRandomSource())


def test_four_parties(dataset):
    names = list(SCHEMA.columns)
    held = [names[i::4] for i in range(4)]
    schema = Schema({f"p{i}": PartySchema({n: SCHEMA.columns[n] for n in own}) for i, own in enumerate(held)})
    pooled = dataset.pooled()
    arrays = {
        party: {n: v for n, v in pooled.items() if n.removesuffix("_observed") in part.columns}
        for party, part in schema.parties.items()
    }
    split = VerticalDataset(schema, arrays)
    columns = cell_columns(schema)
    exact = exact_tables(split, columns)
    found = reveal_all(split, columns, release(len(exact), 50.0, 4), FixedPoint(), SystemRandomSource())
    assert {m.columns for m in found} == set(exact)
    assert max(np.abs(m.values - exact[m.columns]).max() for m in found) < 6


def test_works_whatever_the_users_jax_precision(dataset):
    for enabled in (False, True):
        with compat.precision(enabled):
            found = reveal_all(dataset, COLUMNS, release(12, 100.0), FixedPoint(), SystemRandomSource())
        assert all(abs(m.values.sum() - NUM_RECORDS) < 20 for m in found)
