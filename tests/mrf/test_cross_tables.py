import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

from tests.mrf.conftest import NUM_RECORDS, SCHEMA
from vertinumpyro.core import compat, row_blocks
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import PartySchema, Schema, VerticalDataset
from vertinumpyro.mrf import contingency
from vertinumpyro.mrf.cells import cell_columns
from vertinumpyro.mrf.contingency import cross_pairs, measured_pairs, pads, table_slices
from vertinumpyro.mrf.measurements import GRID_BITS, count_table
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.releases import ACROSS, PADS, ROUND, Releases
from vertinumpyro.mrf.vertimrf import VertiMRF
from vertinumpyro.privacy import NoiseSource
from vertinumpyro.secure import FixedPoint, Plaintext
from vertinumpyro.secure.prime_field import PRIME
from vertinumpyro.session import InProcessSession, Multiply, Run, Sum, party_sources


def exact_tables(dataset, columns=None):
    columns = cell_columns(dataset.schema) if columns is None else columns
    return {
        (a.name, b.name): count_table(
            [a.codes(dataset.arrays(a.party)), b.codes(dataset.arrays(b.party))], [a.num_cells, b.num_cells]
        )
        for a, b in itertools.combinations(columns, 2)
        if a.party != b.party
    }


def plan_of(dataset, mu, **settings):
    """A plan with μ for everything across parties."""
    held = [[c for c in cell_columns(dataset.schema) if c.party == party] for party in dataset.parties]
    return MRFPlan(
        noise_multiplier=2 / mu,
        num_records=NUM_RECORDS,
        parties=dataset.parties,
        num_columns=tuple(len(own) for own in held),
        num_binned=(0,) * len(held),
        delta=1e-5,
        noise=NoiseSource(num_parties=len(held)),
        cross_share=1.0,
        **settings,
    )


def engaged(dataset, plan, backend=None):
    """A session whose parties are at work, with nothing released."""
    session = InProcessSession(dataset, backend or FixedPoint())
    session.engage(VertiMRF(), plan, party_sources(1 + len(dataset.parties), None))
    return session


def reveal_all(dataset, plan, backend=None):
    session = engaged(dataset, plan, backend)
    products = session.cross_products(Multiply(1, ACROSS, {"release": 0}))
    return measured_pairs(cell_columns(dataset.schema), dataset.parties, plan.cross_releases[0], products)


@pytest.fixture(scope="module")
def split(dataset):
    """The same columns at four parties."""
    names = list(SCHEMA.columns)
    held = [names[i::4] for i in range(4)]
    schema = Schema({f"p{i}": PartySchema({n: SCHEMA.columns[n] for n in own}) for i, own in enumerate(held)})
    pooled = dataset.pooled()
    arrays = {
        party: {n: v for n, v in pooled.items() if n.removesuffix("_observed") in part.columns}
        for party, part in schema.parties.items()
    }
    return VerticalDataset(schema, arrays)


def like_the_noise(errors, alpha=1e-6):
    """False failure `alpha`; half or twice the variance would be far outside."""
    return stats.chi2.ppf(alpha / 2, errors.size) < np.sum(errors**2) < stats.chi2.isf(alpha / 2, errors.size)


@pytest.mark.parametrize("backend", [FixedPoint(), Plaintext()], ids=["fixed_point", "plaintext"])
def test_all_pairs_come_with_the_accounted_noise_and_no_less(backend, dataset):
    plan, exact = plan_of(dataset, 1.0), exact_tables(dataset)
    found = reveal_all(dataset, plan, backend)
    assert [m.columns for m in found] == list(exact)
    (made,) = plan.cross_releases
    assert {m.stddev for m in found} == {made.stddev}
    assert like_the_noise(np.concatenate([(m.values - exact[m.columns]).ravel() for m in found]) / made.stddev)


def uniform(values, alpha=1e-7):
    """Each of the eight bytes of ring elements takes all values equally often."""
    for place in values.view(np.uint8).reshape(-1, 8).T:
        seen = np.bincount(place, minlength=256)
        statistic = ((seen - len(place) / 256) ** 2).sum() * 256 / len(place)
        if not stats.chi2.ppf(alpha, 255) < statistic < stats.chi2.isf(alpha, 255):
            return False
    return True


def assert_pads_hide(dataset, plans, request, hidden):
    """What is opened in these cells is uniform, whichever party's pads are left out of those that all others know."""
    drawn, opened = [], []
    for plan in plans:
        session, kept = engaged(dataset, plan), []
        for work in session._works:
            draw = work.noise
            work.noise = lambda *args, draw=draw, kept=kept: kept.append(draw(*args)) or kept[-1]
        products = session.cross_products(request)
        drawn.append(kept)
        opened.append(np.concatenate([product.ravel() for product in products.values()]))
    for left_out in range(len(dataset.parties)):
        seen = [
            each[hidden] - sum(pads[hidden] for i, pads in enumerate(kept) if i != left_out)
            for each, kept in zip(opened, drawn, strict=True)
        ]
        assert uniform(np.concatenate(seen))


