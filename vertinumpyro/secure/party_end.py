"""One party's end of the three protocols: what it checks before anything of its own leaves it."""

from __future__ import annotations

import abc
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.secure.backend import BatchShape, check_prior
from vertinumpyro.secure.computation import ClippedSum, Computation, CrossProducts, VectorSum, described
from vertinumpyro.secure.inputs import Layout, PartyInputs, PriorInputs
from vertinumpyro.transport import Traffic

__all__ = ["OnRecord", "PartyEnd", "Watch"]

OnRecord: TypeAlias = Callable[[bytes], None]
"""Called with the message by which a party opens a result, before it is sent."""

Watch: TypeAlias = Callable[[str, np.ndarray], None]
"""Called with everything that is opened: why, and the words. For tests, in a rehearsal."""


class PartyEnd(abc.ABC):
    """One party's end of the three protocols. Every party calls the same method with its own inputs, in the same order.

    Before anything is opened, all parties compare a digest of what they hold for public: every one of them encodes the
    public numbers by itself, and on other processors floating point may round them to other integers. A product of
    numbers that differ is garbage, and no clip is proved for it. That takes one round.

    A backend sets both numbers and fills in the methods with an underscore.

    :ivar rank: this party's number.
    :ivar num_parties: P.
    """

    rank: int
    num_parties: int

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
        """sum_n clip(g_n, C) + noise on the grid of the backend's `grid_bits`, int64 [D]; see `inputs` for g.

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
        return self._clipped_noisy_sum(shape, layout, own, prior, mask, noise_share)

    @final
    def noisy_cross_products(self, matrix: Factor, widths: Sequence[int], noise_share: np.ndarray) -> np.ndarray:
        """A_i^T A_j of all pairs i < j, plus everybody's noise, modulo 2^64; int64 [sum_{i<j} d_i d_j].

        Pairs in the order of `itertools.combinations`, each product row by row.

        :param matrix: this party's A, int64 [n, widths[rank]], or blocks of it, made when they are due. Secret.
        :param widths: d_p, the columns of each party's matrix; public.
        :param noise_share: this party's noise for the whole result.
        :raises ArgumentError: an array has another type or shape.
        :raises BackendError: the parties' shapes differ; nothing was opened.
        """
        computation = CrossProducts(num_records=len(matrix), widths=tuple(int(width) for width in widths))
        shape = (len(matrix), computation.widths[self.rank])
        self._check(computation, "matrix", matrix, shape)
        self._check(computation, "noise_share", noise_share, (computation.num_values,))
        self._agree(computation)
        return self._noisy_cross_products(computation, matrix, noise_share)

    @final
    def noisy_sum(self, vector: np.ndarray, noise_share: np.ndarray) -> np.ndarray:
        """The sum of all parties' vectors and noise shares modulo 2^64, int64 [D].

        :param vector: this party's, int64 [D]. Secret.
        :param noise_share: this party's noise, int64 [D].
        :raises ArgumentError: an array has another type or shape.
        :raises BackendError: the parties' shapes differ; nothing was opened.
        """
        computation = VectorSum(num_parties=self.num_parties, num_values=vector.size)
        for name, array in (("vector", vector), ("noise_share", noise_share)):
            self._check(computation, name, array, (vector.size,))
        self._agree(computation)
        return self._noisy_sum(computation, vector + noise_share)

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
        self,
        shape: BatchShape,
        layout: Layout,
        own: Iterable[PartyInputs],
        prior: PriorInputs,
        mask: np.ndarray,
        noise_share: np.ndarray,
    ) -> np.ndarray:
        """The protocol: the blocks' sums are added as shares, and opened with the noise."""

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
        if len(set(self._everyones(_digest(computation, public)))) > 1:
            raise BackendError(
                "the parties' public numbers differ: shapes, prior or batch mask. Nothing was opened; run the same "
                "versions on the same kind of processor"
            )


def _digest(computation: Computation, public: Sequence[np.ndarray]) -> bytes:
    """SHA-256 of a computation's description and of arrays, with their types and shapes."""
    digest = hashlib.sha256(json.dumps(described(computation), sort_keys=True).encode())
    for array in public:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
