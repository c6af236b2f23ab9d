"""A party's end: what it refuses, what the parties compare before anything is opened, and products of all pairs."""

import dataclasses
import itertools
import json
import tracemalloc

import numpy as np
import pytest

from tests.secure import problems
from tests.secure.problems import wrapped
from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.secure import ClippedSum, CrossProducts, Crypten, FixedPoint, InsecureSimulation, Spu, VectorSum
from vertinumpyro.secure.between_processes import _digest
from vertinumpyro.secure.computation import computation_of, described
from vertinumpyro.secure.crypten.backend import CryptenEnd
from vertinumpyro.secure.crypten.dealer import DealerClient
from vertinumpyro.secure.input_encoding import Layout, encode_party, encode_prior
from vertinumpyro.secure.input_form import Columns, InputForm
from vertinumpyro.secure.keystream import fresh_key
from vertinumpyro.transport import Communicator, LoopbackLink, Traffic
from vertinumpyro.transport.links import HEADER_BYTES

needs_crypten = pytest.mark.skipif(Crypten().missing() is not None, reason=str(Crypten().missing()))
needs_spu = pytest.mark.skipif(Spu().missing() is not None, reason=str(Spu().missing()))
KINDS = [pytest.param(Crypten(), marks=needs_crypten, id="crypten"), pytest.param(Spu(), marks=needs_spu, id="spu")]
each_backend = pytest.mark.parametrize("backend", KINDS)

SHAPE, PROBLEM = problems.shape_of(n=6, s=2), problems.benign(n=6, s=2)
LAYOUT = Layout.of(*PROBLEM[:2])
CLIPPED = ClippedSum(shape=SHAPE, layout=LAYOUT)
NUMBERS = InputForm(((Columns("sign", 1, 8), Columns("one_hot", 2, 8)), (Columns("scalar", 4, 5),)), longest=(None, 40))
COMPUTATIONS = [
    pytest.param(CrossProducts(num_records=50, widths=(3, 4)), id="cross products"),
    pytest.param(CrossProducts(num_records=50, widths=(3, 0, 4)), id="cross products of three"),
    pytest.param(CrossProducts(num_records=2**17 + 50, widths=(2, 1)), id="cross products in three blocks"),
    pytest.param(
        CrossProducts(num_records=50, widths=(3, 4), form=InputForm.of_tables(((3,), (2, 2)), 6)),
        id="tables of one-hot rows",
    ),
    pytest.param(CrossProducts(num_records=50, widths=(3, 4), form=NUMBERS), id="numbers within bounds"),
    pytest.param(
        CrossProducts(num_records=2**16 + 50, widths=(2, 1, 2), form=InputForm.of_tables(((2,), (1,), (2,)), 6)),
        id="tables of three in two blocks",
    ),
    pytest.param(VectorSum(num_parties=2, num_values=17), id="sum"),
    pytest.param(VectorSum(num_parties=3, num_values=17, of_shares=True), id="sum of shares of tables"),
    pytest.param(CLIPPED, id="clipped sum"),  # the last: behind it, what the dealer sent ahead waits to be read
]


@pytest.fixture(scope="module")
def rehearsals():
    """Those of every backend, by its name; started when they are used."""
    made = {kind.option: InsecureSimulation(kind) for kind in (Crypten(), Spu())}
    yield made
    for rehearsal in made.values():
        rehearsal.close()


def inputs_of_problem():
    """Both parties' inputs of the clipped sum, by name."""
    contributions, prior, mask = PROBLEM
    common = {f"prior_{name}": value for name, value in encode_prior(SHAPE, prior)._asdict().items()}
    common |= {"mask": np.asarray(mask), "noise": np.zeros(SHAPE.num_values, np.int64)}
    return [common | encode_party(SHAPE, c, party)._asdict() for party, c in enumerate(contributions)]


@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_a_computation_survives_a_message(computation):
    assert computation_of(json.loads(json.dumps(described(computation)))) == computation
    for rank in range(computation.num_parties):
        assert computation.zeros(rank)["noise"].shape == (computation.num_values,)


