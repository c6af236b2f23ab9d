import dataclasses
import functools
import json
import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest

from tests.strict_warnings import warnings_are_errors
from vertinumpyro.core.errors import ArgumentError, RangeError, UnprovenError
from vertinumpyro.privacy import adversary as adversary_module
from vertinumpyro.privacy.accounting import GaussianEvent, NeighbouringRelation, PoissonKnownEvent
from vertinumpyro.privacy.adversary import OUTSIDE_ANALYST, Adversary, NoiseSource, list_adversaries
from vertinumpyro.privacy.gradient_plan import GradientPlan, calibrate_noise_multiplier
from vertinumpyro.privacy.holder_plan import ClientPlan
from vertinumpyro.privacy.plan import PrivacyWarning, rows_in_words
from vertinumpyro.privacy.sampling import DisjointBatches, PoissonSampling
from vertinumpyro.regression import BayesianLinearPlan

N = 30162
POISSON = PoissonSampling.for_batch_size(100, N, 20000)
SHORT = PoissonSampling.for_batch_size(300, N, 100)
PARTIES = ("clinic", "insurer")


def settings(**changes):
    base = {
        "sampling": POISSON,
        "clip_norm": 2.0,
        "noise": NoiseSource(num_parties=2),
        "grid_bits": 16,
        "num_records": N,
        "parties": PARTIES,
        "delta": 1e-5,
    }
    return {**base, **changes}


def plan(**changes):
    return GradientPlan(**{"noise_multiplier": 2.042, **settings(**changes)})


def test_regression_table():
    table = {row.adversary: row for row in plan().adversaries}
    assert list(table) == [OUTSIDE_ANALYST, *PARTIES]
    assert table[OUTSIDE_ANALYST].epsilon == pytest.approx(1.82, rel=0.01)
    assert table["clinic"].epsilon == pytest.approx(127.7, rel=0.01)
    assert plan().comparison.epsilon == pytest.approx(0.909, rel=0.01)
    assert [row["claim"] for row in plan().table_rows()] == [True, True, True, False]
    disjoint = plan(sampling=DisjointBatches(batch_size=100, num_epochs=67))
    assert disjoint.epsilon("insurer") == pytest.approx(111.8, rel=0.01)
    assert disjoint.num_steps == 67 * 302


def test_what_each_adversary_knows():
    outside, clinic, _ = plan().adversaries
    assert (outside.guarantee, outside.knows, outside.proof) == ("DP", (), "proved")
    assert clinic.guarantee == "VPDP"
    assert clinic.knows == ("its own columns", "its own noise", "the batch indices")
    trusted = plan(noise=NoiseSource(kind="trusted", num_parties=2), batch_indices="hidden")
    assert trusted.adversaries[1].knows == ("its own columns",)
    assert trusted.epsilon("clinic") == trusted.epsilon()


def test_hidden_indices_amplify_towards_the_parties():
    hidden = plan(batch_indices="hidden").adversaries[1]
    assert hidden.epsilon == pytest.approx(2.728, rel=0.01)
    assert hidden.noise_multiplier == pytest.approx(2.042 * math.sqrt(0.5), rel=1e-6)


@pytest.mark.parametrize("threshold", [0, 1, 2, 3])
def test_effective_noise_by_coalition(threshold):
    noise = NoiseSource(num_parties=4, collusion_threshold=threshold)
    made = plan(noise=noise, parties=("a", "b", "c", "d"), sampling=DisjointBatches(batch_size=9, num_epochs=1))
    names = [row.adversary for row in made.adversaries]
    assert names == [
        OUTSIDE_ANALYST,
        "a",
        "b",
        "c",
        "d",
        "any 2 colluding parties",
        "any 3 colluding parties",
    ]
    for size, row in ((0, 0), (1, 1), (2, 5), (3, 6)):
        expected = 2.042 * math.sqrt((4 - size) / (4 - threshold))
        assert made.adversaries[row].noise_multiplier == pytest.approx(expected, rel=1e-6)
        assert made.adversaries[row].noise_multiplier >= 2.042 * (1 - 1e-6) or size > threshold
    assert "their own columns" in made.adversaries[6].knows


def test_one_party_is_no_adversary():
    assert [o.name for o in list_adversaries(("only",), batch_indices="known")] == [OUTSIDE_ANALYST]
    alone = plan(noise=NoiseSource(num_parties=1), parties=("only",))
    assert len(alone.adversaries) == 1
    assert alone.num_shares == 1


