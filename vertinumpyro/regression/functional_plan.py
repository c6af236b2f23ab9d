r"""The privacy plan of the functional mechanism: one release of a noisy moment matrix.

Each party computes and noises the products of its own columns; the products of two parties' columns come from the
secure `noisy_cross_product`, to which every party adds a share of noise. Own
products carry the whole noise, drawn by their owner. Cross products carry P shares; any P - c of them are as much as
the whole, c the collusion threshold. So an adversary that holds s parties faces, on every product that may change for
it, at least min(1, (P - s)/(P - c)) of the whole variance (Gaussian), and the whole noise if s <= c (Laplace). With
fewer Laplace shares than a whole nothing useful is proved, and the table says ε = inf.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import secrets
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, ClassVar, Literal, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.validation import check_fields, checked
from vertinumpyro.data import Schema
from vertinumpyro.privacy import (
    OUTSIDE_ANALYST,
    Adversary,
    AdversaryRow,
    GaussianEvent,
    NeighbouringRelation,
    PrivacyEvent,
    PureEvent,
    Release,
    sample_discrete_gaussian,
)
from vertinumpyro.privacy.accounting import gaussian_noise_multiplier
from vertinumpyro.privacy.discrete_gaussian import require_drawable
from vertinumpyro.privacy.discrete_laplace import require_laplace_drawable, sample_laplace_shares
from vertinumpyro.privacy.forecast import SEEN, Associations
from vertinumpyro.privacy.plan import PartOfPlan, Plan, check_delta, check_target
from vertinumpyro.regression.features import (
    FeatureGroup,
    FeatureLayout,
    GroupCounts,
    l1_sensitivity,
    l2_sensitivity,
    paper_sensitivity,
)

_ROUNDING = 1 + 1e-6  # covers what floating point rounds
_SMOOTHING, _SMALLEST_SHARE = 9, 18  # in grid units²: see `privacy.adversary`
_MOST_COALITIONS = 2000


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionalMechanismPlan(Plan, kind="functional_mechanism", own_field="layout"):
    """Everything public about one regression's privacy, fixed before any data is touched.

    Formal guarantee: what a fit releases satisfies every row of `adversaries`, for `relation`, N public. Towards
    parties, and about one party's columns, neighbouring tables agree on all other columns (VPDP).

    Top-down, one ε is spread over all products: with noise for the joint sensitivity Δ, what is revealed about
    party k's columns alone is ε^(k) = ε Δ_k / Δ, Δ_k computed for changes of those columns (Theorem 2 of the paper,
    with the exact Δ_k). Bottom-up, every party's own products and every pair's cross products have an ε of their
    own, and the total is their sum: see `bottom_up`.

    :ivar layout: the coordinates.
    :ivar num_records: N, public.
    :ivar model: "linear" or "logistic".
    :ivar target_epsilon: what everyone gets at most; `epsilon(adversary)` says what each gets.
    :ivar delta: 0 for pure ε by discrete Laplace noise; above 0 discrete Gaussian noise.
    :ivar relation: the neighbouring relation.
    :ivar collusion_threshold: c: towards so many colluding parties, too, the noise is whole. A target for everyone
        takes at least 1 between parties, each of which knows one share.
    :ivar sensitivity: "tight", or "paper" for comparison: Δ_f of Xu et al., every coefficient noised.
    :ivar block_epsilon: bottom-up only: ((party, party), ε) for own and cross products.
    :ivar adversary: whom alone the target is for; None for everyone (`covered`).
    :ivar plan_id: a random name, made here.
    """

    layout: FeatureLayout
    num_records: int
    model: Literal["linear", "logistic"]
    target_epsilon: float
    delta: float = 0.0
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    collusion_threshold: int = 0
    sensitivity: Literal["tight", "paper"] = "tight"
    block_epsilon: tuple[tuple[tuple[str, str], float], ...] = ()
    adversary: str | None = None
    plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    json_names: ClassVar[Mapping[str, str]] = {"target_epsilon": "epsilon"}

    def __post_init__(self) -> None:
        self._check_choices()
        if not 0 <= self.collusion_threshold < len(self.parties):
            raise ArgumentError(
                f"collusion_threshold must lie between 0 and the number of parties less one, "
                f"{len(self.parties) - 1}, got {self.collusion_threshold}: if all collude, nothing is left to protect"
            )
        least = int(self.adversary != OUTSIDE_ANALYST and len(self.parties) > 1)
        object.__setattr__(self, "collusion_threshold", max(self.collusion_threshold, least))
        if self.num_records * self.layout.scale**2 > 2**53:
            raise RangeError("sums of products could exceed 2^53 grid units: lower feature_bits")
        self._check_noise()
        _ = self.targets()  # validates the adversary's name

    def _check_choices(self) -> None:
        check_fields(self)
        if self.model == "logistic" and self.layout.label_group.shape != "sign":
            raise ArgumentError(f"label {self.layout.label!r} must be a binary column for a logistic regression")
        check_target(self.target_epsilon)
        if not 0 <= self.delta < 1:
            raise ArgumentError(f"delta must lie in [0, 1), got {self.delta}; 0 chooses pure epsilon")
        if self.delta:
            check_delta(self.delta, self.num_records)
        if self.num_records < 2:
            raise ArgumentError(f"num_records must be at least 2, got {self.num_records}")
        if not isinstance(self.relation, NeighbouringRelation):
            raise ArgumentError("relation must be a NeighbouringRelation")
        if self.sensitivity == "paper" and (self.delta or self.block_epsilon):
            raise ArgumentError('sensitivity="paper" has pure epsilon, top-down only: set delta=0')
        if self.adversary not in (None, OUTSIDE_ANALYST) and (self.sensitivity == "paper" or self.block_epsilon):
            raise ArgumentError(f'adversary must be None or "{OUTSIDE_ANALYST}" bottom-up and with sensitivity="paper"')

    def _check_noise(self) -> None:
        for block in self.blocks:
            size = self.noise_size(block)
            if self.pure:
                require_laplace_drawable(size)
                continue
            require_drawable(2 * len(self.parties) * size)
            if size // self.num_covering < _SMALLEST_SHARE:
                raise ArgumentError("a noise share is too small for its accounting: raise feature_bits")

    @classmethod
    @checked
    def of(
        cls, schema: Schema, label: str, *, num_records: int, model: Literal["linear", "logistic"], epsilon: float,
        features: Iterable[str] | None = None, expand: Iterable[str] = (), feature_bits: int = 12, **settings: Any,
    ) -> FunctionalMechanismPlan:  # fmt: skip
        """The plan for a public schema; `features`, `expand` and `feature_bits` as in `FeatureLayout.of`.

        Example:
            >>> from vertinumpyro.data import RealColumn, PartySchema, Schema
            >>> columns = {"clinic": ["age"], "bank": ["income", "debt"]}
            >>> real = RealColumn(bounds=(0.0, 1.0))
            >>> schema = Schema({p: PartySchema({n: real for n in names}) for p, names in columns.items()})
            >>> plan = FunctionalMechanismPlan.of(
            ...     schema, "debt", num_records=1000, model="linear", epsilon=1.0, delta=1e-5)
            >>> [(row.adversary, row.guarantee, round(row.epsilon, 2)) for row in plan.adversaries][:3]
            [('outside analyst', 'DP', 1.0), ('clinic', 'VPDP', 1.0), ('bank', 'VPDP', 0.85)]
        """
        layout = FeatureLayout.of(schema, label, features=features, expand=expand, feature_bits=feature_bits)
        return cls(layout=layout, num_records=num_records, model=model, target_epsilon=epsilon, **settings)

    @classmethod
    def bottom_up(
        cls, layout: FeatureLayout, *, party_epsilon: Mapping[str, float],
        pair_epsilon: Mapping[tuple[str, str], float], **settings: Any,
    ) -> FunctionalMechanismPlan:  # fmt: skip
        """A plan from the parties' own budgets: pure ε, Σ_k ε_k + Σ_{k<l} ε_kl in total, by plain composition.

        :param layout: the coordinates.
        :param party_epsilon: ε_k for each party's own products.
        :param pair_epsilon: ε_kl for each pair's cross products, in either order.
        :param settings: `num_records`, `model` and further fields.
        """
        given: dict[tuple[str, str], float] = {**{(k, k): e for k, e in party_epsilon.items()}, **pair_epsilon}
        blocks = list(_blocks(layout.parties))
        found = {(a, b): given.get((a, b), given.get((b, a))) for a, b in blocks}
        missing = [block for block, value in found.items() if value is None or not 0 < value < math.inf]
        if missing or len(given) != len(blocks):
            raise ArgumentError(
                f"party_epsilon and pair_epsilon need one positive value for each of {len(layout.parties)} parties "
                f"and each pair; the first to mend: {missing[:1] or 'a name or pair that is given twice or unknown'}"
            )
        pairs = tuple((block, float(value)) for block, value in found.items() if value is not None)
        total = math.fsum(e for _, e in pairs)
        return cls(layout=layout, target_epsilon=total, block_epsilon=pairs, delta=0.0, **settings)

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties that hold a column of the regression."""
        return self.layout.parties

    @property
    def pure(self) -> bool:
        """Whether the noise is Laplace."""
        return self.delta == 0

    @property
    def num_covering(self) -> int:
        """P - c: how many shares make the whole noise of a cross product."""
        return len(self.parties) - self.collusion_threshold

    @property
    def blocks(self) -> tuple[tuple[str, str], ...]:
        """(k, k) for own products and (k, l) for cross products."""
        return tuple(_blocks(self.parties))

    @functools.cached_property
    def _block_epsilon(self) -> dict[tuple[str, str], float]:
        return dict(self.block_epsilon)

    def noise_size(self, block: tuple[str, str]) -> int:
        """The whole noise of a product in grid units: scale b of Laplace, variance of Gaussian noise; rounded up."""
        if not self.pure:
            sensitivity = Fraction(l2_sensitivity(self._target_counts, self.relation) * self.layout.scale**2)
            multiplier = gaussian_noise_multiplier(self.target_epsilon, self.delta, self.relation)
            return math.ceil((sensitivity * Fraction(multiplier * _ROUNDING)) ** 2) + _SMOOTHING
        epsilon = Fraction(self._block_epsilon.get(block, self.target_epsilon))
        return 2 * math.ceil(self._l1(block) * self.layout.scale**2 / epsilon / 2)  # even: the paper needs its half

    @property
    def _may_change(self) -> list[str]:
        """Whose columns may change for the adversary that the target is for."""
        return [party for party in self.parties if party != self.adversary]

    @functools.cached_property
    def _target_counts(self) -> GroupCounts:
        return self.layout.counts(self._may_change)

    def _l1(self, block: tuple[str, str]) -> Fraction:
        if self.block_epsilon:
            return self._block_l1(block)
        if self.sensitivity == "tight":
            return l1_sensitivity(self._target_counts, self.relation)
        # In units of our products: 2 x_a x_b / 8 and y x / 2 (y = ±1) are the paper's coefficients, or 2 x_a x_b.
        paper = paper_sensitivity(self.layout.size - 1, self.model == "logistic")
        return paper * 4 if self.model == "logistic" else paper / 2

    def _block_l1(self, block: tuple[str, str]) -> Fraction:
        """Joint sensitivity of one block. Cross products of G_k and G_l groups all move by 2 if all of k's change."""
        first, second = (self.layout.counts([party]).free for party in block)
        if block[0] == block[1]:
            return l1_sensitivity(first, self.relation)
        return Fraction(self.relation.sensitivity * (first.total - 1) * (second.total - 1))

    @functools.cached_property
    def multipliers(self) -> np.ndarray:
        """Each product's noise `[D, D]` in units of `noise_size`: 2 for squares, 0 where nothing is released."""
        return self.layout.noise_multipliers(paper=self.sensitivity == "paper", logistic=self.model == "logistic")

    @functools.cached_property
    def noise_variance(self) -> np.ndarray:
        """Variance of the noise in each entry of the revealed matrix `[D, D]`, features in [-1, 1]."""
        out = np.zeros((self.layout.size, self.layout.size))
        for block in self.blocks:
            rows, columns = (self.layout.span(party) for party in block)
            size, shares = self.noise_size(block), 1.0
            if block[0] != block[1]:
                size, shares = self._share_size(block), len(self.parties) / (self.num_covering if self.pure else 1)
            times = self.multipliers[rows, columns]
            entry = shares * (2.0 * (size * times) ** 2 if self.pure else size * times)
            out[rows, columns], out[columns, rows] = entry, entry.T
            if block[0] == block[1]:
                first = self.multipliers[0, columns]
                out[0, columns] = out[columns, 0] = 2.0 * (size * first) ** 2 if self.pure else size * first
        return out / float(self.layout.scale) ** 4

    @functools.cached_property
    def forecast(self) -> Associations:
        """Which correlations with the label will stand out of noise, features and label varying as is usual."""
        found, label = {}, self.layout.label_index
        spread = _usual_stddev(self.layout.label_group)
        for group in self.layout.feature_groups:
            noise = math.sqrt(self.noise_variance[self.layout.starts[group.column], label])
            least = SEEN * noise / (self.num_records * _usual_stddev(group) * spread)
            found[group.column] = min(1.0, least)
        return Associations(self.layout.label, found)

    def __str__(self) -> str:
        """What it costs, and what its fits can be expected to show."""
        return f"ε ≤ {self.worst.epsilon:.4g}, δ = {self.delta:g}, N = {self.num_records:,}\n{self.forecast}"

    def _share_size(self, block: tuple[str, str]) -> int:
        """One party's share for a cross product: the same scale b of a Pólya share, or a part of the variance."""
        size = self.noise_size(block)
        return size if self.pure else -(-size // self.num_covering)

    def draw_noise(self, block: tuple[str, str], times: np.ndarray, source: RandomSource) -> np.ndarray:
        """One party's noise for own or cross products, in grid units, int64 like `times`, their multipliers. Secret."""
        own = block[0] == block[1]
        size = self.noise_size(block) if own else self._share_size(block)
        out = np.zeros(times.shape, np.int64)
        for factor in np.unique(times[times > 0]):
            chosen, scaled = times == factor, Fraction(size) * Fraction(factor)
            count = int(chosen.sum())
            if self.pure:
                out[chosen] = sample_laplace_shares(scaled, 1 if own else self.num_covering, count, source)
            else:
                out[chosen] = sample_discrete_gaussian(scaled, count, source)
        return out

    @property
    def releases(self) -> tuple[Release, ...]:
        """Each party's own products, then the products across parties where there are several."""
        own, across = (PartOfPlan(self, what) for what in ("the parties' own products", "the products across parties"))
        return (own, across) if len(self.parties) > 1 else (own,)

    @property
    def covered(self) -> tuple[Adversary, ...]:
        """See `Plan.covered`."""
        return tuple(observer for observer in self.observers if observer.colluders <= max(1, self.collusion_threshold))

    @functools.cached_property
    def adversaries(self) -> tuple[AdversaryRow, ...]:
        """The privacy table: outside analyst, each party, coalitions, and each party's own ε^(k)."""
        about = (self._row(f"{OUTSIDE_ANALYST}, about {name!r} alone", [name], 0) for name in self.parties)
        return (*(self.row(observer) for observer in self.observers), *(about if len(self.parties) > 1 else ()))

    def event(self, observer: Adversary) -> PrivacyEvent:
        """See `Plan.event`: all products together."""
        row = self.row(observer)
        gaussian = None if self.pure else GaussianEvent(noise_multiplier=row.noise_multiplier, count=1)
        return gaussian or PureEvent(pure_epsilon=row.epsilon)

    def row(self, observer: Adversary) -> AdversaryRow:
        """See `Plan.row`."""
        if observer.colluders > 1:
            return self._coalition(observer.colluders)
        return self._row(observer.name, [p for p in self.parties if p != observer.name], observer.colluders)

    def epsilon_about(self, party: str) -> float:
        """ε^(k): what an outside analyst learns about one party's columns."""
        if party not in self.parties:
            raise ArgumentError(f"party must be one of {', '.join(self.parties)}")
        return self._epsilon((party,), 0)[0]

    def _coalition(self, size: int) -> AdversaryRow:
        """The worst coalition of a size; where they are too many, a bound by letting every column change."""
        name, parties = f"any {size} colluding parties", self.parties
        if math.comb(len(parties), size) > _MOST_COALITIONS:
            return self._row(name, parties, size)
        rest = itertools.combinations(parties, len(parties) - size)
        return max((self._row(name, changing, size) for changing in rest), key=lambda row: row.epsilon)

    def _row(self, name: str, changing: Iterable[str], colluders: int) -> AdversaryRow:
        changing = tuple(changing)
        epsilon, multiplier = self._epsilon(changing, colluders)
        owner = "their own" if colluders > 1 else "its own"
        return AdversaryRow(
            adversary=name,
            relation=self.relation.value,
            guarantee="DP" if not colluders and len(changing) == len(self.parties) else "VPDP",
            epsilon=epsilon,
            delta=self.delta,
            noise_multiplier=multiplier,
            knows=(f"{owner} columns", f"{owner} noise") if colluders else (),
            proof="proved",
        )

    def _epsilon(self, changing: tuple[str, ...], colluders: int) -> tuple[float, float]:
        """(ε, standard deviation of the unknown noise over half the sensitivity, or over all of it if zeroed)."""
        counts = self.layout.counts(changing)
        whole = (self.parties[0], self.parties[0])
        if not self.pure:
            part = min(Fraction(1), Fraction(len(self.parties) - colluders, self.num_covering))
            unknown = math.sqrt(self.noise_size(whole) * part - _SMOOTHING) / self.layout.scale**2
            multiplier = self.relation.sensitivity * unknown / l2_sensitivity(counts, self.relation)
            event = GaussianEvent(noise_multiplier=multiplier, count=1)
            return event.epsilon(self.delta, self.relation), multiplier
        if colluders > self.collusion_threshold:
            return math.inf, 0.0
        epsilon = self._pure_epsilon(changing)
        return epsilon, self.relation.sensitivity * math.sqrt(2.0) / epsilon

    def _pure_epsilon(self, changing: tuple[str, ...]) -> float:
        if self.block_epsilon:
            return math.fsum(e for block, e in self.block_epsilon if set(block) & set(changing))
        if self.sensitivity == "paper":
            return self.target_epsilon
        size = self.noise_size((self.parties[0], self.parties[0]))
        exact = l1_sensitivity(self.layout.counts(changing), self.relation) * self.layout.scale**2 / size
        stated = math.nextafter(float(exact), math.inf)
        return min(self.target_epsilon, stated) if set(changing) <= set(self._may_change) else stated

    @classmethod
    def _decoded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        layout = dict(fields["layout"])
        layout["groups"] = tuple(FeatureGroup(**group) for group in layout["groups"])
        blocks = tuple((tuple(block), epsilon) for block, epsilon in fields.get("block_epsilon", ()))
        return {**super()._decoded(fields), "layout": FeatureLayout(**layout), "block_epsilon": blocks}


def _usual_stddev(group: FeatureGroup) -> float:
    """Of a scaled feature: even between -1 and 1, or two values of which one has three quarters, or a value of many."""
    if group.shape == "scalar":
        return math.sqrt(1 / 3)
    share = 1 / group.size if group.shape == "one_hot" else 0.25
    return (1 if group.shape == "one_hot" else 2) * math.sqrt(share * (1 - share))


def _blocks(parties: tuple[str, ...]) -> Iterable[tuple[str, str]]:
    return itertools.combinations_with_replacement(parties, 2)
