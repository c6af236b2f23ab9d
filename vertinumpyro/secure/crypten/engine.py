"""One party's end of the computation: CrypTen's sharing, products and circuits over our channel and our dealer.

CrypTen asks three things of its surroundings, and gets them from here: a communicator (over `Link`s), a provider
of correlated randomness (over `dealer`) and random words (from `KeyStream`s). A process is one party, so
they are the process's own.

Numbers are integers of the ring of 2^64 throughout (CrypTen's encoder at precision 0); fixed-point formats are
`fixed`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from vertinumpyro.core.errors import BackendError
from vertinumpyro.secure.crypten import compat
from vertinumpyro.secure.crypten.correlations import Request
from vertinumpyro.secure.crypten.dealer import Correlations
from vertinumpyro.secure.crypten.keystream import KeyStream, derived_key, fresh_key
from vertinumpyro.secure.processes.links import Link, exchange

torch, crypten = compat.load()
Communicator = compat.part("communicator").Communicator
MPCTensor = compat.part("mpc").MPCTensor
TupleProvider = compat.part("mpc.provider.provider").TupleProvider
arithmetic, binary, beaver = (compat.part(f"mpc.primitives.{name}") for name in ("arithmetic", "binary", "beaver"))
converters, ptype = compat.part("mpc.primitives.converters"), compat.part("mpc.ptype").ptype
ArithmeticSharedTensor, BinarySharedTensor = arithmetic.ArithmeticSharedTensor, binary.BinarySharedTensor

__all__ = ["BinarySharedTensor", "Engine", "Opened", "beaver", "bits_of", "is_negative", "shared_integer", "torch"]

Opened = Callable[[str, np.ndarray], None]
"""Called with every opened tensor and why it was opened; for tests."""

Exchange = Callable[[Mapping[int, bytes], Mapping[int, int]], dict[int, bytes]]
"""(a message for each other party, words expected from each) -> a message from each."""


@final
class Engine(Communicator):
    """A party in a group that computes together.

    :param rank: this party's number.
    :param links: to the other parties, by their number.
    :param dealer: this party's side of the dealer.
    :param watch: see `Opened`.
    :param exchange: in the place of the links, for counting without anybody there; then `num_parties` says how many.
    """

    def __init__(
        self,
        rank: int,
        links: Mapping[int, Link],
        dealer: Correlations,
        watch: Opened | None = None,
        *,
        exchange: Exchange | None = None,
        num_parties: int | None = None,
    ) -> None:
        self.rank, self.num_parties = rank, num_parties or len(links) + 1
        self._links, self.dealer, self._watch = links, dealer, watch
        self._exchange = exchange or self._over_links
        self._failed: BackendError | None = None
        self.rounds, self.seconds = 0, 0.0
        torch.set_num_threads(1)  # the parties share the machine, and the tensors are small
        sent, received = self._exchanged_keys() if links else _own_keys(self.num_parties)
        self._zero = [
            (KeyStream(derived_key(sent[rank], "reveal")), KeyStream(derived_key(received[rank], "reveal")))
            for rank in sent
        ]
        _install(self, sent[(rank + 1) % self.num_parties], received[(rank - 1) % self.num_parties])

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to the other parties so far, frames included."""
        return sum(link.bytes_sent for link in self._links.values())

    @property
    def bytes_received(self) -> int:
        """Bytes that came from the other parties so far, frames included."""
        return sum(link.bytes_received for link in self._links.values())

    def reveal(self, share: Any) -> Any:
        """Open a sum to all parties: the one place that opens anything but masked values.

        A fresh sharing of zero, from keys that each two parties share, hides how much of the sum is whose: also from
        a coalition, of whose members CrypTen's own sharing of zero, between neighbours, knows the terms.
        """
        for own, other in self._zero:
            share = share + _words(own, share.shape) - _words(other, share.shape)
        return self._opened(share, torch.Tensor.add_, "reveal")

    def open_masked(self, share: Any) -> Any:
        """Open a value that a uniform mask of the dealer hides."""
        return self._opened(share, torch.Tensor.add_, "masked")

    def swap(self, outgoing: Mapping[int, Any], expected: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Send each other party words of its own, masked, and receive theirs, as flat int64.

        :param expected: how many words each of them sends.
        """
        started = time.perf_counter()
        try:
            incoming = self._exchange({rank: _to_bytes(t) for rank, t in outgoing.items()}, expected)
        except BackendError as error:
            self._failed = error
            raise
        self.rounds += bool(outgoing)
        self.seconds += time.perf_counter() - started
        return {rank: np.frombuffer(data, "<i8") for rank, data in incoming.items()}

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
        """Open what CrypTen's products and circuits open: values under a dealer's mask."""
        combine = torch.Tensor.bitwise_xor_ if op == torch.distributed.ReduceOp.BXOR else torch.Tensor.add_
        if not batched:
            return self._opened(input, combine, "masked")
        flat = torch.cat([tensor.reshape(-1) for tensor in input])
        pieces = self._opened(flat, combine, "masked").split([tensor.numel() for tensor in input])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, input, strict=True)]

    def _opened(self, share: Any, combine: Callable[[Any, Any], Any], why: str) -> Any:
        if self._failed is not None:
            raise self._failed  # CrypTen catches a RuntimeError in one place and tries once more
        total = share.contiguous().clone()
        others = [rank for rank in range(self.num_parties) if rank != self.rank]
        received = self.swap(dict.fromkeys(others, total), {rank: total.numel() for rank in others})
        for words in received.values():
            combine(total, torch.from_numpy(words.copy()).view(total.shape))
        self.observed(why, total)
        return total

    def _over_links(self, outgoing: Mapping[int, bytes], expected: Mapping[int, int]) -> dict[int, bytes]:
        incoming = exchange(self._links, outgoing)
        for rank, data in incoming.items():
            if len(data) != 8 * expected[rank]:
                raise BackendError(f"{self._links[rank].peer} is at another step of the protocol")
        return incoming

    def _exchanged_keys(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """(the key that went to each other party, the key that came from it)."""
        sent = {rank: fresh_key() for rank in self._links}
        return sent, exchange(self._links, sent)

    def __repr__(self) -> str:
        """Shows nothing secret."""
        return f"Engine(rank={self.rank}, num_parties={self.num_parties})"


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
        return self._shares(Request("product", (tuple(size0), tuple(size1)), op), ArithmeticSharedTensor)

    def square(self, size: Any, device: Any = None):
        """Shares of r and r^2."""
        return self._shares(Request("square", (tuple(size),)), ArithmeticSharedTensor)

    def generate_binary_triple(self, size0: Any, size1: Any, device: Any = None):
        """Shares of a, b and a & b."""
        return self._shares(Request("and", (tuple(size0), tuple(size1))), BinarySharedTensor)

    def B2A_rng(self, size: Any, device: Any = None):  # noqa: N802 (CrypTen's name)
        """One bit, shared over the integers and over bits."""
        bits, integers = self._dealer.draw(Request("bit", (tuple(size),)))
        return _shared(ArithmeticSharedTensor, integers), _shared(BinarySharedTensor, bits)

    def _shares(self, request: Request, kind: Any) -> tuple[Any, ...]:
        return tuple(_shared(kind, share) for share in self._dealer.draw(request))


def _own_keys(num_parties: int) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """With nobody there: what comes back is what went out, so that a sharing of zero is zero."""
    own = fresh_key()
    keys = dict.fromkeys(range(num_parties), own)
    return keys, keys


def shared_integer(share: Any) -> Any:
    """CrypTen's tensor around this party's share of an integer."""
    return ArithmeticSharedTensor.from_shares(share, precision=0)


def bits_of(share: Any) -> Any:
    """The bits of an integer, by CrypTen's adder over every party's own share."""
    return converters.convert(shared_integer(share), ptype.binary)


def is_negative(share: Any) -> Any:
    """This party's share of [x < 0], by CrypTen's comparison circuit."""
    return MPCTensor.from_shares(share, precision=0)._ltz().share


def _shared(kind: Any, share: np.ndarray) -> Any:
    return kind.from_shares(torch.from_numpy(np.array(share)), precision=0)


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
