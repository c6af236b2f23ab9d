"""How long a plan's fits take, by what parts: said before anything is spent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final


def spoken_seconds(seconds: float) -> str:
    """A time that is about so long: "40 s", "3 min", "2.5 h"."""
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FitTime:
    """How long a fit takes on this machine, and where the time goes, from public shapes and parts tried on stand-ins.

    Right within a factor of two on ordinary fits; no bound, as other processes take their share of the machine.

    :ivar before: seconds of each part up to the last release, by its name.
    :ivar after: of each that follows the last release, and costs no privacy.
    :ivar unknown: what is not in it, in words; empty where nothing is left out.
    :ivar shorter: what would shorten it, in words.
    """

    before: Mapping[str, float] = dataclasses.field(default_factory=dict)
    after: Mapping[str, float] = dataclasses.field(default_factory=dict)
    unknown: str = ""
    shorter: str = ""

    @property
    def seconds(self) -> float:
        """Of all parts."""
        return sum(self.before.values()) + sum(self.after.values())

    @property
    def words(self) -> str:
        """In one sentence, the parts that take a tenth of it or more in their order."""
        parts = {**self.before, **self.after}
        large = {name: seconds for name, seconds in parts.items() if seconds >= 0.1 * self.seconds and seconds >= 1}
        told = ", ".join(f"{name} {spoken_seconds(seconds)}" for name, seconds in large.items())
        left = f"; not in it: {self.unknown}" if self.unknown else ""
        return f"about {spoken_seconds(max(1.0, self.seconds))} on this machine{f' ({told})' if told else ''}{left}"

    @property
    def words_after(self) -> str:
        """What follows the last release, and how long that takes."""
        named = " and ".join(name for name, seconds in self.after.items() if seconds >= 0.1 * sum(self.after.values()))
        return f"{named or 'the result'}, about {spoken_seconds(max(1.0, sum(self.after.values())))}"

    def to_dict(self) -> dict[str, object]:
        """Plain data for programs."""
        return {"seconds": self.seconds, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        """The sentence."""
        return self.words
