"""Columns of labels: categories and two-valued columns."""

import abc
import dataclasses
from typing import ClassVar, final

import numpy as np
import pandas as pd

from vertinumpyro.core.validation import shown
from vertinumpyro.data.column import CodedColumn, Kind, numbers
from vertinumpyro.data.schema_checks import Place, require, require_list
from vertinumpyro.data.storage_types import DtypeKind, holds

Label = str | int | float | bool

_LONGEST_LIST = 48


class _LabelledColumn(CodedColumn):
    """A column whose codes stand for labels."""

    ordered: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def labels(self) -> tuple[Label, ...]:
        """What the codes stand for, in their order."""

    @property
    def middles(self) -> np.ndarray | None:
        """The labels, where they are numbers."""
        return _numbers(self.labels)

    def cell_texts(self, max_bins: int) -> list[str]:
        """Return the labels."""
        return [str(label) for label in self.labels]

    def _domain_in_words(self) -> str:
        return _in_words(self.labels)

    def _fits(self, number_type: np.dtype) -> bool:
        return holds(number_type, self.labels)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CategoricalColumn(_LabelledColumn):
    """One of a public list of categories; codes follow the list's order.

    :param categories: distinct labels of one type: all text, all numbers or all booleans.
    :param unknown: "error", or the listed category that stands for every unlisted one.
    """

    categories: tuple[Label, ...]
    unknown: Label = "error"

    type_name: ClassVar[str] = "categorical"

    def __post_init__(self) -> None:
        """Check the public domain."""
        object.__setattr__(self, "categories", _natives(self.categories))
        self._check_missing()
        _check_labels(self.categories)
        listed = isinstance(self.unknown, Label) and self.unknown in ("error", *self.categories)
        require(listed, f'unknown = {shown(self.unknown)}; give "error" or one of the categories')
        several = 'list the others, leave the column out, or set missing = "category" where values may be missing'
        require(self.num_categories >= 2, f"a single category leaves nothing to learn; {several}")
        self._check_dtype()

    @property
    def labels(self) -> tuple[Label, ...]:
        """The categories."""
        return self.categories

    @property
    def dtype_kinds(self) -> tuple[DtypeKind, ...]:
        """As the labels are, or a category."""
        return _dtype_kinds(self.categories)

    @property
    def kind(self) -> Kind:
        """The model sees codes."""
        return "categorical"

    @property
    def num_cells(self) -> int:
        """Number of categories."""
        return len(self.categories)

    def _encode_present(self, series: pd.Series, place: Place) -> np.ndarray:
        codes = _codes(series, self.categories, place)
        if self.unknown != "error":
            return np.where(codes < 0, self.categories.index(self.unknown), codes)
        if (codes < 0).any():
            place.fail(
                "holds a value that is not among the schema's categories; "
                "list it, or set unknown to the category that stands for it"
            )
        return codes

    def _decode_present(self, values: np.ndarray, rng: np.random.Generator) -> pd.Series:
        return _labels(self.categories, self._checked(values))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryColumn(_LabelledColumn):
    """A column of two values, modelled by a Bernoulli; its success is the second category.

    With missing = "category" there are three codes, and the model's kind is "categorical".

    :param categories: the two labels; None reads 0/1 or booleans and decodes to 0/1.
    """

    categories: tuple[Label, Label] | None = None

    type_name: ClassVar[str] = "binary"

    def __post_init__(self) -> None:
        """Check the public domain."""
        self._check_missing()
        if self.categories is not None:
            object.__setattr__(self, "categories", _natives(self.categories))
            _check_labels(self.categories)
            require(len(self.categories) == 2, f"categories = {list(self.categories)}; give two")
        self._check_dtype()

    @property
    def labels(self) -> tuple[Label, ...]:
        """The two labels."""
        return self.categories or (0, 1)

    @property
    def dtype_kinds(self) -> tuple[DtypeKind, ...]:
        """As the labels are, or a category; where none are listed, booleans are as good as 0/1."""
        return (*_dtype_kinds(self.labels), *(("boolean",) if self.categories is None else ()))

    @property
    def kind(self) -> Kind:
        """The model sees 0/1, or three codes when missing is a category."""
        return "categorical" if self.missing == "category" else "binary"

    @property
    def num_cells(self) -> int:
        """Two."""
        return 2

    def _encode_present(self, series: pd.Series, place: Place) -> np.ndarray:
        if self.categories is None and pd.api.types.infer_dtype(series) == "boolean":
            return series.to_numpy(dtype=bool)
        codes = _codes(series, self.labels, place)
        if (codes < 0).any():
            place.fail("holds a value that is neither of the two the schema lists; recode it")
        return codes

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """0 and 1, whatever the labels are; see `Column.numbers`."""
        return self._checked(values).astype(np.float64)

    def _decode_present(self, values: np.ndarray, rng: np.random.Generator) -> pd.Series:
        return _labels(self.labels, self._checked(values))


