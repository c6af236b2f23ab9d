"""SPU between real processes: the checked root, what is opened, a node that dies."""

import functools
import os
import re
import signal

import numpy as np
import pytest

from tests.secure import problems
from tests.secure.problems import run
from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.secure import ClippedSum, InsecureSimulation, Plaintext, in_process
from vertinumpyro.secure.input_encoding import Layout
from vertinumpyro.secure.spu import Spu, is_installed, node, program
from vertinumpyro.secure.spu.backend import inputs_of

needs_spu = pytest.mark.skipif(not is_installed(), reason="SPU is not installed: pip install 'vertinumpyro[spu]'")


@pytest.fixture(scope="module")
def aby3():
    backend = InsecureSimulation(Spu(), watched=True)
    yield backend
    backend.close()


@functools.cache
def simulator():
    """SPU's own simulation in threads of this process, of the ring and the protocol that the backend uses."""
    from spu.utils import simulation

    spu, lib, _ = node.load()
    config = lib.RuntimeConfig(protocol=lib.ProtocolKind.ABY3, field=spu.parse_field_type("FM128"))
    config.fxp_fraction_bits = program.FRACTION_BITS
    return simulation, simulation.Simulator(3, config)


def on_shares(function, *arrays):
    simulation, nodes = simulator()
    return np.asarray(simulation.sim_jax(nodes, function)(*arrays))


@needs_spu
def test_the_check_of_the_root_is_exact_on_shares_and_never_lets_a_long_one_pass():
    rng = np.random.default_rng(0)
    bits = 2 * program.EXP_BITS + 18 - 24
    v = np.concatenate([rng.integers(1 << bits, 1 << (bits + 20), 200), np.full(4, 1 << bits)])
    root = np.array([float(x) / 2.0**bits for x in v]) ** -0.5 * 2.0**26
    w = np.clip(np.floor(root * rng.choice([0.9, 0.999, 1 - 1e-7, 1 + 1e-7, 1.001, 2.0], len(v))), 0, 1 << 26)
    w[-4:] = [(1 << 26) - 1, 1 << 26, 0, 1 << 25]
    passed = on_shares(lambda w, v: program.within_clip(w, v, bits), w.astype(np.int64), v)
    short = np.array([int(a) ** 2 * int(b) <= 1 << (52 + bits) for a, b in zip(w, v, strict=True)])
    assert not passed[~short].any()
    assert passed[w < root * 0.9999].all()
    assert 50 < passed.sum() < 150


@needs_spu
@pytest.mark.parametrize("claimed", [0.9, 2.0, 1e3, -1.0, 2.0**40])
def test_a_root_that_is_wrong_never_makes_a_record_too_long(claimed, monkeypatch):
    monkeypatch.setattr(program.jax.lax, "rsqrt", lambda x: 0 * x + claimed)
    e = np.array([[1 << 20, 1 << 19], [1 << 20, 0]])
    norm, mask = np.array([9 << 58, 1 << 50]), np.ones(2, np.int64)
    W = on_shares(lambda e, nn, mask: program.clipped_weights(e, e.sum(-1), nn, mask, 18), e, norm, mask) / 2.0**30
    longest = e / 2.0**20 / np.array([[3.0], [1.0]])
    assert (W >= 0).all()
    assert np.all(W - longest <= 0)
    if claimed == 0.9:  # too long for the first record, and less than the second's
        assert (W[0] == 0).all()
        assert W[1, 0] == pytest.approx(0.9, rel=1e-3)


@needs_spu
def test_the_check_compares_beyond_64_bits():
    w, v = np.array([(1 << 26) - 1, 3]), np.array([(1 << 61) - 1, 1])
    assert on_shares(lambda w, v: program.within_clip(w, v, 34), w, v).tolist() == [0, 1]


@needs_spu
def test_exponentials_are_close_and_exact_at_zero():
    x = -np.concatenate([[0.0], np.geomspace(1e-6, 8000, 400)])
    e = on_shares(program.exp_nonpositive, np.rint(x * 2**21).astype(np.int64)) / 2.0**20
    assert e[0] == 1
    assert np.abs(e - np.exp(x)).max() < program._EXP_ERROR


@needs_spu
@pytest.mark.parametrize("scale", [3.0, 300.0])
def test_the_clip_holds_exactly_for_single_records(aby3, scale):
    shape = problems.shape_of(n=1, clip_norm=0.7)
    for seed in range(4):
        norm = np.linalg.norm(run(aby3, shape, problems.benign(n=1, scale=scale, spread=4.0, seed=seed)))
        assert 0.7 * 0.99 < norm <= 0.7


@needs_spu
@pytest.mark.parametrize("protocol", ["CHEETAH", "SEMI2K"])
def test_the_other_protocols_run_the_same_program_to_the_same_bound(protocol):
    backend = InsecureSimulation(Spu(protocol=protocol))
    shape, problem = problems.shape_of(clip_norm=0.8), problems.benign()
    bound = backend.error_bound(shape, score_norm=problems.score_norm(*problem[:2], 0.8))
    assert np.linalg.norm(run(backend, shape, problem) - run(Plaintext(), shape, problem)) <= bound
    assert backend.noisy_sum(np.array([[2**62], [2**62]]), np.full((1, 1), 5)).tolist() == [5 - 2**63]
    backend.close()


