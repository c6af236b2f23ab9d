"""Every encoder by its name, and a plan with one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.encoding import Encoding
from vertinumpyro.mrf.randomized_response import ResponseDesign
from vertinumpyro.mrf.shared_key import SharedKeyDesign
from vertinumpyro.mrf.sketch_encoder import SketchEncoding

__all__ = ["ENCODERS", "SECURE_MARGINALS", "encoder_names", "encoder_of", "encoding_from_dict"]

SECURE_MARGINALS = "secure_marginals"
"""No encoder: cross-party tables come from a secure product."""

ENCODERS: dict[str, type[Encoding]] = {kind.name: kind for kind in (SketchEncoding, ResponseDesign, SharedKeyDesign)}
"""Every encoder whose reports go to a server."""


def encoder_names() -> list[str]:
    """What `VertiMRF.encoder` may be."""
    return [SECURE_MARGINALS, *ENCODERS]


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
