"""Encoders other than secure marginals, as a plan sees them: what they cost, and against whom they hold.

A party's reports go to a server, which holds no key; whatever it computes from them is post-processing. So the row of
the outside analyst holds for the server too, as long as it colludes with no party. A party knows the hash keys of
its own sketches, with which nothing but the phantoms hides the others' values: no ε is claimed against it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.loss_grid import gaussian_pld
from vertinumpyro.mrf.randomized_response import ResponseDesign, response_interval, response_pld
from vertinumpyro.mrf.shared_key import UNPROVEN, SharedKeyDesign
from vertinumpyro.mrf.sketch import SketchDesign
from vertinumpyro.mrf.sketch_loss import grid_interval, sketch_pld
from vertinumpyro.privacy import GaussianEvent, NeighbouringRelation, PrivacyEvent

__all__ = [
    "EncodedEvent",
    "EncoderName",
    "Encoding",
    "encoder_of",
    "encoding_from_dict",
    "encoding_to_dict",
    "unproven_steps",
]

EncoderName = Literal["secure_marginals", "sketch", "randomized_response", "sketch_shared_key"]
Encoding = SketchDesign | ResponseDesign | SharedKeyDesign

_KINDS: dict[str, type] = {
    "sketch": SketchDesign,
    "randomized_response": ResponseDesign,
    "sketch_shared_key": SharedKeyDesign,
}
_MOST_COMPOSITIONS = 2**40


def encoding_to_dict(encoding: Encoding) -> dict[str, Any]:
    """Plain data for JSON."""
    return {"kind": encoder_of(encoding), **dataclasses.asdict(encoding)}


def encoder_of(encoding: Encoding | None) -> str:
    """The encoder's name; without an encoding, cross-party tables are secure marginals."""
    return next((name for name, cls in _KINDS.items() if isinstance(encoding, cls)), "secure_marginals")


def encoding_from_dict(record: Mapping[str, Any]) -> Encoding:
    """Restores an equal encoding."""
    settings = dict(record)
    kind = settings.pop("kind", None)
    if kind not in _KINDS:
        raise ArgumentError(f"encoding: unknown kind {kind!r}; choose one of {list(_KINDS)}")
    return _KINDS[kind](**settings)


def unproven_steps(encoding: Encoding | None) -> tuple[str, ...]:
    """What of the encoding's guarantee is not proved."""
    return (UNPROVEN,) if isinstance(encoding, SharedKeyDesign) else ()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedEvent(PrivacyEvent):
    """A Gaussian release of own tables, and one run of an encoder.

    Attributes:
        mu: the Gaussian parameter of the tables, ≥ 0.
        encoding: the encoder's parameters.
        num_pairs: pairs of columns at different parties, for sketches.
        outside: parties, by position, that are not the adversary.
        knows_keys: whether the adversary holds hash keys.
    """

    mu: float
    encoding: Encoding
    num_pairs: int
    outside: tuple[int, ...]
    knows_keys: bool

    def delta(self, epsilon: float, relation: NeighbouringRelation) -> float:
        """An upper bound of δ(ε) (for the paper's own sketches what the paper claims, which is none)."""
        if self.knows_keys and not isinstance(self.encoding, ResponseDesign):
            return 1.0
        if isinstance(self.encoding, SharedKeyDesign):
            rest = epsilon - self.encoding.claimed_epsilon
            tables = GaussianEvent(noise_multiplier=relation.sensitivity / max(self.mu, 1e-12), count=1)
            return 1.0 if rest < 0 else tables.delta(rest, relation)
        rounding = self._compositions * 2.0**-50  # of sums and FFT, as for `PoissonEvent`
        return min(1.0, float(_pld(self, relation).get_delta_for_epsilon(epsilon)) + rounding)

    @property
    def _compositions(self) -> int:
        return self.encoding.num_keys * self.num_pairs if isinstance(self.encoding, SketchDesign) else 2**10

    def dp_event(self) -> dp_accounting.DpEvent:
        """The Gaussian part, and an event that dp-accounting does not know."""
        gaussian = dp_accounting.GaussianDpEvent(1 / max(self.mu, 1e-12))
        return dp_accounting.ComposedDpEvent([gaussian, dp_accounting.UnsupportedDpEvent()])


@functools.lru_cache(maxsize=128)
def _pld(event: EncodedEvent, relation: NeighbouringRelation) -> pld_lib.PrivacyLossDistribution:
    encoding = event.encoding
    if isinstance(encoding, ResponseDesign):
        if relation is not NeighbouringRelation.REPLACE:
            raise ArgumentError('relation: the number of responses is N; randomized_response needs "replace"')
        interval = response_interval(encoding)
        encoded = response_pld(encoding, event.outside)
    elif isinstance(encoding, SketchDesign):
        if encoding.num_keys * event.num_pairs > _MOST_COMPOSITIONS:
            raise ArgumentError(f"num_keys={encoding.num_keys} for {event.num_pairs} pairs of columns are too many")
        interval = grid_interval(encoding, relation)
        encoded = sketch_pld(encoding, event.num_pairs, relation)
    else:
        raise ArgumentError("the paper's sketches have no privacy loss distribution")
    if not event.mu:
        return encoded
    return encoded.compose(gaussian_pld(event.mu, interval))  # μ is the whole shift, under either relation


def smallest(enough: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """The smallest value in [low, high], up to a relative tolerance and from above, that is enough.

    Raises:
        ArgumentError: not even `high` is.
    """
    if not enough(high):
        raise ArgumentError("epsilon is out of reach for this encoder: raise epsilon or delta, or lower cross_share")
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
