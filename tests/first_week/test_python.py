"""What a statistician gets wrong in Python: a library's error that names the argument, never a traceback into it.

Of DPVI's arguments the tests are beside it (tests/dpvi/test_arguments.py), where no type checker comes first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vertinumpyro as vnp
from vertinumpyro.core.errors import VertinumpyroError
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    DateColumn,
    IntegerColumn,
    RealColumn,
    TableFacts,
    draft_schema,
    read_table,
)
from vertinumpyro.dpvi.horizontal import HorizontalDPVI
from vertinumpyro.regression import BayesianLinearRegression, VerticalLogisticRegression

SCHEMA = vnp.Schema.from_toml("""
[parties.a.columns.x]
type = "binary"

[parties.a.columns.u]
type = "real"
bounds = [0, 1]
bins = 4

[parties.b.columns.y]
type = "binary"
""")
N = 60
_rng = np.random.default_rng(0)
FRAMES = {
    "a": pd.DataFrame({"id": range(N), "x": _rng.integers(0, 2, N), "u": _rng.random(N)}),
    "b": pd.DataFrame({"id": range(N), "y": _rng.integers(0, 2, N)}),
}
DATASET = vnp.VerticalDataset.from_frames(SCHEMA, FRAMES)
FACTS = TableFacts(SCHEMA, N)
HOLDERS = TableFacts(SCHEMA.restrict("a"), N, ("h1", "h2", "h3"))

WRONG = {
    "text": "1", "none": None, "negative": -1, "nan": float("nan"), "list": [1], "object": object(),
    "table": pd.DataFrame({"secret": [77125]}),
}  # fmt: skip
KINDS = ("text", "list", "object", "table")  # of no number, so a plan is refused before anything is computed
TABLE = pd.DataFrame({"id": [1, 2], "v": [1, 2]})

Call = Callable[..., Any]


def of_class(kind: type, **given: Any) -> Call:
    return lambda **wrong: kind(**{**given, **wrong})


def planned(method: Any, facts: Any = FACTS) -> Call:
    return lambda **wrong: method.plan(facts, **{"epsilon": 1.0, **wrong})


def logistic(**wrong: Any) -> Any:
    given = {"schema": SCHEMA, "label": "y", "num_records": N, "epsilon": 1.0}
    return VerticalLogisticRegression().plan(**{**given, **wrong})


def linear(**wrong: Any) -> Any:
    return BayesianLinearRegression(**wrong).plan(num_records=N, num_features=3)


CALLS: dict[str, tuple[Call, tuple[str, ...], tuple[str, ...]]] = {
    "VertiMRF.plan": (planned(vnp.VertiMRF()), ("epsilon", "delta", "relation", "noise", "cross_share"), KINDS),
    "DPVI.plan": (planned(vnp.DPVI()), ("epsilon", "delta", "clip_norm", "batch_size", "num_steps"), KINDS),
    "HorizontalDPVI.plan": (planned(HorizontalDPVI(), HOLDERS), ("epsilon", "delta", "num_steps", "max_unreliable"), KINDS),
    "logistic": (logistic, ("schema", "label", "num_records", "epsilon", "delta", "features"), KINDS),
    "linear": (linear, ("epsilon", "delta", "mechanism", "max_unreliable", "std_share", "calibration"), tuple(WRONG)[:2]),
    "VertiMRF": (of_class(vnp.VertiMRF), ("selection", "num_rounds", "iterations", "memory_limit", "recovery"), ("text", "none", "list")),
    "MarginalInference": (of_class(vnp.MarginalInference), ("law", "method", "num_steps", "num_starts"), ("text", "none", "negative")),
    "draft_schema": (of_class(draft_schema, table=TABLE, party="a"), ("table", "party", "id_column"), ("none", "negative", "list")),
    "read_table": (of_class(read_table, path="x.csv", schema=SCHEMA, party="a"), ("path", "schema", "party", "encoding"), ("text", "negative")),
    "from_frames": (of_class(vnp.VerticalDataset.from_frames, schema=SCHEMA, frames=FRAMES), ("schema", "frames"), tuple(WRONG)),
    "from_pooled": (of_class(vnp.VerticalDataset.from_pooled, schema=SCHEMA, frame=TABLE), ("schema", "frame"), tuple(WRONG)),
    "from_toml": (of_class(vnp.Schema.from_toml), ("source",), tuple(WRONG)),
    "from_dict": (of_class(vnp.Schema.from_dict), ("spec",), tuple(WRONG)),
    "Schema": (of_class(vnp.Schema, parties=dict(SCHEMA.parties)), ("parties", "id_column"), tuple(WRONG)),
    "TableFacts": (of_class(TableFacts, schema=SCHEMA, num_records=3), ("schema", "num_records"), tuple(WRONG)),
    "split": (lambda **wrong: DATASET.split(**{"fraction": 0.5, "seed": 0, **wrong}), ("fraction", "seed"), ("text", "none", "negative", "list")),
    "take": (DATASET.take, ("indices",), ("text", "none", "negative", "nan", "object")),
    "release_marginals": (of_class(vnp.release_marginals, data=DATASET, plan=None), ("data", "plan", "settings"), ("text", "negative")),
    "fit of a field": (lambda **wrong: vnp.VertiMRF().fit(**{"data": DATASET, "plan": None, **wrong}), ("data", "plan"), ("text", "negative")),
    "fit to tables": (
        lambda **wrong: vnp.MarginalInference().fit(**{"release": None, "rng_key": None, **wrong}), ("release",), tuple(WRONG),
    ),
    "RealColumn": (of_class(RealColumn, bounds=(0, 1)), ("bounds", "missing", "transform", "out_of_bounds"), tuple(WRONG)),
    "IntegerColumn": (of_class(IntegerColumn, bounds=(0, 9)), ("bounds", "bins", "missing"), ("text", "negative", "list")),
    "CountColumn": (of_class(CountColumn, upper=9), ("upper", "missing"), tuple(WRONG)),
    "CategoricalColumn": (of_class(CategoricalColumn, categories=("a", "b")), ("categories", "unknown", "missing"), tuple(WRONG)),
    "BinaryColumn": (of_class(BinaryColumn), ("categories", "missing"), ("text", "negative", "list")),
    "DateColumn": (of_class(DateColumn, bounds=("2020-01-01", "2021-01-01"), unit="month"), ("bounds", "unit", "format"), ("text", "negative", "list")),
}  # fmt: skip
# what an annotation or a default allows after all
FINE = {
    ("logistic", "features", "list"), ("Schema", "id_column", "text"), ("draft_schema", "id_column", "none"),
    ("release_marginals", "settings", "none"), ("read_table", "path", "text"),
}  # fmt: skip

# what a message calls an argument whose name says less
CALLED = {
    ("logistic", "label"): "no party holds column", ("from_pooled", "frame"): "table", ("from_toml", "source"): "the schema",
    ("from_dict", "spec"): "a schema's TOML", ("CategoricalColumn", "categories"): "category",
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_every_wrong_argument_is_refused(name: str):
    call, arguments, kinds = CALLS[name]
    for argument, kind in itertools.product(arguments, kinds):
        if (name, argument, kind) not in FINE:
            said = refusal(call, argument, kind)
            assert "77125" not in said
            assert CALLED.get((name, argument), argument) in said or argument in said, (argument, kind, said)
            assert re.search(r"; |give |needs |must |known: |not valid TOML: |did you mean", said), (
                argument,
                kind,
                said,
            )


def refusal(call: Call, argument: str, kind: str) -> str:
    """What a call says of one wrong argument."""
    try:
        call(**{argument: WRONG[kind]})
    except VertinumpyroError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{argument} of kind {kind!r} gives a {type(error).__name__}") from error
    raise AssertionError(f"{argument} of kind {kind!r} is taken")