def _in_words(labels: tuple[Label, ...]) -> str:
    shown = ""
    for index, label in enumerate(labels):
        item = f"{label:g}" if isinstance(label, float) else str(label)
        if len(shown) + len(item) > _LONGEST_LIST:
            return f"{shown}, … ({len(labels)} categories)"
        shown += f"{', ' if index else ''}{item}"
    return shown


def _natives(categories: tuple[Label, ...]) -> tuple[Label, ...]:
    require_list("categories", categories)
    return tuple(c.item() if isinstance(c, np.generic) else c for c in categories)


def _check_labels(categories: tuple[Label, ...]) -> None:
    require(len(categories) >= 1, "categories is empty; list every category")
    require(_label_type(categories) != "mixed", "categories mix types; list text, numbers or booleans")
    if _label_type(categories) == "numbers":
        floats = np.asarray(categories, np.float64)
        require(bool(np.isfinite(floats).all()), "categories hold a number that is not finite")
        require(bool((np.abs(floats) < 2**53).all()), "numeric categories are of magnitude below 2^53")
    repeated = sorted({repr(c) for c in categories if categories.count(c) > 1})
    require(not repeated, f"categories list {', '.join(repeated)} twice; list each once")


def _label_type(categories: tuple[Label, ...]) -> str:
    # bool before int: Python's booleans are integers.
    for label_type, types in (("boolean", bool), ("text", str), ("numbers", (int, float))):
        if all(isinstance(c, types) for c in categories):
            return label_type
        if any(isinstance(c, types) for c in categories):
            return "mixed"
    return "mixed"


def _numbers(labels: tuple[Label, ...]) -> np.ndarray | None:
    return np.array(labels, np.float64) if _label_type(labels) == "numbers" else None


def _dtype_kinds(labels: tuple[Label, ...]) -> tuple[DtypeKind, ...]:
    match _label_type(labels):
        case "text":
            return "text", "object", "category"
        case "boolean":
            return "boolean", "object", "category"
    return "integer" if all(isinstance(label, int) for label in labels) else "float", "category"


def _codes(series: pd.Series, categories: tuple[Label, ...], place: Place) -> np.ndarray:
    """Return each value's place in the list, -1 where it is not listed."""
    expected = _label_type(categories)
    if expected == "numbers":
        # Through float64, so that a 1 that a missing neighbour turned into 1.0 is still a 1.
        found = pd.Index(numbers(series, place))
        return pd.Index(np.asarray(categories, np.float64)).get_indexer(found)
    actual = pd.api.types.infer_dtype(series, skipna=True)
    if actual != {"text": "string"}.get(expected, expected):
        place.fail(f"holds {actual} values, the schema lists {expected} categories; convert either")
    listed = pd.Index(np.asarray(categories, dtype=object), dtype=object)
    return listed.get_indexer(pd.Index(series.to_numpy(dtype=object), dtype=object))


def _labels(categories: tuple[Label, ...], codes: np.ndarray) -> pd.Series:
    # Through the whole list, so that the dtype depends on the schema and not on the drawn codes.
    return pd.Series(list(categories)).take(codes).reset_index(drop=True)
