"""Small batches, benign and hostile, for the tests of the secure backends."""

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from vertinumpyro.core import compat
from vertinumpyro.core.types import ComponentPrior, Contribution, ScoreTable
from vertinumpyro.secure import BatchShape, fixed_point
from vertinumpyro.secure.score_functions import SOFTMAX

LOG_DENSITIES = (0.0, -1e-3, -0.7, -5.0, -22.0, -40.0, -1024.0, -1e30, 3.0, -np.inf, np.inf, np.nan)
SCORES = (0.0, 1.0, -1.0, 1e-9, 2.0**-17, 31.7, -999.0, 1e5, 1e30, -1e30, 1e308, -np.inf, np.inf, np.nan)


NUM_VALUES = 3  # rows of a table


def shape_of(*, n=4, K=3, P=2, d=2, s=1, t=0, d0=3, clip_norm=1.0, noise_stddev=0.0, link=SOFTMAX, **clip):
    """The shape of the problems below; t > 0: every party has a table with t scores a component."""
    return BatchShape(
        batch_size=n,
        num_components=K,
        num_parties=P,
        num_values=d0 + P * (K * (d + t) + s),
        clip_norm=clip_norm,
        noise_stddev=noise_stddev,
        link=link,
        **clip,
    )


def _on_device(problem):
    return jax.tree_util.tree_map(jnp.asarray, problem)


def largest_own(link, P):
    """The largest numbers of each party's own: the last one has all of them, or the owner of each outcome its own."""
    owners = getattr(link, "owners", (P - 1,))
    found = [np.zeros(0)] * P
    for of_one, owner in zip(getattr(link, "links", (link,)), owners, strict=True):
        most = np.ones(0)
        if of_one.own_inputs:
            with compat.x64():
                most = np.asarray(of_one.bounded(jnp.ones((1, of_one.num_sums + of_one.own_inputs))))[
                    0, of_one.num_sums :
                ]
        found[owner] = np.concatenate([found[owner], most])
    return found


def own_numbers(link, P):
    """How many they are."""
    return [len(own) for own in largest_own(link, P)]


def widths(link, K, P):
    """How many numbers each party contributes to a link."""
    return [link.sums_of(K) + own for own in own_numbers(link, P)]


def places_of(link):
    """Of each outcome of a link with `num_sums`, where its sums stand in z."""
    ends = np.cumsum([of_one.num_sums for of_one in getattr(link, "links", (link,))])
    return np.split(np.arange(ends[-1]), ends[:-1])


def benign(*, n=4, K=3, P=2, d=2, s=1, t=0, d0=3, spread=1.0, scale=1.0, seed=0, link=SOFTMAX):
    """(contributions, prior, mask) in float64: normal log densities and scores; own numbers are 0 or the largest."""
    rng = np.random.default_rng(seed)

    def normal(*dims):
        return rng.normal(0, scale, dims)

    def tables():
        return (ScoreTable(normal(NUM_VALUES, K, t), rng.integers(NUM_VALUES, size=n)),) if t else ()

    contributions = [
        Contribution(rng.normal(0, spread, (n, width)), normal(n, K, d), normal(n, K, s), tables())
        for width in widths(link, K, P)
    ]
    for contribution, own in zip(contributions, largest_own(link, P), strict=True):
        contribution.log_density[:, link.sums_of(K) :] = own * rng.integers(2, size=(n, len(own)))
    log_weights = np.zeros(link.num_sums) if link.num_sums else np.log(rng.dirichlet(np.full(K, 5.0)))
    prior = ComponentPrior(log_weights, rng.normal(0, scale, (K, d0)))
    return _on_device((contributions, prior, np.ones(n, bool)))


def score_norm(contributions, prior, clip_norm):
    """The largest score norm of a record under a component, of a party or the prior, in clip norms."""
    written_out = [c.without_tables() for c in contributions]
    joint = [np.concatenate([c.plated_scores, c.shared_scores], -1) for c in written_out]
    return max(float(np.linalg.norm(block, axis=-1).max(initial=0)) for block in (*joint, prior.scores)) / clip_norm


@st.composite
def hostile(draw, *, n, K, P, d, s, d0, t=0, link=SOFTMAX):
    """Whatever a party might feed in: huge, tiny, infinite, not numbers, in any combination."""

    def array(values, low, high, dims):
        elements = st.sampled_from(values) | st.floats(low, high)
        return draw(hnp.arrays(np.float64, dims, elements=elements))

    scores = functools.partial(array, SCORES, -3.0, 3.0)

    def tables():
        codes = hnp.arrays(np.int64, (n,), elements=st.integers(0, NUM_VALUES - 1))
        return (ScoreTable(scores((NUM_VALUES, K, t)), draw(codes)),) if t else ()

    contributions = [
        Contribution(array(LOG_DENSITIES, -30.0, 0.0, (n, width)), scores((n, K, d)), scores((n, K, s)), tables())
        for width in widths(link, K, P)
    ]
    log_weights = array((0.0, -3.0, -50.0, -np.inf), -5.0, 0.0, (link.sums_of(K),))
    mask = draw(hnp.arrays(np.bool_, (n,)))
    return _on_device((contributions, ComponentPrior(log_weights, scores((K, d0))), mask))


@functools.cache
def jitted(shape, what="fused"):
    """The integer sums as compiled functions, one for each shape."""
    functions = {
        "encoded": lambda contributions, prior: fixed_point.encoded(shape, contributions, prior),
        "ring_sum": lambda inputs, mask: fixed_point.ring_sum(shape, inputs, mask),
        "fused": lambda c, p, mask: fixed_point.clipped_sum(shape, c, p, mask),
    }
    return jax.jit(functions[what])


@functools.cache
def _compiled(backend, shape):
    return jax.jit(lambda *arrays: backend.clipped_noisy_sum(shape, *arrays))


def run(backend, shape, problem, noise=None):
    """The revealed sum; without noise unless shares are given."""
    if noise is None:
        noise = np.zeros((1, shape.num_values), np.int64)
    return np.asarray(_compiled(backend, shape)(*problem, jnp.asarray(noise)))


def wrapped(integers):
    """Representatives in [-2^63, 2^63)."""
    return ((integers + 2**63) % 2**64 - 2**63).astype(np.int64)


def looks_uniform(data):
    """Every bit is set half of the time, within 6 standard deviations: a false alarm in 1e-7 of all calls."""
    ones = np.unpackbits(data).reshape(-1, 8).sum(axis=0)
    return np.abs(ones - len(data) / 2).max() < 3 * np.sqrt(len(data))
