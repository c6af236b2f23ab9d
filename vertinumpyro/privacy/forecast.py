"""What to expect of a plan's fits before anything is spent: what they will know of each coefficient, as a table in
words, and how long they take.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 2 * 1.959963984540054
_SAYS_LITTLE = 0.9  # a standard error of that part of the prior's
_CLOSEST, _TOLD_APART = 0.85, 0.02  # correlations: larger ones are rare; nearer ones are as good as one
_MOST_ROWS, _MOST_NAMES, _LONGEST, _COLUMNS = 30, 8, 34, 80


def says_little(stddev: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Whether the data say little of coefficients: they have nearly the spread that the prior gave them."""
    return stddev > _SAYS_LITTLE * prior


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


HIDES_ALL = "Noise will hide every association: at"
SEEN = 2.0
"""Standard deviations of its noise from which on an association is seen."""


@dataclasses.dataclass(frozen=True)
class Associations:
    """Which associations of features with a label a release will show, from public numbers alone. No bound.

    :ivar label: what is predicted.
    :ivar smallest: for each feature the least correlation with the label that will stand out of noise; 1 where none.
    """

    label: str
    smallest: Mapping[str, float]

    @property
    def hidden(self) -> tuple[str, ...]:
        """The features of which even a close association will be noise."""
        return tuple(name for name, least in self.smallest.items() if least >= _CLOSEST)

    def __str__(self) -> str:
        """In a sentence or two, the hidden ones first."""
        least = min(self.smallest.values(), default=1.0)
        if len(self.hidden) == len(self.smallest):
            return (
                f"{HIDES_ALL} this epsilon and N none with {self.label} would be seen below a correlation of "
                f"{least:.2f}. What could help: fewer features, more records, a larger epsilon."
            )
        most = max(self.smallest.values())
        ends = f"{least:.2f}" if most - least < _TOLD_APART else f"{least:.2f} to {most:.2f}, by the feature,"
        told = f"Noise will hide correlations with {self.label} below about {ends}"
        return f"{told}; even close ones of: {listed(self.hidden)}." if self.hidden else f"{told}."


@dataclasses.dataclass(frozen=True, eq=False)
class Forecast:
    """The standard errors to expect, from N, ε, the model and public bounds alone.

    Of records as the model's prior and the schema's public domains have them: other ones, as of columns that hardly
    vary or depend on each other, say less. Nothing here is a bound, and no guarantee rests on it.

    :ivar names: of the coefficients.
    :ivar std_error: of the posterior that a fit returns.
    :ivar sampling: of the same without the noise of privacy.
    :ivar prior: the prior's standard deviation.
    :ivar supposed: what had to be supposed besides, in words; empty where nothing had.
    """

    names: tuple[str, ...]
    std_error: np.ndarray
    sampling: np.ndarray
    prior: np.ndarray
    supposed: str = ""

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each coefficient: `std_error`, its parts by `sampling` and by `privacy`, whose squares add up, the
        `width` of a 95 % interval, and `of_prior`, the standard error over the prior's."""
        import pandas as pd  # a plan is read without it

        privacy = np.sqrt(np.maximum(self.std_error**2 - self.sampling**2, 0.0))
        columns = {"std_error": self.std_error, "sampling": self.sampling, "privacy": privacy}
        columns |= {"width": _WIDTH * self.std_error, "of_prior": self.std_error / self.prior}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="coefficient"))

    @property
    def little(self) -> tuple[str, ...]:
        """The coefficients of which data will say little beside the prior."""
        return tuple(np.array(self.names, object)[says_little(self.std_error, self.prior)])

    @property
    def note(self) -> str:
        """Of which coefficients that is so, and what could help; empty where there are none."""
        if not self.little:
            return ""
        hidden = set(self.names) <= {*self.little, "intercept"}
        return (
            f"{HIDES_ALL if hidden else 'At'} this epsilon and N the data will say little of: {listed(self.little)}. "
            "What could help: fewer "
            "parameters, priors of one scale for many, more records, a larger epsilon, or one release of tables "
            "(MarginalGLM)"
        )

    def __str__(self) -> str:
        """The note, then the table, within 80 columns."""
        shown = self.table.head(_MOST_ROWS).rename(index=lambda name: name[:_LONGEST]).rename_axis(None)
        more = len(self.names) - len(shown)
        lines = [shown.to_string(float_format="{:.3g}".format), *([f"… and {more} more"] if more else [])]
        notes = [self.note + "."] if self.note else []
        told = ["A column that fills a tenth of its public bounds has up to ten times as much", self.supposed]
        title = f"Standard errors to expect. {'; '.join(filter(None, told))}:"
        return "\n".join([*notes, *textwrap.wrap(title, _COLUMNS), *lines])

    def __repr__(self) -> str:
        """In short."""
        return f"Forecast({len(self.names)} coefficients, median width {np.median(self.table['width']):.3g})"


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
