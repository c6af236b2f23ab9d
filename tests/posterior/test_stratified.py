"""Records drawn together: each is an exact draw, and together they are nearer to the model than independent ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from vertinumpyro.posterior.synthesis import Stratified

N = 4000
WEIGHTS = np.array([0.5, 0.3, 0.2])
PROBS = np.array([[0.1, 0.6, 0.3], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
ILL = np.array([0.9, 0.5, 0.05])


def mixture():
    with numpyro.plate("records", N):
        z = numpyro.sample("z", dist.Categorical(jnp.asarray(WEIGHTS)))
        numpyro.sample("kind", dist.Categorical(jnp.asarray(PROBS)[z]))
        numpyro.sample("ill", dist.Bernoulli(logits=jnp.asarray(np.log(ILL / (1 - ILL)))[z]))
        old = numpyro.sample("old", dist.Bernoulli(0.25))
        numpyro.sample("weight", dist.Normal(old.astype(float), 0.1))
        numpyro.sample("late", dist.Bernoulli(jnp.where(old, 0.8, 0.3)))


@functools.partial(jax.jit, static_argnums=1)
def traced(seed, stratified):
    model = Stratified(mixture, jax.random.key(seed), N, "z", []) if stratified else mixture
    trace = handlers.trace(handlers.seed(model, jax.random.key(seed))).get_trace()
    return {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}


def draws(seed, stratified):
    return {name: np.asarray(values) for name, values in traced(seed, stratified).items()}


def exact(names):
    table = WEIGHTS[:, None, None, None, None] * PROBS[:, :, None, None, None]
    table = table * np.stack([1 - ILL, ILL], -1)[:, None, :, None, None]
    table = table * np.array([0.75, 0.25])[None, None, None, :, None]
    table = table * np.array([[0.7, 0.3], [0.2, 0.8]])[None, None, None]
    axes = ["z", "kind", "ill", "old", "late"]
    return table.sum(tuple(i for i, name in enumerate(axes) if name not in names))


def distance(drawn, names):
    shape = tuple(int(drawn[name].max()) + 1 for name in names)
    counts = np.bincount(np.ravel_multi_index([drawn[name] for name in names], shape), minlength=np.prod(shape))
    return 0.5 * np.abs(counts.reshape(shape) / N - exact(names)).sum()


TABLES = [("kind",), ("late",), ("kind", "ill"), ("kind", "late"), ("ill", "late"), ("kind", "ill", "late")]


@pytest.mark.parametrize("names", TABLES, ids=" ".join)
def test_tables_are_nearer_to_the_model_than_those_of_independent_records(names):
    together = np.mean([distance(draws(seed, True), names) for seed in range(8)])
    independent = np.mean([distance(draws(seed, False), names) for seed in range(8)])
    assert together < (0.25 if len(names) == 1 else 0.85) * independent


def test_every_record_is_an_exact_draw():
    runs = [draws(seed, True) for seed in range(300)]
    for row in (0, 1, N // 2, N - 1):
        cells = np.array([[run[name][row] for name in ("z", "kind", "ill", "old", "late")] for run in runs])
        table = np.zeros((3, 3, 2, 2, 2))
        np.add.at(table, tuple(cells.T), 1 / len(runs))
        for axes in [(0,), (1,), (0, 2), (1, 4), (3, 4)]:
            others = tuple(i for i in range(5) if i not in axes)
            names = [("z", "kind", "ill", "old", "late")[i] for i in axes]
            cell_error = np.abs(table.sum(others) - exact(names)).max()
            assert cell_error < 4.5 * np.sqrt(0.25 / len(runs)), (row, names)


def test_records_of_different_seeds_differ_and_other_sites_are_drawn_as_ever():
    first, second = draws(0, True), draws(1, True)
    assert all((first[name] != second[name]).any() for name in first)
    assert np.corrcoef(first["kind"], np.arange(N))[0, 1] == pytest.approx(0.0, abs=0.1)
    spread = first["weight"] - first["old"]
    assert np.std(spread) == pytest.approx(0.1, rel=0.05)
    assert len(np.unique(first["weight"])) > 0.99 * N


@pytest.mark.parametrize("num_components", [1, 50, 2000])
def test_columns_that_are_independent_stay_so_after_real_ones_and_in_small_cells(num_components):
    """Places that repeat from site to site would tie all later columns to each other."""
    n, num_sites = 4000, 6

    def model():
        with numpyro.plate("records", n):
            z = numpyro.sample("z", dist.Categorical(jnp.full(num_components, 1 / num_components)))
            for i in range(3):
                numpyro.sample(f"real{i}", dist.Normal(0.0 * z, 1.0))
            for i in range(num_sites):
                numpyro.sample(f"code{i}", dist.Categorical(jnp.full((num_components, 3), 1 / 3)[z]))

    stratified = Stratified(model, jax.random.key(0), n, "z", [])
    trace = handlers.trace(handlers.seed(stratified, jax.random.key(0))).get_trace()
    codes = [np.asarray(trace[f"code{i}"]["value"]) for i in range(num_sites)]
    for i in range(num_sites):
        for j in range(i):
            counts = np.bincount(3 * codes[i] + codes[j], minlength=9)
            statistic = np.sum((counts - n / 9) ** 2 / (n / 9))
            assert statistic < 35, (i, j)  # of chi squared with 8 degrees of freedom, one in 30,000
