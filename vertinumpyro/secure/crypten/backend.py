"""The backend `crypten`: what it states, its range proof, and its processes, the dealer's and the parties'."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, final

import numpy as np

from vertinumpyro.core.errors import BackendError
from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.core.validation import check_fields
from vertinumpyro.secure.backend import BackendInfo
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost, OnRecord, PartyProtocol, Watch, dry_run
from vertinumpyro.secure.committed_sum import is_opening
from vertinumpyro.secure.computation import ClippedSum, Computation, CrossProducts, VectorSum
from vertinumpyro.secure.crypten import compat, number_formats
from vertinumpyro.secure.crypten.dealer import Correlations, DealerClient, FirstPartyDealer, serve
from vertinumpyro.secure.input_bounds import SCORE_BOUND
from vertinumpyro.secure.input_encoding import PartyInputs, PriorInputs
from vertinumpyro.secure.keystream import KEY_BYTES, fresh_key
from vertinumpyro.secure.number_formats import check_clip, fixed_point_format
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.transport import Communicator, Link, LoopbackLink, Member, Traffic, all_gather


def run_dealer(communicator: Communicator) -> None:
    """The dealer's process: sees shapes and its own randomness, nothing else."""
    links = [communicator.links[rank] for rank in sorted(communicator.links)]
    for link in links:
        link.wait_forever()  # between two computations nobody asks; a party that dies breaks its link
    serve(links)


def first_party_dealer(communicator: Communicator) -> FirstPartyDealer:
    """NOT secure: party 0 deals, so it could read everything."""
    key = fresh_key()
    if communicator.rank > 0:
        communicator.links[0].send(key)
        return FirstPartyDealer(key, communicator.rank, [])
    others = [bytes(link.receive(size=KEY_BYTES)) for link in communicator.peers.values()]
    return FirstPartyDealer(key, communicator.rank, [key, *others])


def third_party_dealer(communicator: Communicator, *, prefetch: bool = True) -> DealerClient:
    """This party's side of the dealer, who sits behind the parties."""
    return DealerClient(fresh_key(), communicator.rank, communicator.links[communicator.num_parties], prefetch=prefetch)


