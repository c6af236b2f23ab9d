"""The NumPyro model behind `MarginalGLM`: a latent cell for each combination of the features, a label at one party.

What `MarginalGLM` counts at each party: combinations of its own features, made of its own columns, at home.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast, final

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform

from vertinumpyro.data import Column, Schema
from vertinumpyro.model import party_plate
from vertinumpyro.privacy import Plan
from vertinumpyro.regression.dataframe_input import value_texts
from vertinumpyro.session import Method, Run, Session, SessionWrapper

_CERTAIN = 20.0
UNIT = 0.2
"""Of the site of coefficients, so that descents that start within one of zero begin with nearly equal rates."""
COUNTS = ("poisson", "negative_binomial", "zero_inflated_poisson", "zero_inflated_negative_binomial")
"""Families of counts."""
LARGEST_COUNT = 10_000
"""Up to which a label's probabilities are summed, value by value."""


@final
@dataclasses.dataclass(frozen=True)
class Design:
    """Every combination of the features' values, and its row of the design matrix; public.

    :ivar matrix: `[K, d]` of all K combinations, without the intercept.
    :ivar names: of the d coefficients.
    :ivar parts: by party with features, every column that is released of these and its code in each combination; the
        first stands for all of them.
    """

    matrix: np.ndarray
    names: tuple[str, ...]
    parts: Mapping[str, Mapping[str, np.ndarray]]


def design_of(schema: Schema, label: str, features: tuple[str, ...], linear: Iterable[str]) -> Design:
    """Of checked columns; arguments as in `MarginalGLM`."""
    sizes = [schema.columns[name].num_categories for name in features]
    codes = np.array(list(itertools.product(*map(range, sizes))))
    parts, names = [], []
    for place, name in enumerate(features):
        if name in linear:
            parts.append(codes[:, place : place + 1])
            names.append(name)
        else:
            parts.append(np.eye(sizes[place])[codes[:, place]][:, 1:])
            names += [f"{name}={text}" for text in value_texts(schema.columns[name])[1:]]
    of_parties = {}
    for party in schema.parties:
        own = {features[i]: codes[:, i] for i in range(len(features)) if schema.party_of(features[i]) == party}
        if len(own) > 1:
            name = f"features_of_{party}"
            while name in schema.columns:
                name += "_"
            own = {name: np.ravel_multi_index(list(own.values()), [int(c.max()) + 1 for c in own.values()]), **own}
        if own:
            of_parties[party] = own
    return Design(np.concatenate(parts, axis=1).astype(float), tuple(names), of_parties)


def count_groups(upper: int) -> np.ndarray:
    """The first counts of groups of 0..upper, the last of which holds all above it too; public.

    A group is no wider than two standard deviations of a Poisson with such a rate, so that few of them hold nearly all
    that counts tell about their rate: noise is the same in a cell of one value and of many.
    """
    starts = [0]
    while (following := starts[-1] + max(1, math.isqrt(4 * starts[-1]))) <= upper:
        starts.append(following)
    return np.array(starts)


def free_name(name: str, columns: Iterable[str]) -> str:
    """A site's name that no column has."""
    while name in columns:
        name += "_"
    return name


def cell_model(
    data: Mapping[str, Any], num_records: int, *, schema: Schema, label: str, family: str,
    features: tuple[str, ...], linear: tuple[str, ...], prior_scale: float,
) -> None:  # fmt: skip
    """The features' joint distribution over all combinations of their values, and the label's regression on them.

    The latent z is the combination, so each party's features are known given z (but for some e^-20): tables of pairs
    have probabilities in closed form, and no party's site reads another's columns. A count is known by its group.

    :param data: each party's columns in `Design.parts`, and the label, or its `count_groups`; or nothing of it.
    :param num_records: N.
    :param schema, label, family, features, linear, prior_scale: as in `MarginalGLM`.
    """
    design = design_of(schema, label, features, linear)
    free = functools.partial(free_name, columns=(*features, label))
    weights: Any = numpyro.sample(free("combination_weights"), dist.Dirichlet(jnp.ones(len(design.matrix))))
    of_units = dist.Normal(0.0, prior_scale / UNIT).expand([len(design.names)]).to_event(1)
    in_units: Any = numpyro.sample(free("coefficients_in_units"), of_units)
    outcome = _outcome(free, schema.columns[label], family, UNIT * jnp.asarray(design.matrix) @ in_units, prior_scale)
    combinations = cast(dist.Distribution, dist.Categorical(weights))
    with numpyro.plate(free("records"), num_records, dim=-1):
        z: Any = numpyro.sample(free("z"), combinations, infer={"enumerate": "parallel"})
    for party in schema.parties:
        with party_plate(party, num_records):
            for name, codes in design.parts.get(party, {}).items():
                known: Any = dist.Categorical(logits=jnp.asarray(_CERTAIN * np.eye(codes.max() + 1)[codes])[z])
                numpyro.sample(name, known, obs=data.get(name))
            if schema.party_of(label) == party:
                numpyro.sample(label, outcome(z), obs=data.get(label))


