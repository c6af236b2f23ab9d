import itertools
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")

from tests.compilations import compilations
from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, InferenceWarning
from vertinumpyro.mrf import field
from vertinumpyro.mrf.factor_engine import FactorEngine
from vertinumpyro.mrf.field import fit_graphical_model, junction_tree_cells, require_engine
from vertinumpyro.mrf.measurements import Measurement, count_table, one_way
from vertinumpyro.mrf.table_selection import check_clique_limit, select_measurements
from vertinumpyro.mrf.twin import Raking, draw_cells

SIZES = {"a": 2, "b": 3, "c": 4, "d": 2}
N = 5000


@pytest.fixture(scope="module")
def chain():
    """A Markov chain a - b - c - d, its pair tables, and the field that they determine."""
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(2))[:, None, None, None] * rng.dirichlet(np.ones(3), 2)[:, :, None, None]
    table = table * rng.dirichlet(np.ones(4), 3)[None, :, :, None] * rng.dirichlet(np.ones(2), 4)[None, None]
    pairs = [("a", "b"), ("b", "c"), ("c", "d")]
    measured = [Measurement(columns=p, values=N * onto(table, p), stddev=1.0) for p in pairs]
    return table, measured, fit_graphical_model(SIZES, measured, N)


def onto(table, columns):
    return table.sum(axis=tuple(i for i, name in enumerate(SIZES) if name not in columns))


def test_exact_tables_of_a_chain_give_back_the_whole_joint(chain):
    table, _, model = chain
    for columns in (("a", "b"), ("b", "c"), ("a", "d"), ("a", "b", "c", "d")):
        found = model.marginal(columns)
        assert np.abs(found - onto(table, columns)).sum() / 2 < 2e-3
    np.testing.assert_allclose(model.marginal(("b", "a")), model.marginal(("a", "b")).T)


def test_cliques_have_the_running_intersection_property(chain):
    seen = set()
    for clique in chain[2].cliques:
        known = seen & set(clique)
        assert not known or any(known <= set(other) for other in chain[2].cliques if seen >= set(other))
        seen |= set(clique)
    assert seen == set(SIZES)


def test_synthetic_tables_are_closer_than_independent_draws(chain):
    table, _, model = chain
    drawn = draw_cells(model, N, np.random.default_rng(0))
    assert all(codes.shape == (N,) for codes in drawn.values())
    full = np.zeros(tuple(SIZES.values()))
    np.add.at(full, tuple(drawn[name] for name in SIZES), 1 / N)
    rng = np.random.default_rng(1)
    plain = rng.multinomial(N, table.ravel()).reshape(table.shape) / N
    for columns in (("a", "b"), ("b", "c"), ("c", "d")):
        stratified, independent = (np.abs(onto(t, columns) - onto(table, columns)).sum() for t in (full, plain))
        assert stratified < independent
    # the whole joint: chi-square with 47 degrees of freedom at most, false failure below 1e-6
    expected = N * np.maximum(model.marginal(tuple(SIZES)), 1e-12)
    assert ((N * full - expected) ** 2 / expected).sum() < 120


def test_columns_without_tables_and_separate_parts():
    measured = [Measurement(columns=("a", "b"), values=np.full((2, 3), N / 6), stddev=1.0)]
    model = fit_graphical_model(SIZES, measured, N, iterations=50)
    drawn = draw_cells(model, 400, np.random.default_rng(0))
    assert set(drawn) == set(SIZES)
    assert np.bincount(drawn["c"]).tolist() == [100] * 4


def test_clique_limit_keeps_the_strongest(chain):
    _, measured, _ = chain
    cells = junction_tree_cells(SIZES, [m.columns for m in measured])
    assert cells == 6 + 12 + 8
    singles = [one_way(name, measured, N) for name in SIZES]
    assert len(select_measurements(measured, singles, SIZES, cells)) == 3
    tight = select_measurements(measured, singles, SIZES, 20)
    assert 0 < len([m for m in tight if len(m.columns) == 2]) < 3
    assert junction_tree_cells(SIZES, [m.columns for m in tight]) <= 20
    assert {name for m in tight for name in m.columns} == set(SIZES)