@final
class CryptenEnd(PartyProtocol):
    """A party's end, in its own process.

    :param links: to the other parties.
    :param watch: called with every opened array and why it was opened; for tests.
    :param verifies: hold the others to the form of their matrices where it is known.
    """

    def __init__(
        self,
        rank: int,
        links: Mapping[int, Link],
        dealer: Correlations,
        *,
        watch: Watch | None = None,
        verifies: bool = True,
    ) -> None:
        from vertinumpyro.secure.crypten.engine import Engine

        self.rank, self.num_parties = rank, len(links) + 1
        self.verifies_tables = verifies and isinstance(dealer, DealerClient)
        self._engine = Engine(rank, links, dealer, watch)

    @property
    def traffic(self) -> Traffic:
        return self._engine.traffic

    @property
    def dealer_traffic(self) -> Traffic:
        return self._engine.dealer.traffic

    def close(self) -> None:
        if isinstance(self._engine.dealer, DealerClient):
            self._engine.dealer.close()

    def _set_on_record(self, on_record: OnRecord | None) -> None:
        self._engine.on_record = on_record

    def open(self, message: bytes) -> np.ndarray:
        from vertinumpyro.secure.crypten import protocol

        if is_opening(message):
            return protocol.open_again(self._engine, message)
        return self._engine.open(message).numpy()

    def _everyones(self, digest: bytes) -> Sequence[bytes]:
        found = all_gather(self._engine.links, self.rank, digest)
        for theirs in (*found[: self.rank], *found[self.rank + 1 :]):
            self._engine.observed("digest", np.frombuffer(theirs, "<i8"))
        return found

    def _clipped_noisy_sum(
        self, clipped: ClippedSum, own: Iterable[PartyInputs], prior: PriorInputs, mask: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        from vertinumpyro.secure.crypten import protocol

        return protocol.clipped_noisy_sum(self._engine, clipped, own, prior, mask, noise)

    def _noisy_cross_products(self, computation: CrossProducts, matrix: Factor, noise_share: np.ndarray) -> np.ndarray:
        from vertinumpyro.secure.crypten import protocol

        if computation.form is not None:
            return protocol.verified_cross_products(self._engine, computation, matrix, noise_share)
        return protocol.noisy_cross_products(self._engine, computation, matrix, noise_share)

    def _noisy_sum(self, computation: VectorSum, noisy_vector: np.ndarray) -> np.ndarray:
        from vertinumpyro.secure.crypten import protocol

        if self.verifies_tables:
            return protocol.verified_sum(self._engine, computation, noisy_vector)
        return protocol.noisy_sum(self._engine, noisy_vector)

    def all_hold(self, digest: bytes) -> bool | None:
        dealer = self._engine.dealer
        return dealer.all_hold(digest) if isinstance(dealer, DealerClient) else None

    def bands(self, vector: np.ndarray, thresholds: Sequence[int], bits: int) -> np.ndarray:
        from vertinumpyro.secure.crypten import comparison

        return comparison.bands(self._engine, vector, thresholds, bits)


@dataclasses.dataclass(frozen=True)
class Crypten(BetweenProcesses):
    """CrypTen 0.4.1's secret sharing between processes, with a third process as the dealer of randomness.

    Formal guarantee: every record adds an integer vector of L2 norm at most clip_norm 2^f to the revealed sum,
    whatever the columns hold and however truncations round (`number_formats`); no step can fail, so nothing is added to
    delta. Security is semi-honest: processes that follow the protocol, and of whom the dealer colludes with nobody,
    learn the noisy sum and nothing else, as long as AES-256 is a pseudo-random permutation.

    A run with every party's columns in its own process alone is `vertinumpyro fit --backend crypten`
    (`vertinumpyro.session`); `InsecureSimulation(Crypten())` runs the protocol on numbers that one process holds.

    :ivar dealer: "third_party", a process of its own; or "first_party" in a rehearsal, to measure what that process
        costs: party 0 deals and could read everything.
    :ivar prefetch: ask the dealer a step ahead; False asks at every product, to measure the gain in a rehearsal.
    :ivar security: "malicious" holds tables across parties, products of numbers within public bounds (moments) and
        sums against parties that do not follow the protocol, whatever else they do (`secure.verified_tables`,
        `secure.committed_sum`); "semi-honest" leaves that out: a party that sends made-up numbers in the place of its
        columns then reads others' records, and nobody notices. Steps, comparisons and predictions are semi-honest with
        either.
    """

    option: ClassVar[str] = "crypten"
    libraries: ClassVar[tuple[str, ...]] = ("vertinumpyro.secure.crypten.protocol",)

    dealer: Literal["third_party", "first_party"] = "third_party"
    prefetch: bool = True
    security: Literal["malicious", "semi-honest"] = "malicious"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def verifies_tables(self) -> bool:
        """As `security` says, with a dealer that is no party."""
        return self.security == "malicious" and self.dealer == "third_party"

    def info(self) -> BackendInfo:
        third_party = self.dealer == "third_party"
        tables = (
            ", and for tables across parties, products of numbers within public bounds and sums, but not for steps and "
            "predictions, any that do not follow the protocol"
            if self.verifies_tables
            else ""
        )
        return BackendInfo(
            name="crypten",
            security_model=f"semi-honest parties{tables}; one process each, and a dealer that colludes with no party"
            if third_party
            else "none: party 0 deals and can read everything",
            who_learns_what="every party learns the noisy sum; the dealer learns shapes only; links within "
            "one machine are not encrypted, those between organisations are",
            dealer="third party: a process of its own, without data; its randomness is AES-256 under keys from the "
            "operating system"
            if third_party
            else "first party: party 0, which is insecure",
            ring="integers modulo 2^64, additive shares of all parties; products of 64 bits",
            precision="weights 30 fractional bits, exponentials 20, scores up to 24, log densities 21; truncation "
            "never fails; the clip keeps back at most 1 % for roundings, of "
            "large regressions 4 %",
        )

    def missing(self) -> str | None:
        return None if compat.is_installed() else compat.MISSING

    def rehearsal_only(self) -> str | None:
        """A dealer that is a party, or one that is asked at every product."""
        if self.dealer == "first_party":
            return "dealer='first_party' lets party 0 read everything (choose 'third_party')"
        return None if self.prefetch else "prefetch=False is there to measure what prefetching gains"

    def helpers(self, num_parties: int) -> list[Member]:
        return [Member(name="the dealer", run=run_dealer)] if self.dealer == "third_party" else []

    def end(self, communicator: Communicator, num_parties: int, watch: Watch | None = None) -> PartyProtocol:
        if watch is None:
            self.check_release()
        third_party = self.dealer == "third_party"
        dealer = (
            third_party_dealer(communicator, prefetch=self.prefetch)
            if third_party
            else first_party_dealer(communicator)
        )
        return CryptenEnd(communicator.rank, communicator.peers, dealer, watch=watch, verifies=self.verifies_tables)

    def cost(self, computation: Computation, *, rank: int = 0) -> Cost:
        """Counted by running the protocol with nobody at the other end."""
        self.check_release()
        if missing := self.missing():
            raise BackendError(missing)
        links = {other: LoopbackLink(Traffic()) for other in range(computation.num_parties) if other != rank}
        dealer = DealerClient(fresh_key(), rank, LoopbackLink(Traffic()))
        return dry_run(CryptenEnd(rank, links, dealer, verifies=self.verifies_tables), computation)

    def grid_bits(self, shape: BatchShape) -> int:
        """The grid of `FixedPoint`.

        :raises RangeError: also if the squared norms do not fit, or the clip would have to keep back more than 1 %,
            a party's own more than 4 %.
        """
        check_clip(shape)
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
        return number_formats.error_bound(shape, score_norm=score_norm)
