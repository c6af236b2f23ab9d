"""What a run is said to take on a line: connecting, rounds, bytes, and the slow start of a line that was idle."""

import dataclasses

import pytest

from vertinumpyro.secure.between_processes import Cost
from vertinumpyro.session import RunCost
from vertinumpyro.transport import NetworkProfile, Traffic

LINE = NetworkProfile(round_trip_s=0.05, bits_per_second=1e8)  # holds 625,000 bytes


def cost(num_bytes):
    return Cost(traffic=Traffic(rounds=4, bytes_sent=num_bytes), dealer_traffic=Traffic(), seconds=1.0)


def test_a_run_connects_waits_sends_and_finds_an_idle_line():
    small, large = RunCost(cost(100_000)), RunCost(cost(12_500_000))
    assert small.on(LINE) == pytest.approx(3 * 0.05 + 1.0 + 4 * 0.025 + 0.008)
    assert large.on(LINE) == pytest.approx(3 * 0.05 + 1.0 + 4 * 0.025 + 1.0 + LINE.slow_start_s(12_500_000))


def test_a_line_that_is_idle_takes_a_round_trip_for_every_doubling_until_it_is_full():
    twice = NetworkProfile(round_trip_s=0.05, bits_per_second=2e8)
    assert LINE.slow_start_s(10**8) == pytest.approx(0.05 * 5.42, rel=1e-3)  # from 14,600 bytes
    assert twice.slow_start_s(10**8) == pytest.approx(LINE.slow_start_s(10**8) + 0.05)
    assert LINE.slow_start_s(600_000) == 0.0  # the line is not full
    assert NetworkProfile(round_trip_s=1e-4, bits_per_second=1e9).slow_start_s(10**8) == 0.0


def test_a_message_beyond_tcps_window_waits_for_what_is_within():
    """1 Gbit/s, but no more than 2.5 MB under way: long messages travel at 400 Mbit/s."""
    line = NetworkProfile(round_trip_s=0.05, bits_per_second=1e9, sustained_bits_per_second=4e8)
    assert line.held_bytes == pytest.approx(2.5e6)
    assert line.byte_s(2_000_000) == pytest.approx(8e-9)
    assert 5e6 * line.byte_s(5e6) == pytest.approx(2.5e6 * (8e-9 + 20e-9))
    assert line.slow_start_s(10**8) == LINE.slow_start_s(10**8) + 2 * 0.05  # four times as much under way
    short = Traffic(bytes_sent=10_000_000, bytes_received=10_000_000, bulks=20)
    sent = [
        Cost(traffic=t, dealer_traffic=Traffic(), seconds=0.0) for t in (short, dataclasses.replace(short, bulks=2))
    ]
    assert sent[0].on(line) == pytest.approx(0.08)
    assert sent[1].on(line) == pytest.approx(2.5e6 * 8e-9 + 7.5e6 * 20e-9)


def test_what_comes_meets_the_dealers_words_while_it_sends_ahead():
    """One second of computing, .8 s of the parties' words; the dealer's take half of that time, or all of it."""
    step = {"seconds": 1.0, "ahead": True, "traffic": Traffic(bytes_sent=10_000_000, bytes_received=10_000_000)}
    line = NetworkProfile(round_trip_s=0.0, bits_per_second=1e8)
    little, much = (Cost(**step, dealer_traffic=Traffic(bytes_received=n)) for n in (5_625_000, 50_000_000))
    assert little.on(line) == pytest.approx(1.8 + 0.8 / 2)
    assert much.on(line) == pytest.approx(0.8 + 4.0)
    assert Cost(traffic=Traffic(), dealer_traffic=Traffic(), seconds=0.0, ahead=True).on(line) == 0.0
