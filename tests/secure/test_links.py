"""What every score link must do, in every arithmetic. A new link is a line in `LINKS`; a forgotten one fails."""

import ast
import functools
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import vertinumpyro
from tests.recipes import toy_outcome
from tests.secure import problems, toy_links
from tests.secure.problems import run
from vertinumpyro.core import compat, ring
from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.secure import (
    BernoulliLogitLink,
    BernoulliProbitLink,
    ClippedSum,
    Crypten,
    FixedPoint,
    GammaLink,
    InsecureSimulation,
    JointLink,
    NegativeBinomialLink,
    NormalLink,
    OrderedLogitLink,
    OwnFactorLink,
    Plaintext,
    PoissonLink,
    SoftmaxLink,
    Spu,
    score_functions,
    simulation,
)
from vertinumpyro.secure.computation import computation_of, described
from vertinumpyro.secure.fixed_point import RingArithmetic
from vertinumpyro.secure.input_encoding import Layout
from vertinumpyro.secure.number_formats import RING_LOG_BITS, fixed_point_format
from vertinumpyro.secure.plaintext import FloatArithmetic
from vertinumpyro.secure.score_functions import link_of
from vertinumpyro.secure.spu import backend as spu_backend

LINKS = [
    SoftmaxLink(),
    BernoulliLogitLink(),
    BernoulliProbitLink(),
    OrderedLogitLink(),
    NormalLink(width=3.0),
    PoissonLink(most=7.0),
    NegativeBinomialLink(most=7.0, concentration=1.5),
    GammaLink(most=7.0, concentration=1.5),
    OwnFactorLink(),
    JointLink((BernoulliLogitLink(), OwnFactorLink(), PoissonLink(most=7.0), BernoulliLogitLink()), (1, 0, 0, 0)),
]
TOYS = [toy_links.Tempered(), toy_links.Residual(), toy_outcome.LogisticNoiseLink()]
every_link = pytest.mark.parametrize("link", LINKS + TOYS, ids=lambda link: link.name)
LINKS_OF_ONE = [link for link in LINKS + TOYS if link.num_outcomes == 1]
every_link_of_one = pytest.mark.parametrize("link", LINKS_OF_ONE, ids=lambda link: link.name)

REHEARSALS = [InsecureSimulation(Crypten()), InsecureSimulation(Spu())]
BACKENDS = [Plaintext(), FixedPoint(), *REHEARSALS]


def as_parameter(backend):
    missing = backend.backend.missing() if isinstance(backend, InsecureSimulation) else None
    marks = [pytest.mark.skip(reason=missing)] if missing else []
    return pytest.param(backend, id=backend.info().name, marks=marks)


every_backend = pytest.mark.parametrize("backend", [as_parameter(backend) for backend in BACKENDS])


@pytest.fixture(scope="module", autouse=True)
def processes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "run_worker", toy_links.run_worker_with_toys)
        patch.setattr(spu_backend, "run_helper", toy_links.run_helper_with_toys)
        yield
    for backend in REHEARSALS:
        backend.close()


def sizes_of(link, **sizes):
    return {"K": link.num_outcomes if link.signed else 3, "P": 2, "d": 2, "s": 1, "d0": 2, "link": link, **sizes}


def tried(link, num_records, spread=2.0):
    """Numbers Z of records, on which a link may stand."""
    contributions, prior, _ = problems.benign(**sizes_of(link, n=num_records, spread=spread))
    return link.total(prior.log_weights, [c.log_density for c in contributions])


def declared_links():
    """Names of the library's classes that derive from ScoreFunction, by the source."""
    root = pathlib.Path(vertinumpyro.__file__).parent
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in root.rglob("*.py"))
    classes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        node.name for node in classes if "ScoreFunction" in {ast.unparse(base).split(".")[-1] for base in node.bases}
    }


def test_no_link_is_missing():
    assert declared_links() == {type(link).__name__ for link in LINKS}
    assert declared_links() == {kind.__name__ for kind in score_functions.LINKS.values()}
    assert all(name == kind.name for name, kind in score_functions.LINKS.items())


def by_outcome(link, slopes):
    """Derivatives by z as those by each outcome's predictor, which moves all of its sums at once."""
    if not link.num_sums:
        return slopes
    of_each = [slopes[:, places].sum(-1) for places in problems.places_of(link)]
    return jnp.stack(of_each, axis=-1) / jnp.asarray(link.units)


