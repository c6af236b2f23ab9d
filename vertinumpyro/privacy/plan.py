"""What every method's plan is: public facts that fix all noise, one table of adversaries, one JSON form."""

from __future__ import annotations

import abc
import dataclasses
import decimal
import enum
import functools
import hashlib
import importlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, final

from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.privacy.accounting import NeighbouringRelation, PrivacyEvent
from vertinumpyro.privacy.adversary import (
    OUTSIDE_ANALYST,
    Adversary,
    AdversaryRow,
    NoiseSource,
    Release,
    list_adversaries,
)
from vertinumpyro.privacy.forecast import FitTime
from vertinumpyro.privacy.sampling import DisjointBatches, NoSteps, PoissonSampling, Sampling

_METHODS = {
    "vertimrf": "vertinumpyro.mrf",
    "bayesian_linear": "vertinumpyro.regression",
    "functional_mechanism": "vertinumpyro.regression",
    "second_moments": "vertinumpyro.dpvi",
}
"""Where the kinds of plans stand that no import brought yet: a record is read wherever it is kept."""

LARGEST_ACCOUNTED = 10_000.0
"""ε above which the privacy loss of sub-sampled steps needs grids beyond any memory."""

_THREE_DIGITS = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)
_SAMPLINGS = {"poisson": PoissonSampling, "disjoint": DisjointBatches, "none": NoSteps}


class PrivacyWarning(UserWarning):
    """A privacy parameter is legal but weak."""


