"""DCA's arithmetic and roles: exact sums, uniform views, noise that is left when clients drop, refusals."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from tests.secure.problems import wrapped
from vertinumpyro.core.errors import ArgumentError, BackendError, PrivacyError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.privacy import ClientPlan, PoissonSampling
from vertinumpyro.privacy.noise_shares import ShareLaw
from vertinumpyro.secure import FixedPoint, Plaintext
from vertinumpyro.secure.dca import (
    ChannelKey,
    CipherSource,
    Client,
    ComputeNode,
    DistributedCompute,
    Round,
    agree,
    combine,
)
from vertinumpyro.secure.dca import backend as shares_module
from vertinumpyro.secure.dca.backend import NodeSums, split

FALSE_FAILURE = 1e-6
NOISY_SUM_BACKENDS = [DistributedCompute(), DistributedCompute(num_nodes=2), FixedPoint(), Plaintext()]
int64s = st.integers(-(2**63), 2**63 - 1)


# -- exactness ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.int64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40), elements=int64s), st.integers(2, 12))
def test_the_sum_decoded_from_shares_is_the_integer_sum(vectors, num_nodes):
    sums = NodeSums(num_nodes, vectors.shape[1])
    sums.add(vectors, noise=None)
    np.testing.assert_array_equal(sums.total(), wrapped(vectors.astype(object).sum(0)))
    assert sums.num_clients == len(vectors)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=30),
        elements=st.floats(-1e6, 1e6, allow_subnormal=False),
    ),
    st.integers(0, 40),
)
def test_reals_are_summed_as_their_fixed_point_values(vectors, fractional_bits):
    sums = NodeSums(3, vectors.shape[1])
    sums.add(vectors, noise=None, fractional_bits=fractional_bits)
    exact = np.array([[round(x * 2.0**fractional_bits) for x in row] for row in vectors.tolist()], object).sum(0)
    np.testing.assert_array_equal(sums.total(), wrapped(exact))


@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1025, 1), (700, 3), (3, 1023), (2, 1024), (7, 1025), (3, 5000)])
def test_tiles_of_every_form(shape, monkeypatch):
    """Short vectors stand side by side and long ones are cut; whatever is left over is counted once."""
    monkeypatch.setattr(shares_module, "_MESSAGES_AT_A_TIME", 9000)
    vectors = np.random.default_rng(0).integers(-(2**62), 2**62, shape)
    sums = NodeSums(4, shape[1])
    sums.add(vectors, noise=None)
    sums.add(vectors[:1], noise=None)
    np.testing.assert_array_equal(sums.total(), wrapped(vectors.astype(object).sum(0) + vectors[0].astype(object)))


@given(hnp.arrays(np.int64, st.integers(1, 20), elements=int64s), st.integers(2, 6))
def test_one_clients_shares_add_up(vector, num_nodes):
    made = split(vector, num_nodes, CipherSource())
    np.testing.assert_array_equal(made.sum(0, dtype=np.uint64).view(np.int64), vector)


@pytest.mark.parametrize("backend", NOISY_SUM_BACKENDS, ids=lambda b: f"{b.info().name}{getattr(b, 'num_nodes', '')}")
def test_noisy_sum_is_that_of_every_other_backend(backend):
    rng = np.random.default_rng(2)
    vectors, noise = rng.integers(-(2**63), 2**63, (4, 3)), rng.integers(-(2**63), 2**63, (7, 3))
    for v, n in ((vectors, noise), (vectors, noise[:2]), (vectors[:2], noise), (vectors, noise[:4])):
        expected = wrapped(v.astype(object).sum(0) + n.astype(object).sum(0))
        np.testing.assert_array_equal(np.asarray(backend.noisy_sum(v, n)), expected)
    narrow = np.full((3, 1), 2**30, np.int32)
    assert np.asarray(backend.noisy_sum(narrow, np.zeros((1, 1), np.int64))).tolist() == [3 * 2**30]
    with pytest.raises(ArgumentError, match="int64"):
        backend.noisy_sum(narrow, np.zeros((1, 1), np.int32))
    info = backend.info()
    assert all((info.name, info.security_model, info.who_learns_what, info.dealer, info.ring, info.precision))


def test_blocks_stream():
    rng = np.random.default_rng(0)
    blocks = [rng.uniform(-1, 1, (n, 5)) for n in (1, 300, 0, 17)]
    backend = DistributedCompute(num_nodes=3)
    total = backend.noisy_sum_of_blocks(iter(blocks), num_values=5, share_variance=100, fractional_bits=20)
    noise = total - sum(np.rint(block * 2.0**20).sum(0) for block in blocks)
    assert 0 < np.abs(noise).max() < 9 * math.sqrt(318 * 100)  # 9 standard deviations: 1e-18


# -- what nodes see -------------------------------------------------------------------------------


def uniform_p(words):
    """The smallest chi-square p-value of the eight bytes of ring elements, corrected for looking at eight."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8)
    counts = [np.bincount(column, minlength=256) for column in octets.T]
    return min(1.0, 8 * min(stats.chisquare(count).pvalue for count in counts))


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_views_of_all_nodes_but_one_are_uniform(missing):
    """Each node's messages and their sum with the other's, of one constant vector sent 40,000 times.

    False failure: 3 missing nodes x 3 tests x 1e-6.
    """
    vector = np.full(40_000, 12345, np.int64)
    seen = np.delete(split(vector, 3, CipherSource()), missing, axis=0)
    for words in (seen[0], seen[1], seen[0] + seen[1]):
        assert uniform_p(words) > FALSE_FAILURE


