"""What one record can move a release by, found by brute force: never more than the plan states, and not much less.

All methods are in `benchmarks/sensitivity.py`; here those that compile little.
"""

import importlib
import sys
from pathlib import Path
from unittest import mock

import pytest

from vertinumpyro.core import row_blocks
from vertinumpyro.mrf.measurements import TableRelease
from vertinumpyro.regression import bayesian_linear as linear_work
from vertinumpyro.regression import noisy_moments as objective
from vertinumpyro.session import Multiply

pytest.importorskip("matplotlib", reason="the benchmarks draw figures: extra `report`")

FOLDER = Path(__file__).parents[2] / "benchmarks"
CHEAP = ("vertimrf", "vertimrf_add_remove", "vertimrf_workload", "vertimrf_adaptive", "functional_gaussian",
         "functional_gaussian_add_remove", "functional_pure", "functional_pure_add_remove", "functional_bottom_up",
         "linear_holders", "linear_holders_projection", "linear_clients", "dpvi_linear_joint",
         "second_moments_events", "second_moments_events_add_remove", "randomised_response")  # fmt: skip


@pytest.fixture(scope="module")
def audited():
    with mock.patch.object(sys, "path", [str(FOLDER), *sys.path]):
        return importlib.import_module("sensitivity").audited


def shares(found):
    return {(name, who): moved / stated for name, rows in found.items() for who, (stated, moved) in rows.items()}


def test_no_record_moves_a_release_by_more_than_is_stated(audited):
    found = shares(audited(quick=True, only=CHEAP))
    assert {name for name, _ in found} == set(CHEAP)
    assert max(found.values()) <= 1, found
    assert min(found.values()) > 0.5, found  # or the values would be too weak to find anything


def test_too_little_noise_is_found(audited, monkeypatch):
    honest = TableRelease.share_variance.func
    monkeypatch.setattr(TableRelease, "share_variance", property(lambda release: int(honest(release) / 1.1)))
    monkeypatch.setattr(TableRelease, "mu_against", lambda release, *_: release.mu)
    assert min(shares(audited(quick=True, only=["vertimrf"])).values()) > 1


def test_what_is_published_without_noise_is_found(audited, monkeypatch):
    """Exact counts of categories, on the way to others who put the noisy ones in their place."""
    honest = objective.MomentsWork.publish

    def publish(work, request):
        payload = honest(work, request)
        (exact,) = row_blocks.products([work.factor(Multiply(1, objective.ACROSS))], [(0, 0)])
        sent = payload.arrays["products"]
        sent[sent == 0] = exact[sent == 0]
        return payload

    monkeypatch.setattr(objective.MomentsWork, "publish", publish)
    assert shares(audited(quick=True, only=["functional_gaussian"]))["functional_gaussian", "clinic"] == float("inf")


def test_a_record_that_decides_about_others_is_found(audited, monkeypatch):
    honest = linear_work.StatisticsWork.summand

    def summand(work, request):
        ages = work._table[:, 0]
        return honest(work, request) * (1 + (ages == ages.max()).sum())

    monkeypatch.setattr(linear_work.StatisticsWork, "summand", summand)
    assert shares(audited(quick=True, only=["linear_holders"]))["linear_holders", "outside analyst"] > 1
