import json
import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.mrf import MRFPlan, VertiMRF
from vertinumpyro.mrf.measurements import TableRelease
from vertinumpyro.mrf.releases import OWN
from vertinumpyro.privacy import GaussianEvent, NeighbouringRelation, NoiseSource
from vertinumpyro.session import Publish

REPLACE = NeighbouringRelation.REPLACE


def settings(**changes):
    parties = changes.pop("parties", ("a", "b"))
    return {
        "num_records": 20_000,
        "parties": parties,
        "num_columns": (8,) * len(parties),
        "num_binned": (0,) * len(parties),
        "delta": 1e-5,
        "noise": NoiseSource(num_parties=len(parties)),
        **changes,
    }


def plan(**changes):
    return MRFPlan(**{"noise_multiplier": 5.0, **settings(**changes)})


@pytest.mark.parametrize("adversary", ["outside analyst", "b", None])
@pytest.mark.parametrize("relation", list(NeighbouringRelation))
def test_calibration_meets_the_target_and_wastes_little(adversary, relation):
    made = MRFPlan.calibrated(epsilon=0.8, adversary=adversary, **settings(relation=relation))
    assert 0.799 < made.epsilon(adversary) <= 0.8


def test_the_parts_are_the_whole_budget():
    made = plan(num_columns=(3, 5), num_binned=(1, 0), num_rounds=2, tables_per_round=4, first_share=0.5)
    parts = [made.local_mu("a"), made.local_mu("b"), *(release.mu for release in made.cross_releases)]
    assert math.sqrt(sum(mu**2 for mu in parts)) == pytest.approx(2 / 5.0)
    assert made.local_mu("b") ** 2 / made.local_mu("a") ** 2 == pytest.approx(10 / 3)


def test_outside_analyst_agrees_with_dp_accounting():
    made = plan()
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(made.dp_event())
    assert accountant.get_epsilon(1e-5) == pytest.approx(made.epsilon("outside analyst"), rel=2e-3)


def test_a_party_knows_half_the_noise_and_nothing_of_the_other_partys():
    made = plan(cross_share=0.6)
    mu2 = (2 / 5.0) ** 2
    expected = math.sqrt(0.6 * mu2 * 2 + 0.2 * mu2)  # half of the cross noise, the other party's local tables
    exact = GaussianEvent(noise_multiplier=2 / expected, count=1).epsilon(1e-5, REPLACE)
    assert made.epsilon("a") == pytest.approx(exact, rel=1e-4)


def test_pairs_between_colluders_are_no_loss():
    made = plan(parties=("a", "b", "c", "d"), cross_share=1.0)
    names = [row.adversary for row in made.adversaries]
    assert names[-2:] == ["any 2 colluding parties", "any 3 colluding parties"]
    mu2 = (2 / 5.0) ** 2
    for colluders, pairs_left in ((1, 6), (2, 5), (3, 3)):
        expected = math.sqrt(mu2 * pairs_left / 6 * 4 / (4 - colluders))
        exact = GaussianEvent(noise_multiplier=2 / expected, count=1).epsilon(1e-5, REPLACE)
        assert made.adversaries[colluders if colluders == 1 else colluders + 3].epsilon == pytest.approx(exact, 1e-4)


def test_colluders_are_worth_what_the_worst_of_them_are():
    """Three columns at one party, one at the others: the coalition that leaves most pairs outside counts."""
    made = plan(parties=("a", "b", "c"), num_columns=(3, 1, 1), cross_share=1.0)
    mu2 = (2 / 5.0) ** 2
    expected = math.sqrt(mu2 * 6 / 7 * 3)  # b and c collude: 6 of 7 pairs can change, a third of the noise is unknown
    exact = GaussianEvent(noise_multiplier=2 / expected, count=1).epsilon(1e-5, REPLACE)
    assert made.epsilon("any 2 colluding parties") == pytest.approx(exact, rel=1e-4)


def test_nothing_local_or_nothing_across():
    sixteen = plan(parties=tuple(f"p{i}" for i in range(16)), num_columns=(1,) * 16)
    assert sixteen.local_mu("p0") == 0
    assert sixteen.cross_releases[0].mu == pytest.approx(2 / 5.0)
    alone = plan(parties=("a",))
    assert alone.cross_releases == ()
    assert alone.local_mu("a") == pytest.approx(2 / 5.0)
    assert [row.adversary for row in alone.adversaries] == ["outside analyst"]


def test_restores_from_json():
    made = plan(num_rounds=2, tables_per_round=4, first_share=0.5)
    assert MRFPlan.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert made.num_steps == 4
    with pytest.raises(ArgumentError, match="plan_id"):
        MRFPlan.from_dict({name: value for name, value in made.to_dict().items() if name != "plan_id"})
    json.dumps(made.describe())


def test_a_plan_with_an_earlier_versions_rounds_is_read_and_not_spent(dataset):
    """It counts in an account as it did."""
    system = VertiMRF(max_cells=6)
    fresh = system.plan(dataset, epsilon=1.0)
    old = MRFPlan.from_dict({**fresh.to_dict(), "refinement_rounds": 2, "refinement_share": 0.2})
    assert (old.refinement_rounds, old.to_dict()["refinement_share"]) == (2, 0.2)
    assert old.adversaries == fresh.adversaries
    assert old.fingerprint() != fresh.fingerprint()
    system.check(dataset, fresh)
    with pytest.raises(ArgumentError, match="refinement_rounds were an earlier version's; make a new plan"):
        system.check(dataset, old)


@pytest.mark.parametrize("party", ["clinic", "insurer"])
def test_a_partys_own_releases_are_its_budget(monkeypatch, dataset, party):
    spent, original = [], TableRelease.noisy

    def noisy(release, tables, source):
        spent.append(release.mu)
        return original(release, tables, source)

    monkeypatch.setattr(TableRelease, "noisy", noisy)
    system = VertiMRF(max_cells=6)
    made = system.plan(dataset, epsilon=1.0)
    work = system.work(dataset, party, dataset.arrays(party), made, SystemRandomSource())
    work.publish(Publish(0, OWN))
    assert len(spent) == 3  # finer histograms, a first look, what is chosen by it
    assert math.hypot(*spent) == pytest.approx(made.local_mu(party))


@pytest.mark.parametrize(
    "changes",
    [
        {"delta": 0.0},
        {"noise_multiplier": -1.0},
        {"cross_share": 1.5},
        {"recovery_share": -0.1},
        {"relation": "replace"},
        {"num_columns": (8,)},
        {"parties": ("outside analyst", "b")},
        {"parties": ("a", "a")},
        {"num_rounds": 1},
        {"num_rounds": 1, "tables_per_round": 65},
        {"num_rounds": 1, "tables_per_round": 4},
    ],
    ids=str,
)
def test_bad_settings(changes):
    with pytest.raises(ArgumentError):
        plan(**changes)


@pytest.mark.parametrize("changes", [{"epsilon": 0.0}, {"epsilon": 1.0, "adversary": "eve"}])
def test_bad_targets(changes):
    with pytest.raises(ArgumentError):
        MRFPlan.calibrated(**settings(**changes))
