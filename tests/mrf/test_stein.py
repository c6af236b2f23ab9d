import numpy as np
import pytest

from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.mirror_descent import SteinRisk

SHRINKAGE = (0.0, 0.3, 0.8, 1.0)


@pytest.mark.parametrize("kept", SHRINKAGE)
def test_the_estimate_is_unbiased_for_a_linear_fit(kept):
    """f(y) = kept · y has the risk kept² + (1 − kept)² ‖x‖² / (m σ²); 400 draws of noise and direction."""
    truth, stddevs = [np.full((3, 4), 20.0), np.arange(6.0)], (10.0, 4.0)
    cells = sum(t.size for t in truth)
    size = sum((t**2).sum() / s**2 for t, s in zip(truth, stddevs, strict=True))
    rng, found = np.random.default_rng(0), []
    for seed in range(400):
        tables = [
            Measurement(columns=(f"c{i}",), values=t + rng.normal(0, s, t.shape), stddev=s)
            for i, (t, s) in enumerate(zip(truth, stddevs, strict=True))
        ]
        risk = SteinRisk(tables, seed)
        fits = [[kept * m.values for m in made] for made in (tables, risk.moved())]
        found.append(risk(*fits))
    exact = kept**2 + (1 - kept) ** 2 * size / cells
    assert abs(np.mean(found) - exact) < 5 * np.std(found) / 400**0.5


def test_no_table_no_risk():
    assert SteinRisk([])([], []) == 0.0
