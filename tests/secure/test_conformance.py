"""What every backend must do. A new backend is one line in `CASES`; a forgotten one fails a test."""

import ast
import dataclasses
import inspect
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vertinumpyro
from tests.secure import problems
from tests.secure.problems import run, wrapped
from tests.secure.toy_backend import Toy
from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import Contribution, ScoreTable
from vertinumpyro.secure import (
    BACKENDS,
    BatchShape,
    Crypten,
    FixedPoint,
    InProcess,
    InsecureSimulation,
    Plaintext,
    Spu,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A backend, the plaintext that it is compared with, and its stated bound on the distance.

    bound: (shape, score norm in clip norms) -> largest L2 distance of the sums.
    rounds_at_random: two runs on the same inputs differ, each within the bound.
    """

    backend: InProcess
    oracle: Plaintext
    bound: Callable[[BatchShape, float], float]
    rounds_at_random: bool = False

    @property
    def kind(self):
        """The backend that is rehearsed, or the one that needs no rehearsal."""
        return self.backend.backend if isinstance(self.backend, InsecureSimulation) else self.backend

    def apart(self, shape, problem, otherwise, runs=2):
        """How far as many runs with one exact sum may be apart: twice the bound where rounding is random."""
        if not self.rounds_at_random:
            return otherwise
        norm = problems.score_norm(problem[0], problem[1], shape.clip_norm)
        return runs * self.bound(shape, norm)


def rounding(shape, score_norm):
    return 1e-11 * shape.batch_size * shape.clip_norm


def stated(backend):
    return lambda shape, norm: backend.error_bound(shape, score_norm=norm)


CRYPTEN = InsecureSimulation(Crypten())
SPU = InsecureSimulation(Spu())  # its other protocols run the same program: see test_spu
CASES = [
    Case(Plaintext(), Plaintext(), rounding),
    Case(FixedPoint(), Plaintext(), stated(FixedPoint())),
    Case(CRYPTEN, Plaintext(), stated(CRYPTEN), rounds_at_random=True),
    Case(SPU, Plaintext(), stated(SPU), rounds_at_random=True),
    Case(Toy(), Plaintext(), stated(Toy())),  # not the library's: how little a backend takes
]


def as_parameter(case):
    reason = case.kind.missing() if isinstance(case.backend, InsecureSimulation) else None
    marks = [pytest.mark.skip(reason=reason)] if reason else []
    return pytest.param(case, id=case.backend.info().name, marks=marks)


every_backend = pytest.mark.parametrize("case", [as_parameter(case) for case in CASES])


@pytest.fixture(scope="module", autouse=True)
def processes_end():
    yield
    for backend in (CRYPTEN, SPU):
        backend.close()


SIZES = {
    "two parties": {},
    "one component": {"K": 1, "P": 2},
    "one party": {"P": 1, "d0": 2},
    "three parties, plated only": {"P": 3, "s": 0},
    "shared only, no prior scores": {"d": 0, "s": 3, "d0": 0},
    "tables": {"t": 2},
    "tables only": {"d": 0, "s": 0, "t": 3},
    "tables of many records, three parties": {"n": 40, "P": 3, "t": 3},
}


def declared_backends():
    """Names of the library's classes that derive from Backend and that no other class refines, by the source."""
    root = pathlib.Path(vertinumpyro.__file__).parent
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in root.rglob("*.py"))
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: {ast.unparse(base) for base in node.bases} for node in classes}
    found, new = set(), {"Backend"}
    while new:
        found |= new
        new = {name for name, own in bases.items() if own & found} - found
    # one runs others; one has the sum alone, and tests of its own (test_aggregation)
    return found - set().union(*(bases[name] for name in found)) - {"InsecureSimulation", "SecureAggregation"}


def test_no_backend_is_missing():
    assert declared_backends() == {type(case.kind).__name__ for case in CASES} - {"Toy"}
    assert declared_backends() == {kind.__name__ for kind in BACKENDS.values()}


def test_a_backend_takes_less_than_forty_lines():
    assert len(inspect.getsource(Toy).splitlines()) < 40


SCALES = [1e-3, 1.0, 30.0]


@every_backend
@pytest.mark.parametrize(
    ("sizes", "scale"),
    # every size at one scale, two parties at all of them
    [pytest.param({}, scale, id=f"two parties, scores of {scale}") for scale in SCALES]
    + [pytest.param(sizes, SCALES[i % 3], id=name) for i, (name, sizes) in enumerate(SIZES.items()) if sizes],
)
def test_is_within_its_stated_bound_of_plaintext(case, sizes, scale):
    shape = problems.shape_of(**sizes, clip_norm=0.8)
    problem = problems.benign(**sizes, scale=scale)
    norm = problems.score_norm(problem[0], problem[1], shape.clip_norm)
    bound = case.bound(shape, norm)
    distance = np.linalg.norm(run(case.backend, shape, problem) - run(case.oracle, shape, problem))
    assert distance <= bound
    assert bound < 0.02 * shape.batch_size * shape.clip_norm  # the bound says something


