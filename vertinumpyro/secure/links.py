"""Every score link, by the name that messages between processes have for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vertinumpyro.core.errors import BackendError
from vertinumpyro.secure.joint_link import JointLink
from vertinumpyro.secure.link import ScoreLink, SoftmaxLink
from vertinumpyro.secure.probit_link import BernoulliProbitLink
from vertinumpyro.secure.residual_links import BernoulliLogitLink, NormalLink, OrderedLogitLink, PoissonLink

__all__ = ["LINKS", "link_of"]

_KINDS = (SoftmaxLink, BernoulliLogitLink, BernoulliProbitLink, OrderedLogitLink, NormalLink, PoissonLink, JointLink)

LINKS: dict[str, type[ScoreLink]] = {kind.name: kind for kind in _KINDS}
"""All of them."""


def link_of(words: Mapping[str, Any]) -> ScoreLink:
    """What `ScoreLink.described` wrote.

    :raises BackendError: this version has no such link.
    """
    if words["name"] not in LINKS:
        raise BackendError(f"the link {words['name']!r} is unknown here; run the same versions everywhere")
    if words["name"] == JointLink.name:
        return JointLink(tuple(link_of(of_one) for of_one in words["links"]), tuple(words["owners"]))
    return LINKS[words["name"]](**{name: value for name, value in words.items() if name != "name"})