def test_share_variance_is_exact_and_rounded_up():
    made = plan(noise=NoiseSource(num_parties=3, collusion_threshold=1), parties=("a", "b", "c"))
    exact = (Fraction(2) * Fraction(2.042)) ** 2 * 4**16 / 2
    assert made.noise_variance_per_share() - 1 < exact <= made.noise_variance_per_share()
    assert isinstance(made.noise_variance_per_share(), int)


def test_effective_noise_subtracts_the_smoothing_in_grid_units():
    made = plan(grid_bits=3, clip_norm=2.0, noise=NoiseSource(kind="trusted", num_parties=2))
    variance = made.noise_variance_per_share()
    assert variance == math.ceil((2 * 2.042 * 8) ** 2)
    sigma = made.noisy_sum.effective_noise_multiplier()
    assert sigma == pytest.approx(math.sqrt((variance - 9) / (2 * 8) ** 2), rel=1e-12)
    assert Fraction(sigma) ** 2 <= Fraction(variance - 9, 256)


def test_too_coarse_a_grid_is_refused():
    assert adversary_module._SMALLEST_SHARE == 18
    with pytest.raises(ArgumentError, match="grid_bits"):
        plan(grid_bits=0, clip_norm=1.0)
    with pytest.raises(RangeError, match="grid_bits"):
        plan(grid_bits=60)


def test_events():
    release = plan().noisy_sum
    assert isinstance(release.event(Adversary(name="x", knows_indices=True)), PoissonKnownEvent)
    event = release.event(Adversary(name="x"))
    assert event.truncation_delta == POISSON.truncation_delta(N)
    full = plan(sampling=PoissonSampling.for_batch_size(N, N, 5)).noisy_sum
    assert full.event(Adversary(name="x")) == GaussianEvent(noise_multiplier=full.effective_noise_multiplier(), count=5)
    assert isinstance(plan().dp_event(), dp_accounting.SelfComposedDpEvent)


def test_noise_shares(seeded):
    made = plan()
    shares = made.draw_noise_shares(300, 40, seeded(1))
    assert shares.shape == (40, 2, 300)
    assert shares.dtype == np.int64
    for each in (shares[:, 0], shares[:, 1], made.draw_noise_share(300, 40, seeded(2))):
        z = (np.mean(each.astype(float) ** 2) / made.noise_variance_per_share() - 1) / math.sqrt(2 / each.size)
        assert abs(z) < 5  # 6e-7
    correlation = np.corrcoef(shares[:, 0].ravel(), shares[:, 1].ravel())[0, 1]
    assert abs(correlation) < 5 / math.sqrt(12000)


@pytest.mark.parametrize(
    ("changes", "adversary"),
    [
        ({"sampling": SHORT}, OUTSIDE_ANALYST),
        ({"sampling": SHORT}, "clinic"),
        ({"sampling": DisjointBatches(batch_size=100, num_epochs=5)}, "insurer"),
        ({"sampling": SHORT, "relation": NeighbouringRelation.ADD_REMOVE}, OUTSIDE_ANALYST),
    ],
)
def test_calibration_reaches_the_target_and_no_less(changes, adversary):
    made = GradientPlan.calibrated(epsilon=2.0, adversary=adversary, **settings(**changes))
    sigma = made.noise_multiplier
    assert made.epsilon(adversary) <= 2.0
    assert round(sigma, 4) == sigma
    less = dataclasses.replace(made, noise_multiplier=sigma - 5e-4)
    assert less.epsilon(adversary) > 2.0 * (1 - 1e-5)


def test_calibration_by_the_function_agrees():
    disjoint = settings(sampling=DisjointBatches(batch_size=100, num_epochs=5))
    sigma = calibrate_noise_multiplier(epsilon=3.0, adversary="clinic", **disjoint)
    assert sigma == GradientPlan.calibrated(epsilon=3.0, adversary="clinic", **disjoint).noise_multiplier


@pytest.mark.parametrize("epsilon", [0, -1.0, math.inf, math.nan])
def test_calibration_refuses_bad_targets(epsilon):
    with pytest.raises(ArgumentError, match="epsilon"):
        GradientPlan.calibrated(epsilon=epsilon, **settings())