def slopes_by_outcome(link, z):
    """In one program: each operation alone would be one."""
    return jax.jit(lambda z: by_outcome(link, jax.vmap(jax.grad(link.log_density))(z)))(z)


@every_link
def test_the_weights_are_the_derivative_of_the_log_density(link):
    with compat.x64():
        z = tried(link, 50)
        e = np.asarray(jax.jit(functools.partial(link.weights, FloatArithmetic()))(z))
        den = e.sum(-1, keepdims=True) if link.normalised else 1.0
        slopes = slopes_by_outcome(link, z)
        np.testing.assert_allclose(e / den, slopes, rtol=0, atol=1e-12)


@every_link
def test_weights_keep_their_bounds_whatever_the_parties_contribute(link):
    sizes = sizes_of(link, n=2)
    one = 1 << ring.EXP_FRACTIONAL_BITS
    on_ring = jax.jit(functools.partial(link.weights, RingArithmetic()))
    on_floats = jax.jit(lambda z: link.weights(FloatArithmetic(), decoded(link, z)))

    @settings(max_examples=30, deadline=None)
    @given(problems.hostile(**sizes))
    def check(problem):
        with compat.x64():
            own = [link.contributed(c.log_density, sizes["K"], party) for party, c in enumerate(problem[0])]
            assert all(np.isfinite(x).all() and np.abs(x).max() <= 1024 for x in own)
            assert all(np.abs(x[:, link.sums_of(sizes["K"]) :]).max(initial=0) <= 1 for x in own)
            z = sum(link.encoded(x, RING_LOG_BITS, ring.EXP_FRACTIONAL_BITS) for x in own)
            e, exact = np.asarray(on_ring(z)), np.asarray(on_floats(z))
        assert np.abs(e - exact * one).max() <= link.error_factor * ring.EXP_MAX_ERROR_ULP
        assert np.abs(e).max() <= one
        assert link.signed or e.min() >= 0
        assert not link.normalised or e.sum(-1).min() >= one

    check()


def decoded(link, z, z_bits=RING_LOG_BITS, weight_bits=ring.EXP_FRACTIONAL_BITS):
    """What `ScoreFunction.encoded` made."""
    sums = z.shape[-1] - link.own_inputs
    return jnp.concatenate([ring.decode(z[..., :sums], z_bits), ring.decode(z[..., sums:], weight_bits)], axis=-1)


def exact_sum(link, clip_norm, problem):
    """The sum of clipped gradients of the log density, by automatic differentiation in theta, at theta = 0."""
    contributions, prior, _ = problem
    scores = [prior.scores[None], *(x for c in contributions for x in (c.plated_scores, c.shared_scores))]
    z = link.total(prior.log_weights, [c.log_density for c in contributions])
    own = jnp.arange(z.shape[-1]) >= z.shape[-1] - link.own_inputs

    def log_density(z, scores, theta):
        moved = [(s * t).sum(-1) for s, t in zip(scores, theta, strict=True)]  # a plated theta has a row for each k
        return link.log_density(z + jnp.where(own, 0.0, sum(moved) / link.unit))

    plated = [index % 2 == 1 for index in range(len(scores))]
    theta = [jnp.zeros(s.shape[1:] if rows else s.shape[2:]) for s, rows in zip(scores, plated, strict=True)]
    each = [jnp.broadcast_to(s, (len(z), *s.shape[1:])) for s in scores]
    gradients = jax.jit(jax.vmap(jax.grad(log_density, argnums=2), in_axes=(0, 0, None)))(z, each, theta)
    g = np.concatenate([np.asarray(block).reshape(len(z), -1) for block in gradients], axis=1)
    return (g / np.maximum(1, np.linalg.norm(g, axis=1, keepdims=True) / clip_norm)).sum(0)


@every_backend
@every_link_of_one
def test_the_sum_is_that_of_the_exact_clipped_gradients_within_the_stated_bound(backend, link):
    sizes = sizes_of(link)
    shape = problems.shape_of(**sizes, clip_norm=0.8)
    problem = problems.benign(**sizes)
    with compat.x64():
        exact = exact_sum(link, shape.clip_norm, problem)
    norm = problems.score_norm(problem[0], problem[1], shape.clip_norm)
    bound = backend.error_bound(shape, score_norm=norm)
    assert np.linalg.norm(run(backend, shape, problem) - exact) <= bound
    assert bound < 0.02 * shape.batch_size * shape.clip_norm