def test_a_digest_sees_every_public_number():
    shapes = [
        dataclasses.replace(SHAPE, clip_norm=np.nextafter(1.0, 2.0)),
        dataclasses.replace(SHAPE, noise_stddev=0.1),
    ]
    computations = [CLIPPED, *(ClippedSum(shape=shape, layout=LAYOUT) for shape in shapes)]
    arrays = [np.zeros(4, np.int64), np.zeros((2, 2), np.int64), np.zeros(4, np.int32), np.array([0, 0, 0, 1])]
    digests = [_digest(computation, (array,)) for computation in computations for array in arrays]
    assert len(set(digests)) == len(digests)
    assert _digest(CLIPPED, (arrays[0],)) == _digest(CLIPPED, (arrays[0].copy(),))


CHANGES = {
    "a prior's Gram matrix, by one": ("prior_gram", lambda x: x + (np.arange(x.size) == 0).reshape(x.shape)),
    "the mask": ("mask", lambda x: x & (np.arange(len(x)) > 0)),
}


@each_backend
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_public_numbers_that_differ_are_noticed_before_anything_is_opened(backend, change):
    name, changed = change
    inputs = inputs_of_problem()
    inputs[1][name] = changed(inputs[1][name])
    with InsecureSimulation(backend) as rehearsal, pytest.raises(BackendError) as caught:
        rehearsal.processes(2).run(CLIPPED, inputs)
    assert "the parties' public numbers differ" in str(caught.value)
    assert "the same versions on the same kind of processor" in str(caught.value)


@needs_crypten
def test_shapes_that_differ_are_noticed():
    with InsecureSimulation(Crypten()) as rehearsal:
        processes = rehearsal.processes(2)
        first, second = (CrossProducts(num_records=n, widths=(2, 2)) for n in (5, 6))
        processes._group.command(0, described(first), **first.zeros(0))
        processes._group.command(1, described(second), **second.zeros(1))
        with pytest.raises(BackendError, match="public numbers differ"):
            processes._group.replies([0, 1])


def end_with_nobody():
    """Party 0 of two; there is neither another one nor a dealer."""
    return CryptenEnd(0, {1: LoopbackLink(Traffic())}, DealerClient(fresh_key(), 0, LoopbackLink(Traffic())))


REFUSED = {
    "a mask of words": ("mask", lambda x: x.astype(np.int64) << 24, "mask must be bool"),
    "a mask of bytes": ("mask", lambda x: x.astype(np.uint8), "mask must be bool"),
    "a short mask": ("mask", lambda x: x[1:], "mask must be bool"),
    "narrow noise": ("noise", lambda x: x.astype(np.int32), "noise_share must be int64"),
    "short noise": ("noise", lambda x: x[1:], "noise_share must be int64"),
}


@needs_crypten
@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_a_mask_that_is_no_bool_and_noise_that_is_no_int64_are_refused(change):
    name, changed, message = change
    inputs = inputs_of_problem()[0]
    end = end_with_nobody()
    CLIPPED.at(end, inputs)
    with pytest.raises(ArgumentError, match=message):
        CLIPPED.at(end, inputs | {name: changed(inputs[name])})


@pytest.mark.parametrize(
    "change",
    [{"matrix": np.zeros((5, 3), np.int64)}, {"matrix": np.zeros((5, 2), np.int32)}, {"noise": np.zeros(5, np.int64)}],
    ids=["width", "type", "noise"],
)
@needs_crypten
def test_a_matrix_of_another_width_or_type_is_refused(change):
    computation = CrossProducts(num_records=5, widths=(2, 2))
    end = end_with_nobody()
    computation.at(end, computation.zeros(0))
    with pytest.raises(ArgumentError, match="must be int64"):
        computation.at(end, computation.zeros(0) | change)


@needs_crypten
def test_a_call_for_another_number_of_parties_is_refused():
    computation = CrossProducts(num_records=5, widths=(2, 2, 2))
    with pytest.raises(ArgumentError, match="2 parties here, and 3"):
        computation.at(end_with_nobody(), computation.zeros(0))


