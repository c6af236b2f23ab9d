r"""The posterior of a `party_sum`'s coefficients given what the steps released, which knows the steps' noise.

A step releases g_t = G(theta_t) + xi_t: the sum over all records of the derivatives of log p(y | eta) at a public point
theta_t, with residuals cut to the plan's bound, and noise whose covariance is public. The noise moves the points about,
so where the steps end says little of where the optimum is; all T sums together say all that was bought. What follows is
post-processing of them and of the released moments, and costs no epsilon (Alrawajfeh, Jälkö and Honkela 2024 do this
for pooled records and a curvature that is fitted to the trace).

**Likelihood of the trace.** With beta the coefficients, x a record's derivatives of eta, psi its residual as it is cut:

    g_t = F(theta_t; beta) + D (theta_t - beta) + w_t + u + xi_t,

- F(theta; beta) = N E[x E[psi(y, x'theta) | y ~ p(. | x'beta)]] is what is expected of records whose outcomes follow
  the model at beta. x is taken to be Gaussian with the released moments, so x given the two predictors is linear in
  them, and F is an integral over these two (`_field`). What the cut of residuals takes away is in F, as far as x is so.
- u ~ N(0, J), J = N E[xx' Var(psi)]: by how much the gradient at beta itself differs between tables. F at beta itself
  is what is put back for the cut of residuals, and as Gaussian predictors have it: of columns of two values it was off
  by a tenth, so a tenth of it, squared, is added to J.
- D has mean 0 and, with H = N E[xx' E[psi d log p / d eta]], the slope of F by beta where the point is at beta, too,
  covariance rho^2 H x H + kappa^2 I x I. The first is how far Gaussian predictors and a straight slope are trusted, the
  second the noise of the moments, nu, by how F follows them: kappa = nu E[E[psi d log p / d eta]], I across what no
  record says (`score_identities`). What the trace says of D corrects H and J (`_slope`).
- w_t is what bends, and no straight slope takes in: each step's own, with a tenth of the standard deviation of D's
  first part. Without it steps that began far away would count, where the noise is small, as much as those that ended at
  the optimum, as if F were exact there: the estimate then runs away as epsilon grows.
- rho is .2, and of counts and events it is learned from the trace: its mean by the restricted likelihood (that of the
  trace with beta integrated out) and a log normal prior about what is usual. There the cut, which is all on one side,
  holds the end of the steps off beta, and a rho for every table makes intervals of most twice too wide. Of logistic
  regressions a learned one holds too little.

In the basis of H's eigenvectors all these covariances are diagonal over coordinates, so there is one T by T matrix a
coordinate, K_i = J_i 11' + rho^2 H_i (DHD' + diag(DHD') / 100) + kappa^2 (DD' + v 11') + s^2 I, with rows theta_t -
beta of D at the estimate, and v the trace of beta's covariance: kappa's part is what is expected over where beta may
be, as at the estimate alone points may lie by chance. With them fixed, the log density is a sum of squares in beta, of
which F is nearly linear: Gauss-Newton finds the maximum and its precision. Both together are the trace's information on
beta, whatever its prior.

**Offsets.** What a part adds without a coefficient (`dpvi.second_moments`) are columns more of x, with coefficients
that are known; F and the curvatures are over all of them, and of what they come to the learned coordinates are taken.
At beta F is 0 whatever offsets are, but for what is cut: they decide how much the trace says, and hardly where beta is.

**Where that is taken**: at the maximum of the density times the prior, or a Gaussian that is as far spread as a prior
that is none. The trace's own maximum is as far out as noise has it. There outcomes vary less and the points are
farther away, so the trace says less than it does, and the less the larger the coefficients are: they are shrunk too
far, and the scale of a hierarchy, which is learned from them, is taken for too little.

**Moments with noise.** Noise of standard deviation nu in the entries of a symmetric matrix moves an eigenvalue l up by
some d nu^2 / 4 l, and gives nothing eigenvalues of the order of nu sqrt(d). What appears is taken back by as much, and
below half of nu sqrt(d) to almost 0, so that a direction that the noise hides is left to the prior.

**The posterior** is the model's prior, whatever it is, times that: in closed form where the prior is Gaussian. Where it
is Gaussian given the latents that no party's part reads, as the scales of a hierarchy, NUTS draws these, all others
integrated out, and the others are drawn given them; a single one is drawn by its distribution function, exactly. Else
NUTS draws all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from vertinumpyro.core import compat
from vertinumpyro.dpvi.outcome_tables import Law, doubts_put_back, ends_of, law_at
from vertinumpyro.dpvi.priors import NormalPrior, apart_from_prior, gaussian_prior, normal_given_rest, usual_prior
from vertinumpyro.dpvi.score_identities import across, constant_of, unseen
from vertinumpyro.model import SplitModel
from vertinumpyro.model.outcomes import Outcome
from vertinumpyro.model.split import Offset, may_be_times, public_offsets

MOST_PARAMETERS = 300
"""Up to which the posterior is computed: it takes some T d^2 numbers of memory."""

NUM_DRAWS = 2000

TOO_FAR = "nothing finite comes of what the steps released: they went too far"

TRUST = 0.2  # rho: on Adult, Abalone and simulated tables of half binary columns, F is off by .03 to .09
LEARNED_TRUST = 0.06  # what is usual of a learned one
_TRUST_SPREAD = 0.7  # of its log
_TRUSTS = np.geomspace(0.015, 0.5, 8)
_BENT = 0.1  # of rho
_CUT_TRUST = 0.1  # of what is put back for a cut; of counts a learned rho holds it
_ROUNDS, _ROUNDS_A_SLOPE = 20, 5
_SIZES = np.array([1.0, 0.5, 0.25, 0.1, 0.03])
_LEAST = 1e-9  # of N: the smallest eigenvalue of moments
_WARMUP = 1000
_WIDE, _POINTS, _CLOSER, _NOTHING = 40.0, 513, 4, 30.0  # of grids for one number: first ends, and e^-30 of its density
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_PAIRS = np.stack(np.meshgrid(_NODES, _NODES, indexing="ij"), -1).reshape(-1, 2)
_PAIR_WEIGHTS = np.outer(_WEIGHTS, _WEIGHTS).ravel()
UPPER_SHARES = np.cumsum(_WEIGHTS[::-1])[::-1] - _WEIGHTS / 2
"""Of all records, those with a predictor beyond each node of the integrals."""


class Trace(NamedTuple):
    """What T steps that took all records released, in coefficients in which the noise is alike; public.

    These are of standardised scores (`dpvi.clipping`), or of whitened ones (`dpvi.whitening`).

    points: theta_t `[T, d]`.
    gradients: of the log likelihood, with noise `[T, d]`.
    stddev: of the noise `[d]`.
    moments: sum xx' with noise, offsets behind the coefficients' `[d + k, d + k]`.
    moments_stddev: of that noise.
    num_records: N.
    offsets: all parties'; k of them have a `half` above 0.
    to: from the model's own coefficients to these `[d, d]`.
    """

    points: np.ndarray
    gradients: np.ndarray
    stddev: np.ndarray
    moments: np.ndarray
    moments_stddev: float
    num_records: int
    to: np.ndarray
    offsets: tuple[Offset, ...] = ()


class Information(NamedTuple):
    """What the trace says of the coefficients: exp(linear'beta - beta' precision beta / 2), and what they would say.

    precision: `[d, d]`.
    linear: `[d]`.
    centre: where Gauss-Newton ended `[d]`.
    without_noise: the precision of the same records without any noise `[d, d]`.
    """

    precision: Any
    linear: Any
    centre: Any
    without_noise: Any

    @property
    def is_finite(self) -> bool:
        """Whether the trace says anything."""
        return all(bool(np.isfinite(of).all()) for of in self)


class NoiseAwareDraws(NamedTuple):
    """The posterior, in flat unconstrained theta.

    draws: `[S, theta]`.
    stddev: of the posterior that the same records would have without the noise of privacy `[theta]`, as far as can be
        told.
    apart: by how many standard deviations of both what was released and the prior are apart `[theta]`; None where an
        earlier version did not ask.
    misfit: the share of the outcomes that a released table has elsewhere than the model; None where there is none.
    """

    draws: np.ndarray
    stddev: np.ndarray
    apart: np.ndarray | None = None
    misfit: np.ndarray | None = None


def why_not(split: SplitModel, offsets: tuple[Offset, ...], *, knows_times: bool = False) -> str:
    """Why the posterior of a model whose parts are linear cannot be had; empty where it can.

    :param offsets: those of the plan, which the moments have.
    :param knows_times: whether an offset is a survival's time at risk, of which there is a table.
    """
    if (number := split.num_parameters) > MOST_PARAMETERS:
        return f"the model has {number} parameters, and {MOST_PARAMETERS} is the most for which it is known"
    outcome = split.structure.summed[0].outcome
    if outcome.support(jnp.zeros(1)) is None:
        return "what values its outcome has at a predictor is not known (`Outcome.support`)"
    needed = () if knows_times else public_offsets(split)
    adding = [party for party, offset in zip(split.parties, needed, strict=False) if offset != Offset()]
    if adding and may_be_times(split):
        return (
            f"the part of {adding} has an offset, which of whether an event was seen may be the time until then, and "
            "nothing released says when events were (`SecondMoments(events=)`)"
        )
    if adding and not offsets:
        return f"the part of {adding} has an offset, of which a plan of an earlier version has no moments"
    return ""


def noise_aware_draws(
    split: SplitModel, outcome: Law, trace: Trace, cut: float, rng_key: jax.Array
) -> NoiseAwareDraws | str:
    """Draws of all latents given the trace, or why there are none.

    :param outcome: of the model's one `party_sum`.
    :param cut: where residuals were cut, in its own units.
    :param rng_key: for the draws.
    """
    with compat.x64():
        found = information_of(split, outcome, trace, cut)
        return drawn(split, found, rng_key) if found.is_finite else TOO_FAR


def drawn(split: SplitModel, found: Information, rng_key: jax.Array) -> NoiseAwareDraws:
    """Draws of all latents given what is known of some; in double precision."""
    prior = gaussian_prior(split)
    drawn = _by_nuts(split, found, rng_key) if prior is None else _gaussian(found, prior, rng_key)
    return drawn._replace(apart=apart_from_prior(split, found.precision, found.linear))


# -- the trace's information ------------------------------------------------------------------------


def information_of(split: SplitModel, outcome: Law, trace: Trace, cut: float, held: Any = ()) -> Information:
    """Of the latents that parts read, in coordinates in which everyone's noise is alike; and back to all latents.

    :param held: places of those that the steps did not move, of which the trace says nothing.
    """
    read = np.setdiff1d(split.read, held)
    square = np.ix_(read, read)
    halves = np.array([offset.half for offset in trace.offsets if offset.half], np.float64)
    seen = np.concatenate([read, len(trace.moments) - len(halves) + np.arange(len(halves))])
    law = () if isinstance(outcome, Outcome) else (outcome,)  # whose arrays change from fit to fit
    key = f"trace information {type(outcome) if law else outcome}"
    if key not in split.compiled:
        split.compiled[key] = jax.jit(lambda *law, **arrays: _information(law[0] if law else outcome, **arrays))
    whole_back = np.linalg.inv(trace.to)
    usual, to, back = usual_prior(split, read), trace.to[square], whole_back[square]
    mean = math.sqrt(float(np.mean(np.square(trace.stddev[read]))))
    scale = np.asarray(trace.stddev, np.float64)[read] / mean
    back = back / scale  # from where everyone's noise is alike
    of_seen = np.concatenate([scale, np.ones(len(halves))])
    found: Information = split.compiled[key](
        *law,
        cut=cut,
        points=jnp.asarray(trace.points[:, read] * scale, float),
        gradients=jnp.asarray(trace.gradients[:, read] / scale, float),
        moments=jnp.asarray(trace.moments[np.ix_(seen, seen)] / np.outer(of_seen, of_seen), float),
        constant=jnp.asarray((trace.to @ split.from_standardised @ constant_of(split))[read] * scale, float),
        prior=NormalPrior(jnp.asarray(back.T @ usual.precision @ back, float), jnp.asarray(usual.linear @ back, float)),
        noise=mean,
        moments_noise=trace.moments_stddev,
        num_records=float(trace.num_records),
        middle=sum(offset.middle for offset in trace.offsets),
        halves=jnp.asarray(halves, float),
        seen=jnp.asarray(across(scale[:, None] * to @ unseen(split, held)[read]), float),
    )
    centre, size = whole_back @ trace.points[-1], split.num_parameters
    centre[read], to = back @ found.centre, scale[:, None] * to
    linear, precision, without_noise = np.zeros(size), np.zeros((size, size)), np.zeros((size, size))
    linear[read] = found.linear @ to
    precision[square], without_noise[square] = (to.T @ of @ to for of in (found.precision, found.without_noise))
    if not np.isfinite(without_noise).all():
        return Information(precision, linear, centre, without_noise)
    seen = across(unseen(split))
    values, vectors = np.linalg.eigh(seen @ seen.T @ without_noise @ seen @ seen.T)
    return Information(precision, linear, centre, (vectors * np.maximum(values, 0.0)) @ vectors.T)


def _information(
    outcome: Law, cut: Any, *, points: jax.Array, gradients: jax.Array, moments: jax.Array,
    constant: jax.Array, prior: NormalPrior, noise: Any, moments_noise: Any, num_records: Any, seen: jax.Array,
    middle: Any = 0.0, halves: Any = (),
) -> Information:  # fmt: skip
    """See the module."""
    predictors = _Predictors.of(moments, moments_noise, constant, num_records, middle, jnp.asarray(halves, float))

    def misfit(beta: jax.Array) -> jax.Array:
        at = jax.vmap(lambda point, t: _field(predictors, law_at(outcome, t), cut, point, beta))
        return gradients - at(points, jnp.arange(len(points)))

    def basis(beta: jax.Array, slope: jax.Array, doubt: jax.Array) -> _Basis:
        steep, spread, whole, by_moments = _curvatures(predictors, law_at(outcome, -1), cut, beta)
        ratio = jnp.trace(spread) / jnp.trace(steep)
        values, vectors = jnp.linalg.eigh(steep - slope)
        values = jnp.maximum(values, _LEAST * num_records)
        kappa, apart, moved = by_moments * moments_noise, (points - beta) @ vectors, (points - beta) @ seen
        put_back = _field(predictors, law_at(outcome, -1), cut, beta, beta) @ vectors
        same = values * ratio + (_CUT_TRUST * doubts_put_back(outcome) * put_back) ** 2
        known = noise**2 * jnp.eye(len(points)) + kappa**2 * (moved @ moved.T + doubt) + same[:, None, None]
        far = (apart * values) @ apart.T
        far = values[:, None, None] * (far + _BENT**2 * jnp.diag(jnp.diag(far)))
        return _Basis(kappa, vectors, values, known, far, whole - slope)

    def sides(beta: jax.Array, vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The misfit and how it falls with beta, in the basis."""
        by_beta, left = jax.jacfwd(lambda beta: (misfit(beta),) * 2, has_aux=True)(beta)
        return left @ vectors, jnp.einsum("tib,ij->tjb", by_beta, vectors)

    def system(left: jax.Array, by_beta: jax.Array, inverses: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Gradient and Gauss-Newton's precision of the trace's log density."""
        weighted = jnp.einsum("its,sib->tib", inverses, by_beta)
        return -jnp.einsum("tib,ti->b", weighted, left), jnp.einsum("tib,tic->bc", weighted, by_beta)

    def ridged(precision: jax.Array) -> jax.Array:
        """With a little of the data's own scale, which keeps a direction of which they say nothing where it is."""
        return precision + 1e-6 * jnp.trace(precision) * jnp.eye(len(precision))

    def trusted(found: _Basis, left: jax.Array, by_beta: jax.Array) -> jax.Array:
        """Rho^2: its mean, as the trace's restricted likelihood and what is usual have it."""

        def evidence(rho: jax.Array) -> jax.Array:
            inverses = found.inverses(rho**2)
            gradient, precision = system(left, by_beta, inverses)
            precision = ridged(precision)
            fit = jnp.einsum("ti,its,si->", left, inverses, left) - gradient @ jnp.linalg.solve(precision, gradient)
            dets = jnp.linalg.slogdet(precision)[1] - jnp.linalg.slogdet(inverses)[1].sum()
            return -(fit + dets + (jnp.log(rho / LEARNED_TRUST) / _TRUST_SPREAD) ** 2) / 2

        each = jax.lax.map(evidence, jnp.asarray(_TRUSTS))
        return jax.nn.softmax(jnp.where(jnp.isnan(each), -jnp.inf, each)) @ jnp.asarray(_TRUSTS**2)

    def one_round(number: jax.Array, carried: Any) -> Any:
        """Gauss-Newton's next step, or after some of them what the trace says of the slope; and what is known here."""
        (beta, slope, trust, doubt), _ = carried
        found = basis(beta, slope, doubt)
        left, by_beta = sides(beta, found.vectors)
        inverses = found.inverses(trust)
        gradient, precision = system(left, by_beta, inverses)

        def stepped() -> tuple[jax.Array, ...]:
            joint = precision + prior.precision
            step = jnp.linalg.solve(joint, gradient + prior.linear - prior.precision @ beta)

            def density(size: jax.Array) -> jax.Array:
                tried = beta + size * step
                left = misfit(tried) @ found.vectors
                of_prior = 2 * prior.linear @ tried - tried @ prior.precision @ tried
                return of_prior - jnp.einsum("ti,its,si->", left, inverses, left)

            tried = jax.lax.map(density, jnp.asarray(_SIZES))
            size = jnp.asarray(_SIZES)[jnp.argmax(jnp.where(jnp.isnan(tried), -jnp.inf, tried))]
            return beta + size * step, slope, trust, jnp.trace(seen.T @ jnp.linalg.inv(joint) @ seen)

        def learned() -> tuple[jax.Array, ...]:
            by_trace = trusted(found, left, by_beta) if outcome.is_loose else trust
            return beta, _slope(left, points - beta, found, by_trace), by_trace, doubt

        said, pull = _within(found.without_noise, found.kappa * math.sqrt(seen.shape[1]), precision, gradient, seen)
        known = Information(said, pull + said @ beta, beta, found.without_noise)
        return jax.lax.cond(number % (_ROUNDS_A_SLOPE + 1) == _ROUNDS_A_SLOPE, learned, stepped), known

    # all in one loop, whose last round is for what is known alone: what is traced once takes three quarters to compile
    nothing, square = jnp.zeros((), points.dtype), jnp.zeros_like(prior.precision)
    start = points[-1], square, nothing + usual_trust(outcome) ** 2, nothing
    unknown = Information(square, jnp.zeros_like(points[-1]), points[-1], square)
    rounds = _ROUNDS + _ROUNDS // _ROUNDS_A_SLOPE + 1
    return jax.lax.fori_loop(0, rounds, one_round, (start, unknown))[1]


def usual_trust(outcome: Law) -> float:
    """Rho before a trace says more of it."""
    return LEARNED_TRUST if outcome.is_loose else TRUST


def expected_trust(outcome: Law) -> float:
    """The root of what rho^2 is on average, where a trace says nothing of it."""
    return usual_trust(outcome) * (math.exp(_TRUST_SPREAD**2) if outcome.is_loose else 1.0)


def _within(most: Any, hidden: Any, precision: Any, gradient: Any, seen: Any) -> tuple[jax.Array, jax.Array]:
    """A precision of which no direction has more than `most`, and the gradient that leaves the estimate where it is.

    Both have what is across directions that no record says anything of: there `most` is noise alone, and a direction
    with a little of one of them would be left nothing. So would one that noise hides: `most` may be off by `hidden`.
    """
    most, precision = (seen.T @ (of + of.T) @ seen / 2 for of in (most, precision))
    values, vectors = jnp.linalg.eigh(most + hidden * jnp.eye(len(most)))
    root, inverse = ((vectors * jnp.maximum(values, 1e-9 * values[-1]) ** power) @ vectors.T for power in (0.5, -0.5))
    values, vectors = jnp.linalg.eigh(inverse @ precision @ inverse)
    left = seen @ root @ (vectors / jnp.maximum(values, 1.0)) @ vectors.T @ inverse
    within = left @ precision @ seen.T
    return (within + within.T) / 2, left @ seen.T @ gradient


class _Basis(NamedTuple):
    """What the covariances of the trace's coordinates are made of.

    kappa: of the moments' noise.
    vectors: of H `[d, d]`.
    values: of H `[d]`.
    known: K_i without the part of rho `[d, T, T]`.
    far: that part over rho^2 `[d, T, T]`.
    without_noise: J of residuals that nothing cuts, with the slope's mean `[d, d]`.
    """

    kappa: Any
    vectors: jax.Array
    values: jax.Array
    known: jax.Array
    far: jax.Array
    without_noise: jax.Array

    def inverses(self, trust: Any) -> jax.Array:
        """Of K_i at rho^2 `[d, T, T]`."""
        return jnp.linalg.inv(self.known + trust * self.far)


def _slope(left: jax.Array, apart: jax.Array, found: _Basis, trust: Any) -> jax.Array:
    """The mean of D given the trace `[d, d]`, made symmetric: by how much the slope of G is above that of F."""
    vectors, values = found.vectors, found.values
    weights = jnp.einsum("its,si->ti", found.inverses(trust), left)
    of_moments = found.kappa**2 * apart.T @ weights
    of_trust = trust * ((vectors * values) @ vectors.T @ apart.T @ weights) * values
    slope = (of_moments + of_trust) @ vectors.T
    return (slope + slope.T) / 2


class _Predictors(NamedTuple):
    """Gaussian x, offsets behind: mean `[d + k]` and covariance `[d + k, d + k]`, and N.

    middle: what is added to every record's predictor.
    halves: the coefficients of the offsets `[k]`.
    """

    mean: jax.Array
    covariance: jax.Array
    num_records: Any
    middle: Any
    halves: jax.Array

    @classmethod
    def of(
        cls, moments: jax.Array, noise: Any, constant: jax.Array, num_records: Any, middle: Any, halves: jax.Array
    ) -> _Predictors:
        """Of the moments without their noise's part; the mean is what x'constant = 1 says."""
        constant = jnp.concatenate([constant, jnp.zeros_like(halves)])
        values, vectors = jnp.linalg.eigh((moments + moments.T) / 2)
        edge = len(moments) * noise**2 / 4
        within = jnp.sqrt(jnp.maximum(values**2 - edge, 0.0))
        values = jnp.where((values > 0) & (values**2 > edge), (values + within) / 2, 0.0)
        seen = (vectors * jnp.maximum(values, _LEAST * num_records)) @ vectors.T
        mean = seen @ constant / jnp.maximum(constant @ seen @ constant, 1.0)
        values, vectors = jnp.linalg.eigh(seen / num_records - jnp.outer(mean, mean))
        return cls(mean, (vectors * jnp.maximum(values, 1e-9)) @ vectors.T, num_records, middle, halves)

    def at(self, beta: jax.Array) -> jax.Array:
        """Every column's coefficient `[d + k]`."""
        return jnp.concatenate([beta, self.halves])

    def apart(self, difference: jax.Array) -> jax.Array:
        """Of two `at` `[d + k]`, from that of the learned."""
        return jnp.concatenate([difference, jnp.zeros_like(self.halves)])


def _expected(outcome: Law, cut: Any, eta: jax.Array, truth: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the residual at `eta`, as it is cut, of outcomes at the predictor `truth`."""
    known = outcome.support(truth)
    assert known is not None  # `why_not` asked
    values, probabilities = known
    residual = jnp.clip(outcome.linked_residual(jnp.expand_dims(eta, -1), values), -cut, cut)
    mean = (probabilities * residual).sum(-1)
    return mean, (probabilities * residual**2).sum(-1) - mean**2


def _field(predictors: _Predictors, outcome: Law, cut: Any, point: jax.Array, beta: jax.Array) -> jax.Array:
    """F `[d]`: over beta's predictor and how far the point's is from it, x by linear regression on both."""
    both = jnp.stack([predictors.at(beta), predictors.apart(point - beta)], axis=1)
    # the ridge is where the point is beta itself, or along it
    root = jnp.linalg.cholesky(both.T @ predictors.covariance @ both + 1e-8 * jnp.eye(2))
    middle = both.T @ predictors.mean + jnp.asarray([predictors.middle, 0.0])
    ends = jnp.broadcast_to((ends_of(outcome) - middle[0]) / root[0, 0], _NODES.shape)
    pairs = jnp.stack([jnp.minimum(_PAIRS[:, 0], jnp.repeat(ends, len(_NODES))), jnp.asarray(_PAIRS[:, 1])], axis=1)
    eta = middle + pairs @ root.T
    weighted = _PAIR_WEIGHTS * _expected(outcome, cut, eta.sum(1), eta[:, 0])[0]
    by_pair = jax.scipy.linalg.solve_triangular(root, (predictors.covariance @ both).T, lower=True).T
    found = predictors.num_records * (predictors.mean * weighted.sum() + by_pair @ (pairs.T @ weighted))
    return found[: len(beta)]


def _curvatures(
    predictors: _Predictors, outcome: Law, cut: Any, beta: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """H, J and J of residuals that nothing cuts `[d, d]` at beta, and H's mean weight of xx'.

    Over beta's predictor, given which xx' is of rank one beside a constant.
    """
    number, beta = len(beta), predictors.at(beta)
    width = jnp.sqrt(beta @ predictors.covariance @ beta + 1e-8)
    middle, along = predictors.middle + beta @ predictors.mean, predictors.covariance @ beta / width
    nodes = jnp.minimum(_NODES, (ends_of(outcome) - middle) / width)
    eta, given = middle + width * nodes, predictors.mean + nodes[:, None] * along
    across = predictors.covariance - jnp.outer(along, along)

    def summed(of_node: jax.Array) -> jax.Array:
        weights = _WEIGHTS * of_node
        found = weights.sum() * across + (given * weights[:, None]).T @ given
        return predictors.num_records * found[:number, :number]

    # by how much the mean of psi moves with the predictor that outcomes follow: E[psi d log p / d eta]
    moved = jax.vmap(jax.grad(lambda truth, at: _expected(outcome, cut, at, truth)[0]))(eta, eta)
    spreads = _expected(outcome, cut, eta, eta)[1], _expected(outcome, jnp.inf, eta, eta)[1]
    return summed(moved), summed(spreads[0]), summed(spreads[1]), _WEIGHTS @ moved


# -- the posterior ----------------------------------------------------------------------------------


def _gaussian(found: Information, prior: NormalPrior, rng_key: jax.Array) -> NoiseAwareDraws:
    covariance = np.linalg.inv(found.precision + prior.precision)
    covariance = (covariance + covariance.T) / 2
    mean = covariance @ (found.linear + prior.linear)
    normal = np.asarray(jax.random.normal(rng_key, (NUM_DRAWS // 2, len(mean)), float))
    apart = np.concatenate([normal, -normal]) @ np.linalg.cholesky(covariance).T  # their mean is the posterior's
    without = np.linalg.inv(found.without_noise + prior.precision)
    return NoiseAwareDraws(mean + apart, np.sqrt(np.diag(without)))


def _by_nuts(split: SplitModel, found: Information, rng_key: jax.Array) -> NoiseAwareDraws:
    """Of latents that no part reads by NumPyro's NUTS, compiled once for a model, and exactly of the others given them.

    So there is no funnel of scales and what they are scales of. Where the others are not Gaussian given the rest, as
    with heavy tails, all are drawn by NUTS.
    """
    if "noise-aware nuts" not in split.compiled:
        split.compiled["noise-aware nuts"] = _sampler(split)
    sampler, density, conditional, read, rest = split.compiled["noise-aware nuts"]
    nuts_key, exact_key = jax.random.split(rng_key)
    drawn = _of_one(density, found, nuts_key) if len(rest) == 1 else None
    if drawn is None:
        sampler.run(nuts_key, found.precision, found.linear, init_params={"rest": found.centre[rest]})
        drawn = sampler.get_samples()["rest"]
    draws = np.zeros((NUM_DRAWS, split.num_parameters))
    normal = jax.random.normal(exact_key, (NUM_DRAWS, len(read)), float)
    draws[:, rest], draws[:, read] = drawn, conditional(drawn, normal, found.precision, found.linear)
    bends = -np.asarray(jax.hessian(split.log_prior)(jnp.asarray(draws.mean(0))))
    values, vectors = np.linalg.eigh(found.without_noise + bends)
    without = (vectors / np.maximum(values, 1e-9)) @ vectors.T
    return NoiseAwareDraws(draws, np.minimum(np.sqrt(np.maximum(np.diag(without), 0.0)), draws.std(0)))


def _of_one(density: Callable[..., jax.Array], found: Information, rng_key: jax.Array) -> np.ndarray | None:
    """Draws of the only number of the rest `[S, 1]`, as the scale of a hierarchy, by its distribution function.

    On grids that close in on where its density is; None where that is wider than the first.
    """
    low, high = -_WIDE, _WIDE
    for number in range(_CLOSER):
        grid = np.linspace(low, high, _POINTS)
        known = np.nan_to_num(np.asarray(density(grid[:, None], found.precision, found.linear)), nan=-np.inf)
        inside = np.flatnonzero(known > known.max() - _NOTHING)
        if number == 0 and (inside[0] == 0 or inside[-1] == len(grid) - 1):
            return None
        low, high = grid[max(inside[0] - 1, 0)], grid[min(inside[-1] + 1, len(grid) - 1)]
    chances = np.exp(known - known.max())
    below = np.concatenate([[0.0], np.cumsum(chances[1:] + chances[:-1])])
    within, order = jax.random.split(rng_key)
    strata = (np.arange(NUM_DRAWS) + np.asarray(jax.random.uniform(within, (NUM_DRAWS,)))) / NUM_DRAWS
    drawn = np.interp(strata, below / below[-1], grid)
    return np.asarray(jax.random.permutation(order, drawn))[:, None]


def _sampler(
    split: SplitModel,
) -> tuple[MCMC, Callable[..., jax.Array], Callable[..., jax.Array], np.ndarray, np.ndarray]:
    """NUTS over the rest, their log density, draws of what is read given them, and the places of both."""
    size = split.num_parameters
    read = split.read if normal_given_rest(split) else np.zeros(0, int)
    rest = np.setdiff1d(np.arange(size), read)

    def given(others: Any, precision: jax.Array, linear: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The log density of the rest, what is read integrated out; its mean, and its precision's root."""

        def density(own: jax.Array) -> jax.Array:
            flat = jnp.zeros(size).at[rest].set(others).at[read].set(own)
            return linear @ flat - flat @ precision @ flat / 2 + split.log_prior(flat)

        zeros = jnp.zeros(len(read))
        if not len(read):
            return density(zeros), zeros, jnp.zeros((0, 0))
        root = jnp.linalg.cholesky(-jax.hessian(density)(zeros))
        half = jax.scipy.linalg.solve_triangular(root, jax.grad(density)(zeros), lower=True)
        mean = jax.scipy.linalg.solve_triangular(root.T, half)
        return density(zeros) + half @ half / 2 - jnp.log(jnp.diag(root)).sum(), mean, root

    def model(precision: jax.Array, linear: jax.Array) -> None:
        others: Any = numpyro.sample("rest", dist.ImproperUniform(dist.constraints.real_vector, (), (len(rest),)))
        with numpyro.handlers.block():  # or the user's own sites would be NUTS's, too, and the prior count twice
            density, _, _ = given(others, precision, linear)
        numpyro.factor("trace", density)

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, None, None))
    def conditional(others: jax.Array, normal: jax.Array, precision: jax.Array, linear: jax.Array) -> jax.Array:
        _, mean, root = given(others, precision, linear)
        return mean + jax.scipy.linalg.solve_triangular(root.T, normal) if len(read) else mean

    kernel = NUTS(model, target_accept_prob=0.95, dense_mass=True)
    sampler = MCMC(kernel, num_warmup=_WARMUP, num_samples=NUM_DRAWS, progress_bar=False, jit_model_args=True)
    densities = jax.jit(jax.vmap(lambda *of: given(*of)[0], (0, None, None)))
    return sampler, densities, conditional, read, rest
