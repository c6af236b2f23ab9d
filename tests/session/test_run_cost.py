"""What a run is said to take on a line: connecting, rounds, bytes, and the slow start of a line that was idle."""

import pytest

from vertinumpyro.secure.between_processes import Cost, slow_start_s
from vertinumpyro.session import RunCost
from vertinumpyro.transport import Traffic

LINE = {"round_trip_s": 0.05, "bits_per_second": 1e8}  # holds 625,000 bytes


def cost(num_bytes):
    return Cost(traffic=Traffic(rounds=4, bytes_sent=num_bytes), dealer_traffic=Traffic(), seconds=1.0)


def test_a_run_connects_waits_sends_and_finds_an_idle_line():
    small, large = RunCost(cost(100_000)), RunCost(cost(12_500_000))
    assert small.on(**LINE) == pytest.approx(3 * 0.05 + 1.0 + 4 * 0.025 + 0.008)
    assert large.on(**LINE) == pytest.approx(3 * 0.05 + 1.0 + 4 * 0.025 + 1.0 + slow_start_s(12_500_000, **LINE))


def test_a_line_that_is_idle_takes_a_round_trip_for_every_doubling_until_it_is_full():
    twice = {**LINE, "bits_per_second": 2e8}
    assert slow_start_s(10**8, **LINE) == pytest.approx(0.05 * 5.42, rel=1e-3)  # from 14,600 bytes
    assert slow_start_s(10**8, **twice) == pytest.approx(slow_start_s(10**8, **LINE) + 0.05)
    assert slow_start_s(600_000, **LINE) == 0.0  # the line is not full
    assert slow_start_s(10**8, round_trip_s=1e-4, bits_per_second=1e9) == 0.0


def test_what_comes_meets_the_dealers_words_while_it_sends_ahead():
    """One second of computing, .8 s of the parties' words; the dealer's take a quarter of that time, or all of it."""
    step = {"seconds": 1.0, "ahead": True, "traffic": Traffic(bytes_sent=10_000_000, bytes_received=10_000_000)}
    line = {"round_trip_s": 0.0, "bits_per_second": 1e8}
    little, much = (Cost(**step, dealer_traffic=Traffic(bytes_received=n)) for n in (5_625_000, 50_000_000))
    assert little.on(**line) == pytest.approx(1.8 + 0.8 / 4)
    assert much.on(**line) == pytest.approx(0.8 + 4.0)
    assert Cost(traffic=Traffic(), dealer_traffic=Traffic(), seconds=0.0, ahead=True).on(**line) == 0.0