def test_calibration_refuses_unknown_names():
    with pytest.raises(ArgumentError, match="adversary must be one of outside analyst, clinic"):
        GradientPlan.calibrated(epsilon=1.0, adversary="nobody", **settings())
    with pytest.raises(ArgumentError, match="noise_multiplier"):
        GradientPlan.calibrated(epsilon=1.0, noise_multiplier=1.0, **settings())
    with pytest.raises(ArgumentError, match="adversary"):
        plan().epsilon("nobody")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"grid_bits": -1}, "grid_bits"),
        ({"parties": ("a",)}, "parties"),
        ({"parties": ("a", "a")}, "parties"),
        ({"parties": ("a", OUTSIDE_ANALYST)}, "parties"),
        ({"batch_indices": "maybe"}, "batch_indices"),
        ({"relation": "replace"}, "relation"),
        ({"num_records": 0}, "num_records"),
    ],
)
def test_bad_plans(changes, name):
    with pytest.raises(ArgumentError, match=name):
        plan(**changes)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"kind": "magic", "num_parties": 2}, "kind"),
        ({"num_parties": 0}, "num_parties"),
        ({"num_parties": 2, "collusion_threshold": 2}, "collusion_threshold"),
        ({"num_parties": 2, "collusion_threshold": -1}, "collusion_threshold"),
        ({"kind": "trusted", "num_parties": 2, "collusion_threshold": 1}, "collusion_threshold"),
    ],
)
def test_bad_noise_sources(arguments, name):
    with pytest.raises(ArgumentError, match=name):
        NoiseSource(**arguments)


def test_weak_delta_warns_once_and_points_here():
    with pytest.warns(PrivacyWarning, match="delta") as caught:
        plan(delta=1 / N)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings_are_errors():
        plan()


def test_unproven_needs_opting_in():
    with pytest.raises(UnprovenError, match="Algorithm 2"):
        plan(unproven=("Algorithm 2 wraps",))
    opted = plan(unproven=("Algorithm 2 wraps",), allow_unproven=True)
    assert {row.proof for row in opted.adversaries} == {"unproven"}
    assert opted.adversaries[0].unproven == ("Algorithm 2 wraps",)


@pytest.mark.parametrize("sampling", [POISSON, DisjointBatches(batch_size=100, num_epochs=3)])
def test_json_round_trip(sampling):
    made = plan(sampling=sampling)
    restored = GradientPlan.from_dict(json.loads(json.dumps(made.to_dict())))
    assert restored == made
    assert restored.fingerprint() == made.fingerprint()
    json.dumps(made.describe(), allow_nan=False)


def test_from_dict_refuses_what_could_reset_a_budget():
    record = plan().to_dict()
    with pytest.raises(ArgumentError, match="plan_id"):
        GradientPlan.from_dict({k: v for k, v in record.items() if k != "plan_id"})
    with pytest.raises(ArgumentError, match="extra"):
        GradientPlan.from_dict({**record, "extra": 1})


def test_fingerprint_tells_plans_and_contents_apart():
    first, second = plan(), plan()
    assert first.fingerprint() != second.fingerprint()
    changed = dataclasses.replace(first, noise_multiplier=3.0)
    assert changed.plan_id == first.plan_id
    assert changed.fingerprint() != first.fingerprint()


def test_infinite_epsilon_is_json():
    row = dataclasses.replace(plan().adversaries[0], epsilon=math.inf)
    assert row.to_dict()["epsilon"] == "inf"


def test_an_epsilon_that_is_not_covered_is_rounded_up_and_several_get_it():
    three = ("clinic", "insurer", "pharmacy")
    row = plan(parties=three, noise=NoiseSource(num_parties=3)).adversaries[-1]
    rows = [dataclasses.replace(row, epsilon=1.0851), dataclasses.replace(row, adversary="clinic", epsilon=11.31)]
    assert rows_in_words(rows) == "any 2 colluding parties get ε = 1.09, clinic gets ε = 11.4"


CLIENTS = functools.partial(
    ClientPlan, sampling=PoissonSampling.for_batch_size(100, 500, 5), clip_norm=1.0, noise_multiplier=2.0,
    grid_bits=20, num_clients=5, num_records=500,
)  # fmt: skip
STATISTICS = functools.partial(BayesianLinearPlan, target_epsilon=1.0, num_records=500, num_features=3)


@pytest.mark.parametrize("made", [plan, CLIENTS, STATISTICS], ids=["gradients", "clients", "statistics"])
def test_every_kind_of_plan_warns_of_a_delta_of_one_record(made):
    with pytest.warns(PrivacyWarning, match="1/num_records"):
        made(delta=0.01)