def test_the_test_of_uniformity_rejects_a_ring_of_63_bits_and_a_sum_of_all_nodes():
    vector = np.full(40_000, 12345, np.int64)
    made = split(vector, 3, CipherSource())
    assert uniform_p(made[0] >> np.uint64(1)) < FALSE_FAILURE
    assert uniform_p(made.sum(0, dtype=np.uint64)) < FALSE_FAILURE


def test_views_of_two_nodes_are_independent():
    made = split(np.zeros(40_000, np.int64), 3, CipherSource())
    for first, second in ((0, 1), (0, 2), (1, 2)):
        a, b = made[first] >> np.uint64(60), made[second] >> np.uint64(60)
        table = np.histogram2d(a, b, bins=[np.arange(17)] * 2)[0]
        assert stats.chi2_contingency(table).pvalue > FALSE_FAILURE


def test_node_sums_are_uniform_whatever_the_clients_hold():
    sums = np.concatenate([_node_sums() for _ in range(20)], axis=1)
    for node in range(3):
        assert uniform_p(sums[node]) > FALSE_FAILURE


def _node_sums():
    sums = NodeSums(3, 2000)
    sums.add(np.ones((3, 2000), np.int64), noise=ShareLaw.of(100))
    return sums.sums


def test_cipher_streams_differ_and_are_uniform():
    first, second = CipherSource(), CipherSource()
    words = first.uint64(40_000)
    assert uniform_p(words) > FALSE_FAILURE
    assert not np.array_equal(words, second.uint64(40_000))
    assert first.random_bytes(16) != first.random_bytes(16)
    assert len(first.random_bytes(3 * 2**20 + 1)) == 3 * 2**20 + 1
    assert len({source.random_bytes(16) for source in first.spawn(5)}) == 5
    assert first.secure
    with pytest.raises(ArgumentError):
        first.uint64(-1)
    with pytest.raises(ArgumentError):
        first.random_bytes(-1)


def test_a_key_is_replaced_before_it_has_given_too_much(monkeypatch):
    from vertinumpyro.secure.dca import backend

    monkeypatch.setattr(backend, "_BYTES_PER_KEY", 64)
    source, keys = CipherSource(), set()
    for _ in range(4):
        source.random_bytes(48)
        keys.add(id(source._encryptor))
        assert source._left >= 0
    assert source._left == 16


def test_a_forked_child_does_not_repeat_the_stream(monkeypatch):
    from vertinumpyro.secure.dca import backend

    source = CipherSource()
    source.random_bytes(1)
    encryptor = source._encryptor
    monkeypatch.setattr(backend.os, "getpid", lambda: -1)
    source.random_bytes(1)
    assert source._encryptor is not encryptor


