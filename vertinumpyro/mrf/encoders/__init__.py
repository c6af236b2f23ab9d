"""Every encoder by its name, and a plan with one of them.

Short because it is the table of encoders alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from vertinumpyro.core.errors import ArgumentError, UnprovenError
from vertinumpyro.mrf.encoders.base import Encoding
from vertinumpyro.mrf.encoders.randomized_response import ResponseDesign
from vertinumpyro.mrf.encoders.shared_key import SharedKeyDesign
from vertinumpyro.mrf.encoders.sketch import SketchEncoding
from vertinumpyro.privacy import PrivacyWarning

SECURE_MARGINALS = "secure_marginals"
"""No encoder: cross-party tables come from a secure product."""

ENCODERS: dict[str, type[Encoding]] = {kind.name: kind for kind in (SketchEncoding, ResponseDesign, SharedKeyDesign)}
"""Every encoder whose reports go to a server."""


def encoder_names() -> list[str]:
    """What `VertiMRF.encoder` may be."""
    return [SECURE_MARGINALS, *ENCODERS]


def check_encoder(name: str, *, allow_unproven: bool) -> None:
    """Refuses what is no encoder, and one without a guarantee that nobody asked for; warns of one that was.

    :raises ArgumentError: there is no such encoder; lists them.
    :raises UnprovenError: it has no privacy guarantee, and the opt-in is missing.
    """
    if name not in encoder_names():
        raise ArgumentError(f"encoder must be one of {encoder_names()}, got {name!r}")
    if not (why := _unproven(name)):
        return
    unproven = "; ".join(why)
    if not allow_unproven:
        proved = " or ".join(repr(other) for other in encoder_names() if not _unproven(other))
        raise UnprovenError(
            f"encoder={name!r} has no privacy guarantee: {unproven}. Choose {proved}; for comparison on public data "
            "set allow_unproven=True"
        )
    warnings.warn(f"encoder={name!r}: {unproven}. For public data only", PrivacyWarning, stacklevel=5)


def _unproven(name: str) -> tuple[str, ...]:
    return ENCODERS[name].unproven if name in ENCODERS else ()


def encoder_of(encoding: Encoding | None) -> str:
    """The encoder's name; without an encoding, cross-party tables are secure marginals."""
    return SECURE_MARGINALS if encoding is None else encoding.name


def encoding_from_dict(record: Mapping[str, Any]) -> Encoding:
    """The encoding that `Encoding.to_dict` wrote."""
    settings = dict(record)
    kind = settings.pop("kind", None)
    if kind not in ENCODERS:
        raise ArgumentError(f"encoding: unknown kind {kind!r}; choose one of {list(ENCODERS)}")
    return ENCODERS[kind](**settings)
