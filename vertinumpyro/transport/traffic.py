"""The one counter of what travels between processes, for real links and for dry runs alike; and what that takes."""

from __future__ import annotations

import dataclasses
import math
from typing import final

__all__ = ["NetworkProfile", "Traffic"]

_FIRST_WINDOW = 10 * 1460  # bytes, RFC 6928


@final
@dataclasses.dataclass(kw_only=True)
class Traffic:
    """What one process sent and received so far, over all links that count here.

    :ivar rounds: how often it waited for others; where a backend cannot tell, how many messages it sent.
    :ivar bytes_sent: frames included.
    :ivar bytes_received: frames included.
    :ivar bulks: messages of more than 64 KiB, either way: nearly all of the bytes, where there are many.
    """

    rounds: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    bulks: int = 0

    @property
    def bulk_bytes(self) -> float:
        """The mean length of a long message; 0 where there was none."""
        return (self.bytes_sent + self.bytes_received) / self.bulks if self.bulks else 0.0

    def snapshot(self) -> Traffic:
        """The counts as they are now."""
        return dataclasses.replace(self)

    def since(self, earlier: Traffic) -> Traffic:
        """What was added after a snapshot."""
        return Traffic(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})

    def over(self, times: int) -> Traffic:
        """The part of each of so many equal computations, rounded up."""
        return Traffic(**{name: -(-value // times) for name, value in vars(self).items()})

    def __add__(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkProfile:
    """What a message takes between two members.

    :ivar round_trip_s: of a short message and its answer.
    :ivar bits_per_second: of a message that fits TCP's window: all of it is sent before any of it has arrived.
    :ivar sustained_bits_per_second: of one that does not; None where the line is no slower then.
    """

    round_trip_s: float
    bits_per_second: float
    sustained_bits_per_second: float | None = None

    def byte_s(self, message: float) -> float:
        """Seconds for each byte of messages of so many bytes: what is beyond the window waits for what is within."""
        if self.sustained_bits_per_second is None:
            return 8 / self.bits_per_second
        beyond = max(0.0, 1 - self.held_bytes / message) if message else 0.0
        return 8 * ((1 - beyond) / self.bits_per_second + beyond / self.sustained_bits_per_second)

    def slow_start_s(self, num_bytes: int) -> float:
        """What a message that fills the line takes longer where that was idle.

        TCP begins with ten segments a round trip and doubles them until as many are under way as its window, or the
        line, holds.
        """
        longer = num_bytes > self.held_bytes > _FIRST_WINDOW
        return self.round_trip_s * math.log2(self.held_bytes / _FIRST_WINDOW) if longer else 0.0

    @property
    def held_bytes(self) -> float:
        """What is under way at most."""
        return (self.sustained_bits_per_second or self.bits_per_second) * self.round_trip_s / 8
