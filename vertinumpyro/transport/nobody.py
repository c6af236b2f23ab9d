"""The other end of a dry run: there is nobody, and the same counter counts."""

from __future__ import annotations

from typing import final

from vertinumpyro.transport.link import HEADER_BYTES
from vertinumpyro.transport.traffic import Traffic

__all__ = ["Nobody"]


@final
class Nobody:
    """A link with nobody at the other end, for what a computation costs before there is any data.

    What comes back is what went out last, cut or filled up with zeros to the expected length: so two ends agree
    wherever they compare what they sent. A message of unknown length comes back empty.
    """

    peer = "nobody"

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self._last = b""

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Counts it."""
        self._last = data
        self.traffic.bytes_sent += HEADER_BYTES + len(data)

    def receive(self, *, size: int | None = None, limit: int = 0) -> bytearray:
        """An echo of that size."""
        self.traffic.rounds += 1
        return self._echo(size or 0)

    def transfer(self, outgoing: bytes | bytearray | memoryview, expected: int) -> _Done:
        """For `exchange`: over at once."""
        self.send(outgoing)
        return _Done(self._echo(expected))

    def wait_forever(self) -> None:
        """It answers at once."""

    def close(self) -> None:
        """There is nothing to close."""

    def _echo(self, size: int) -> bytearray:
        self.traffic.bytes_received += HEADER_BYTES + size
        echo = bytearray(self._last[:size])
        echo.extend(bytes(size - len(echo)))
        return echo


@final
class _Done:
    """A transfer that waits for nothing."""

    waits_for = 0

    def __init__(self, incoming: bytearray) -> None:
        self.incoming = incoming

    def fileno(self) -> int:
        return -1

    def advance(self) -> None:
        pass

    def silent_after(self, now: float) -> float | None:
        return None
