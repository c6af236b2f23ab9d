"""From a public schema to bounded integer features: every party expands and scales its own columns.

Categories become one-hot groups, two-valued columns signs, and reals, counts and ordered codes are scaled to [-1, 1]
by their public bounds. Everything is an integer on the grid 1/S, S = 2^feature_bits, so that the bounds of
`sensitivity` hold exactly and sums of products are exact.

How far one record moves the moment matrix that the functional mechanism releases.

A record is v = (1, its feature groups, its label), every group a block of coordinates with one of three shapes:

- one-hot: one coordinate is 1, the others 0;
- sign: one coordinate in {-1, 1};
- scalar: one coordinate in [-1, 1].

Released are the sums over records of the products v_i v_j, i < j, and of v_i² for scalars, without those that are
public or repeated: 1² and sign² are 1, two coordinates of one one-hot group multiply to 0, and the square of a
one-hot coordinate is itself, so it stands beside the intercept already. Squares get noise of twice the variance
(Gaussian) or twice the scale (Laplace): then they count half, and all norms below are half-norms of vv'.

Some groups may be *fixed*, the same in both records: towards a party, its own; for a party's own ε^(k), those of all
others. G counts the groups and the intercept, m the signs and scalars and the intercept, c the one-hot groups; n'
and c' count those that may change.

**L2, replace**: Δ₂² = max over t <= c', f <= n' of G² - t - (G - t - 2f)². Proof: ½|vv' - ww'|_F² is
½|v|⁴ + ½|w|⁴ - (v·w)². As a function of one changing scalar v_j it is convex: its second derivative is
2(|v|² - v_j²) + 6 v_j² - 2 w_j² >= 0, as the intercept makes |v|² - v_j² >= 1. In the square of a fixed scalar it is
increasing. So scalars are ±1 at the maximum, fixed ones equal. With t one-hot groups and f signs or scalars changed,
|v|² = |w|² = G and v·w = G - t - 2f; each changed one-hot group has two squares that are not released, which are 1 of
the half-norm.

**L1, replace**: Δ₁ = max over t <= c', D <= 2n' of D(2m - D)/2 + 2tm + (c - t)D + 2[C(c,2) - C(c-t,2)]. Proof: write
s = v + w, d = v - w for the signs, scalars and intercept; |s_i| + |d_i| <= 2, so with D = |d|₁ it is |s|₁ <= 2m - D.
Their own products are ½(s d' + d s'), of half-norm at most ½ D (2m - D). A scalar times a one-hot group moves by
|d_i| if the group stays and by |v_i| + |w_i| <= 2 if it changes; two one-hot groups move by 2 if either changes.
It exceeds the maximum by ½ at most, since D may be rounded to an even number, and by nothing
where the best D is even: then all scalars are ±1.

**Add/remove** (a record's contribution is there or zeroed, N public): both Δ₁ and Δ₂² are C(G,2) - C(G_fixed,2) plus
½ for each scalar that may change, since every product of groups has L1 and L2 norm at most 1, attained at ±1.

The bounds hold for integers on the grid 1/S as they stand, since rounding keeps |v_i| <= 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Literal, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.row_blocks import RowBlocks, rows_of
from vertinumpyro.core.validation import require_collection
from vertinumpyro.data import Column, Schema, VerticalDataset
from vertinumpyro.data.schema import check_schema
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.privacy import NeighbouringRelation


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupCounts:
    """How many groups of each shape a record has, and how many of them may change.

    :ivar one_hot: one-hot groups, c.
    :ivar sign: coordinates in {-1, 1}, the label among them.
    :ivar scalar: coordinates in [-1, 1], the label among them.
    :ivar changing: the same three counts of the groups that may change; None where all may.
    """

    one_hot: int
    sign: int
    scalar: int
    changing: GroupCounts | None = None

    @property
    def total(self) -> int:
        """G: all groups and the intercept."""
        return 1 + self.one_hot + self.sign + self.scalar

    @property
    def free(self) -> GroupCounts:
        """The groups that may change."""
        return self if self.changing is None else self.changing


def l2_sensitivity(counts: GroupCounts, relation: NeighbouringRelation) -> float:
    """Δ₂ of the moment matrix; see the module."""
    if relation is NeighbouringRelation.ADD_REMOVE:
        return math.sqrt(_zeroed(counts))
    G, free = counts.total, counts.free
    changed = ((t, f) for t in range(free.one_hot + 1) for f in range(free.sign + free.scalar + 1))
    return math.sqrt(max(G**2 - t - (G - t - 2 * f) ** 2 for t, f in changed))


def l1_sensitivity(counts: GroupCounts, relation: NeighbouringRelation) -> Fraction:
    """Δ₁ of the moment matrix, exactly; see the module."""
    if relation is NeighbouringRelation.ADD_REMOVE:
        return _zeroed(counts)
    return max(_l1_with_changed(counts, t) for t in range(counts.free.one_hot + 1))


def _l1_with_changed(counts: GroupCounts, t: int) -> Fraction:
    """The bound with t one-hot groups changed: concave in D, which is largest at m + c - t or at its end 2n'."""
    m, c = 1 + counts.sign + counts.scalar, counts.one_hot
    D = min(m + c - t, 2 * (counts.free.sign + counts.free.scalar))
    return Fraction(D * (2 * m - D), 2) + 2 * t * m + (c - t) * D + 2 * (math.comb(c, 2) - math.comb(c - t, 2))


