r"""The privacy plan of a Markov random field over several parties: every release's part of one Gaussian budget.

A fit releases, one after the other, noisy tables that each party measures on its own columns (its local model) and
noisy tables of pairs of columns at different parties. Each release is Gaussian with parameter μ_i, chosen in advance;
later ones may look at what the earlier ones revealed, and together they are Gaussian with μ = √Σμ_i² (Dong, Roth and
Su 2022, Corollary 3.3).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

import dp_accounting

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.encoders import encoding_from_dict
from vertinumpyro.mrf.encoders.base import EncodedEvent, Encoding, Observed
from vertinumpyro.mrf.local_tables import LocalBudget
from vertinumpyro.mrf.measurements import TableRelease
from vertinumpyro.mrf.table_selection import NamedTable, own
from vertinumpyro.privacy import (
    OUTSIDE_ANALYST,
    Adversary,
    AdversaryRow,
    GaussianEvent,
    NeighbouringRelation,
    NoiseSource,
    PrivacyEvent,
    PrivacyWarning,
    Release,
)
from vertinumpyro.privacy.accounting import WorstEvent, rounded_up_multiplier
from vertinumpyro.privacy.plan import PartOfPlan, Plan, check_delta, check_party_names, check_target, select_adversaries


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MRFPlan(Plan, kind="vertimrf", own_field="cross_share"):
    """Everything public about one fit's privacy, fixed before any data is touched.

    Formal guarantee: what a fit releases satisfies every row of `adversaries` for `relation`, N public, when it
    runs once: (ε, δ)-DP towards the outside analyst, (ε, δ)-VPDP towards parties. A party knows its share of the noise
    on cross-party tables and all noise on its own tables; but those, and pairs between colluding parties, are fixed by
    columns that VPDP's neighbours share. Local tables carry their owner's noise only, so a coalition meets the local
    releases of everybody else in full.

    :ivar noise_multiplier: σ > 0; all releases together are Gaussian with μ = s/σ, s = 2 under replace, 1 under
        add/remove (one record's contribution is there or zeroed; N is public either way).
    :ivar num_records: N, public.
    :ivar parties: their names.
    :ivar num_columns: how many columns each holds.
    :ivar num_binned: how many of them need a finer histogram of values within a cell.
    :ivar delta: δ.
    :ivar relation: the neighbouring relation.
    :ivar noise: who adds noise to cross-party tables.
    :ivar cross_share: part of μ² for cross-party tables; all or nothing where there are no others.
    :ivar recovery_share: part of a local budget for finer histograms.
    :ivar refinement_rounds: in records of earlier versions, rounds in which a party measured again what its own model
        got most wrong. Such a plan is read, shown and accounted for, and no longer spent.
    :ivar refinement_share: part of what a local budget has besides finer histograms that these rounds got together.
    :ivar num_rounds: rounds that measure chosen cross-party tables again; 0 measures all of them once.
    :ivar tables_per_round: how many tables a round may choose.
    :ivar first_share: part of the cross-party budget for the first look at all tables, where rounds or triples follow.
    :ivar num_triples: tables of three columns across parties, chosen after the first look; 0 releases none.
    :ivar triples_why: the reason for their number, in words; empty in records of earlier versions.
    :ivar target: the column that all of them are of; None for any.
    :ivar workload: the tables that are measured, where they are not those of all pairs: (party, column, party, column).
    :ivar encoding: the encoder's parameters where cross-party tables are not secure marginals; `noise_multiplier` then
        fixes the local releases alone.
    :ivar adversary: whom alone a target ε was for; None for everyone (`covered`).
    :ivar plan_id: a random name, made here; a plan with another id is another budget.
    """

    earlier: ClassVar[Mapping[str, Any]] = {
        **Plan.earlier,
        "workload": None,
        "num_triples": 0,
        "triples_why": "",
        "target": None,
    }

    noise_multiplier: float
    num_records: int
    parties: tuple[str, ...]
    num_columns: tuple[int, ...]
    num_binned: tuple[int, ...]
    delta: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    noise: NoiseSource
    cross_share: float = 0.6
    recovery_share: float = 0.1
    refinement_rounds: int = 0
    refinement_share: float = 0.0
    num_rounds: int = 0
    tables_per_round: int = 0
    first_share: float = 1.0
    num_triples: int = 0
    triples_why: str = ""
    target: str | None = None
    workload: tuple[NamedTable, ...] | None = None
    encoding: Encoding | None = None
    adversary: str | None = None
    plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        for name in ("parties", "num_columns", "num_binned"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.workload is not None:
            object.__setattr__(self, "workload", tuple(tuple(table) for table in self.workload))
        check_party_names(self.parties, self.noise)
        if len(self.num_columns) != len(self.parties) or len(self.num_binned) != len(self.parties):
            raise ArgumentError("num_columns and num_binned must have one number for each party")
        check_delta(self.delta, self.num_records, warn=False)
        if not isinstance(self.relation, NeighbouringRelation):
            raise ArgumentError("relation must be a NeighbouringRelation")
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise ArgumentError(f"noise_multiplier must be positive and finite, got {self.noise_multiplier}")
        self._check_shares()
        _ = self.cross_releases, self.targets()  # validates noise and grid; the adversary's name

    def _check_shares(self) -> None:
        for name in ("cross_share", "recovery_share", "first_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ArgumentError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.refinement_rounds < 0 or not 0 <= self.refinement_share < 1:
            raise ArgumentError("refinement_rounds must not be negative, and refinement_share must lie in [0, 1)")
        if bool(self.refinement_rounds) != bool(self.refinement_share):
            raise ArgumentError(
                f"refinement_share={self.refinement_share:g} does not fit refinement_rounds={self.refinement_rounds}: "
                "rounds need a share above 0, and without rounds it is 0"
            )
        if self.encoding is not None and self.num_rounds:
            raise ArgumentError('num_rounds: only encoder="secure_marginals" can measure chosen tables again')
        if self.workload is not None and (self.num_rounds or self.encoding is not None):
            raise ArgumentError(
                'workload: named tables are measured once, by secure marginals; leave selection="adaptive" and other '
                "encoders out"
            )
        if self.num_rounds < 0 or (self.num_rounds and not 0 < self.tables_per_round <= self.num_cross_pairs):
            raise ArgumentError(
                f"num_rounds must not be negative, and tables_per_round between 1 and the {self.num_cross_pairs} "
                "pairs of columns at different parties"
            )
        if not 0 <= self.num_triples <= self.num_cross_triples:
            raise ArgumentError(
                f"num_triples must lie between 0 and {self.num_cross_triples}, the tables of two columns of "
                "one party and one of another"
            )
        if self.num_triples and (self.num_rounds or self.workload is not None or self.encoding is not None):
            raise ArgumentError(
                "num_triples: tables of three columns follow a look at all pairs, by secure marginals; leave workload, "
                'selection="adaptive" and other encoders out, or give triples=False'
            )
        follows = self.num_rounds or self.num_triples
        if follows and not (0 < self.first_share < 1 and self.cross_share):
            raise ArgumentError(
                "first_share must lie between 0 and 1, and cross_share above 0, where rounds or triples follow"
            )

    @classmethod
    def calibrated(cls, *, epsilon: float, **settings: Any) -> MRFPlan:
        """The plan with the smallest σ, rounded up to 4 decimals, that gives everyone at most `epsilon`.

        :param epsilon: the target, > 0.
        :param settings: all other fields; `adversary` narrows the target to one row of the table.
        """
        check_target(epsilon)

        def enough(sigma: float) -> bool:
            plan = cls(noise_multiplier=sigma, **settings)
            return all(plan._event(o).delta(epsilon, plan.relation) <= plan.delta for o in plan.targets())

        return cls(noise_multiplier=rounded_up_multiplier(enough), **settings)

    # -- what it will tell -----------------------------------------------------------------------

    @functools.cached_property
    def forecast(self) -> Any:
        """What a release will tell more than noise, computed when it is asked for; None of a plan from a record."""
        make = self.__dict__.get("_forecast")
        return None if make is None else make(plan=self)

    def keep_forecast(self, make: Callable[..., Any]) -> None:
        """For who makes the plan: what computes its forecast. In no record, no comparison and no copy."""
        object.__setattr__(self, "_forecast", make)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("forecast", "_forecast")}

    def __str__(self) -> str:
        """With a forecast it and what the plan costs; else all fields."""
        if (found := self.forecast) is None:
            return repr(self)
        return f"ε ≤ {self.worst.epsilon:.4g}, δ = {self.delta:g}, N = {self.num_records:,}, noisy tables\n{found}"

    # -- the budget ------------------------------------------------------------------------------

    @property
    def num_cross_pairs(self) -> int:
        """Pairs of columns at different parties that are measured."""
        return self._pairs_outside(())

    @property
    def num_cross_triples(self) -> int:
        """How many sets of two columns of one party and one of another there are."""
        return _num_triples(self.num_columns)

    def _num_own_pairs(self, index: int) -> int:
        """Pairs of one party's columns that are measured."""
        if self.workload is not None:
            return len(own(self.workload, self.parties[index]))
        return math.comb(self.num_columns[index], 2)

    def _pairs_outside(self, coalition: Sequence[int]) -> int:
        """Pairs of columns at different parties of which at least one is outside the coalition."""
        if self.workload is not None:
            inside = {self.parties[i] for i in coalition}
            return sum(a != b and not {a, b} <= inside for a, _, b, _ in self.workload)
        return sum(
            self.num_columns[i] * self.num_columns[j]
            for i, j in itertools.combinations(range(len(self.parties)), 2)
            if not (i in coalition and j in coalition)
        )

    def _triples_outside(self, coalition: Sequence[int]) -> int:
        """Triples across parties of which at least one column is outside the coalition."""
        return self.num_cross_triples - _num_triples([self.num_columns[i] for i in coalition])

    @property
    def _mu_squared(self) -> float:
        return (self.relation.sensitivity / self.noise_multiplier) ** 2

    @property
    def _local_weights(self) -> tuple[int, ...]:
        """How the local budget is divided: by the number of a party's own pairs, or 1 for finer histograms alone."""
        return tuple(
            self._num_own_pairs(index) or int(binned > 0 or len(self.parties) == 1)
            for index, binned in enumerate(self.num_binned)
        )

    @property
    def _effective_cross_share(self) -> float:
        if not self.num_cross_pairs:
            return 0.0
        return self.cross_share if sum(self._local_weights) else 1.0

    def local_mu(self, party: str) -> float:
        """The parameter μ of everything that one party releases about its own columns; 0 when it releases nothing."""
        weights, index = self._local_weights, self.parties.index(party)
        share = (1 - self._effective_cross_share) * weights[index] / max(sum(weights), 1)
        return math.sqrt(self._mu_squared * share)

    def local_budget(self, party: str) -> LocalBudget:
        """A party's part for its own tables."""
        return LocalBudget(
            mu=self.local_mu(party),
            recovery_share=self.recovery_share,
            num_records=self.num_records,
            relation=self.relation,
        )

    def fine_stddev(self, party: str) -> float:
        """Noise of a cell of the finer histograms of a party that has some."""
        index = self.parties.index(party)
        share = self.recovery_share if self._num_own_pairs(index) else 1.0
        return self.local_budget(party).release(self.num_binned[index], share).stddev

    @functools.cached_property
    def cross_releases(self) -> tuple[TableRelease, ...]:
        """Releases of cross-party tables: all of them first, then what each round chooses, or triples."""
        budget = self._mu_squared * self._effective_cross_share
        if not budget or self.encoding is not None:
            return ()
        first = self.first_share if self.num_rounds or self.num_triples else 1.0
        later = (self.tables_per_round, (1 - first) / max(self.num_rounds, 1))
        triples = [(self.num_triples, 1 - first)] if self.num_triples else []
        parts = [(self.num_cross_pairs, first), *[later] * self.num_rounds, *triples]
        return tuple(self._release(tables, math.sqrt(budget * share)) for tables, share in parts)

    def _release(self, num_tables: int, mu: float) -> TableRelease:
        return TableRelease(num_tables=num_tables, mu=mu, noise=self.noise, relation=self.relation)

    @property
    def releases(self) -> tuple[Release, ...]:
        """The parties' own tables as one step, then every release of cross-party tables."""
        encoded = () if self.encoding is None else (PartOfPlan(self, "the tables across parties"),)
        return (PartOfPlan(self, "the parties' own tables"), *encoded, *self.cross_releases)

    @property
    def step_names(self) -> tuple[str, ...]:
        """See `Plan.step_names`; releases of rounds have numbers."""
        own, *across = super().step_names
        if self.num_triples:
            return (own, "the first look across parties", "the tables of three columns")
        if not self.num_rounds:
            return (own, *across)
        return (own, "the first look across parties", *(f"round {i + 1}" for i in range(self.num_rounds)))

    # -- the guarantees --------------------------------------------------------------------------

    def _coalitions(self, adversary: Adversary) -> list[tuple[int, ...]]:
        """Every coalition of the adversary's size, or the party of its name."""
        if adversary.name in self.parties:
            return [(self.parties.index(adversary.name),)]
        return list(itertools.combinations(range(len(self.parties)), adversary.colluders))

    def _mu_against(self, adversary: Adversary) -> float:
        """Towards the worst coalition."""
        return max(self._mu_of(coalition) for coalition in self._coalitions(adversary))

    def _mu_of(self, coalition: Sequence[int]) -> float:
        local = sum(self.local_mu(p) ** 2 for i, p in enumerate(self.parties) if i not in coalition)
        outside = [self._pairs_outside(coalition)] * (1 + self.num_rounds) + [self._triples_outside(coalition)]
        cross = sum(
            release.mu_against(len(coalition), min(release.num_tables, most)) ** 2
            for release, most in zip(self.cross_releases, outside, strict=False)
        )
        return math.sqrt(local + cross)

    def event(self, observer: Adversary) -> PrivacyEvent:
        """See `Plan.event`; with an encoder that of the worst coalition of the observer's size."""
        events = self._events(observer)
        return events[0] if len(events) == 1 else WorstEvent(tuple(events))

    def _event(self, adversary: Adversary) -> GaussianEvent:
        mu = max(self._mu_against(adversary), 1e-12)
        return GaussianEvent(noise_multiplier=self.relation.sensitivity / mu, count=1)

    def _events(self, adversary: Adversary) -> list[PrivacyEvent]:
        if self.encoding is None:
            return [self._event(adversary)]
        return [self._encoded_event(coalition) for coalition in self._coalitions(adversary)]

    def _encoded_event(self, coalition: Sequence[int]) -> EncodedEvent:
        assert self.encoding is not None
        observed = Observed(
            mu=self._mu_of(coalition),
            num_pairs=self._pairs_outside(coalition),
            outside=tuple(i for i in range(len(self.parties)) if i not in coalition),
        )
        return EncodedEvent(encoding=self.encoding, observed=observed, is_party=bool(coalition))

    def delta_at(self, epsilon: float, adversary: str | None = None) -> float:
        """δ(ε) against the adversary of that name in the table; for None against all whom the target is for."""
        observers = select_adversaries(self.observers, self.targets(), adversary)
        return max(self.event(observer).delta(epsilon, self.relation) for observer in observers)

    def local_epsilon(self) -> float:
        """ε of the local releases alone against the outside analyst."""
        mu = math.sqrt(sum(self.local_mu(party) ** 2 for party in self.parties))
        event = GaussianEvent(noise_multiplier=self.relation.sensitivity / max(mu, 1e-12), count=1)
        return event.epsilon(self.delta, self.relation)

    @property
    def covered(self) -> tuple[Adversary, ...]:
        """See `Plan.covered`."""
        return self.noise.covered(self.observers)

    def row(self, observer: Adversary) -> AdversaryRow:
        """Towards the worst coalition of the observer's size."""
        unproven = () if self.encoding is None else self.encoding.unproven
        return AdversaryRow(
            adversary=observer.name,
            relation=self.relation.value,
            guarantee="VPDP" if observer.colluders else "DP",
            epsilon=self.event(observer).epsilon(self.delta, self.relation),
            delta=self.delta,
            noise_multiplier=self._event(observer).noise_multiplier,
            knows=(*observer.own_knowledge[:1], self._secrets(observer.owner)) if observer.colluders else (),
            proof="unproven" if unproven else "proved",
            unproven=unproven,
        )

    def _secrets(self, owner: str) -> str:
        """What a party knows of the randomness, in words."""
        if self.encoding is not None:
            return self.encoding.secrets(owner)
        return f"{owner} noise" if self.noise.kind == "collaborative" else f"the noise on {owner} tables"

    def dp_event(self) -> dp_accounting.DpEvent:
        """The outside analyst's event for dp-accounting: one Gaussian release, and an encoder's where there is one."""
        return self.event(Adversary(name=OUTSIDE_ANALYST)).dp_event()

    # -- the record ------------------------------------------------------------------------------

    def describe(self) -> dict:
        """Everything that a report should say, as plain data."""
        return {
            "settings": self.to_dict(),
            "num_cross_pairs": self.num_cross_pairs,
            "num_triples": self.num_triples,
            "stddev_of_cross_tables": [release.stddev for release in self.cross_releases],
            "fingerprint": self.fingerprint(),
            "adversaries": self.table_rows(),
        }

    def _encoded(self, name: str, value: Any) -> Any:
        return value.to_dict() if isinstance(value, Encoding) else super()._encoded(name, value)

    @classmethod
    def _decoded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        encoding = fields.get("encoding")
        return {**super()._decoded(fields), "encoding": encoding and encoding_from_dict(encoding)}


def _num_triples(num_columns: Sequence[int]) -> int:
    """Of two columns of one party and one of another, which hold so many columns each."""
    total = sum(num_columns)
    return sum(math.comb(own, 2) * (total - own) for own in num_columns)


def warn_of_loss(missing: Sequence[str]) -> None:
    """Releases that a crash took after they were counted."""
    if missing:
        warnings.warn(
            f"counted before the run stopped, and not stored: {', '.join(missing)}. That part of the budget is spent "
            "and its tables are lost; the twin is made from the rest",
            PrivacyWarning,
            stacklevel=5,
        )
