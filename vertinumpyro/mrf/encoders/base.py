"""Privacy profiles as distributions of losses on a grid, which dp-accounting's FFT composes.

Encoders other than secure marginals: what one costs, against whom it holds, and what it makes of the reports.

A party's reports go to a server, which holds no key; whatever it computes from them is post-processing. So the row of
the outside analyst holds for the server too, as long as it colludes with no party.

Cross-party tables from what parties send to a server: an encoder's reports, then its estimates.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from scipy import special

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.privacy import NeighbouringRelation, PrivacyEvent

_TAIL = 12.0  # standard deviations of the loss: what lies beyond, 1e-33, counts as infinite loss


def on_grid(
    profile: Callable[[np.ndarray], np.ndarray], lowest: float, highest: float, interval: float
) -> pld_pmf.PLDPmf:
    """A loss distribution whose profile is at least `profile` everywhere (connect the dots, pessimistic).

    :param profile: δ at each ε of an array; upper bounds of it will do.
    :param lowest: the grid begins here; smaller losses count as this.
    :param highest: the grid ends here; larger losses count as infinite.
    :param interval: between two losses of the grid.
    """
    steps = np.arange(math.floor(lowest / interval) - 1, math.ceil(highest / interval) + 2)
    deltas = np.maximum(profile(steps * interval), -np.expm1(np.minimum(steps * interval, 0.0)))
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]  # undoes what rounding does to a falling function, upwards
    return pld_pmf.create_pmf_pessimistic_connect_dots(interval, steps, deltas)


def gaussian_pld(mu: float, interval: float) -> pld_lib.PrivacyLossDistribution:
    """N(0, 1) against N(μ, 1), as dp-accounting's own, without a Python loop over the grid."""

    def profile(epsilons: np.ndarray) -> np.ndarray:
        first = special.log_ndtr(mu / 2 - epsilons / mu)
        second = epsilons + special.log_ndtr(-mu / 2 - epsilons / mu)
        return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))

    middle, reach = mu**2 / 2, _TAIL * mu
    return pld_lib.PrivacyLossDistribution(on_grid(profile, middle - reach, middle + reach, interval))


Estimator: TypeAlias = Callable[[CellColumn, CellColumn], tuple[np.ndarray, float]]
"""The contingency table of two columns, and the standard deviation of its cells."""


