"""What a backend with one process per party offers: a party's side of the protocols, and their cost before any data."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.backend import Backend, check_prior
from vertinumpyro.secure.committed_sum import check_public
from vertinumpyro.secure.computation import ClippedSum, Computation, CrossProducts, VectorSum, described
from vertinumpyro.secure.input_encoding import (
    Layout,
    PartyInputs,
    PriorInputs,
    encode_party_traced,
    encode_prior_traced,
)
from vertinumpyro.secure.input_form import InputForm, check_codes, codes_of
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.transport import Communicator, Member, NetworkProfile, Traffic

OnRecord: TypeAlias = Callable[[bytes], None]
"""Called with the message by which a party opens a result, before it is sent."""

Watch: TypeAlias = Callable[[str, np.ndarray], None]
"""Called with everything that is opened: why, and the words. For tests, in a rehearsal."""


class PartyProtocol(abc.ABC):
    """One party's end of the three protocols. Every party calls the same method with its own inputs, in the same order.

    Before anything is opened, all parties compare a digest of what they hold for public: every one of them encodes the
    public numbers by itself, and on other processors floating point may round them to other integers. A product of
    numbers that differ is garbage, and no clip is proved for it. That takes one round.

    A backend sets both numbers and fills in the methods with an underscore.

    :ivar rank: this party's number.
    :ivar num_parties: P.
    :ivar verifies_tables: see `Backend.verifies_tables`.
    """

    rank: int
    num_parties: int
    verifies_tables: bool = False

    @property
    @abc.abstractmethod
    def traffic(self) -> Traffic:
        """Between the parties, and helpers that take part in their rounds; the live counter."""

    @property
    @abc.abstractmethod
    def dealer_traffic(self) -> Traffic:
        """With a dealer, which sends ahead; the live counter, nothing without one."""

    @final
    @contextlib.contextmanager
    def before_opening(self, on_record: OnRecord) -> Iterator[None]:
        """Inside, `on_record` is called with the message by which this party opens a result, before it is sent.

        The message alone is uniform. With everybody's the result is open, so parties that must not open anything
        twice store it first, and tell each other, before one of them sends it.
        """
        self._set_on_record(on_record)
        try:
            yield
        finally:
            self._set_on_record(None)

    @abc.abstractmethod
    def _set_on_record(self, on_record: OnRecord | None) -> None:
        """Where to show such messages from now on; None shows them to nobody."""

    @abc.abstractmethod
    def open(self, message: bytes) -> np.ndarray:
        """The result, int64 flat, from the message that `before_opening` showed: sent again as it was.

        :raises BackendError: this backend cannot open a result a second time.
        """

    def close(self) -> None:  # noqa: B027 (most have nobody to tell)
        """Let helpers know that nothing more comes."""

    @final
    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        layout: Layout,
        own: Iterable[PartyInputs],
        prior: PriorInputs,
        mask: np.ndarray,
        noise_share: np.ndarray,
    ) -> np.ndarray:
        """sum_n clip(g_n, C) + noise on the grid of the backend's `grid_bits`, int64 [D]; see `input_encoding` for g.

        :param own: this party's numbers for each block of the batch, asked for one after the other. Secret.
        :param prior: public; every party has the same.
        :param mask: bool [num_blocks, n], False for padding; every party has the same.
        :param noise_share: this party's noise, int64 [D].
        :raises ArgumentError: mask or noise have another type or shape; or scores of the prior have no part in a clip.
        :raises BackendError: the parties' shapes, priors or masks differ; nothing was opened.
        """
        computation = ClippedSum(shape=shape, layout=layout)
        if mask.dtype != bool or mask.shape != (shape.num_blocks, shape.batch_size):
            wanted = [shape.num_blocks, shape.batch_size]
            raise ArgumentError(f"mask must be bool {wanted}, got {mask.dtype} {list(mask.shape)}")
        self._check(computation, "noise_share", noise_share, (shape.num_values,))
        check_prior(shape, layout.prior)
        self._agree(computation, *prior, mask)
        return self._clipped_noisy_sum(computation, own, prior, mask, noise_share)

    @final
    def noisy_cross_products(
        self, matrix: Factor, widths: Sequence[int], noise_share: np.ndarray, form: InputForm | None = None
    ) -> np.ndarray:
        """A_i^T A_j of all pairs i < j, plus everybody's noise, modulo 2^64; int64 [sum_{i<j} d_i d_j].

        Pairs in the order of `itertools.combinations`, each product row by row.

        :param matrix: this party's A, int64 [n, widths[rank]], or blocks of it, made when they are due. Secret.
        :param widths: d_p, the columns of each party's matrix; public.
        :param noise_share: this party's noise for the whole result.
        :param form: what all matrices are, where there is more to say; public.
        :raises ArgumentError: an array has another type or shape, or the matrix another form.
        :raises BackendError: the parties' shapes differ; or one of them failed a check. Nothing was opened.
        """
        widths = tuple(int(width) for width in widths)
        form = form if self.verifies_tables else None  # all parties do, or none: they compare the computation
        computation = CrossProducts(num_records=len(matrix), widths=widths, form=form)
        shape = (len(matrix), computation.widths[self.rank])
        self._check(computation, "matrix", matrix, shape)
        self._check(computation, "noise_share", noise_share, (computation.num_values,))
        if form is not None:
            for rows in computation.blocks:
                check_codes(codes_of(matrix, form.digits[self.rank], rows), form.digits[self.rank])
        self._agree(computation)
        return self._noisy_cross_products(computation, matrix, noise_share)

    @final
    def noisy_sum(self, vector: np.ndarray, noise_share: np.ndarray, *, of_shares: bool = False) -> np.ndarray:
        """The sum of all parties' vectors and noise shares modulo 2^64, int64 [D].

        :param vector: this party's, int64 [D]. Secret.
        :param noise_share: this party's noise, int64 [D].
        :param of_shares: of tables that were multiplied here. Where those are verified, all is modulo 2^61 - 1.
        :raises ArgumentError: an array has another type or shape.
        :raises BackendError: the parties' shapes differ; nothing was opened.
        """
        of_shares = of_shares and self.verifies_tables
        computation = VectorSum(num_parties=self.num_parties, num_values=vector.size, of_shares=of_shares)
        for name, array in (("vector", vector), ("noise_share", noise_share)):
            self._check(computation, name, array, (vector.size,))
        if not self.verifies_tables:  # a committed sum compares it itself
            self._agree(computation)
        return self._noisy_sum(computation, vector + noise_share)

    def all_hold(self, digest: bytes) -> bool | None:
        """Whether every party gave the same digest, as a helper that is no party says to all.

        Nobody has another's digest then, on which guesses could be tried at home. None without such a helper.

        :param digest: under a key that the helper has not.
        """
        return None

    def bands(self, vector: np.ndarray, thresholds: Sequence[int], bits: int) -> np.ndarray:
        """This party's share, int64 [n], of how many public thresholds t the sum x of all vectors has reached: x >= t.

        Opens nothing but uniform words; a share is uniform without all others'.

        :param vector: this party's numbers, int64 [n]. Secret.
        :param bits: so that |x - t| < 2^bits for every x and t that there may be.
        :raises BackendError: this backend does not compare for one party alone.
        """
        raise BackendError("this backend adds up and does not compare for one party alone; take Crypten()")

    @abc.abstractmethod
    def _everyones(self, digest: bytes) -> Sequence[bytes]:
        """Every party's digest, this one's among them; all have the same size."""

    @abc.abstractmethod
    def _clipped_noisy_sum(
        self, clipped: ClippedSum, own: Iterable[PartyInputs], prior: PriorInputs, mask: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        """The protocol: the blocks' sums are added as shares, and opened with this party's noise."""

    @abc.abstractmethod
    def _noisy_cross_products(self, computation: CrossProducts, matrix: Factor, noise_share: np.ndarray) -> np.ndarray:
        """The protocol: a block of rows at a time, `CrossProducts.blocks`."""

    @abc.abstractmethod
    def _noisy_sum(self, computation: VectorSum, noisy_vector: np.ndarray) -> np.ndarray:
        """The protocol; this party's noise is in its vector."""

    def _check(self, computation: Computation, name: str, array: Factor, shape: tuple[int, ...]) -> None:
        if computation.num_parties != self.num_parties:
            raise ArgumentError(f"there are {self.num_parties} parties here, and {computation.num_parties} in the call")
        dtype = array.dtype if isinstance(array, np.ndarray) else np.dtype(np.int64)  # of `RowBlocks.rows`
        if dtype != np.int64 or array.shape != shape:
            raise ArgumentError(f"{name} must be int64 {list(shape)}, got {dtype} {list(array.shape)}")

    def _agree(self, computation: Computation, *public: np.ndarray) -> None:
        """Compare what is held for public.

        :raises BackendError: it differs.
        """
        check_public(self._everyones(_digest(computation, public)))