@every_backend
def test_a_table_is_the_same_as_its_rows_written_out(case):
    shape = problems.shape_of(t=2, clip_norm=0.8)
    contributions, prior, mask = problems.benign(t=2)
    written_out = [c.without_tables() for c in contributions]
    as_tables = run(case.backend, shape, (contributions, prior, mask))
    rounding = 0 if isinstance(case.backend, FixedPoint) else 1e-13
    atol = case.apart(shape, (contributions, prior), rounding)
    np.testing.assert_allclose(as_tables, run(case.backend, shape, (written_out, prior, mask)), rtol=0, atol=atol)


@every_backend
def test_tables_long_and_short_stand_where_they_were(case):
    shape = problems.shape_of(n=40, t=2 + 1 + 1, clip_norm=0.8)
    contributions, prior, mask = problems.benign(n=40)
    rng = np.random.default_rng(5)

    def tables():  # products over 3 and over 2 values pay, those over as many values as there are records do not
        sizes = ((3, 2), (40, 1), (2, 1))
        return tuple(ScoreTable(rng.normal(size=(v, 3, width)), rng.integers(v, size=40)) for v, width in sizes)

    contributions = [c._replace(tables=tables()) for c in contributions]
    written_out = [c.without_tables() for c in contributions]
    atol = case.apart(shape, (contributions, prior), 1e-12)
    as_tables, as_rows = (run(case.backend, shape, (c, prior, mask)) for c in (contributions, written_out))
    np.testing.assert_allclose(as_tables, as_rows, rtol=0, atol=atol)
    assert np.median(np.abs(as_rows)) > 10 * atol  # exchanged places would be seen


@every_backend
def test_masked_records_add_nothing(case):
    shape = problems.shape_of()
    contributions, prior, _ = problems.benign()
    first, second = jnp.array([True, False, True, False]), jnp.array([False, True, False, True])
    halves = [run(case.backend, shape, (contributions, prior, mask)) for mask in (first, second)]
    whole = run(case.backend, shape, (contributions, prior, first | second))
    np.testing.assert_allclose(sum(halves), whole, rtol=0, atol=case.apart(shape, (contributions, prior), 1e-13, 3))
    hidden = [
        jax.tree_util.tree_map(lambda x: jnp.where(first.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.nan), c)
        for c in contributions
    ]
    atol = case.apart(shape, (contributions, prior), 0)
    np.testing.assert_allclose(run(case.backend, shape, (hidden, prior, first)), halves[0], rtol=0, atol=atol)


@every_backend
@pytest.mark.parametrize("sizes", [{}, {"t": 2}], ids=["rows", "tables"])
def test_a_batch_in_blocks_gives_the_sum_over_them_with_the_noise_once(case, sizes):
    whole = problems.shape_of(n=6, **sizes)
    contributions, prior, mask = problems.benign(n=6, **sizes)
    shape = dataclasses.replace(whole, batch_size=2, num_blocks=3)
    noise = np.random.default_rng(1).integers(-(2**30), 2**30, (2, shape.num_values))
    mask = mask.at[3].set(False)

    def of_block(number):
        def rows(array):
            return jax.lax.dynamic_slice_in_dim(array, 2 * number, 2)

        return [
            Contribution(*(rows(leaf) for leaf in c[:3]), tuple(t._replace(codes=rows(t.codes)) for t in c.tables))
            for c in contributions
        ]

    @jax.jit
    def in_blocks(prior, mask, noise):
        return case.backend.clipped_noisy_sum(shape, of_block, prior, shape.blocks(mask), noise)

    with compat.x64():
        found = np.asarray(in_blocks(prior, mask, jnp.asarray(noise)))
    expected = run(case.backend, whole, (contributions, prior, mask), noise)
    rounding = 0 if isinstance(case.backend, FixedPoint) else 1e-13
    np.testing.assert_allclose(found, expected, rtol=0, atol=case.apart(whole, (contributions, prior), rounding))


@every_backend
def test_an_empty_batch_is_noise_only(case):
    shape = problems.shape_of()
    contributions, prior, mask = problems.benign()
    noise = np.random.default_rng(1).integers(-(2**40), 2**40, (3, shape.num_values))
    result = run(case.backend, shape, (contributions, prior, ~mask), noise)
    np.testing.assert_array_equal(result, noise.sum(0) * 2.0 ** -case.backend.grid_bits(shape))


@every_backend
def test_noise_is_added_exactly(case):
    # scores so small that the sum's integer fits float64's 53 bits
    shape = problems.shape_of()
    problem = problems.benign(scale=1e-4)
    noise = np.random.default_rng(1).integers(-(2**40), 2**40, (3, shape.num_values))
    bits = case.backend.grid_bits(shape)
    difference = run(case.backend, shape, problem, noise) - run(case.backend, shape, problem)
    if isinstance(case.backend, Plaintext) or case.rounds_at_random:  # of the latter, an empty batch is exact
        atol = case.apart(shape, problem, 1e-13)
        np.testing.assert_allclose(difference, noise.sum(0) * 2.0**-bits, rtol=0, atol=atol)
    else:
        np.testing.assert_array_equal(difference * 2.0**bits, noise.sum(0))