class Observed(NamedTuple):
    """What an adversary sees of one fit, but for its own columns.

    mu:        the Gaussian parameter of the parties' own tables, at least 0.
    num_pairs: pairs of columns at different parties of which it does not hold both.
    outside:   parties, by position, that are not the adversary.
    """

    mu: float
    num_pairs: int
    outside: tuple[int, ...]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What a plan leaves for an encoder; public.

    :ivar columns: all columns, in cells.
    :ivar parties: their names.
    :ivar num_records: N.
    :ivar num_pairs: pairs of columns at different parties.
    :ivar relation: the neighbouring relation.
    :ivar delta: δ of the plan.
    :ivar mu_squared: what cross-party tables would have as Gaussian releases: a guide for designs.
    :ivar epsilon: what the parties' own tables leave of ε, by subtraction.
    :ivar num_keys: hash keys of each pair of columns, for sketches.
    :ivar holds: whether the whole plan with an encoding keeps its (ε, δ).
    """

    columns: Sequence[CellColumn]
    parties: tuple[str, ...]
    num_records: int
    num_pairs: int
    relation: NeighbouringRelation
    delta: float
    mu_squared: float
    epsilon: float
    num_keys: int
    holds: Callable[[Encoding], bool]


class Reporting(NamedTuple):
    """One run of an encoder, in a simulation. Secret, but for `columns`, `own` and `num_records`.

    columns:     the columns in cells.
    codes:       the cell of every record, by column.
    own:         the parties' released tables, for counts of single columns.
    num_records: N.
    source:      noise, responses and hash keys.
    """

    columns: Sequence[CellColumn]
    codes: Mapping[str, np.ndarray]
    own: Sequence[Measurement]
    num_records: int
    source: RandomSource


class Encoding(abc.ABC):
    """An encoder's public parameters, as a plan holds them. A subclass is a frozen dataclass of plain numbers.

    :cvar name: of the encoder, in settings and records.
    :cvar holds_against_parties: False where a party's own secrets (hash keys) undo what hides the others' values; then
        no ε is claimed against any party.
    :cvar unproven: what of the guarantee is not proved; empty for an encoder fit for a release.
    """

    name: ClassVar[str]
    holds_against_parties: ClassVar[bool]
    unproven: ClassVar[tuple[str, ...]]

    @classmethod
    @abc.abstractmethod
    def calibrated(cls, budget: Budget) -> Encoding:
        """The parameters that use the budget up.

        :raises ArgumentError: ε is out of reach.
        """

    @abc.abstractmethod
    def delta_at(self, epsilon: float, relation: NeighbouringRelation, observed: Observed) -> float:
        """An upper bound of δ(ε) of the reports and the Gaussian tables together; `composed_delta` computes it.

        Without a proof, what is claimed.
        """

    @abc.abstractmethod
    def estimator(self, reporting: Reporting) -> Estimator:
        """Draw every party's reports; what the server estimates from them, for two columns at different parties."""

    @abc.abstractmethod
    def reported_bytes(self, columns: Sequence[CellColumn], num_records: int) -> dict[str, int]:
        """What each party sends to the server for cross-party tables, counted."""

    def estimator_bytes(self, columns: Sequence[CellColumn]) -> int:
        """At most so much memory is taken by what is held of the reports and by one pair's estimate; N aside."""
        return 0

    @abc.abstractmethod
    def secrets(self, owner: str) -> str:
        """What a party knows of the randomness, in words; `owner` is "its own" or "their own"."""

    @final
    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `encoders.encoding_from_dict` reads it."""
        return {"kind": self.name, **dataclasses.asdict(self)}  # type: ignore[call-overload]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedEvent(PrivacyEvent):
    """A Gaussian release of own tables, and one run of an encoder.

    :ivar encoding: the encoder's parameters.
    :ivar observed: what the adversary sees.
    :ivar is_party: whether the adversary is a party, or several.
    """

    encoding: Encoding
    observed: Observed
    is_party: bool

    def delta(self, epsilon: float, relation: NeighbouringRelation) -> float:
        """An upper bound of δ(ε) (for an encoder without a proof what is claimed, which is none)."""
        if self.is_party and not self.encoding.holds_against_parties:
            return 1.0
        return self.encoding.delta_at(epsilon, relation, self.observed)

    def dp_event(self) -> dp_accounting.DpEvent:
        """The Gaussian part, and an event that dp-accounting does not know."""
        gaussian = dp_accounting.GaussianDpEvent(1 / max(self.observed.mu, 1e-12))
        return dp_accounting.ComposedDpEvent([gaussian, dp_accounting.UnsupportedDpEvent()])


def composed_delta(
    loss: pld_lib.PrivacyLossDistribution, mu: float, epsilon: float, *, interval: float, compositions: int
) -> float:
    """δ(ε) of reports and Gaussian tables together, an upper bound.

    :param loss: of all reports, the same object for the same reports: compositions are kept by it.
    :param mu: of the tables; the whole shift, under either relation.
    :param epsilon: ε.
    :param interval: the loss's grid.
    :param compositions: how many losses `loss` adds up, for the roundings of sums and FFT.
    """
    rounding = compositions * 2.0**-50  # as for `PoissonEvent`
    return min(1.0, float(_with_tables(loss, mu, interval).get_delta_for_epsilon(epsilon)) + rounding)


@functools.lru_cache(maxsize=128)
def _with_tables(loss: pld_lib.PrivacyLossDistribution, mu: float, interval: float) -> pld_lib.PrivacyLossDistribution:
    return loss.compose(gaussian_pld(mu, interval)) if mu else loss


def smallest(enough: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """The smallest value in [low, high], up to a relative tolerance and from above, that is enough.

    :raises ArgumentError: not even `high` is.
    """
    if not enough(high):
        raise ArgumentError("epsilon is out of reach for this encoder: raise epsilon or delta, or lower cross_share")
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def encoded_tables(
    dataset: VerticalDataset,
    columns: Sequence[CellColumn],
    encoding: Encoding,
    own: Sequence[Measurement],
    source: RandomSource,
) -> list[Measurement]:
    """Every pair of columns at different parties, estimated from the parties' reports.

    :param dataset: all parties' columns, in a simulation.
    :param columns: the columns in cells.
    :param encoding: the encoder's parameters.
    :param own: the parties' released tables, for counts of single columns.
    :param source: noise, responses and hash keys.
    """
    codes = {c.name: c.codes(dataset.arrays(c.party)) for c in columns}
    return encoded_pairs(encoding, Reporting(columns, codes, own, dataset.num_records, source))


def encoded_pairs(encoding: Encoding, reporting: Reporting) -> list[Measurement]:
    """The same from every column's cells."""
    columns, estimate = reporting.columns, encoding.estimator(reporting)
    found = []
    for a, b in itertools.combinations(columns, 2):
        if a.party != b.party:
            values, stddev = estimate(a, b)
            found.append(Measurement(columns=(a.name, b.name), values=values, stddev=stddev))
    return found
