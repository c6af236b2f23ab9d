"""Arguments of the wrong kind are refused by name, from the signatures."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import check_fields, checked, require_collection, shown


@checked
def plan(
    count: int = 1, share: float = 0.5, flag: bool = False, name: str = "", folder: str | Path | None = None,
    kind: Literal["all", "few"] | None = None, table: pd.DataFrame | None = None, *rest: int,
) -> str:  # fmt: skip
    return f"{count} {share} {flag} {name} {folder} {kind}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": "1"}, "count='1' must be a whole number"),
        ({"count": 1.0}, "count=1.0 must be a whole number"),
        ({"count": True}, "count=True must be a whole number"),
        ({"count": None}, "count=None must be a whole number"),
        ({"share": "half"}, "share='half' must be a number"),
        ({"share": [0.5]}, "share=a list must be a number"),
        ({"share": np.ones(2)}, "share=a ndarray must be a number"),
        ({"flag": "yes"}, "flag='yes' must be True or False"),
        ({"flag": 1}, "flag=1 must be True or False"),
        ({"name": 3}, "name=3 must be a text"),
        ({"folder": 3}, "folder=3 must be a text or a path or None"),
        ({"kind": "many"}, "kind='many' must be 'all' or 'few' or None"),
        ({"kind": pd.DataFrame({"secret": [1]})}, "kind=a DataFrame must be 'all' or 'few' or None"),
        ({"name": pd.DataFrame}, "name=DataFrame (a class) must be a text"),
    ],
)
def test_wrong_kinds_are_named_and_records_are_not_shown(given, message):
    with pytest.raises(ArgumentError) as caught:
        plan(**given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "given",
    [
        {"count": np.int64(3)},
        {"share": 1},
        {"share": np.float32(0.5)},
        {"share": jnp.asarray(0.5)},
        {"flag": np.bool_(True)},
        {"folder": Path("run")},
        {"kind": "few"},
        {"table": "no simple kind, so nobody looks"},
    ],
)
def test_every_library_s_numbers_are_taken(given):
    assert plan(**given)


def test_python_s_own_errors_stay():
    with pytest.raises(TypeError, match="unexpected keyword argument 'counts'"):
        plan(counts=1)


def test_fields_and_settings():
    @dataclasses.dataclass
    class Settings:
        count: int = 1

        def __post_init__(self) -> None:
            check_fields(self)

    class Estimator:
        def __init__(self, share: float = 0.5) -> None:
            self.share = share

    with pytest.raises(ArgumentError, match="count='1' must be"):
        Settings(count="1")
    with pytest.raises(ArgumentError, match="share='1' must be"):
        check_fields(Estimator(share="1"))


@pytest.mark.parametrize("value", ["age", b"age", 3, None, pd.DataFrame({"age": [1]})])
def test_a_collection_is_no_text_and_no_table(value):
    with pytest.raises(ArgumentError, match=r"features=.* must be a list of columns"):
        require_collection("features", value, "columns")


def test_long_texts_are_cut():
    assert len(shown("x" * 1000)) < 100