def _digest(computation: Computation, public: Sequence[np.ndarray]) -> bytes:
    """SHA-256 of a computation's description and of arrays, with their types and shapes."""
    digest = hashlib.sha256(json.dumps(described(computation), sort_keys=True).encode())
    for array in public:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


_CALLS = 3  # a dealer asked for the same a third time works one call ahead, as from then on
_ENOUGH_S = 0.2  # of short calls, for a mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one computation at one party.

    :ivar traffic: between the parties, and helpers that take part in their rounds.
    :ivar dealer_traffic: with the dealer, a step ahead; nothing without one.
    :ivar seconds: of computing, on this machine.
    :ivar ahead: whether the dealer sends while the computation before runs, so that nobody waits for it.
    """

    traffic: Traffic
    dealer_traffic: Traffic
    seconds: float
    ahead: bool = False

    def on(self, line: NetworkProfile) -> float:
        """Seconds on a network: in a round all send at once, so it takes half of a round trip.

        A dealer that is asked takes a whole one. One that sends ahead takes the room that is left on the line, and
        while it does, what comes from the parties meets its words: both go at half of the speed, so it takes twice as
        long, and none of the parties' words waits for more than the dealer's.
        """
        per_byte = line.byte_s(self.traffic.bulk_bytes)
        alone = self.seconds + self.traffic.rounds * line.round_trip_s / 2 + self.traffic.bytes_sent * per_byte
        dealt = self.dealer_traffic.bytes_received * line.byte_s(self.dealer_traffic.bulk_bytes)
        if self.ahead:
            received = self.traffic.bytes_received * per_byte
            meeting = min(1.0, 2 * dealt / alone) if alone else 0.0  # the part of the time in which the dealer sends
            return max(alone + min(dealt, meeting * received), received + dealt)
        return alone + self.dealer_traffic.rounds * line.round_trip_s + dealt

    @property
    def lan_seconds(self) -> float:
        """1 ms round trip, 1 Gbit/s."""
        return self.on(NetworkProfile(round_trip_s=0.001, bits_per_second=1e9))

    @property
    def wan_seconds(self) -> float:
        """50 ms round trip, 100 Mbit/s."""
        return self.on(NetworkProfile(round_trip_s=0.05, bits_per_second=1e8))


PartyEnd = PartyProtocol
"""The name it had."""


class BetweenProcesses(Backend):
    """A secure backend whose parties are processes of their own: numbers 0 to P - 1 of a group, helpers behind them.

    :cvar own_links: whether its engine has links of its own, which between machines need a communicator's `carriers`.
    :cvar libraries: heavy modules that its processes will import, none of which begins a thread when it is read.
    """

    own_links: ClassVar[bool] = False
    libraries: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def missing(self) -> str | None:
        """What to install; None where all is there."""

    def load(self) -> None:
        """Imports its libraries, which takes seconds: before anybody else waits for this process."""
        for name in self.libraries:
            importlib.import_module(name)

    @abc.abstractmethod
    def rehearsal_only(self) -> str | None:
        """Why these settings are good for a rehearsal only; None where they are good for a release."""

    @abc.abstractmethod
    def helpers(self, num_parties: int) -> list[Member]:
        """Processes that the protocol needs beside the parties'; none of them holds a table."""

    @abc.abstractmethod
    def end(self, communicator: Communicator, num_parties: int, watch: Watch | None = None) -> PartyProtocol:
        """A party's end; called in its process, once the group stands.

        :param watch: in a rehearsal, called with all that is opened. None in a run, which insecure settings refuse.
        :raises ArgumentError: the settings are good for a rehearsal only, and this is none.
        """

    def encode_party(self, shape: BatchShape, contribution: Contribution, party: int) -> PartyInputs:
        """What a rehearsed party puts in, inside a JAX program in 64-bit mode."""
        return encode_party_traced(shape, contribution, party)

    def encode_prior(self, shape: BatchShape, prior: ComponentPrior) -> PriorInputs:
        """What is public, likewise."""
        return encode_prior_traced(shape, prior)

    @abc.abstractmethod
    def cost(self, computation: Computation, *, rank: int = 0) -> Cost:
        """What a computation costs one of the parties, from its public shapes; one of a fit's steps where it repeats.

        :raises BackendError: what it takes is not installed.
        """

    @final
    def check_release(self) -> None:
        """Refuse settings that are good for a rehearsal only.

        :raises ArgumentError: names the setting.
        """
        if reason := self.rehearsal_only():
            raise ArgumentError(f"{reason}; it needs an InsecureSimulation")


def dry_run(end: PartyProtocol, computation: Computation) -> Cost:
    """A computation on zeros at an end whose links lead to nobody."""
    inputs = computation.zeros(end.rank)
    calls: list[float] = []
    first, enough = (_CALLS - 1, _ENOUGH_S) if computation.repeated else (0, 0.0)
    while len(calls) <= first or sum(calls[first:]) < enough:
        before, dealt, started = end.traffic.snapshot(), end.dealer_traffic.snapshot(), time.perf_counter()
        computation.at(end, inputs)
        calls.append(time.perf_counter() - started)
    return Cost(
        traffic=end.traffic.since(before),
        dealer_traffic=end.dealer_traffic.since(dealt),
        seconds=statistics.fmean(calls[first:]),
        ahead=computation.repeated,
    )
