"""The parts of the CrypTen backend that need no CrypTen: correlations, dealer, formats."""

import itertools
import math
import random
import threading
from fractions import Fraction

import numpy as np
import pytest

from tests.secure import problems
from tests.transport.wires import wired
from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.secure import InsecureSimulation, in_process
from vertinumpyro.secure.crypten import Crypten, number_formats
from vertinumpyro.secure.crypten.dealer import DealerClient, Request, corrected, correction_size, deal, drawn, serve
from vertinumpyro.secure.crypten.number_formats import unpacked
from vertinumpyro.secure.keystream import KeyStream, derived_key, fresh_key
from vertinumpyro.secure.number_formats import ROOT_EXCESS

REQUESTS = {
    "product": Request("product", ((4, 3), (4, 1)), "mul"),
    "matrix product": Request("product", ((2, 3, 4), (2, 4, 5)), "matmul"),
    "square": Request("square", ((7,),)),
    "comparison": Request("comparison", ((5, 2),), (34, False)),
    "comparison with powers": Request("comparison", ((5, 2),), (34, True)),
    "comparison with waves": Request("comparison", ((5, 2),), (34, "waves")),
    "conjunctions": Request("conjunctions", ((4, 3),), [[0, 1, ~2], [1, 3]]),
    "integers": Request("integers", ((50,),)),
    "selection": Request("selection", ((9, 10),)),
    "truncation": Request("truncation", ((6, 2),), 30),
    "one-sided, the first's": Request("one_sided", ((3, 5, 1), (3, 5, 4)), 0),
    "one-sided, the second's": Request("one_sided", ((5, 2), (5, 3)), 1),
    "pairs of two": Request("pairs", ((6, 2), (6, 3))),
    "pairs of three": Request("pairs", ((6, 2), (6, 0), (6, 3))),
    "one-sided, nothing": Request("one_sided", ((5, 1), (5, 0)), 0),
}


def dealt(request, num_parties):
    keys = [fresh_key() for _ in range(num_parties)]
    correction = deal(request, [KeyStream(key) for key in keys])
    assert correction.size == correction_size(request)
    streams = [KeyStream(key) for key in keys]
    shares = [
        (*drawn(request, stream, rank), *corrected(request, stream, None if rank else correction))
        for rank, stream in enumerate(streams)
    ]
    return list(zip(*shares, strict=True)) if request.kind not in ("one_sided", "pairs") else shares


GROUPS = [
    pytest.param(request, num_parties, id=f"{name}, {num_parties} parties")
    for name, request in REQUESTS.items()
    for num_parties in (1, 2, 3)
    if request.kind != "one_sided" or request.option < num_parties
    if request.kind != "pairs" or len(request.shapes) == num_parties
]


@pytest.mark.parametrize(("request_", "num_parties"), GROUPS)
def test_every_correlation_holds(request_, num_parties):
    if request_.kind == "pairs":
        shares = dealt(request_, num_parties)
        exact = [(a.T @ b).ravel() for a, b in itertools.combinations([share[0] for share in shares], 2)]
        np.testing.assert_array_equal(sum(s[1] for s in shares), np.concatenate([np.zeros(0, int), *exact]))
        return
    if request_.kind == "one_sided":
        shares = dealt(request_, num_parties)
        a = sum((s[0] for rank, s in enumerate(shares) if rank != request_.option), np.zeros(request_.shapes[0], int))
        expected = np.swapaxes(a, -1, -2) @ shares[request_.option][0]
        np.testing.assert_array_equal(sum(s[1] for s in shares), expected)
        return
    columns = dealt(request_, num_parties)
    if request_.kind == "comparison":
        r, (words, above) = sum(columns[0]), (np.bitwise_xor.reduce(column) for column in columns[1:3])
        chunks = [(r >> start) & (0xF if start == 30 else 0x3F) for start in range(0, 34, 6)]
        expected = np.uint64(1) << np.stack(chunks, axis=-1).astype(np.uint64)
        np.testing.assert_array_equal(words.view(np.uint64), expected)
        np.testing.assert_array_equal(unpacked(above, r.shape), (r >> 34) & 1)
        if request_.option[1] == "waves":
            turns = 2 * np.pi * 2.0**-27 * (r[..., None] * np.arange(1, 47, 2) % 2**27)
            expected = np.stack([np.cos(turns), np.sin(turns)], axis=-2)
            np.testing.assert_allclose(sum(columns[3]) * 2.0**-26, expected, rtol=0, atol=2.0**-26)
        elif request_.option[1]:
            powers, place = sum(columns[3]), (r >> 22) & 7
            assert (np.count_nonzero(powers, axis=-1) == 1).all()
            held = np.take_along_axis(powers, place[..., None], axis=-1)[..., 0]
            np.testing.assert_allclose(held * 2.0**-26, np.exp((r & (2**22 - 1)) * 2.0**-21), atol=2.0**-26)
    elif request_.kind == "conjunctions":
        v, products = (np.bitwise_xor.reduce(column) for column in columns)
        expected = [v[0] & v[1], v[0] & v[2], v[1] & v[2], v[1] & v[3], v[0] & v[1] & v[2]]
        np.testing.assert_array_equal(products, expected)
    elif request_.kind == "integers":
        bits = unpacked(np.bitwise_xor.reduce(columns[0]), (50,))
        np.testing.assert_array_equal(sum(columns[1]), bits)
    elif request_.kind == "selection":
        bits = unpacked(np.bitwise_xor.reduce(columns[0]), (9, 10)).astype(np.int64)
        a, integer, product = (sum(column) for column in columns[1:])
        np.testing.assert_array_equal(integer, bits)
        np.testing.assert_array_equal(product, bits * a)
    elif request_.kind == "truncation":
        r, high, top = (sum(column) for column in columns)
        np.testing.assert_array_equal(top, (r < 0).astype(int))
        np.testing.assert_array_equal(high, (r & (2**63 - 1)) >> request_.option)
    elif request_.kind == "square":
        r, squared = (sum(column) for column in columns)
        np.testing.assert_array_equal(squared, r * r)
    else:
        a, b, c = (sum(column) for column in columns)
        np.testing.assert_array_equal(c, a @ b if request_.option == "matmul" else a * b)


