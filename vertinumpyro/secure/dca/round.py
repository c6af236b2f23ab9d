"""The public facts of one round of Algorithm 1, which clients, compute nodes and aggregator agree on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from typing import final

from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.privacy.client_plan import ClientPlan
from vertinumpyro.privacy.noise_shares import SMALLEST_SHARE
from vertinumpyro.secure.dca.shares import check_nodes

__all__ = ["Round"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """One noisy sum.

    Attributes:
        clients: the names of all clients that were asked.
        nodes: the names of the compute nodes; at least one of them keeps to the protocol.
        num_values: d.
        share_variance: the variance of each client's noise share, in grid units².
        max_unreliable: T, for clients that drop out and clients that collude together. The sum is refused when more
            than T drop out, since every missing client takes its noise share along.
        round_id: a random name, made here; every message carries it.
    """

    clients: tuple[str, ...]
    nodes: tuple[str, ...]
    num_values: int
    share_variance: int
    max_unreliable: int = 0
    round_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        """Refuses names that repeat and numbers outside the documented ranges."""
        for name in ("clients", "nodes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ArgumentError(f"{name} must have different names")
        check_nodes(len(self.nodes))
        if not 0 <= self.max_unreliable <= len(self.clients) - 2:
            raise ArgumentError(
                f"max_unreliable must lie between 0 and {len(self.clients) - 2}, the number of clients less two: "
                "one client's noise is no secret to itself, and another's must remain"
            )
        if self.num_values < 1 or self.share_variance < SMALLEST_SHARE:
            raise ArgumentError(f"num_values must be at least 1 and share_variance at least {SMALLEST_SHARE}")

    @classmethod
    def of_plan(cls, plan: ClientPlan, *, clients: tuple[str, ...], nodes: tuple[str, ...], num_values: int) -> Round:
        """A round with the noise shares of a plan."""
        if len(clients) != plan.num_clients:
            raise ArgumentError(f"clients must be {plan.num_clients} names, as the plan says, got {len(clients)}")
        return cls(
            clients=clients,
            nodes=nodes,
            num_values=num_values,
            share_variance=plan.noise_variance_per_share(),
            max_unreliable=plan.max_unreliable,
        )

    def fingerprint(self) -> str:
        """A digest of everything above; it is authenticated with every message."""
        content = json.dumps(dataclasses.asdict(self), sort_keys=True).encode()
        return hashlib.sha256(content).hexdigest()

    def check_counted(self, counted: frozenset[str]) -> None:
        """Whether a sum over these clients may be revealed.

        Raises:
            PrivacyError: a stranger among them, or more than T clients missing.
        """
        if not counted <= set(self.clients):
            raise PrivacyError("counted names a client that was not asked in this round")
        missing = len(self.clients) - len(counted)
        if missing > self.max_unreliable:
            raise PrivacyError(
                f"{missing} clients are missing and the noise covers {self.max_unreliable}: the sum stays secret. "
                "Start a new round with the clients that are left, or plan with a larger max_unreliable"
            )
