"""A method's part at one party: what it is asked for, and what it computes from that party's own columns and noise.

Each kind of request is a frozen type, which checks itself and travels as plain data.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.rng import InsecureSeededSource, RandomSource, SystemRandomSource
from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.data import DatasetInfo
from vertinumpyro.privacy import Batches, Plan
from vertinumpyro.privacy.gradient_plan import NoisySumPlan
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.input_form import InputForm
from vertinumpyro.session.run import Payload

_ON_THE_WIRE = {"name": "what", "fields": "words"}
_TYPES = {"plan": Mapping, "resume": bool, "name": str, "fields": Mapping, "digest": str}


@dataclasses.dataclass(frozen=True)
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
@dataclasses.dataclass(frozen=True)
class Begin(Request):
    """Begin or continue a plan.

    :ivar plan: as `Plan.to_dict` has it.
    """

    kind = "begin"
    plan: Mapping[str, Any]
    resume: bool


@dataclasses.dataclass(frozen=True)
class ReleaseRequest(Request):
    """One release of a plan.

    :ivar step: the plan's step; None for a product that one-time pads hide, which releases nothing and is not counted.
    :ivar name: which of the method's releases it is.
    :ivar fields: public arguments, as plain data for JSON.
    """

    step: int | None
    name: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

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
@dataclasses.dataclass(frozen=True)
class Publish(ReleaseRequest):
    """A release of every party's own columns."""

    kind = "publish"


@final
@dataclasses.dataclass(frozen=True)
class Multiply(ReleaseRequest):
    """The noisy products of every two parties' factors."""

    kind = "cross_products"


@final
@dataclasses.dataclass(frozen=True)
class Sum(ReleaseRequest):
    """The noisy sum of all parties' vectors."""

    kind = "sum"


@final
@dataclasses.dataclass(frozen=True)
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
@dataclasses.dataclass(frozen=True)
class Reveal(Request):
    """Reveal a `PrivateOutput`, which has this digest, to one party."""

    kind = "tell"
    digest: str


KINDS: tuple[type[Request], ...] = (Begin, Publish, Multiply, Sum, Iterate, Reveal)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


Columns = Mapping[str, np.ndarray]
"""One party's encoded columns, each [N]. Secret."""


class PartyComputation(abc.ABC):
    """One party's local computation for one plan. It never meets a socket, nor another party's columns.

    Every kind of release has a name. A method overrides what it uses: `publish` for releases of a party's own
    columns, `factor` and `noise` for cross products, `summand` and `noise` for sums.
    """

    verified: bool = False
    """Whether products of factors with an `input_form` are verified; who runs it says so."""

    @abc.abstractmethod
    def check(self, request: ReleaseRequest) -> None:
        """Refuses what is not what the plan releases at a step. A party asks before it computes anything.

        :raises ArgumentError: it is something else.
        """

    def publish(self, request: Publish) -> Payload:
        """A release of the party's own columns, its noise included."""
        raise NotImplementedError(request.name)

    def factor(self, request: Multiply) -> Factor:
        """The party's integer matrix [N, d] in a product with every other party's, or blocks of it. Secret."""
        raise NotImplementedError(request.name)

    def widths(self, request: Multiply) -> tuple[int, ...]:
        """d of every party's `factor`, public."""
        raise NotImplementedError(request.name)

    def input_form(self, request: Multiply) -> InputForm | None:
        """What every party's `factor` is, public, where a party that cheats is to be held to it."""
        return None

    def adds_shares(self, request: Sum) -> bool:
        """Whether summands are shares of such products, which are integers modulo 2^61 - 1 where `verified`."""
        return False

    def summand(self, request: Sum) -> np.ndarray:
        """The party's integer vector int64 [D] in a sum. Secret."""
        raise NotImplementedError(request.name)

    def noise(self, request: Multiply | Sum, size: int) -> np.ndarray:
        """The party's noise on such a product or sum, int64 [size]. Secret."""
        raise NotImplementedError(request.name)

    def iterate(self, end: PartyProtocol, batches: Batches, arrays: Mapping[str, np.ndarray]) -> Payload:
        """Steps of an iterative method, a batch each, with the other parties; the public state that they reach.

        :param end: this party's end of the protocols.
        :param arrays: the state to begin from; empty where the party has it.
        """
        raise NotImplementedError

    def opened(self, request: Multiply | Sum, values: np.ndarray) -> None:  # noqa: B027 (most need not know)
        """Told what a product or sum came to, int64 flat; everybody knows it."""


@runtime_checkable
class Method(Protocol):
    """What a session runs: an inference with public settings, which makes each party's part."""

    @property
    def backend(self) -> Any:
        """Computes across parties."""
        ...

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses a plan that was not made for this method on such tables: its privacy table could be false for them.

        :raises ArgumentError: names what differs.
        """
        ...

    def work(
        self, facts: DatasetInfo, party: str, columns: Columns, plan: Any, source: RandomSource
    ) -> PartyComputation:
        """The party's part under a plan; `source` is the party's own randomness."""
        ...


class HorizontalMethod:
    """A method whose parties hold whole records, each other ones. Every other method's hold columns of the same."""


def party_sources(num_parties: int, insecure_seed: int | None, first_step: int = 0) -> tuple[RandomSource, ...]:
    """Each party's source of noise: the operating system's, or for tests and paired benchmarks one from a seed.

    :param first_step: a seeded run that goes on must not draw the noise of its first steps again.
    """
    if insecure_seed is None:
        return tuple(SystemRandomSource() for _ in range(num_parties))
    return InsecureSeededSource(insecure_seed + (first_step << 64)).spawn(num_parties)