SIGNED = [link for link in LINKS + TOYS if link.signed]


def cut_links(links):
    """Every link whose residual is cut to less than its bound, and the first uncut too."""
    cases = [(links[0], 1.0), *((link, 0.4) for link in links)]
    return pytest.mark.parametrize(("link", "residual_bound"), cases, ids=lambda x: getattr(x, "name", f"b = {x}"))


def exact_local_sum(shape, problem):
    """Residuals by automatic differentiation, cut to b, times each party's scores under its part of C."""
    link, (contributions, prior, _) = shape.link, problem
    z = link.total(prior.log_weights, [c.log_density for c in contributions])
    e, b = np.asarray(slopes_by_outcome(link, z)), np.array(shape.residual_bounds)
    W = np.clip(e, -b, b)
    sums = []
    for part, c in zip(shape.clip_parts, contributions, strict=True):
        s, longest = side_by_side(c), shape.clip_norm * np.sqrt(part / sum(shape.clip_parts))
        corners = [np.array(signs) * b for signs in itertools.product((1, -1), repeat=len(b))]
        length = np.max([np.linalg.norm(np.einsum("k,nkd->nd", corner, s), axis=1) for corner in corners], axis=0)
        sums.append(np.einsum("nk,nkd->d", W, s * np.minimum(1, longest / length)[:, None, None]))
    return np.concatenate(sums)


def side_by_side(contribution):
    """Scores [n, K, K d + s], each at its place in the released vector."""
    n, K, d = contribution.plated_scores.shape
    plated = np.einsum("nkd,kl->nkld", contribution.plated_scores, np.eye(K)).reshape(n, K, K * d)
    return np.concatenate([plated, contribution.shared_scores], axis=2)


@every_backend
@cut_links(SIGNED)
def test_a_local_clip_is_that_of_the_exact_residuals_within_the_stated_bound(backend, residual_bound, link):
    sizes = sizes_of(link, n=6, d0=0)
    shape = problems.shape_of(**sizes, clip_norm=0.8, clip_parts=(1, 4), residual_bound=residual_bound)
    problem = problems.benign(**sizes, spread=1.5)
    with compat.x64():
        exact = exact_local_sum(shape, problem)
    norm = problems.score_norm(*problem[:2], shape.clip_norm)
    bound = backend.error_bound(shape, score_norm=norm)
    assert np.linalg.norm(run(backend, shape, problem) - exact) <= bound
    assert bound < 1e-4 * sizes["K"] * shape.batch_size * shape.clip_norm  # tighter than a clip with a root can be


@pytest.mark.parametrize(
    ("link", "clip_norm"),
    # every link at one clip norm, the first at all of them: the format follows from the norm alone
    [(LINKS_OF_ONE[0], 0.01), (LINKS_OF_ONE[0], 1000.0)]
    + [(link, (1.0, 0.01, 1000.0)[number % 3]) for number, link in enumerate(LINKS_OF_ONE)],
    ids=lambda x: getattr(x, "name", f"C = {x}"),
)
def test_no_record_is_longer_than_the_clip_norm(link, clip_norm):
    sizes = sizes_of(link, n=1, t=1)
    shape = problems.shape_of(**sizes, clip_norm=clip_norm)
    limit = clip_norm * 2.0 ** fixed_point_format(shape).grid_bits

    @settings(max_examples=40, deadline=None)
    @given(problems.hostile(**sizes))
    def check(problem):
        mask = jnp.ones(1, bool)
        integers = problems.jitted(shape)(*problem[:2], mask).tolist()
        assert sum(value * value for value in integers) <= limit**2
        assert np.linalg.norm(run(Plaintext(), shape, (*problem[:2], mask))) <= clip_norm * (1 + 1e-9)

    check()