def test_a_domain_beyond_the_limit_names_the_columns_and_what_to_bin():
    with pytest.raises(ArgumentError, match=r"'wide'.*'wider'|'wider'.*'wide'.*bins="):
        check_clique_limit({"a": 2, "wide": 900, "wider": 1000}, 100_000)
    check_clique_limit({"a": 2, "wide": 90, "wider": 100}, 100_000)


def test_a_path_is_compiled_once_for_both_fields_and_any_number_of_steps():
    sizes = {"a": 3, "b": 5, "c": 7}  # of no other test here
    rng = np.random.default_rng(0)
    measured = [
        Measurement(columns=pair, values=rng.poisson(100.0, (sizes[pair[0]], sizes[pair[1]])) + 0.0, stddev=5.0)
        for pair in (("a", "b"), ("b", "c"))
    ]
    singles = [one_way(name, measured, N) for name in sizes]
    with compilations() as compiled:
        fit_graphical_model(sizes, measured, N, singles=singles, iterations=150)
    assert compiled["_path"] == 1


@pytest.mark.parametrize("steps", [50, 500])
def test_the_path_is_the_engines(chain, steps):
    mbi = require_engine()
    with compat.x64():
        engine = FactorEngine(mbi, SIZES, chain[1], float(N))
        loss = engine.loss(chain[1])
        start = engine.begin(loss, ())
        ours = engine.descend(loss, start, steps).marginals
        theirs = mbi.estimation.MirrorDescent().estimate(
            mbi.Domain(tuple(SIZES), tuple(SIZES.values())), loss, known_total=float(N), iters=steps, warm_start=start
        )
        for clique in loss.cliques:
            np.testing.assert_allclose(ours[clique].values, theirs.marginals[clique].values, atol=1e-6 * N)


def test_a_path_that_is_cut_short_says_so(chain):
    with pytest.warns(InferenceWarning, match=r"after 100 steps.*raise iterations"):
        fit_graphical_model(SIZES, chain[1], N, iterations=100)


def test_one_strong_table_is_learned_among_many_that_hold_noise(monkeypatch):
    """All of them stop together, which alone would leave the field at independent columns."""
    rng = np.random.default_rng(1)
    sizes, num_records = {"a": 2, "b": 3, **{f"w{i}": 10 for i in range(3)}}, 1700
    strong = num_records * np.array([[0.05, 0.05, 0.25], [0.4, 0.15, 0.1]])
    measured = []
    for pair in itertools.combinations(sizes, 2):
        shares = [strong.sum(1 - "ab".index(n)) / num_records if n in "ab" else np.full(10, 0.1) for n in pair]
        exact = strong if pair == ("a", "b") else num_records * np.outer(*shares)
        measured.append(Measurement(columns=pair, values=exact + rng.normal(0, 45, exact.shape), stddev=45.0))
    singles = [one_way(name, measured, num_records) for name in sizes]
    better = fit_graphical_model(sizes, measured, num_records, singles=singles)
    monkeypatch.setattr(field, "shrunk", lambda measurement, singles: measurement)
    together = fit_graphical_model(sizes, measured, num_records, singles=singles)

    def distance(model):
        return 0.5 * np.abs(model.marginal(("a", "b")) - strong / num_records).sum()

    assert distance(together) > 0.2
    assert distance(better) < 0.06
    assert {name for clique in better.cliques for name in clique} == set(sizes)