def test_key_streams_agree_and_purposes_do_not():
    key = fresh_key()
    np.testing.assert_array_equal(KeyStream(key).words((3, 4)).ravel(), KeyStream(key).words((12,)))
    assert derived_key(key, "1 a") != derived_key(key, "2 a")
    words = KeyStream(key).words((20_000,)).view(np.uint64)
    ones = np.array([int((words >> np.uint64(j) & np.uint64(1)).sum()) for j in range(64)])
    assert np.abs(ones - 10_000).max() < 6 * math.sqrt(5_000)  # each bit fails with probability 2e-9
    assert key.hex()[:8] not in repr(KeyStream(key))


def run_dealer(programs, prefetch):
    """Both parties' shares of programs [(name, requests)], and how often party 0 waited for the dealer."""
    ends = [wired(f"party {rank}", "the dealer") for rank in range(2)]
    thread = threading.Thread(target=serve, args=([theirs for _, theirs in ends],))
    thread.start()
    clients = [DealerClient(fresh_key(), rank, ours, prefetch=prefetch) for rank, (ours, _) in enumerate(ends)]
    shares, waits = [], []
    for name, requests in programs:
        before = clients[0].traffic.rounds
        for client in clients:
            client.begin(name)
        shares.append([[client.draw(request) for client in clients] for request in requests])
        waits.append(clients[0].traffic.rounds - before)
    clients[0].close()
    thread.join(5)
    assert not thread.is_alive()
    return shares, waits


@pytest.mark.parametrize("prefetch", [True, False])
def test_the_dealer_is_right_in_any_order_of_computations(prefetch):
    requests = [REQUESTS["square"], REQUESTS["square"], REQUESTS["square"]]
    programs = [("p", requests), ("p", requests), ("q", requests[:1]), ("p", requests), ("p", requests)]
    shares, waits = run_dealer(programs, prefetch)
    for computation in shares:
        for parties in computation:
            r, squared = (sum(column) for column in zip(*parties, strict=True))
            np.testing.assert_array_equal(squared, r * r)
    assert waits == ([3, 1, 1, 1, 1] if prefetch else [3, 3, 1, 3, 3])
    masks = [tuple(parties[0][0]) for computation in shares for parties in computation]
    assert len(set(masks)) == len(masks)  # no mask twice, also where a prepared step was not used


def test_the_dealer_is_waited_for_only_where_its_words_are_needed():
    ours, theirs = wired("party 0", "the dealer")
    thread = threading.Thread(target=serve, args=([theirs],))
    thread.start()
    client, request = DealerClient(fresh_key(), 0, ours), REQUESTS["square"]
    waits = []
    for nothing_needed in (False, False, True, False):  # the first is recorded, the others are prepared
        client.begin("p")
        if nothing_needed:
            continue
        (r,) = client.drawn(request)
        waits.append(client.traffic.rounds)
        (squared,) = client.corrected(request)
        np.testing.assert_array_equal(squared, r * r)
    client.close()
    thread.join(5)
    assert waits == [0, 1, 3]


def test_the_quadratic_is_as_good_as_its_error_says():
    m = np.linspace(1, 2, 100_001)
    c0, c1, c2 = number_formats.ROOT_COEFFICIENTS
    guess = c0 + c1 * m + c2 * m**2
    after_newton = guess * (3 - m * guess**2) / 2 * np.sqrt(m)
    assert after_newton.max() <= 1 + 1e-12
    assert 1 - after_newton.min() <= number_formats.ROOT_ERROR * 0.9


def truncated(x, shift, rng):
    """floor(x 2^-shift), or one more where something is cut off: all that `fixed.truncate` can return."""
    return (x >> shift) + (rng.choice((0, 1)) if x % (1 << shift) else 0)


