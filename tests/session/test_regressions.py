"""A regression whose outcome is at one party, between processes: each has its own columns, and all get the same."""

import functools
import warnings

import jax
import numpy as np
import pytest

from tests.session import parties
from tests.session.conftest import NUM_RECORDS
from tests.session.regressions import regression
from vertinumpyro.core.rng import InsecureRandomnessWarning
from vertinumpyro.session import ProcessSession

pytestmark = pytest.mark.skipif(not parties.INSTALLED, reason="parties as processes: extra `crypten` or `spu`")

SEED, KEY = 5, jax.random.key(0)


@pytest.mark.parametrize("block_size", [None, 25])
@pytest.mark.parametrize("backend", parties.INSTALLED)
@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_parties_fit_what_one_process_fits_from_all_records_with_little_noise(backend, block_size, two, tmp_path):
    build = functools.partial(regression, backend, block_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        with ProcessSession(two.tasks(build, tmp_path, insecure_seed=SEED)) as session:
            made, settings = build(), {"noise_multiplier": 1e-3, "num_steps": 4, "batch_size": NUM_RECORDS}
            fit = functools.partial(made.fit, progress_bar=False, insecure_seed=SEED)
            found = fit(session, made.plan(session, **settings), KEY, run_dir=tmp_path / "apart")
        here = regression("fixed_point", block_size)
        expected = here.fit(
            two.dataset, here.plan(two.dataset, **settings), KEY, progress_bar=False, insecure_seed=SEED
        )
    apart = [np.abs(found.params[name] - value).max() for name, value in expected.params.items()]
    first = here.kernel(two.dataset, expected.plan, KEY)[1].params
    moved = [np.abs(value - first[name]).max() for name, value in expected.params.items()]
    assert max(apart) < 0.01 < 0.1 < max(moved)