@pytest.mark.parametrize("stddev", [30.0, 300.0])
def test_the_path_ends_before_it_learns_the_noise(stddev):
    """Against the path's own end, over ten tables of independent columns: the end knows nothing better."""
    gains = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        single = {name: rng.dirichlet(np.full(size, 5.0)) for name, size in SIZES.items()}
        pairs = list(itertools.combinations(SIZES, 2))
        exact = {pair: np.outer(single[pair[0]], single[pair[1]]) for pair in pairs}
        measured = [
            Measurement(columns=p, values=N * t + rng.normal(0, stddev, t.shape), stddev=stddev)
            for p, t in exact.items()
        ]
        singles = [one_way(name, measured, N) for name in SIZES]
        early = fit_graphical_model(SIZES, measured, N, singles=singles)
        late = at_the_end(measured)
        gains.append(
            np.log(
                sum(np.abs(late(p) - t).sum() for p, t in exact.items())
                / sum(np.abs(early.marginal(p) - t).sum() for p, t in exact.items())
            )
        )
    assert np.mean(gains) > 4 * np.std(gains) / 10**0.5


def at_the_end(measured):
    """Margins of the field after 3,000 steps."""
    mbi = require_engine()
    with compat.x64():
        domain = mbi.Domain(tuple(SIZES), tuple(SIZES.values()))
        tables = [mbi.LinearMeasurement(m.values.ravel(), m.columns, m.stddev) for m in measured]
        model = mbi.estimation.MirrorDescent().estimate(domain, tables, known_total=float(N), iters=3000)

    def margin(columns):
        with compat.x64():
            return np.asarray(model.project(columns).datavector(flatten=False)) / N

    return margin


@pytest.fixture(scope="module")
def dense():
    """Five columns that all hang together: codes, their cells, and all pairs of them."""
    rng = np.random.default_rng(3)
    sizes, codes = dict.fromkeys("abcde", 5), {}
    for name in sizes:
        effects = [rng.normal(scale=1.2, size=(5, 5)) for _ in codes]
        scores = sum((e[c] for e, c in zip(effects, codes.values(), strict=True)), rng.gumbel(size=(20_000, 5)))
        codes[name] = scores.argmax(axis=1)
    return codes, sizes, list(itertools.combinations(sizes, 2))


def distances(codes, drawn, pairs, sizes):
    """Total variation of each pair's table."""
    tables = [[count_table([c[n] for n in pair], [sizes[n] for n in pair]) for c in (codes, drawn)] for pair in pairs]
    return [np.abs(one / one.sum() - two / two.sum()).sum() / 2 for one, two in tables]


def test_tables_that_no_clique_holds_are_kept_and_more_budget_makes_no_worse_twin(dense):
    codes, sizes, pairs = dense
    of_field, raked = [], []
    for stddev in (100.0, 10.0, 1.0):
        rng = np.random.default_rng(0)
        exact = [(p, count_table([codes[n] for n in p], [sizes[n] for n in p])) for p in pairs]
        tables = [
            Measurement(columns=p, values=t + stddev * rng.standard_normal(t.shape), stddev=stddev) for p, t in exact
        ]
        singles = [one_way(name, tables, 20_000) for name in sizes]
        chosen = select_measurements(tables, singles, sizes, 150)
        assert len(chosen) < len(tables)
        model = fit_graphical_model(sizes, chosen, 20_000, singles=singles)
        of_field.append(np.mean(distances(codes, draw_cells(model, 20_000, rng), pairs, sizes)))
        raking = Raking(tables, 20_000)
        draw_cells(model, 20_000, np.random.default_rng(0), raking)
        drawn = draw_cells(model, 20_000, rng, lambda name, *_, found=raking: found.tilts.get(name, ()))
        raked.append(np.mean(distances(codes, drawn, pairs, sizes)))
        assert raking.gaps.keys() == set(pairs)
    assert raked[0] >= raked[1] >= raked[2], raked
    assert raked[2] < of_field[2] / 3
    assert all(one <= other for one, other in zip(raked, of_field, strict=True))


