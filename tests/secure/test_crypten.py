"""The protocols between real processes: what they open, what the dealer costs, the clip on single records."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.secure import problems
from tests.secure.problems import looks_uniform, run
from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.secure import ClippedSum, InsecureSimulation, Plaintext
from vertinumpyro.secure.crypten import Crypten, compat, is_installed
from vertinumpyro.secure.input_encoding import Layout
from vertinumpyro.transport.links import HEADER_BYTES

needs_crypten = pytest.mark.skipif(
    not is_installed(), reason="CrypTen is not installed: pip install 'vertinumpyro[crypten]'"
)


@pytest.fixture(scope="module")
def watched():
    backend = InsecureSimulation(Crypten(), watched=True)
    yield backend
    backend.close()


@needs_crypten
def test_an_organisation_reads_the_engine_before_anybody_waits_for_it():
    before = (
        "import sys; from vertinumpyro.secure import Crypten; backend = Crypten(); assert 'torch' not in sys.modules"
    )
    after = "; backend.load(); assert {'crypten', 'torch'} <= set(sys.modules)"
    subprocess.run([sys.executable, "-c", before + after], check=True)


def as_bytes(arrays):
    """All that was opened, one byte after the other."""
    return np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)


def received(backend):
    """(bytes, messages) that party 0 got from party 1 so far."""
    return backend.traffic.bytes_received, backend.traffic.rounds


@needs_crypten
def test_only_the_noisy_sum_is_opened(watched):
    shape = problems.shape_of(n=40)
    problem = problems.benign(n=40)
    noise = np.random.default_rng(1).integers(-(2**40), 2**40, (2, shape.num_values))
    result = run(watched, shape, problem, noise)
    first = watched.opened(2)
    before = received(watched)
    run(watched, shape, problem, noise)
    frames = HEADER_BYTES * (received(watched)[1] - before[1])
    opened = sum(value.nbytes for _, value in watched.opened(2))
    assert received(watched)[0] - before[0] == opened + frames  # nothing came from the other party that is not listed
    second = watched.opened(2)
    assert [why for why, _ in first] == [why for why, _ in second]
    (revealed,) = (value for why, value in first if why == "reveal")
    np.testing.assert_array_equal(revealed.astype(float) * 2.0 ** -watched.grid_bits(shape), result)
    masked, again = (as_bytes([value for why, value in opened if why == "masked"]) for opened in (first, second))
    assert len(masked) > 20_000
    assert looks_uniform(masked)
    assert not looks_uniform(masked & 0xFE)  # the check sees one wrong bit
    # fresh masks: what is opened the second time has nothing to do with the first
    assert looks_uniform(masked ^ again)
    words = [
        [value for why, value in opened if why == "masked" and value.dtype == np.int64] for opened in (first, second)
    ]
    assert not any((one == other).any() for one, other in zip(*words, strict=True))


@needs_crypten
@pytest.mark.parametrize("scale", [3.0, 300.0])
def test_the_clip_holds_exactly_for_single_records(watched, scale):
    shape = problems.shape_of(n=1, clip_norm=0.7)
    for seed in range(4):
        norm = np.linalg.norm(run(watched, shape, problems.benign(n=1, scale=scale, spread=4.0, seed=seed)))
        assert 0.7 * 0.99 < norm <= 0.7


@needs_crypten
def test_a_step_waits_for_the_dealer_once(watched):
    shape, problem = problems.shape_of(), problems.benign()
    run(watched, shape, problem)
    before, dealt = watched.traffic, watched.dealer_traffic
    run(watched, shape, problem)
    assert watched.dealer_traffic.since(dealt).rounds == 1
    counted = Crypten().cost(ClippedSum(shape=shape, layout=Layout.of(*problem[:2])))
    assert counted.traffic == watched.traffic.since(before)
    assert counted.wan_seconds > 0.025 * counted.traffic.rounds


@needs_crypten
def test_a_step_takes_as_many_rounds_whatever_the_number_of_parties():
    rounds = set()
    for num_parties in (2, 3, 5):
        shape, problem = problems.shape_of(K=20, P=num_parties, t=1), problems.benign(K=20, P=num_parties, t=1)
        rounds.add(Crypten().cost(ClippedSum(shape=shape, layout=Layout.of(*problem[:2]))).traffic.rounds)
    assert len(rounds) == 1
    assert max(rounds) <= 60


@needs_crypten
def test_a_process_that_is_silent_is_named_within_the_timeout():
    backend = InsecureSimulation(Crypten(), timeout_s=3.0)
    backend.noisy_sum(np.zeros((2, 1), np.int64), np.zeros((1, 1), np.int64))
    pids = backend.processes(2).pids
    os.kill(pids[1], signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(BackendError, match="party 1 did not answer within 3 s"):
        backend.noisy_sum(np.zeros((2, 1), np.int64), np.zeros((1, 1), np.int64))
    assert time.monotonic() - started < 30
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@needs_crypten
def test_a_process_that_dies_is_named(watched):
    backend = InsecureSimulation(Crypten())
    backend.noisy_sum(np.zeros((2, 1), np.int64), np.zeros((1, 1), np.int64))
    pids = backend.processes(2).pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(BackendError, match="party 1 was killed by signal 9"):
        backend.noisy_sum(np.zeros((2, 1), np.int64), np.zeros((1, 1), np.int64))
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compat, "is_installed", lambda: False)
    with pytest.raises(BackendError, match=r"vertinumpyro\[crypten\]"):
        InsecureSimulation(Crypten()).noisy_sum(np.zeros((2, 1), np.int64), np.zeros((1, 1), np.int64))
    with pytest.raises(BackendError, match=r"vertinumpyro\[crypten\]"):
        compat.load()


@needs_crypten
def test_the_first_party_dealer_computes_the_same():
    backend = InsecureSimulation(Crypten(dealer="first_party"))
    shape, problem = problems.shape_of(n=20), problems.benign(n=20)
    noise = np.random.default_rng(1).integers(-(2**40), 2**40, (2, shape.num_values))
    exact = run(Plaintext(), shape, problem, noise)
    norm = problems.score_norm(problem[0], problem[1], shape.clip_norm)
    try:
        distance = np.linalg.norm(run(backend, shape, problem, noise) - exact)
        assert len(backend.processes(2).pids) == 2
    finally:
        backend.close()
    assert distance <= backend.error_bound(shape, score_norm=norm)


def test_the_first_party_dealer_is_for_simulations_only():
    with pytest.raises(ArgumentError, match=r"dealer='first_party'.*InsecureSimulation"):
        Crypten(dealer="first_party").check_release()
    info = InsecureSimulation(Crypten(dealer="first_party")).info()
    assert info.security_model.startswith("none")
    assert "insecure" in info.dealer
