"""One party's end of the computation: CrypTen's sharing and products over our channel and our dealer.

CrypTen asks three things of its surroundings, and gets them from here: a communicator (over `Link`s), a provider
of correlated randomness (over `dealer`) and random words (from `KeyStream`s). A process is one party, so
they are the process's own.

Numbers are integers of the ring of 2^64 throughout (CrypTen's encoder at precision 0); fixed-point formats are
`arithmetic`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from vertinumpyro.core.errors import BackendError
from vertinumpyro.secure.between_processes import OnRecord, Watch
from vertinumpyro.secure.crypten import compat
from vertinumpyro.secure.crypten.dealer import Correlations, Request
from vertinumpyro.secure.crypten.number_formats import Hidden, low_bytes, opened
from vertinumpyro.secure.keystream import KeyStream, ZeroSharing, derived_key, exchanged_keys, fresh_key
from vertinumpyro.transport import Link, Traffic, exchange

torch, crypten = compat.load()
Communicator = compat.part("communicator").Communicator
TupleProvider = compat.part("mpc.provider.provider").TupleProvider
arithmetic, binary, beaver = (compat.part(f"mpc.primitives.{name}") for name in ("arithmetic", "binary", "beaver"))
ArithmeticSharedTensor = arithmetic.ArithmeticSharedTensor


_WORD = 8  # bytes


@final
class Engine(Communicator):
    """A party in a group that computes together.

    :param rank: this party's number.
    :param links: to the other parties, by their number; from now on they count in `traffic`.
    :param dealer: this party's side of the dealer.
    :param watch: called with what is opened, in a rehearsal.
    :ivar traffic: between the parties.
    """

    def __init__(self, rank: int, links: Mapping[int, Link], dealer: Correlations, watch: Watch | None = None) -> None:
        self.rank, self.num_parties = rank, len(links) + 1
        self.links, self.dealer, self._watch = links, dealer, watch
        self._failed: BackendError | None = None
        self.traffic = Traffic()
        for link in links.values():
            link.traffic = self.traffic
        torch.set_num_threads(1)  # the parties share the machine, and the tensors are small
        sent, received = exchanged_keys(links) if links else _own_keys()
        self.on_record: OnRecord | None = None
        self._zero = ZeroSharing(sent, received)
        _install(self, sent[(rank + 1) % self.num_parties], received[(rank - 1) % self.num_parties])

    def reveal(self, share: Any) -> Any:
        """Open a sum to all parties: the one place that opens anything but masked values.

        A fresh sharing of zero hides how much of the sum is whose: also from a coalition, of whose members CrypTen's
        own sharing of zero, between neighbours, knows the terms.
        """
        share = share + torch.from_numpy(self._zero.share(tuple(share.shape)))
        if self.on_record is not None:
            self.on_record(_to_bytes(share))
        return self._opened(share, "reveal")

    def open(self, message: bytes) -> Any:
        """Open a sum by the words that `on_record` was shown, sent as they were."""
        share = torch.from_numpy(np.frombuffer(message, "<i8").copy())
        return self._opened(share, "reveal")

    def open_masked(self, share: Any) -> Any:
        """Open a value that a uniform mask of the dealer hides."""
        return self._opened(share, "masked")

    def open_hidden(self, *hidden: Hidden) -> list[np.ndarray]:
        """Open arrays that uniform masks of the dealer hide, all in one round: int64, as flat arrays' shapes are."""
        self._check_alive()
        own = b"".join(array.message() for array in hidden)
        received = self._swapped(dict.fromkeys(self.links, own), dict.fromkeys(self.links, len(own)))
        totals = opened(hidden, received.values())
        for array, total in zip(hidden, totals, strict=True):
            self.observed("masked", low_bytes(total, array.num_bytes))
        return totals

    def swap(self, outgoing: Mapping[int, Any], expected: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Send each other party words of its own, masked, and receive theirs, as flat int64.

        :param expected: how many words each of them sends.
        """
        sizes = {rank: _WORD * words for rank, words in expected.items()}
        received = self._swapped({rank: _to_bytes(t) for rank, t in outgoing.items()}, sizes)
        return {rank: np.frombuffer(data, "<i8") for rank, data in received.items()}

    def swap_bytes(self, why: str, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, bytearray]:
        """Send each other party bytes of its own, and receive theirs, of these lengths."""
        received = self._swapped(outgoing, sizes)
        for data in received.values():
            self.observed(why, np.frombuffer(data, np.uint8))
        return received

    def _swapped(self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, bytearray]:
        try:
            incoming = exchange(self.links, outgoing, sizes)
        except BackendError as error:
            self._failed = error
            raise
        return incoming

    def swap_masked(self, own: np.ndarray, shapes: Mapping[int, tuple[int, ...]]) -> dict[int, np.ndarray]:
        """Show an array of this party, which a uniform mask of the dealer hides, to all, and see theirs.

        :param shapes: of each party's array.
        """
        data = np.ascontiguousarray(own, "<i8").tobytes()
        sizes = {rank: _WORD * math.prod(shapes[rank]) for rank in self.links}
        received = self._swapped(dict.fromkeys(self.links, data), sizes)
        arrays = {rank: np.frombuffer(data, "<i8").reshape(shapes[rank]) for rank, data in received.items()}
        for array in arrays.values():
            self.observed("masked", array)
        return arrays

    def observed(self, why: str, value: Any) -> None:
        """Show an opened value to whoever watches (a test)."""
        if self._watch is not None:
            self._watch(why, np.asarray(value))

    # -- what CrypTen calls ------------------------------------------------------------------------

    def get_rank(self) -> int:
        """This party's number."""
        return self.rank

    def get_world_size(self) -> int:
        """Number of parties."""
        return self.num_parties

    def all_reduce(self, input: Any, op: Any = None, batched: bool = False) -> Any:
        """Open what CrypTen's products open: values under a dealer's mask."""
        if not batched:
            return self._opened(input, "masked")
        flat = torch.cat([tensor.reshape(-1) for tensor in input])
        pieces = self._opened(flat, "masked").split([tensor.numel() for tensor in input])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, input, strict=True)]

    def _opened(self, share: Any, why: str) -> Any:
        self._check_alive()
        total = share.contiguous().clone()
        data = _to_bytes(total)
        received = self._swapped(dict.fromkeys(self.links, data), dict.fromkeys(self.links, len(data)))
        for theirs in received.values():
            total += torch.frombuffer(theirs, dtype=torch.long).view(total.shape) if theirs else 0
        self.observed(why, total)
        return total

    def _check_alive(self) -> None:
        if self._failed is not None:
            raise self._failed  # CrypTen catches a RuntimeError in one place and tries once more


