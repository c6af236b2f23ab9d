"""From a public schema to bounded integer features: every party expands and scales its own columns.

Categories become one-hot groups, two-valued columns signs, and reals, counts and ordered codes are scaled to [-1, 1]
by their public bounds. Everything is an integer on the grid 1/S, S = 2^feature_bits, so that the bounds of
`sensitivity` hold exactly and sums of products are exact.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Literal, final

import numpy as np

from vertinumpyro.core.arguments import require_collection
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.row_blocks import RowBlocks, rows_of
from vertinumpyro.data import Column, Schema, VerticalDataset
from vertinumpyro.data.schema import check_schema
from vertinumpyro.data.wording import Place, suggest
from vertinumpyro.regression.sensitivity import GroupCounts

__all__ = ["FeatureGroup", "FeatureLayout"]

Shape = Literal["one_hot", "sign", "scalar"]


@final
@dataclasses.dataclass(frozen=True)
class FeatureGroup:
    """The coordinates that one column becomes; public.

    Attributes:
        party: who holds the column.
        column: its name.
        shape: see `sensitivity`.
        size: how many coordinates.
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

    Attributes:
        groups: in order; all groups of a party stand together.
        label: the label's column.
        feature_bits: f; features are integers in units of 2^-f.
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

        Args:
            schema: the parties' columns.
            label: the column to predict.
            features: the columns to predict it from; None takes all others.
            expand: ordered columns (integers, bins) to expand into one-hot groups instead of scaling their codes.
            feature_bits: fractional bits of a feature.

        Raises:
            ArgumentError: an unknown column, or a label that cannot be one.
            DataError: a column allows masked values.
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

        Raises:
            ArgumentError: a feature's column is missing.
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