@pytest.mark.parametrize(
    ("widths", "num_records"),
    [((3, 4), 2500), ((2, 3, 1), 2500), ((3, 0, 2), 2500), ((2, 1, 3, 2), 2500), ((1, 2), 2**17 + 5)],
    ids=str,
)
@each_backend
def test_cross_products_of_all_pairs_are_exact_with_everybodys_noise(backend, widths, num_records, rehearsals):
    if backend == Spu() and len(widths) > 3:
        pytest.skip("ABY3 has three nodes")
    rng = np.random.default_rng(len(widths))
    matrices = [rng.integers(-(2**63), 2**63 - 1, (num_records, width)) for width in widths]
    num_values = sum(a * b for a, b in itertools.combinations(widths, 2))
    noise = rng.integers(-(2**62), 2**62, (len(widths), num_values))
    exact = [(a.astype(object).T @ b.astype(object)).ravel() for a, b in itertools.combinations(matrices, 2)]
    found = np.asarray(rehearsals[backend.option].noisy_cross_products(matrices, noise))
    np.testing.assert_array_equal(found, wrapped(np.concatenate(exact) + noise.astype(object).sum(0)))


@needs_crypten
@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_a_dry_run_counts_what_a_real_one_counts_byte_for_byte(computation, rehearsals):
    inputs = [computation.zeros(rank) for rank in range(computation.num_parties)]
    processes = rehearsals["crypten"].processes(computation.num_parties)
    for _ in range(3 if computation.repeated else 1):
        before, dealt = processes.traffic, processes.dealer_traffic
        processes.run(computation, inputs)
    for rank in range(computation.num_parties):
        cost = Crypten().cost(computation, rank=rank)
        assert cost.traffic == processes.traffic[rank].since(before[rank])
        assert cost.dealer_traffic == processes.dealer_traffic[rank].since(dealt[rank])


@needs_crypten
def test_products_of_pairs_take_two_rounds_and_one_masked_matrix_to_every_party():
    n, widths = 40, (5, 3, 2)
    for rank, width in enumerate(widths):
        cost = Crypten().cost(CrossProducts(num_records=n, widths=widths), rank=rank)
        assert cost.traffic.rounds == 3  # the first one compares shapes
        one_peer = 3 * HEADER_BYTES + 32 + 8 * n * width + 8 * (15 + 10 + 6)
        assert cost.traffic.bytes_sent == 2 * one_peer


def test_settings_for_rehearsals_are_refused_elsewhere():
    for backend in (Crypten(dealer="first_party"), Crypten(prefetch=False), Spu(protocol="SEMI2K")):
        with pytest.raises(ArgumentError, match="InsecureSimulation"):
            backend.check_release()
        with pytest.raises(ArgumentError, match="InsecureSimulation"):
            backend.end(object.__new__(Communicator), 2)  # refused before it is looked at
        with pytest.raises(ArgumentError, match="InsecureSimulation"):
            backend.cost(CLIPPED)
    assert dataclasses.replace(Crypten(dealer="first_party"), dealer="third_party").rehearsal_only() is None


@pytest.mark.parametrize("form", [None, InputForm.of_tables(((20, 20), (10,) * 5), 6)], ids=["any", "one-hot"])
@pytest.mark.parametrize("backend", [FixedPoint(), pytest.param(Crypten(), marks=needs_crypten)], ids=str)
def test_products_take_no_more_memory_than_is_said_however_many_records(backend, form):
    computation = CrossProducts(num_records=300_000, widths=(40, 50), form=form)
    inputs = [computation.zeros(rank) for rank in range(2)]
    tracemalloc.start()
    if isinstance(backend, FixedPoint):
        backend.noisy_cross_products([one["matrix"] for one in inputs], np.stack([one["noise"] for one in inputs]))
    else:
        backend.cost(computation)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 2**19 < peak <= computation.memory < 300_000 * 90 * 64