@pytest.mark.parametrize("luck", [0, 1, None])
def test_the_exponential_is_within_its_error_whatever_masks_are_and_however_truncations_round(luck):
    rng = random.Random(0) if luck is None else type("Fixed", (), {"choice": lambda self, options: luck})()
    log_one, step, steps = 1 << number_formats.LOG_BITS, number_formats.POWER_STEP_BITS, number_formats.POWER_STEPS
    masks = np.random.default_rng(1)
    bits = number_formats.POWER_BITS + number_formats.FACTOR_BITS
    for u in [0, 1, 2, *(round(10**e * log_one) for e in np.linspace(-6, math.log10(14), 600)), 14 * log_one - 1]:
        for r in (*masks.integers(0, 2**63, 3), 0, -1, u, (1 << step) - 1, -u):
            y = np.int64(u) + np.int64(r)
            place = ((y >> step) - (r >> step)) & (steps - 1)
            factor = number_formats.factor_of(np.array([(place << step) | (y & ((1 << step) - 1))]))
            (product,) = factor * number_formats.power_of(np.array([r])) + round(
                number_formats.EXP_ROUNDING * 2.0**bits
            )
            assert 0 <= product < 1 << 61
            power = truncated(int(product), bits - number_formats.EXP_BITS, rng)
            assert abs(power * 2.0**-number_formats.EXP_BITS - math.exp(-u / log_one)) <= number_formats.EXP_ERROR
            assert power <= (1 << number_formats.EXP_BITS) + 1
            assert u or power >= 1 << number_formats.EXP_BITS
    assert math.exp(-number_formats.EXP_REACH) <= number_formats.EXP_ERROR


def test_the_public_factors_are_whole_numbers_within_two_units():
    y = np.concatenate([np.arange(5_000), np.arange(2**25 - 5_000, 2**25), np.arange(0, 2**25, 9_973)])
    exact = np.exp(-y * 2.0**-number_formats.LOG_BITS) * 2.0**number_formats.FACTOR_BITS
    assert np.abs(number_formats.factor_of(y) - exact).max() <= 2


def test_the_depth_of_any_two_components_fits():
    for num_parties in (1, 2, 3, 15, 16, 40):
        widest = 2 * (num_parties + 1) * 1024 << number_formats.LOG_BITS
        assert widest < 2 ** number_formats.depth_bits(num_parties) <= 4 * widest


def test_the_reciprocal_root_is_never_too_large_however_truncations_round():
    rng, bits = random.Random(1), 30
    ones = 1 << number_formats.MANTISSA_BITS
    c0, c1, c2 = (round(c * ones) for c in number_formats.ROOT_COEFFICIENTS)
    scale = 1 << (number_formats.INVERSE_SQRT_BITS - number_formats.MANTISSA_BITS)
    three = 3 << number_formats.INVERSE_SQRT_BITS
    for _ in range(3000):
        value = max(1 << bits, int(2 ** rng.uniform(bits, 61.99)))
        j = value.bit_length() - 1
        m = truncated(
            value << (number_formats.LARGEST_BIT - j), number_formats.LARGEST_BIT - number_formats.MANTISSA_BITS, rng
        )
        m2 = truncated(m * m, number_formats.MANTISSA_BITS, rng)
        guess = (truncated(c1 * m + c2 * m2, number_formats.MANTISSA_BITS, rng) + c0) * scale
        squared = truncated(guess * guess, number_formats.INVERSE_SQRT_BITS, rng)
        near_one = truncated(m * squared, number_formats.MANTISSA_BITS, rng)
        root = truncated(guess * (three - near_one), number_formats.INVERSE_SQRT_BITS + 1, rng)
        down = math.floor(2.0 ** (number_formats.WEIGHT_BITS - (j - bits) / 2))
        w = truncated(root * down, number_formats.INVERSE_SQRT_BITS, rng) - 4
        limit = Fraction(1 + Fraction(ROOT_EXCESS)) ** 2
        assert Fraction(w, 1 << number_formats.WEIGHT_BITS) ** 2 * Fraction(value, 1 << bits) <= limit
        least = (1 - number_formats.ROOT_ERROR) / math.sqrt(value / 2**bits) - 6 * 2.0**-number_formats.WEIGHT_BITS
        assert w / 2**number_formats.WEIGHT_BITS >= least * (1 - 2**-15)


def test_refuses_shapes_whose_bound_does_not_hold():
    backend = Crypten()
    assert backend.grid_bits(problems.shape_of(n=100, K=20)) > 0
    with pytest.raises(RangeError, match="components"):
        backend.grid_bits(problems.shape_of(K=200))
    assert number_formats.clip_share_kept(problems.shape_of(K=20)) < 1e-4
    with pytest.raises(RangeError, match="at most 1 %"):
        number_formats.clip_share_kept(problems.shape_of(K=5000))


def test_one_process_may_not_hold_every_party_unless_asked():
    with pytest.raises(ArgumentError, match=r"fit --backend crypten.*InsecureSimulation\(Crypten\(\)\)"):
        in_process(Crypten())
    assert not hasattr(Crypten(), "noisy_sum")
    assert "insecure rehearsal" in InsecureSimulation(Crypten()).info().name