HARD = {
    "zero scores": lambda p: _scores(p, lambda s: 0 * s),
    "huge scores": lambda p: _scores(p, lambda s: 1e300 * s),
    "infinite scores": lambda p: _scores(p, lambda s: jnp.where(s > 0, jnp.inf, s)),
    "not a number": lambda p: _scores(p, lambda s: jnp.where(s > 0, jnp.nan, s)),
    "parties disagree": lambda p: _log_densities(p, lambda i, x: -1e3 * (jnp.arange(x.shape[1]) != i)),
    "all densities zero": lambda p: _log_densities(p, lambda i, x: -jnp.inf),
    "densities of -1e30": lambda p: _log_densities(p, lambda i, x: 1e30 * jnp.minimum(x, -1)),
    "undefined densities": lambda p: _log_densities(p, lambda i, x: jnp.where(x > 0, jnp.nan, x)),
}


def _scores(problem, change):
    contributions, prior, mask = problem
    changed = [
        c._replace(plated_scores=change(c.plated_scores), shared_scores=change(c.shared_scores)) for c in contributions
    ]
    return changed, prior, mask


def _log_densities(problem, change):
    contributions, prior, mask = problem
    changed = [
        c._replace(log_density=jnp.broadcast_to(change(i, c.log_density), c.log_density.shape))
        for i, c in enumerate(contributions)
    ]
    return changed, prior, mask


@every_backend
@pytest.mark.parametrize("hard", HARD.values(), ids=HARD)
def test_hard_inputs_stay_finite_and_clipped(case, hard):
    shape = problems.shape_of(n=1)
    problem = hard(problems.benign(n=1))
    result = run(case.backend, shape, problem)
    assert np.all(np.isfinite(result))
    assert np.linalg.norm(result) <= shape.clip_norm * (1 + 1e-6)
    distance = np.linalg.norm(result - run(case.oracle, shape, problem))
    assert distance <= case.bound(shape, 1024.0)


@every_backend
def test_integer_protocols_are_exact_modulo_2_64(case):
    rng = np.random.default_rng(2)
    a, b = rng.integers(-(2**62), 2**62, (5, 2)), rng.integers(-(2**62), 2**62, (5, 3))
    noise = rng.integers(-(2**62), 2**62, (2, 2, 3))
    product = np.asarray(case.backend.noisy_cross_product(a, b, noise))
    exact = a.astype(object).T @ b.astype(object) + noise.astype(object).sum(0)
    np.testing.assert_array_equal(product, wrapped(exact))
    c = rng.integers(-(2**62), 2**62, (5, 4))
    noise = rng.integers(-(2**62), 2**62, (3, 6 + 8 + 12))
    exact = np.concatenate([(x.astype(object).T @ y.astype(object)).ravel() for x, y in ((a, b), (a, c), (b, c))])
    products = np.asarray(case.backend.noisy_cross_products([a, b, c], noise))
    np.testing.assert_array_equal(products, wrapped(exact + noise.astype(object).sum(0)))
    vectors, shares = rng.integers(-(2**63), 2**63, (4, 3)), rng.integers(-(2**63), 2**63, (7, 3))
    exact = vectors.astype(object).sum(0) + shares.astype(object).sum(0)
    np.testing.assert_array_equal(np.asarray(case.backend.noisy_sum(vectors, shares)), wrapped(exact))


@every_backend
def test_narrow_integers_are_widened_and_narrow_noise_refused(case):
    a = np.full((300, 1), 100, np.int8)
    assert case.backend.noisy_cross_product(a, a, np.zeros((1, 1, 1), np.int64)).tolist() == [[3_000_000]]
    vectors = np.full((3, 1), 2**30, np.int32)
    assert case.backend.noisy_sum(vectors, np.zeros((1, 1), np.int64)).tolist() == [3 * 2**30]
    with pytest.raises(ArgumentError, match="int64"):
        case.backend.noisy_sum(vectors, np.zeros((1, 1), np.int32))


@every_backend
def test_a_mask_that_is_no_bool_is_refused(case):
    shape, (contributions, prior, mask) = problems.shape_of(), problems.benign()
    noise = np.zeros((2, shape.num_values), np.int64)
    with pytest.raises(ArgumentError, match="mask must be bool"):
        case.backend.clipped_noisy_sum(shape, contributions, prior, mask.astype(jnp.int64) << 24, noise)


@every_backend
def test_states_its_security(case):
    info = case.backend.info()
    assert all((info.name, info.security_model, info.who_learns_what, info.dealer, info.ring, info.precision))
    rehearsed = "the calling process knows everything" in info.security_model
    assert rehearsed == isinstance(case.backend, InsecureSimulation)
    proved = not isinstance(case.backend, Plaintext)
    assert proved == (not info.unproven)
