"""What a party is asked for: a frozen type for each kind of request, which checks itself and travels as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.gradient_plan import NoisySumPlan

_ON_THE_WIRE = {"name": "what", "fields": "words"}
_TYPES = {"plan": Mapping, "resume": bool, "name": str, "fields": Mapping, "digest": str}


@dataclass(frozen=True)
class Request:
    """What every kind has: a name on the wire, and a form as plain data, of which parties compare a digest.

    :raises ArgumentError: a field has another type than its kind's; names it.
    """

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        """Checks types. What a step may be, only a plan says."""
        for name, value in vars(self).items():
            if not isinstance(value, _TYPES.get(name, object)):
                raise ArgumentError(f"{self.kind}: {name} has another type; run one version everywhere")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"do": self.kind, **{_ON_THE_WIRE.get(name, name): value for name, value in vars(self).items()}}

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> Request:
        """The request that another process, or another organisation's program, wrote with `to_dict`.

        :raises ArgumentError: this version has no such kind, or the kind has other fields.
        """
        of = next((one for one in KINDS if one.kind == given["do"]), None)
        if of is None:
            raise ArgumentError(f"a party does not know how to {given['do']!r}; run one version everywhere")
        names = {_ON_THE_WIRE.get(one.name, one.name): one.name for one in dataclasses.fields(of)}
        if given.keys() != {"do", *names}:
            raise ArgumentError(f"{of.kind}: a request has do, {', '.join(names)}; run one version everywhere")
        return of(**{name: given[key] for key, name in names.items()})


@final
@dataclass(frozen=True)
class Begin(Request):
    """Begin or continue a plan.

    :ivar plan: as `Plan.to_dict` has it.
    """

    kind = "begin"
    plan: Mapping[str, Any]
    resume: bool


@dataclass(frozen=True)
class ReleaseRequest(Request):
    """One release of a plan.

    :ivar step: the plan's step; None for a product that one-time pads hide, which releases nothing and is not counted.
    :ivar name: which of the method's releases it is.
    :ivar fields: public arguments, as plain data for JSON.
    """

    step: int | None
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def check_turn(self, plan: Plan, spent: int) -> None:
        """Refuses a step that the plan has not, and one before which others are not on record.

        :raises PlanSpentError: says which.
        """
        step = self.step
        if step is not None and not (_is_count(step) and step < plan.num_steps):
            raise PlanSpentError(f"the plan has steps 0 to {plan.num_steps - 1}, and no step {step!r}")
        if step is not None and step > spent:
            raise PlanSpentError(
                f"this party has {spent} steps on record, and was asked for step {step}: steps are released in their "
                "order"
            )

    def refused(self) -> ArgumentError:
        """The error of `PartyComputation.check`."""
        when = "without a step" if self.step is None else f"as step {self.step}"
        return ArgumentError(
            f"{self.kind} of {self.name!r} {when} is not what the plan releases there; nothing was done"
        )


@final
@dataclass(frozen=True)
class Publish(ReleaseRequest):
    """A release of every party's own columns."""

    kind = "publish"


@final
@dataclass(frozen=True)
class Multiply(ReleaseRequest):
    """The noisy products of every two parties' factors."""

    kind = "cross_products"


@final
@dataclass(frozen=True)
class Sum(ReleaseRequest):
    """The noisy sum of all parties' vectors."""

    kind = "sum"


@final
@dataclass(frozen=True)
class Iterate(Request):
    """`count` steps of an iterative method, from `step` on."""

    kind = "iterate"
    step: int
    count: int

    def check_turn(self, plan: Plan, spent: int, *, begun: bool) -> None:
        """Refuses steps that the plan does not iterate, and such as are on record.

        :param begun: this process has iterated, so that its next step is the next on record.
        :raises ArgumentError: the plan has no such steps.
        :raises PlanSpentError: it has others.
        """
        step, count = self.step, self.count
        if not isinstance(plan, NoisySumPlan):
            raise ArgumentError(f"a plan of kind {plan.kind!r} has no steps to iterate")
        first = plan.first_gradient
        if not (_is_count(step) and _is_count(count) and count and first <= step <= plan.num_steps - count):
            raise PlanSpentError(
                f"the plan iterates steps {first} to {plan.num_steps - 1}, not {count!r} from {step!r} on"
            )
        if step < spent or (begun and step != spent):
            raise PlanSpentError(
                f"this party has {spent} steps on record, and was asked for step {step}: a step is released once"
            )


@final
@dataclass(frozen=True)
class Reveal(Request):
    """Reveal a `PrivateOutput`, which has this digest, to one party."""

    kind = "tell"
    digest: str


KINDS: tuple[type[Request], ...] = (Begin, Publish, Multiply, Sum, Iterate, Reveal)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