def _zeroed(counts: GroupCounts) -> Fraction:
    free = counts.free
    fixed = counts.total - free.one_hot - free.sign - free.scalar
    return Fraction(math.comb(counts.total, 2) - math.comb(fixed, 2)) + Fraction(free.scalar, 2)


def paper_sensitivity(num_features: int, logistic: bool) -> Fraction:
    """Δ_f of Xu et al. for d features: d²/4 + d (logistic), 2(1 + 2d + d²) (linear). Valid, and loose."""
    d = num_features
    return Fraction(d * d, 4) + d if logistic else Fraction(2 * (1 + 2 * d + d * d))


Shape = Literal["one_hot", "sign", "scalar"]


@final
@dataclasses.dataclass(frozen=True)
class FeatureGroup:
    """The coordinates that one column becomes; public.

    :ivar party: who holds the column.
    :ivar column: its name.
    :ivar shape: see `sensitivity`.
    :ivar size: how many coordinates.
    """

    party: str
    column: str
    shape: Shape
    size: int

    @classmethod
    def of(cls, party: str, name: str, column: Column, *, expand: bool) -> FeatureGroup:
        """The group of a public column."""
        if column.masked:
            coded = {"real": "bins and ", "count": 'type = "integer", edges and '}.get(column.kind, "")
            Place(party, name).fail(
                f'missing = "{column.missing}" has no feature; fill it, or give it {coded}missing = "category"'
            )
        if column.kind in ("real", "count"):
            return cls(party, name, "scalar", 1)
        scaled = column.ordered and column.missing != "category" and not expand
        if scaled and column.num_categories > 2:
            return cls(party, name, "scalar", 1)
        if column.num_categories == 2:
            return cls(party, name, "sign", 1)
        return cls(party, name, "one_hot", column.num_categories)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureLayout:
    """The order of all coordinates: the intercept, then each party's groups, the label among its party's.

    :ivar groups: in order; all groups of a party stand together.
    :ivar label: the label's column.
    :ivar feature_bits: f; features are integers in units of 2^-f.
    """

    groups: tuple[FeatureGroup, ...]
    label: str
    feature_bits: int = 12

    def __post_init__(self) -> None:
        """Checks the label."""
        object.__setattr__(self, "groups", tuple(self.groups))
        label = [group for group in self.groups if group.column == self.label]
        if not label:
            raise ArgumentError(f"label: {suggest(self.label, [g.column for g in self.groups])}")
        if label[0].shape == "one_hot":
            raise ArgumentError(f"label {self.label!r} has more than two categories: choose a binary or numeric column")
        if len(self.groups) < 2:
            raise ArgumentError("the schema has no feature column besides the label: add one")
        if not 1 <= self.feature_bits <= 18:
            raise ArgumentError(f"feature_bits must lie between 1 and 18, got {self.feature_bits}")

    @classmethod
    def of(
        cls, schema: Schema, label: str, *, features: Iterable[str] | None = None,
        expand: Iterable[str] = (), feature_bits: int = 12,
    ) -> FeatureLayout:  # fmt: skip
        """The layout of a public schema.

        :param schema: the parties' columns.
        :param label: the column to predict.
        :param features: the columns to predict it from; None takes all others.
        :param expand: ordered columns (integers, bins) to expand into one-hot groups instead of scaling their codes.
        :param feature_bits: fractional bits of a feature.
        :raises ArgumentError: an unknown column, or a label that cannot be one.
        :raises DataError: a column allows masked values.
        """
        check_schema(schema)
        for argument, names in {"expand": expand, "features": () if features is None else features}.items():
            require_collection(argument, names, "columns")
        columns = schema.columns
        expand = set(expand)
        chosen = set(columns if features is None else features) | {label}
        for name in [*chosen, *expand]:
            if name not in columns:
                raise ArgumentError(f"no party holds column {name!r}; {suggest(name, columns)}")
        groups = [
            FeatureGroup.of(party, name, column, expand=name in expand)
            for party, part in schema.parties.items()
            for name, column in part.columns.items()
            if name in chosen
        ]
        return cls(groups=tuple(groups), label=label, feature_bits=feature_bits)

    @functools.cached_property
    def parties(self) -> tuple[str, ...]:
        """The parties that hold a column, in order."""
        return tuple(dict.fromkeys(group.party for group in self.groups))

    @property
    def scale(self) -> int:
        """S = 2^f: the integer that stands for 1."""
        return 2**self.feature_bits

    @property
    def size(self) -> int:
        """Coordinates, the intercept and the label included."""
        return 1 + sum(group.size for group in self.groups)

    @functools.cached_property
    def starts(self) -> dict[str, int]:
        """Where each column's coordinates begin."""
        ends = np.cumsum([1, *(group.size for group in self.groups)])
        return {group.column: int(start) for group, start in zip(self.groups, ends, strict=False)}

    def span(self, party: str) -> slice:
        """A party's coordinates."""
        own = [group for group in self.groups if group.party == party]
        return slice(self.starts[own[0].column], self.starts[own[-1].column] + own[-1].size)

    @property
    def label_group(self) -> FeatureGroup:
        """The label's group."""
        return next(group for group in self.groups if group.column == self.label)

    @property
    def label_index(self) -> int:
        """The label's coordinate."""
        return self.starts[self.label]

    @property
    def feature_groups(self) -> tuple[FeatureGroup, ...]:
        """All groups but the label's."""
        return tuple(group for group in self.groups if group.column != self.label)

    @functools.cached_property
    def feature_indices(self) -> np.ndarray:
        """The coordinates of the features, without intercept and label."""
        return np.delete(np.arange(1, self.size), self.label_index - 1)

    def noise_multipliers(self, *, paper: bool, logistic: bool) -> np.ndarray:
        """Each product's noise `[D, D]` over that of a product of two columns: 2 for squares, 0 where public.

        :param paper: as Xu et al.: every coefficient noised, and logistic ones of the label with half the noise.
        """
        out = np.ones((self.size, self.size))
        np.fill_diagonal(out, 2.0)
        out[0, 0] = 0.0
        if paper:
            if logistic:
                out[self.label_index, :] = out[:, self.label_index] = 0.5
            return out
        for group in self.groups:
            if group.shape != "scalar":
                own = slice(self.starts[group.column], self.starts[group.column] + group.size)
                out[own, own] = 0.0
        return out

    def counts(self, changing: Iterable[str] | None = None) -> GroupCounts:
        """The groups by shape, of which those of the parties `changing` may change; None for all."""

        everything = _counted(self.groups)
        if changing is None:
            return everything
        parties = set(changing)
        free = _counted(group for group in self.groups if group.party in parties)
        return dataclasses.replace(everything, changing=free)

    def encode(self, dataset: VerticalDataset, party: str, *, with_label: bool = True) -> np.ndarray:
        """A party's features as integers in units of 1/S `[N, d]`. Secret; computed by the party alone."""
        return self.encode_columns(dataset.schema, dataset.arrays(party), party, with_label=with_label)

    def encode_columns(
        self, schema: Schema, columns: Mapping[str, np.ndarray], party: str, *, with_label: bool = True
    ) -> np.ndarray:
        """`encode`, from the party's own encoded columns `[N]`."""
        chosen = [g for g in self.groups if g.party == party and (with_label or g.column != self.label)]
        return self._encoded(schema, columns, chosen, len(next(iter(columns.values()))))

    def in_blocks(self, schema: Schema, columns: Mapping[str, np.ndarray], party: str) -> RowBlocks:
        """`encode_columns` a block of records at a time."""
        width = sum(group.size for group in self.groups if group.party == party)
        make = functools.partial(self.encode_columns, schema, party=party)
        return RowBlocks((len(next(iter(columns.values()))), width), self.scale, columns, make)

    def encode_features(self, dataset: VerticalDataset, rows: slice = slice(None)) -> np.ndarray:
        """All features in [-1, 1] `[N, d]`, or some rows of them, for predictions; the label's column may be absent.

        :raises ArgumentError: a feature's column is missing.
        """
        arrays = dataset.pooled()
        missing = [g.column for g in self.feature_groups if g.column not in arrays]
        if missing:
            raise ArgumentError(f"the dataset lacks column {missing[0]!r}, which the model was fitted with: add it")
        groups, chosen = list(self.feature_groups), rows_of(arrays, rows)
        return self._encoded(dataset.schema, chosen, groups, len(next(iter(chosen.values())))) / self.scale

    def _encoded(
        self, schema: Schema, arrays: Mapping[str, np.ndarray], groups: list[FeatureGroup], num_records: int
    ) -> np.ndarray:
        narrow = np.int16 if self.feature_bits <= 14 else np.int32
        out = np.zeros((num_records, sum(group.size for group in groups)), narrow, order="F")
        start, columns = 0, schema.columns
        for group in groups:
            block = out[:, start : start + group.size]
            values = arrays[group.column]
            if group.shape == "one_hot":
                block[np.arange(num_records), values] = self.scale
            else:
                block[:, 0] = np.rint(self.scale * scaled(columns[group.column], values))
            start += group.size
        return out


def _counted(groups: Iterable[FeatureGroup]) -> GroupCounts:
    shapes = [group.shape for group in groups]
    return GroupCounts(one_hot=shapes.count("one_hot"), sign=shapes.count("sign"), scalar=shapes.count("scalar"))


def scaled(column: Column, values: np.ndarray) -> np.ndarray:
    """Encoded values of a column as numbers in [-1, 1], by its public bounds alone."""
    low, high = column.encoded_range
    return np.clip((2.0 * values - (low + high)) / (high - low), -1.0, 1.0)
