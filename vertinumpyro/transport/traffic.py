"""The one counter of what travels between processes, for real links and for dry runs alike."""

from __future__ import annotations

import dataclasses
from typing import final

__all__ = ["Traffic"]


@final
@dataclasses.dataclass(kw_only=True)
class Traffic:
    """What one process sent and received so far, over all links that count here.

    :ivar rounds: how often it waited for others; where a backend cannot tell, how many messages it sent.
    :ivar bytes_sent: frames included.
    :ivar bytes_received: frames included.
    """

    rounds: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

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