@needs_spu
def test_only_the_noisy_sum_is_opened(aby3):
    shape, problem = problems.shape_of(), problems.benign()
    noise = np.random.default_rng(1).integers(-(2**40), 2**40, (2, shape.num_values))
    result = run(aby3, shape, problem, noise)
    ((why, opened),) = aby3.opened(2)
    assert why == "reveal"
    np.testing.assert_array_equal(opened.astype(float) * 2.0 ** -aby3.grid_bits(shape), result)


NO_VALUE_COMES_OUT = {
    *("add", "and", "broadcast", "concatenate", "constant", "convert", "dot", "dot_general", "less", "multiply"),
    *("negate", "reduce", "reshape", "rsqrt", "select", "shift_left", "shift_right_arithmetic", "slice", "transpose"),
    *("free", "return", "secret", "version"),  # bookkeeping, types
}
"""Operations that SPU computes on shares alone; it has others that reveal, print or branch on a value."""


@needs_spu
@pytest.mark.parametrize("kinds", [{}, {"s": 0}, {"d": 0}])
def test_the_compiled_clip_takes_secrets_gives_a_secret_and_reveals_nothing_between(kinds):
    sizes = {"d": 2, "s": 1} | kinds
    shape, problem = problems.shape_of(**sizes), problems.benign(**sizes)
    layout = Layout.of(*problem[:2])
    inputs = inputs_of(ClippedSum(shape=shape, layout=layout), 0, {})
    code = node.compiled(program.clipped_noisy_sum(shape, layout), inputs).code.decode()
    assert set(re.findall(r"pphlo\.(\w+)", code)) <= NO_VALUE_COMES_OUT
    arguments, results = re.search(r"@main\((.*?)\) -> (\S+)", code, re.DOTALL).groups()
    assert arguments.count("!pphlo.secret") == len(inputs)
    assert results.count("!pphlo.secret") == results.count("tensor") == 1


@needs_spu
def test_it_counts_what_it_sends(aby3):
    shape, problem = problems.shape_of(), problems.benign()
    run(aby3, shape, problem)
    before, seconds = aby3.traffic, aby3.seconds
    run(aby3, shape, problem)
    sent = aby3.traffic.since(before)
    assert sent.bytes_sent > 8 * shape.num_values
    assert sent.bytes_received > 8 * shape.num_values
    assert sent.rounds > 0
    assert aby3.seconds > seconds


@needs_spu
def test_a_killed_node_ends_the_computation_with_its_name():
    backend = InsecureSimulation(Spu(), timeout_s=20.0)
    shape, problem = problems.shape_of(), problems.benign()
    run(backend, shape, problem)
    os.kill(backend.processes(2).pids[2], signal.SIGKILL)
    with pytest.raises(Exception, match="helper 2"):
        run(backend, shape, problem)
    backend.close()


def sockets_of(pid):
    """The inodes of a process's open sockets."""
    links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def listening(table, state, inodes):
    """Lines of a table of the kernel's sockets that wait for connections and belong to these inodes."""
    with open(f"/proc/net/{table}") as file:
        rows = [line.split() for line in file][1:]
    column, inode = state
    return [row for row in rows if row[column] in ("0A", "01") and row[inode] in inodes]


@needs_spu
@pytest.mark.skipif(not os.path.exists("/proc/net/unix"), reason="reads the kernel's tables of sockets")
def test_no_other_process_can_connect_to_a_node(aby3):
    aby3.noisy_sum(np.zeros((2, 1), np.int64), np.zeros((2, 1), np.int64))
    for pid in aby3.processes(2).pids:
        inodes = sockets_of(pid)
        assert not [row for table in ("tcp", "tcp6") for row in listening(table, (3, 9), inodes) if row[3] == "0A"]
        named = [row[7] for row in listening("unix", (5, 6), inodes) if len(row) > 7]
        assert named  # the node did listen, under a name
        assert not any(os.path.exists(path) for path in named)


@needs_spu
def test_a_path_that_no_socket_can_have_is_named(monkeypatch):
    with pytest.raises(BackendError, match="TMPDIR"):
        node._address("/" + "x" * 100)


@pytest.mark.parametrize(("protocol", "parties"), [("CHEETAH", 3), ("ABY3", 4)])
def test_more_parties_than_nodes_are_refused_before_anything_starts(protocol, parties):
    with pytest.raises(ArgumentError, match="nodes, one for each party"):
        Spu(protocol=protocol).grid_bits(problems.shape_of(P=parties))


def test_insecure_settings_need_their_name():
    with pytest.raises(ArgumentError, match=r"protocol='SEMI2K'.*InsecureSimulation"):
        Spu(protocol="SEMI2K").check_release()
    Spu().check_release()
    with pytest.raises(ArgumentError, match="one process would hold"):
        in_process(Spu())


@pytest.mark.skipif(is_installed(), reason="SPU is installed")
def test_without_spu_the_error_says_what_to_install():
    with pytest.raises(BackendError, match=r"vertinumpyro\[spu\]"):
        InsecureSimulation(Spu()).noisy_sum(np.zeros((2, 1), np.int64), np.zeros((2, 1), np.int64))