class Plan(abc.ABC):
    """Everything public about one run's privacy, fixed before any data is touched.

    A subclass is a frozen dataclass. It says what is released (`releases`), who watches (`observers`) and what each of
    them learns (`row`); its docstring states the guarantee. Everything else is here, the same for all methods.

    :cvar kind: the method, as the JSON form and `--method` call it.
    :cvar own_field: a field that no other kind has: records from before plans named their kind are told apart by it.
    :cvar json_names: fields that stand under another name in JSON.
    :cvar earlier: fields that earlier records lack, and the value that those meant. It is not written either, so that
        such a plan keeps its fingerprint.
    :ivar plan_id: a random name; a plan with another id is another budget.
    :ivar parties: their names; a plan of clients without names has other observers.
    :ivar num_records: N, public.
    :ivar delta: δ.
    :ivar relation: the neighbouring relation.
    :ivar adversary: the one row that the noise was calibrated to; None for all whom the plan covers.
    """

    kind: ClassVar[str]
    own_field: ClassVar[str]
    json_names: ClassVar[Mapping[str, str]] = {}
    earlier: ClassVar[Mapping[str, Any]] = {"adversary": OUTSIDE_ANALYST}
    _kinds: ClassVar[dict[str, type[Plan]]] = {}

    plan_id: str
    parties: Any
    num_records: int
    delta: float
    adversary: str | None = None

    def __init_subclass__(cls, *, kind: str | None = None, own_field: str = "", **settings: Any) -> None:
        """A kind registers itself, so that `from_dict` finds it; without one the class is what kinds share."""
        super().__init_subclass__(**settings)
        if kind is not None:
            cls.kind, cls.own_field = kind, own_field
            Plan._kinds[kind] = cls

    @property
    @abc.abstractmethod
    def releases(self) -> tuple[Release, ...]:
        """What is released, in order; a ledger counts their steps."""

    @property
    def observers(self) -> tuple[Adversary, ...]:
        """Who watches; the outside analyst first, then each party and coalitions of 2 to P − 1."""
        return list_adversaries(self.parties, batch_indices="hidden")

    @abc.abstractmethod
    def row(self, observer: Adversary) -> AdversaryRow:
        """The observer's line of the privacy table."""

    @abc.abstractmethod
    def event(self, observer: Adversary) -> PrivacyEvent:
        """Everything that is released to the observer, as one event: what plans together cost is composed of these."""

    @property
    def comparisons(self) -> tuple[AdversaryRow, ...]:
        """Rows that papers report and this plan does not claim."""
        return ()

    @functools.cached_property
    def adversaries(self) -> tuple[AdversaryRow, ...]:
        """The privacy table, a row for each observer."""
        return tuple(self.row(observer) for observer in self.observers)

    @property
    def covered(self) -> tuple[Adversary, ...]:
        """Whom a budget for everyone counts; larger coalitions have a row, and no claim to the target."""
        return self.observers

    @final
    def epsilon(self, adversary: str | None = None) -> float:
        """ε against the adversary of that name in the table; against everyone whom the plan covers for None.

        :raises ArgumentError: lists the table's names.
        """
        if adversary is None:
            return self.worst.epsilon
        rows = {row.adversary: row for row in self.adversaries}
        if adversary not in rows:
            raise ArgumentError(f"adversary must be one of {', '.join(rows)}")
        return rows[adversary].epsilon

    @functools.cached_property
    def worst(self) -> AdversaryRow:
        """The row with the largest ε of all whom the plan covers: the number to print large."""
        return max(self._covered_rows, key=lambda row: row.epsilon)

    @property
    def _covered_rows(self) -> tuple[AdversaryRow, ...]:
        names = {observer.name for observer in self.covered}
        return tuple(row for row in self.adversaries if row.adversary in names)

    @property
    def above(self) -> tuple[AdversaryRow, ...]:
        """Those covered who get more than the one adversary that the noise was calibrated to."""
        if self.adversary is None:
            return ()
        limit = self.epsilon(self.adversary)
        return tuple(row for row in self._covered_rows if row.epsilon > limit)

    @property
    def uncovered(self) -> tuple[AdversaryRow, ...]:
        """Coalitions larger than the noise is for, where they get more than everyone else."""
        others = {observer.name for observer in self.observers} - {observer.name for observer in self.covered}
        return tuple(row for row in self.adversaries if row.adversary in others and row.epsilon > self.worst.epsilon)

    @final
    def warn_if_narrowed(self) -> None:
        """Says in a `PrivacyWarning` who gets more than the one adversary that the noise was calibrated to.

        For a method's `plan` that `checked` wraps: the warning is at the user's call of it.
        """
        if self.above:
            warnings.warn(
                f"{rows_in_words(self.above)}: adversary={self.adversary!r} narrows ε = "
                f"{self.epsilon(self.adversary):.3g} to that row. Leave adversary out, and ε holds against everyone",
                PrivacyWarning,
                stacklevel=4,
            )

    @final
    def targets(self) -> tuple[Adversary, ...]:
        """Whom a calibration looks at: the adversary that it was narrowed to, or all that are covered.

        :raises ArgumentError: lists the table's names.
        """
        return select_adversaries(self.observers, self.covered, self.adversary)

    @property
    def num_steps(self) -> int:
        """How many steps a ledger counts."""
        return sum(release.num_steps for release in self.releases)

    @property
    def step_names(self) -> tuple[str, ...]:
        """Each step in words."""
        return tuple(name for release in self.releases for name in [release.name] * release.num_steps)

    def table_rows(self, *, secure_noise: bool = True) -> list[dict[str, Any]]:
        """The privacy table as plain data. `claim` is False for comparisons, unproven rows and noise from a seed."""
        rows = [{**row.to_dict(), "claim": secure_noise and row.proof == "proved"} for row in self.adversaries]
        return rows + [{**row.to_dict(), "claim": False} for row in self.comparisons]

    # -- how long it takes -------------------------------------------------------------------------

    @property
    def time(self) -> FitTime | None:
        """How long a fit takes here, tried on stand-ins where it is first asked for; None of a plan from a record."""
        kept: Any = self.__dict__.get("_time")
        if kept is not None and self.known_time is None:
            self.keep_time(kept())
        return self.known_time

    @property
    def known_time(self) -> FitTime | None:
        """The same, where it was asked for before."""
        kept = self.__dict__.get("_time")
        return kept if isinstance(kept, FitTime) else None

    @final
    def keep_time(self, estimate: Callable[[], FitTime] | FitTime) -> None:
        """For who makes the plan, of public facts alone. It is beside what the plan says, as a forecast is."""
        object.__setattr__(self, "_time", estimate)

    def __getstate__(self) -> dict[str, Any]:
        """The fields; a time is of one machine, and what tries it out goes nowhere."""
        return {name: value for name, value in self.__dict__.items() if name != "_time"}

    # -- the record --------------------------------------------------------------------------------

    @final
    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `Plan.from_dict` restores an equal plan."""
        return {"kind": self.kind, **self._content()}

    @final
    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Any:
        """Restores a plan with its id, so its budget is the same budget.

        :raises ArgumentError: the record is of another or an unknown kind, or its fields are not a plan's.
        """
        settings = dict(record)
        kind = settings.pop("kind", None) or Plan._kind_by_fields(settings)
        if kind in _METHODS and kind not in Plan._kinds:
            importlib.import_module(_METHODS[kind])
        found = None if kind is None else Plan._kinds.get(kind)
        if found is None:
            raise ArgumentError(f"no plan of kind {kind!r} is known here; known are {sorted(Plan._kinds)}")
        if not issubclass(found, cls):
            raise ArgumentError(f"the record is a plan of kind {kind!r}, not {cls.kind!r}")
        return found._restored(settings)

    @staticmethod
    def _kind_by_fields(record: Mapping[str, Any]) -> str | None:
        return next((kind for kind, cls in Plan._kinds.items() if cls.own_field in record), None)

    @classmethod
    def _restored(cls, settings: dict[str, Any]) -> Plan:
        fields = {cls.json_names.get(field.name, field.name): field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        if unknown := set(settings) - set(fields):
            raise ArgumentError(f"a plan of kind {cls.kind!r} has no field {', '.join(sorted(unknown))}")
        if "plan_id" not in settings:
            raise ArgumentError("a stored plan needs its plan_id, or its budget could be spent twice")
        earlier = {name: value for name, value in cls.earlier.items() if name in fields.values()}
        return cls(**cls._decoded({**earlier, **{fields[name]: value for name, value in settings.items()}}))

    @classmethod
    def _decoded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields from plain data; a subclass with fields of its own types adds them."""
        decoders = {"sampling": _sampling, "noise": lambda r: NoiseSource(**r), "relation": NeighbouringRelation}
        return {name: decoders[name](value) if name in decoders else value for name, value in fields.items()}

    def _content(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        names = [name for name, value in values.items() if name not in self.earlier or value != self.earlier[name]]
        return {self.json_names.get(name, name): self._encoded(name, values[name]) for name in names}

    def _encoded(self, name: str, value: Any) -> Any:
        """A field as plain data; a subclass with fields of its own types adds them."""
        return _plain(value)

    @final
    def fingerprint(self) -> str:
        """The plan's id and a digest of its contents: parties compare it before they start."""
        digest = hashlib.sha256(json.dumps(self._content(), sort_keys=True).encode()).hexdigest()
        return f"{self.plan_id}-{digest[:16]}"


@final
@dataclasses.dataclass(frozen=True)
class PartOfPlan(Release):
    """A release whose cost follows from the whole plan.

    :ivar what: its name.
    """

    plan: Plan
    what: str

    @property
    def name(self) -> str:
        return self.what

    def event(self, adversary: Adversary) -> PrivacyEvent:
        """At most what the adversary observes of the whole plan."""
        return self.plan.event(adversary)


def select_adversaries(
    observers: Sequence[Adversary], covered: Sequence[Adversary], adversary: str | None
) -> tuple[Adversary, ...]:
    """The observer of that name, or all that are covered for None; those who know most come first.

    :raises ArgumentError: lists the names.
    """
    found = [o for o in observers if o.name == adversary] if adversary is not None else covered
    if not found:
        raise ArgumentError(f"adversary must be one of {', '.join(o.name for o in observers)}; None covers everyone")
    return tuple(sorted(found, key=lambda o: -o.colluders))


def rows_in_words(rows: Iterable[AdversaryRow]) -> str:
    """Say "insurer and clinic get ε = 11.4", the names of equal ε together; ε is rounded up."""
    names: dict[str, list[str]] = {}
    for row in rows:
        what = "no guarantee" if math.isinf(row.epsilon) else f"ε = {_THREE_DIGITS.create_decimal(row.epsilon):g}"
        names.setdefault(what, []).append(row.adversary)
    return ", ".join(f"{' and '.join(found)} {_verb(found)} {what}" for what, found in names.items())


def _verb(names: Sequence[str]) -> str:
    """A row of "any 2 colluding parties" is several."""
    return "get" if len(names) > 1 or names[0].endswith("parties") else "gets"


def check_delta(delta: float, num_records: int, *, warn: bool = True) -> None:
    """Refuses δ outside (0, 1); at 1/N and above it warns, since publishing one whole record would satisfy it."""
    if not 0 < delta < 1:
        raise ArgumentError(f"delta must lie in (0, 1), got {delta}")
    if warn and delta >= 1 / max(num_records, 1):
        warnings.warn(
            f"delta={delta:g} is at least 1/num_records: publishing a random record would satisfy it. "
            "Choose a smaller delta",
            PrivacyWarning,
            stacklevel=5,
        )


def check_party_names(parties: tuple[str, ...], noise: NoiseSource) -> None:
    """Refuses names that repeat, that are too many or too few, or that are a row of the privacy table."""
    if len(parties) != noise.num_parties or len(set(parties)) != len(parties):
        raise ArgumentError(
            f"parties must be {noise.num_parties} different names, as noise.num_parties says, got {len(parties)}"
        )
    if OUTSIDE_ANALYST in parties:
        raise ArgumentError(f'parties: "{OUTSIDE_ANALYST}" is the name of a row of the privacy table')


def check_target(epsilon: float, most: float = math.inf) -> None:
    """Refuses a target that is not positive and finite; and one above `most`, where an accountant resolves no more."""
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ArgumentError(f"epsilon must be positive and finite, got {epsilon}")
    if epsilon > most:
        raise ArgumentError(f"epsilon={epsilon:g} protects nobody; give at most {most:g}")


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Sampling):
        kinds = [kind for kind, cls in _SAMPLINGS.items() if isinstance(value, cls)]
        if not kinds:
            raise PrivacyError(f"sampling: {type(value).__name__} has no JSON form")
        return {"kind": kinds[0], **dataclasses.asdict(value)}  # type: ignore[call-overload]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]


def _sampling(record: Mapping[str, Any]) -> Sampling:
    settings = dict(record)
    return _SAMPLINGS[settings.pop("kind")](**settings)