@final
class _Provider(TupleProvider):
    """CrypTen's source of triples, from our dealer."""

    NAME = "dealer"

    def __init__(self, dealer: Correlations) -> None:
        super().__init__()
        self._dealer = dealer

    def generate_additive_triple(self, size0: Any, size1: Any, op: str, device: Any = None, *args: Any, **kwargs: Any):
        """Shares of a, b and a op b."""
        if op not in ("mul", "matmul"):
            raise NotImplementedError(op)
        return self._shares(Request("product", (tuple(size0), tuple(size1)), op))

    def square(self, size: Any, device: Any = None):
        """Shares of r and r^2."""
        return self._shares(Request("square", (tuple(size),)))

    def _shares(self, request: Request) -> tuple[Any, ...]:
        return tuple(shared_integer(torch.from_numpy(np.array(share))) for share in self._dealer.draw(request))


def _own_keys() -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Of a party alone: what comes back is what went out, so that a sharing of zero is zero."""
    keys = {0: fresh_key()}
    return keys, keys


def shared_integer(share: Any) -> Any:
    """CrypTen's tensor around this party's share of an integer."""
    return ArithmeticSharedTensor.from_shares(share, precision=0)


def _to_bytes(tensor: Any) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def _random_words(size: Any, *args: Any, generator: KeyStream | None = None, bitlength: int | None = None, **_: Any):
    """In the place of CrypTen's generators: uniform words of the whole ring, from a key stream."""
    stream = crypten.generators["local"][torch.device("cpu")] if generator is None else generator
    words = _words(stream, size)
    return words if bitlength in (None, 64) else words & ((1 << bitlength) - 1)


def _words(stream: KeyStream, shape: Any) -> Any:
    return torch.from_numpy(stream.words(tuple(shape)).copy())


def _install(engine: Engine, key_of_next: bytes, key_of_previous: bytes) -> None:
    """Make CrypTen use this engine, its dealer and its randomness, in this process."""
    crypten.communicator.get = lambda: engine
    provider = _Provider(engine.dealer)
    crypten.mpc.get_default_provider = lambda: provider
    for module in (arithmetic, binary):
        for name in ("generate_random_ring_element", "generate_kbit_random_tensor"):
            if hasattr(module, name):
                setattr(module, name, _random_words)
    for name, key in {"next": key_of_next, "prev": key_of_previous, "local": fresh_key()}.items():
        crypten.generators[name] = {torch.device("cpu"): KeyStream(derived_key(key, "sharing"))}
