"""One thing that a plan pays for."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from vertinumpyro.privacy.accounting import PrivacyEvent

if TYPE_CHECKING:
    from vertinumpyro.privacy.adversary import Adversary

__all__ = ["Release"]


class Release(abc.ABC):
    """Something noisy that leaves the parties. Public facts alone; data passes through methods of subclasses.

    What it costs is an event of its own kind for each adversary: a Gaussian, a sampled Gaussian, a pure-epsilon
    mechanism, an encoder. How the events of several releases compose is the plan's business.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What is released, in words, as messages about lost or spent steps call it."""

    @property
    def num_steps(self) -> int:
        """How many steps of a ledger it takes."""
        return 1

    @abc.abstractmethod
    def event(self, adversary: Adversary) -> PrivacyEvent:
        """What the adversary observes of this release alone."""