@pytest.mark.parametrize("num_parties", [2, 4])
def test_shares_add_up_to_the_tables_and_say_nothing_alone(dataset, split, num_parties):
    """Nor do all but one of them together; what is opened is uniform, too."""
    held = dataset if num_parties == 2 else split
    settings = {"num_rounds": 1, "tables_per_round": 1, "first_share": 0.5}
    columns, shares, opened = cell_columns(held.schema), [], []
    for _ in range(4):
        session = engaged(held, plan_of(held, 1.0, **settings))
        products = session.cross_products(Multiply(None, PADS))
        shares.append([work._share for work in session._works])
        opened.append(np.concatenate([product.ravel() for product in products.values()]))
    exact = exact_tables(held, columns)
    places = table_slices(columns, held.parties)
    assert list(places) == cross_pairs(columns, held.parties)
    assert places.keys() == exact.keys()
    assert sorted(np.concatenate([place.ravel() for place in places.values()])) == list(range(opened[0].size))
    for each in shares:
        assert len(each) == num_parties
        for pair, place in places.items():
            np.testing.assert_array_equal(sum(share[place] for share in each), exact[pair] << GRID_BITS)
    for party in range(num_parties):
        assert uniform(np.concatenate([each[party] for each in shares])), "one share"
        others = [sum(share for i, share in enumerate(each) if i != party) for each in shares]
        assert uniform(np.concatenate(others)), "all shares but one"
    assert uniform(np.concatenate(opened))
    assert "array" not in repr(session) + repr(session._works[0])


@pytest.mark.parametrize("num_parties", [2, 4])
def test_chosen_tables_are_revealed_with_noise_of_all_parties(dataset, split, num_parties):
    held = dataset if num_parties == 2 else split
    plan = plan_of(held, 1.0, num_rounds=1, tables_per_round=3, first_share=0.5)
    columns, exact, made = cell_columns(held.schema), exact_tables(held), plan.cross_releases[1]
    session = engaged(held, plan)
    session.cross_products(Multiply(None, PADS))
    pairs = list(exact)[::4][:3]
    places, errors = table_slices(columns, held.parties), []
    for _ in range(20):
        revealed = session.sum(Sum(2, ROUND, {"pairs": [list(pair) for pair in pairs], "release": 1}))
        cuts = np.split(revealed, np.cumsum([places[pair].size for pair in pairs])[:-1])
        errors += [
            (cut / 2**GRID_BITS - exact[pair].ravel()) / made.stddev for pair, cut in zip(pairs, cuts, strict=True)
        ]
    assert like_the_noise(np.concatenate(errors))
    alone = session._works[0].noise(Sum(2, ROUND, {"release": 1}), 20_000) / 2**GRID_BITS / made.stddev
    assert like_the_noise(alone * np.sqrt(num_parties)), "each adds its share of the variance"


def test_a_round_reveals_no_more_tables_than_it_pays_for(dataset):
    plan = plan_of(dataset, 1.0, num_rounds=1, tables_per_round=3, first_share=0.5)
    session, columns = engaged(dataset, plan), cell_columns(dataset.schema)
    with Run.opened(plan, None, results="released.npz") as run:
        run.ledger.reserve_up_to(2)
        releases = Releases(session=session, run=run, plan=plan, columns=columns, estimate=None)
        with pytest.raises(ArgumentError, match="pays for 3"):
            releases._reveal(2, lambda: list(exact_tables(dataset))[:4])
        assert run.ledger.steps_spent == 2


def test_trusted_noise_is_one_share(dataset):
    plan = dataclasses.replace(plan_of(dataset, 1.0), noise=NoiseSource(kind="trusted", num_parties=2))
    exact, (made,) = exact_tables(dataset), plan.cross_releases
    found = reveal_all(dataset, plan)
    assert like_the_noise(np.concatenate([(m.values - exact[m.columns]).ravel() for m in found]) / made.stddev)


def test_four_parties(split):
    exact = exact_tables(split)
    found = reveal_all(split, plan_of(split, 50.0))
    assert {m.columns for m in found} == set(exact)
    assert max(np.abs(m.values - exact[m.columns]).max() for m in found) < 6


def test_works_whatever_the_users_jax_precision(dataset):
    for enabled in (False, True):
        with compat.precision(enabled):
            found = reveal_all(dataset, plan_of(dataset, 100.0))
        assert all(abs(m.values.sum() - NUM_RECORDS) < 20 for m in found)


def test_pads_of_verified_tables_are_elements_each_of_which_is_as_likely():
    """Words modulo p are not: eight elements have one word more. What stands for 0 twice is drawn again."""
    left = [[2**64 - 1, 2**61 + 5, PRIME], [PRIME, 7], [9]]

    class Source:
        def uint64(self, size):
            return np.array(left.pop(0), np.uint64)

    assert pads(3, Source(), verified=True).tolist() == [9, 5, 7]
    left.append([2**64 - 1, 0])
    assert pads(2, Source()).tolist() == [-1, 0]


SETS = [(1, 0), (0,), (3, 2, 1, 0), (0, 1, 2), (0, 1), (0, 1, 3), (2,), (0, 1)]


@pytest.mark.parametrize("rows", [64, 2**16])
def test_tables_counted_in_blocks_are_those_of_all_records_whatever_sets_of_columns(dataset, monkeypatch, rows):
    monkeypatch.setattr(row_blocks, "ROWS", rows)
    columns = [c for c in VertiMRF().columns(dataset.schema) if c.party == "insurer"]
    arrays = dataset.arrays("insurer")
    codes, sizes = [c.codes(arrays) for c in columns], [c.num_cells for c in columns]
    for chosen, table in zip(SETS, contingency.exact_tables(columns, arrays, SETS), strict=True):
        np.testing.assert_array_equal(table, count_table([codes[i] for i in chosen], [sizes[i] for i in chosen]))
    assert contingency.exact_tables(columns, arrays, []) == []
    for column, table in zip(columns, contingency.fine_tables(columns, arrays), strict=True):
        np.testing.assert_array_equal(table, count_table([column.codes(arrays, fine=True)], [column.num_fine]))
