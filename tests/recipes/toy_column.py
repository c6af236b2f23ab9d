"""The recipe's column type: labels in an order, as answers from "never" to "always"."""

import dataclasses
from typing import ClassVar, final

import numpy as np
import pandas as pd

from vertinumpyro.data import CodedColumn


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class OrdinalColumn(CodedColumn):
    steps: tuple[str, ...]

    type_name: ClassVar[str] = "ordinal"
    ordered: ClassVar[bool] = True
    kind: ClassVar[str] = "categorical"
    dtype_kinds: ClassVar[tuple[str, ...]] = ("text", "category")

    @property
    def labels(self):
        return self.steps

    @property
    def num_cells(self):
        return len(self.steps)

    def cell_texts(self, max_bins):
        return list(self.steps)

    def _domain_in_words(self):
        return " < ".join(self.steps)

    def _fits(self, number_type):
        return False

    def _encode_present(self, series, place):
        if not series.isin(self.steps).all():
            place.fail(f"holds a label that is not in {list(self.steps)}")
        return series.map(self.steps.index).to_numpy(np.int32)

    def _decode_present(self, values, rng):
        return pd.Series([self.steps[code] for code in self._checked(values)], dtype=object)