# -- roles ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Network:
    round_: Round
    clients: list
    nodes: list

    def send(self, senders, vector):
        for client in senders:
            for envelope in client.messages(self.round_, vector):
                self.node(envelope.node).receive(envelope)

    def node(self, name):
        return next(node for node in self.nodes if node.name == name)

    def finish(self):
        counted = agree(self.round_, [node.received for node in self.nodes])
        return combine(self.round_, [node.reveal(counted) for node in self.nodes])


def network(num_clients=6, num_values=4, share_variance=100, max_unreliable=2, names=("a", "b", "c")):
    round_ = Round(
        clients=tuple(f"client {i}" for i in range(num_clients)),
        nodes=names,
        num_values=num_values,
        share_variance=share_variance,
        max_unreliable=max_unreliable,
    )
    keys = {name: ChannelKey() for name in names}
    public = {name: key.public for name, key in keys.items()}
    clients = [Client(name, public) for name in round_.clients]
    registered = {client.name: client.key.public for client in clients}
    return Network(round_, clients, [ComputeNode(name, key, registered, round_) for name, key in keys.items()])


VECTOR = np.array([10**6, 0, -(10**6), 2**40])


def test_a_round_of_real_clients():
    net = network()
    net.send(net.clients, VECTOR)
    noise = net.finish() - 6 * VECTOR
    assert np.abs(noise).max() < 9 * math.sqrt(600)


def test_t_drops_leave_the_promised_noise():
    """With T of N clients gone, and the observer's own share known, the rest still adds C²σ² (Theorem 1).

    4,000 values: a relative error of 6 standard deviations of a chi-square, 2e-9.
    """
    clients, drops, values = 12, 3, 4000
    plan = ClientPlan(
        sampling=PoissonSampling(sampling_prob=1.0, num_steps=1, max_batch_size=clients),
        clip_norm=1.0,
        noise_multiplier=2.0,
        num_clients=clients,
        max_unreliable=drops,
        grid_bits=20,
        num_records=clients,
        delta=1e-2,
    )
    net = network(clients, values, plan.noise_variance_per_share(), drops)
    assert Round.of_plan(
        plan, clients=net.round_.clients, nodes=net.round_.nodes, num_values=values
    ).share_variance == (net.round_.share_variance)
    net.send(net.clients[drops:], np.zeros(values, np.int64))
    noise = net.finish().astype(float) * 2.0**-20
    left = (noise**2).mean() * (clients - drops - 1) / (clients - drops)  # less the observer's own
    assert abs(left / 4.0 - 1) < 6 * math.sqrt(2 / values)
    # the same test would notice noise scaled for no drops at all
    assert abs(left / 4.0 * (clients - drops - 1) / (clients - 1) - 1) > 6 * math.sqrt(2 / values)


def test_t_drops_recover_and_t_plus_one_refuse():
    net = network(max_unreliable=2)
    net.send(net.clients[:3], VECTOR)
    with pytest.raises(PrivacyError, match="3 clients are missing"):
        net.finish()
    net.send(net.clients[3:4], VECTOR)  # one of them comes back: nobody has to send again
    assert np.abs(net.finish() - 4 * VECTOR).max() < 9 * math.sqrt(400)


def test_a_client_that_reached_some_nodes_only_is_left_out():
    net = network(max_unreliable=1)
    net.send(net.clients[1:], VECTOR)
    for envelope in net.clients[0].messages(net.round_, VECTOR)[:-1]:
        net.node(envelope.node).receive(envelope)
    assert "client 0" in net.nodes[0].received
    assert "client 0" not in net.nodes[-1].received
    assert np.abs(net.finish() - 5 * VECTOR).max() < 9 * math.sqrt(500)


def test_a_node_reveals_one_sum_of_enough_clients_it_heard_from():
    net = network(max_unreliable=2)
    net.send(net.clients[:5], VECTOR)
    node, heard = net.nodes[0], frozenset(net.round_.clients[:5])
    with pytest.raises(PrivacyError, match="3 clients are missing"):
        node.reveal(frozenset(list(heard)[:3]))
    with pytest.raises(PrivacyError, match="not asked"):
        node.reveal(heard | {"stranger"})
    with pytest.raises(BackendError, match="not here"):
        node.reveal(frozenset(net.round_.clients))
    node.reveal(heard)
    with pytest.raises(PrivacyError, match="before"):
        node.reveal(frozenset(list(heard)[:4]))
    with pytest.raises(ArgumentError, match="3, one for each node"):
        combine(net.round_, [np.zeros(4, np.uint64)] * 2)


