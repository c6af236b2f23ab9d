"""The law of tables: the statistics are standard normal at the truth, correlations between tables included."""

import jax
import numpy as np
import pytest
from numpyro.distributions import biject_to

from tests.marginals.conftest import SETTINGS, dataset_of, simulated, two_groups
from tests.marginals.test_model_tables import SUPPORTS, TRUTH
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.marginals import release_marginals
from vertinumpyro.marginals.table_likelihood import TableLikelihood
from vertinumpyro.model import mixture_model, split_model


@pytest.fixture(scope="module")
def law(release):
    split = split_model(two_groups, release.schema)
    return TableLikelihood(split, release)


@pytest.fixture(scope="module")
def truth(law):
    return law.split.flatten({name: biject_to(SUPPORTS[name]).inv(jax.numpy.asarray(v)) for name, v in TRUTH.items()})


@pytest.mark.parametrize(("epsilon", "draws"), [(1.0, 8), (100.0, 16)])
def test_statistics_at_the_truth_are_standard_normal(law, truth, epsilon, draws):
    """Noise rules at ε = 1; at 100 it is sampling, which a likelihood for each table would count many times over."""
    squares, counted_apart = [], []
    for seed in range(draws):
        data = dataset_of(simulated(100 + seed, 2000))
        plan = SETTINGS.plan(data, epsilon=epsilon)
        cells = law.cells(release_marginals(data, plan, SETTINGS, insecure_seed=seed))
        at = law.at(law.tangent(truth, cells), cells, jax.random.key(0))
        squares.append(-2 * float(law.log_likelihood(truth, at)) / np.linalg.matrix_rank(at.whitening))
        G = at.whitening  # what it would be if the cells of all tables were independent
        variance = cells.stddev**2 + np.asarray(law.expected(truth, cells))
        counted_apart.append(np.trace((G * variance) @ G.T) / len(G))
    deviation = np.sqrt(2 / (draws * np.linalg.matrix_rank(at.whitening)))
    assert np.mean(squares) == pytest.approx(1.0, abs=6 * deviation)
    if epsilon == 100.0:
        assert abs(np.mean(counted_apart) - 1) > 6 * deviation


def test_the_first_estimate_finds_the_truth_and_the_tables_determine_it(law, truth, release):
    cells = law.cells(release)
    starts = truth + 0.3 * jax.random.normal(jax.random.key(0), (2, len(truth)))
    found = law.estimate(starts, cells, 800)
    tangent = law.tangent(found, cells)
    at = law.at(tangent, cells, jax.random.key(1))
    assert 1 < at.information <= tangent.most_information(cells)
    off = np.linalg.solve(at.scale, np.asarray(truth - found))  # standard deviations, in independent directions
    assert (off**2).mean() < 4
    assert 0.5 < law.misfit(found, cells) < 1.3


def test_too_many_parameters_are_refused(release):
    split = split_model(mixture_model(release.schema, 200), release.schema)
    many = TableLikelihood(split, release)
    with pytest.raises(ArgumentError, match=r"law=\"field\", or fewer components"):
        many.tangent(jax.numpy.zeros(split.num_parameters), many.cells(release))