@pytest.mark.parametrize("backend", [as_parameter(backend) for backend in REHEARSALS])
@every_link_of_one
def test_long_scores_are_cut_to_the_clip_norm_between_processes(backend, link):
    sizes = sizes_of(link, n=1)
    shape = problems.shape_of(**sizes)
    problem_of = functools.partial(problems.benign, **sizes, scale=200.0)
    lengths = [np.linalg.norm(run(backend, shape, problem_of(seed=seed))) for seed in range(4)]
    if link.name in ("own_factor", "negative_binomial"):  # where all its own numbers are 0
        lengths = [length for length in lengths if length > 0]
    assert 0.99 * shape.clip_norm < min(lengths) <= max(lengths) <= shape.clip_norm


@pytest.mark.parametrize("backend", [as_parameter(backend) for backend in REHEARSALS])
@cut_links([link for link in SIGNED if link.num_outcomes == 1])
def test_long_scores_are_cut_to_the_parts_of_the_clip_norm_between_processes(backend, residual_bound, link):
    sizes = sizes_of(link, n=1, d0=0)
    shape = problems.shape_of(**sizes, clip_parts=(1, 4), residual_bound=residual_bound)
    longest = 0
    for seed in range(6):
        problem = problems.benign(**sizes, scale=200.0, spread=20.0, seed=seed)
        first, second = np.split(run(backend, shape, problem), 2)
        assert np.linalg.norm(first) <= np.sqrt(0.2) * shape.clip_norm
        assert np.linalg.norm([*first, *second]) <= shape.clip_norm
        longest = max(longest, np.linalg.norm([*first, *second]))
    assert longest > 0.999 * shape.clip_norm  # nothing is given away where the residual is as large as it gets


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_a_link_survives_a_message(link):
    sizes = sizes_of(link)
    layout = Layout.of(*problems.benign(**sizes)[:2])
    clip = {"clip_parts": (1, 2), "residual_bound": (0.5, 1.0, 0.25, 1.0)} if link.num_outcomes > 1 else {}
    computation = ClippedSum(shape=problems.shape_of(**sizes, **clip), layout=layout)
    assert computation_of(json.loads(json.dumps(described(computation)))) == computation


def test_a_link_of_another_version_is_named():
    with pytest.raises(BackendError, match="'cauchit' is unknown here; run the same versions"):
        link_of({"name": "cauchit"})


def test_signs_need_one_component():
    with pytest.raises(ArgumentError, match=r"num_components is 2.*'residual'.*set num_components to 1"):
        problems.shape_of(K=2, link=toy_links.Residual())
    joint = JointLink((BernoulliLogitLink(), OrderedLogitLink()), (0, 1))
    with pytest.raises(ArgumentError, match=r"clip_parts is None, and the 2 weights.*give the parties' parts"):
        problems.shape_of(K=2, link=joint)
    with pytest.raises(ArgumentError, match="residual_bound has 3 numbers for 2 outcomes"):
        problems.shape_of(K=2, link=joint, clip_parts=(1, 1), residual_bound=(0.1, 0.2, 0.3))


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([BernoulliLogitLink()] * 7, "7 outcomes with 7 owners; give 2 to 6"),
        ([BernoulliLogitLink(), SoftmaxLink()], "'softmax' is not the residual of one outcome"),
    ],
)
def test_outcomes_without_a_proof_are_refused(links, message):
    with pytest.raises(ArgumentError, match=message):
        JointLink(tuple(links), (0,) * len(links))


def test_an_outcomes_own_numbers_are_its_partys_alone():
    """Two of them would make a residual of 2, which no clip is proved for."""
    joint = JointLink((BernoulliLogitLink(), PoissonLink(most=2.0)), (0, 1))
    held = jnp.array([[3.0, 5.0, 1.0]])
    assert joint.contributed(held, 2, 0).tolist() == [[3.0, 5.0, 1.0, 0.0]]
    assert joint.contributed(held, 2, 1).tolist() == [[3.0, 5.0, 0.0, 1.0]]
    assert joint.contributed(held[:, :2], 2).tolist() == [[3.0, 5.0, 0.0, 0.0]]
    shape = problems.shape_of(K=2, link=joint, clip_parts=(1, 1), d0=0)
    contributions, prior, mask = problems.benign(K=2, link=joint, d0=0)
    short = contributions[0]._replace(log_density=contributions[0].log_density[:, :2])
    with pytest.raises(ArgumentError, match=r"takes \[3, 3\] numbers of the parties and 2 of the prior; got \[2, 3\]"):
        run(Plaintext(), shape, ([short, contributions[1]], prior, mask))