def _outcome(free: Callable[[str], str], column: Column, family: str, eta: Any, prior_scale: float) -> Any:
    """From z to the label's distribution; draws what the family has besides the coefficients."""
    if family == "ordinal":
        spread = dist.Normal(0.0, 2.0 * prior_scale).expand([column.num_categories - 1]).to_event(1)
        cutpoints: Any = numpyro.sample(free("cutpoints"), dist.TransformedDistribution(spread, OrderedTransform()))
        return lambda z: dist.OrderedLogistic(eta[z], cutpoints)
    centre = {"normal": 0.5, "gamma": -1.0, **dict.fromkeys(COUNTS, 0.5)}.get(family, 0.0)
    eta = eta + numpyro.sample(free("intercept"), dist.Normal(centre, 2.0 * prior_scale))
    if family == "bernoulli":
        return lambda z: dist.Bernoulli(logits=eta[z])
    if family == "probit":
        return lambda z: dist.Bernoulli(probs=jnp.clip(jax.scipy.special.ndtr(eta), 1e-6, 1 - 1e-6)[z])
    if family == "cloglog":
        return lambda z: dist.Bernoulli(probs=jnp.clip(-jnp.expm1(-jnp.exp(eta)), 1e-6, 1 - 1e-6)[z])
    if family == "gamma":
        shape: Any = numpyro.sample(free("concentration"), dist.LogNormal(0.5, 1.0))
        return lambda z: dist.Gamma(shape, shape * jnp.exp(-eta[z]))
    if family == "normal":
        scale: Any = numpyro.sample(free("scale"), dist.LogNormal(math.log(0.15), 1.0))
        return lambda z: dist.Normal(eta[z], scale)
    # So far above what can be recorded that no descent is held there.
    upper = int(column.encoded_range[1])
    rate = jnp.exp(jnp.minimum(eta, math.log(upper) + 5.0))[:, None]
    if family.endswith("poisson"):
        counts: Any = dist.Poisson(rate)
    else:
        concentration: Any = numpyro.sample(free("concentration"), dist.LogNormal(0.0, 1.5))
        counts = dist.NegativeBinomial2(rate, concentration)
    if family.startswith("zero"):
        counts = dist.ZeroInflatedDistribution(counts, gate=numpyro.sample(free("zeros"), dist.Beta(1.0, 2.0)))
    starts = count_groups(upper)
    below = jnp.exp(counts.log_prob(jnp.arange(starts[-1])))  # [K, values] below the last group
    number = len(starts) - 1
    in_groups = jax.ops.segment_sum(below.T, np.repeat(np.arange(number), np.diff(starts)), number)
    probs = jnp.concatenate([in_groups, jnp.maximum(1.0 - in_groups.sum(0), 0.0)[None]]).T
    return lambda z: dist.Categorical(probs=probs[z])


Words = Mapping[str, Any]


def counted(
    schema: Schema, design: Design, label: str, groups: np.ndarray | None, party: str, columns: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """A party's columns as the tables have them: its features, a column for all of them together, its label. Secret.

    :param schema: of the parties' own columns.
    :param design: names what is counted of the features.
    :param label: the column to predict.
    :param groups: the first counts of the label's groups; None where it is no count.
    :param party: whose columns they are.
    :param columns: encoded, `[N]` each.
    """
    parts = design.parts.get(party, {})
    own = [name for name in parts if name in schema.columns]
    codes = {name: columns[name].astype(np.int32) for name in own}
    found = dict(codes)
    for name in parts.keys() - codes.keys():
        sizes = [schema.columns[feature].num_categories for feature in own]
        found[name] = np.ravel_multi_index(list(codes.values()), sizes).astype(np.int32)
    if schema.party_of(label) == party:
        values = columns[label]
        grouped = groups is not None
        found[label] = (np.searchsorted(groups, values, side="right") - 1).astype(np.int32) if grouped else values
    return found


@final
class CountedSession(SessionWrapper):
    """A session seen as one of the columns that are counted: what parties hold of these, they make themselves.

    :param session: the parties, with the columns that they hold.
    :param schema: of what is counted.
    :param method: makes each party's part from its own columns.
    """

    def __init__(self, session: Session, schema: Schema, method: Method) -> None:
        self._session, self._schema, self._method = session, schema, method

    @property
    def inner(self) -> Session:
        """The parties, with the columns that they hold."""
        return self._session

    @property
    def schema(self) -> Schema:
        """Of what is counted."""
        return self._schema

    @property
    def parties(self) -> tuple[str, ...]:
        """Of what is counted."""
        return tuple(self._schema.parties)

    def open(self, method: Method, plan: Plan, **settings: Any) -> Run:
        """See `Session.open`, with the method that counts."""
        return self._session.open(self._method, plan, **settings)
