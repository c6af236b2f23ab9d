"""The backend `crypten`: what it states, its range proof, its processes."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from vertinumpyro.core.arguments import check_fields
from vertinumpyro.core.errors import BackendError
from vertinumpyro.secure.backend import BackendInfo, BatchShape
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost, dry_run
from vertinumpyro.secure.computation import Computation
from vertinumpyro.secure.crypten import compat, formats
from vertinumpyro.secure.crypten.dealer import DealerClient
from vertinumpyro.secure.crypten.member import CryptenEnd, first_party_dealer, run_dealer, third_party_dealer
from vertinumpyro.secure.keystream import fresh_key
from vertinumpyro.secure.local import SCORE_BOUND
from vertinumpyro.secure.party_end import PartyEnd, Watch
from vertinumpyro.secure.range_proof import fixed_point_format
from vertinumpyro.transport import Member, Nobody, Seat, Traffic

__all__ = ["Crypten"]


@dataclasses.dataclass(frozen=True)
class Crypten(BetweenProcesses):
    """CrypTen 0.4.1's secret sharing between processes, with a third process as the dealer of randomness.

    Formal guarantee: every record adds an integer vector of L2 norm at most clip_norm 2^f to the revealed sum,
    whatever the columns hold and however truncations round (`formats`); no step can fail, so nothing is added to
    delta. Security is semi-honest: processes that follow the protocol, and of whom the dealer colludes with nobody,
    learn the noisy sum and nothing else, as long as AES-256 is a pseudo-random permutation.

    A run with every party's columns in its own process alone is `vertinumpyro fit --backend crypten`
    (`vertinumpyro.session`); `InsecureRehearsal(Crypten())` runs the protocol on numbers that one process holds.

    :ivar dealer: "third_party", a process of its own; or "first_party" in a rehearsal, to measure what that process
        costs: party 0 deals and could read everything.
    :ivar prefetch: ask the dealer a step ahead; False asks at every product, to measure the gain in a rehearsal.
    """

    option: ClassVar[str] = "crypten"
    libraries: ClassVar[tuple[str, ...]] = ("vertinumpyro.secure.crypten.protocol",)

    dealer: Literal["third_party", "first_party"] = "third_party"
    prefetch: bool = True

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_fields(self)

    def info(self) -> BackendInfo:
        """Semi-honest parties, third-party dealer."""
        third_party = self.dealer == "third_party"
        return BackendInfo(
            name="crypten",
            security_model="semi-honest parties, one process each, and a dealer that colludes with no party"
            if third_party
            else "none: party 0 deals and can read everything",
            who_learns_what="every party learns the noisy sum; the dealer learns shapes only; links within "
            "one machine are not encrypted, those between organisations are",
            dealer="third party: a process of its own, without data; its randomness is AES-256 under keys from the "
            "operating system"
            if third_party
            else "first party: party 0, which is insecure",
            ring="integers modulo 2^64, additive shares of all parties; products of 64 bits",
            precision="weights 30 fractional bits, exponentials 20, scores 11 to 24, log densities 21; truncation "
            "never fails; the clip keeps back at most 1 % for roundings",
        )

    def missing(self) -> str | None:
        """CrypTen and torch."""
        return None if compat.is_installed() else compat.MISSING

    def rehearsal_only(self) -> str | None:
        """A dealer that is a party, or one that is asked at every product."""
        if self.dealer == "first_party":
            return "dealer='first_party' lets party 0 read everything (choose 'third_party')"
        return None if self.prefetch else "prefetch=False is there to measure what prefetching gains"

    def helpers(self, num_parties: int) -> list[Member]:
        """The dealer."""
        return [Member(name="the dealer", run=run_dealer)] if self.dealer == "third_party" else []

    def end(self, seat: Seat, num_parties: int, watch: Watch | None = None) -> PartyEnd:
        """See `BetweenProcesses.end`."""
        if watch is None:
            self.check_release()
        third_party = self.dealer == "third_party"
        dealer = third_party_dealer(seat, prefetch=self.prefetch) if third_party else first_party_dealer(seat)
        return CryptenEnd(seat.rank, seat.peers, dealer, watch=watch)

    def cost(self, computation: Computation, *, rank: int = 0) -> Cost:
        """Counted by running the protocol with nobody at the other end."""
        self.check_release()
        if missing := self.missing():
            raise BackendError(missing)
        links = {other: Nobody(Traffic()) for other in range(computation.num_parties) if other != rank}
        return dry_run(CryptenEnd(rank, links, DealerClient(fresh_key(), rank, Nobody(Traffic()))), computation)

    def grid_bits(self, shape: BatchShape) -> int:
        """The grid of `FixedPoint`.

        :raises RangeError: also if the squared norms do not fit, or the clip would have to keep back more than 1 %.
        """
        formats.check_clip(shape)
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
        """See `formats`."""
        return formats.error_bound(shape, score_norm=score_norm)
