"""Survival across parties: a proportional hazard whose time, event and baseline are one party's, predictors anybody's.

The hazard at time t is exp(eta + a_j), eta the sum of what all parties' columns add and a_j the log baseline in the
interval j of t. With L(t) = sum_j exp(a_j) exposure_j, the baseline's cumulative hazard from entry to t, a record's log
likelihood is d (eta + a_j(t)) - exp(eta) L(t), d whether the event was seen. It is written as two factors,

    [d (eta + log L(t)) - exp(eta + log L(t))]  +  d (a_j(t) - log L(t)),

of which the first is that of a count d with the rate exp(eta + log L(t)): one sum of all parties, one bounded residual.
The second is the party's own, times d, which it knows: a sum of one part (`OwnFactor`) whose residual is d itself. So
both go through one clip, whose proof holds for several residuals of any sign (`secure.number_formats`), and the scores
of a are bounded: those of log L are the intervals' parts of L, which add up to 1. One record is one person; a row for
each person and interval would be as many records of one person, and multiply epsilon.

::

    hazard = vnp.PiecewiseHazard((1.0, 2.0, 5.0))
    a = numpyro.sample("a", dist.Normal(-2.0, 2.0).expand([4]).to_event(1))
    own = hazard.log_cumulative(a, time) + data["dose"] * w
    eta = vnp.party_sum("eta", {"clinic": own, "insurer": data["visits"] * v})
    when = vnp.party_sum("when", {"clinic": hazard.log_density(a, time)})
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("event", dist.Poisson(jnp.exp(eta)), obs=data["event"])
        numpyro.sample("when it was", vnp.OwnFactor(when), obs=data["event"])
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, constraints

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Column

_SHORTEST = 1e-5  # of a unit of time, or of the entry: an exposure is never 0, whose logarithm is no number


class OwnFactor(Distribution):
    """What `numpyro.factor` is, counted where a column says so: log_prob(y) = y log_factor, y from 0 to 1.

    For the part of a likelihood that one party's columns and latents make up; `log_factor` is a `party_sum` of one
    part. It is no distribution of y, and draws ones.

    :param log_factor: `[N]`.
    """

    arg_constraints = {"log_factor": constraints.real}  # noqa: RUF012, as NumPyro's own
    pytree_data_fields = ("log_factor",)

    def __init__(self, log_factor: Any, *, validate_args: bool | None = None) -> None:
        self.log_factor = log_factor
        super().__init__(jnp.shape(log_factor), (), validate_args=validate_args)

    @property
    def support(self) -> Any:
        """From 0 to 1."""
        return constraints.unit_interval

    def log_prob(self, value: Any) -> jax.Array:
        """The factor's, times y."""
        return value * self.log_factor

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Ones."""
        return jnp.ones(sample_shape + self.batch_shape)


@final
@dataclasses.dataclass(frozen=True)
class PiecewiseHazard:
    """A baseline hazard that is constant between public times.

    :ivar cutpoints: positive and rising; none for a hazard that is the same at all times. There is one interval more.
    :raises ArgumentError: they are not.
    """

    cutpoints: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        ends = (0.0, *self.cutpoints, math.inf)
        if not all(low < high for low, high in itertools.pairwise(ends)):
            raise ArgumentError(f"cutpoints must be positive, finite and rising, got {self.cutpoints}")

    @property
    def num_intervals(self) -> int:
        """How many log hazards there are."""
        return len(self.cutpoints) + 1

    def exposure(self, time: Any, entry: Any = 0.0) -> jax.Array:
        """How long each interval was lived through between entry and time, `[N, J]`.

        :param time: of the event, or until when none was seen, `[N]`.
        :param entry: from when on it would have been seen: a person who had it before is in no table.
        """
        low, high = jnp.array([0.0, *self.cutpoints]), jnp.array([*self.cutpoints, jnp.inf])
        entry = jnp.maximum(jnp.asarray(entry, float), 0.0)
        time = jnp.maximum(jnp.asarray(time, float), entry + _SHORTEST * (1 + entry))
        return jnp.clip(time[..., None], low, high) - jnp.clip(entry[..., None], low, high)

    def log_cumulative(self, log_hazard: Any, time: Any, entry: Any = 0.0) -> jax.Array:
        """Log of the baseline's cumulative hazard between entry and time, `[N]`.

        :param log_hazard: of each interval, `[J]`.
        """
        return jnp.log(self.exposure(time, entry) @ jnp.exp(log_hazard))

    def log_density(self, log_hazard: Any, time: Any, entry: Any = 0.0) -> jax.Array:
        """Log of the baseline's hazard at a time over its cumulative hazard until then, `[N]`."""
        interval = jnp.searchsorted(jnp.array(self.cutpoints), jnp.asarray(time, float), side="left")
        return jnp.asarray(log_hazard)[interval] - self.log_cumulative(log_hazard, time, entry)


def table_numbers(column: Column, values: Any) -> Any:
    """Numbers in model units as they are in the table, of NumPy's arrays or JAX's; None of what is no number."""
    xp = jnp if isinstance(values, jax.Array) else np
    if column.kind == "count":
        return values
    if column.kind == "real":  # linear between so many points, whatever the column's transform
        grid = np.linspace(*column.encoded_range, _GRID)
        return xp.interp(values, grid, column.numbers(grid))
    middles = column.middles
    return None if middles is None else xp.asarray(middles, float)[xp.asarray(values, int)]


_GRID = 1025