def test_a_client_answers_once():
    net = network()
    net.clients[0].messages(net.round_, VECTOR)
    with pytest.raises(PrivacyError, match="before"):
        net.clients[0].messages(net.round_, VECTOR)


def test_messages_authenticate():
    net = network()
    envelope = net.clients[0].messages(net.round_, VECTOR)[0]
    node = net.node(envelope.node)
    cases = {
        "changed": {"ciphertext": envelope.ciphertext[:-1] + bytes([envelope.ciphertext[-1] ^ 1])},
        "cut": {"ciphertext": envelope.ciphertext[:40]},
        "empty": {"ciphertext": b""},
        "another client's name": {"client": "client 1"},
        "a stranger's name": {"client": "stranger"},
        "another round": {"round_id": "0" * 32},
        "another node": {"node": "b"},
    }
    for changes in cases.values():
        with pytest.raises(BackendError):
            node.receive(dataclasses.replace(envelope, **changes))
    with pytest.raises(BackendError):
        net.node("b").receive(dataclasses.replace(envelope, node="b"))  # sealed for node a
    node.receive(envelope)
    with pytest.raises(BackendError, match="second"):
        node.receive(envelope)


def test_a_message_of_another_rounds_facts_does_not_authenticate():
    net = network()
    fewer = dataclasses.replace(net.round_, max_unreliable=0)  # same id, other facts: somebody lied to the client
    envelope = net.clients[0].messages(fewer, VECTOR)[0]
    with pytest.raises(BackendError, match="authenticate"):
        net.node(envelope.node).receive(envelope)


def test_only_the_node_reads_its_message():
    net = network()
    envelope = net.clients[0].messages(net.round_, VECTOR)[0]
    with pytest.raises(BackendError):
        ChannelKey().open(envelope.ciphertext, net.clients[0].key.public, b"")
    with pytest.raises(ArgumentError, match="32 bytes"):
        ChannelKey().seal(b"", b"short", b"")


def test_nothing_secret_in_a_repr():
    net = network()
    envelopes = net.clients[0].messages(net.round_, VECTOR)
    net.nodes[0].receive(envelopes[0])
    shown = " ".join(map(repr, [*envelopes, net.clients[0], *net.nodes, ChannelKey(), CipherSource(), NodeSums(2, 3)]))
    assert "1000000" not in shown
    assert not any(f"\\x{byte:02x}" in shown for byte in envelopes[0].ciphertext)


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": ("a", "a", "b")},
        {"nodes": ("one",)},
        {"nodes": ("one", "one")},
        {"max_unreliable": 5},
        {"max_unreliable": -1},
        {"num_values": 0},
        {"share_variance": 17},
    ],
    ids=str,
)
def test_bad_rounds(changes):
    with pytest.raises(ArgumentError):
        dataclasses.replace(network().round_, **changes)


def test_bad_arguments():
    net = network()
    with pytest.raises(ArgumentError, match="num_nodes"):
        DistributedCompute(num_nodes=1)
    with pytest.raises(ArgumentError, match="int64"):
        net.clients[0].messages(net.round_, VECTOR.astype(float))
    with pytest.raises(ArgumentError, match="not in the round"):
        Client("stranger", {}).messages(net.round_, VECTOR)
    with pytest.raises(ArgumentError, match="no public key"):
        Client("client 0", {}, source=SystemRandomSource()).messages(net.round_, VECTOR)
    with pytest.raises(ArgumentError, match="not in the round"):
        ComputeNode("stranger", ChannelKey(), {}, net.round_)
    with pytest.raises(ArgumentError, match="columns"):
        NodeSums(2, 3).add(np.zeros((1, 4), np.int64), noise=None)
    with pytest.raises(ArgumentError, match="fractional_bits"):
        NodeSums(2, 3).add(np.zeros((1, 3)), noise=None)
    with pytest.raises(ArgumentError, match="num_values"):
        NodeSums(2, 0)