def test_no_step_of_raking_is_too_many_where_tables_contradict_each_other(dense, monkeypatch):
    codes, sizes, pairs = dense
    rng = np.random.default_rng(0)
    tables = [
        Measurement(columns=p, values=t + 20 * rng.standard_normal(t.shape), stddev=1.0)
        for p in pairs
        for t in [count_table([codes[n] for n in p], [sizes[n] for n in p])]
    ]
    model = fit_graphical_model(sizes, tables[:1], 20_000, singles=[one_way(n, tables, 20_000) for n in sizes])
    found = []
    for steps in (3, 30, 300):
        monkeypatch.setattr("vertinumpyro.mrf.twin._STEPS", steps)
        raking = Raking(tables, 20_000)
        draw_cells(model, 20_000, np.random.default_rng(0), raking)
        drawn = draw_cells(
            model, 20_000, np.random.default_rng(1), lambda name, *_, found=raking: found.tilts.get(name, ())
        )
        found.append(np.mean(distances(codes, drawn, pairs, sizes)))
    assert found[0] > found[1]
    assert found[2] < 1.01 * found[1], found


def test_factors_that_tables_of_noise_ask_for_do_not_overflow_as_values_are_drawn(dense, monkeypatch):
    """Values would be the last ones where a product of weights was infinite, or any."""
    _, sizes, pairs = dense
    rng = np.random.default_rng(0)
    tables = [Measurement(columns=p, values=1e3 * rng.random((5, 5)), stddev=1.0) for p in pairs]
    model = fit_graphical_model(sizes, tables[:1], 20_000, singles=[one_way(n, tables, 20_000) for n in sizes])
    asked = []

    def extreme(dual, start, **_):
        asked.append(3e3 * tables[0].values.size * np.random.default_rng(1).standard_normal(len(start)))
        return SimpleNamespace(x=asked[-1])

    monkeypatch.setattr("vertinumpyro.mrf.twin.minimize", extreme)
    monkeypatch.setattr("vertinumpyro.mrf.twin._alone", lambda *_: None)
    raking = Raking(tables, 20_000)
    draw_cells(model, 20_000, np.random.default_rng(0), raking)
    factors = [tilt.factors for tilts in raking.tilts.values() for tilt in tilts]
    assert asked
    assert all(np.all(table.max(axis=-1) == 1) for table in factors)
    with np.errstate(over="raise", invalid="raise"):
        drawn = draw_cells(model, 20_000, rng, lambda name, *_: raking.tilts.get(name, ()))
    name, (tilt,) = next((name, tilts) for name, tilts in raking.tilts.items() if len(tilts) == 1)
    assert np.array_equal(drawn[name], tilt.factors.argmax(axis=-1)[tilt.rows(drawn, 20_000)])


def test_where_noise_led_the_field_away_a_column_alone_is_as_all_tables_say_together(dense):
    codes, sizes, pairs = dense
    rng = np.random.default_rng(0)
    tables = [Measurement(columns=p, values=3e3 * rng.standard_normal((5, 5)), stddev=3e3) for p in pairs]
    for name, codes_of in codes.items():
        counts = np.bincount(codes_of, minlength=5) + 20 * rng.standard_normal(5)
        tables.append(Measurement(columns=(name,), values=counts, stddev=20.0))
    even = [Measurement(columns=(name,), values=np.full(5, 4e3), stddev=1.0) for name in sizes]
    model = fit_graphical_model(sizes, even, 20_000, singles=even)
    raking = Raking(tables, 20_000)
    draw_cells(model, 20_000, np.random.default_rng(0), raking)
    drawn = draw_cells(model, 20_000, rng, lambda name, *_: raking.tilts.get(name, ()))
    singles = [(name,) for name in sizes]
    assert max(distances(codes, drawn, singles, sizes)) < 0.02
    assert max(distances(codes, draw_cells(model, 20_000, rng), singles, sizes)) > 0.1


def test_a_field_that_holds_every_table_is_drawn_from_as_it_is(chain):
    _, measured, model = chain
    raking = Raking(measured, N)
    drawn = draw_cells(model, N, np.random.default_rng(0), raking)
    assert not raking.tilts
    assert all(gap.of_field == gap.remaining for gap in raking.gaps.values())
    plain = draw_cells(model, N, np.random.default_rng(0))
    assert all(np.array_equal(drawn[name], plain[name]) for name in plain)
