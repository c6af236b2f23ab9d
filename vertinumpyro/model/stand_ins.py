"""Stand-in records: what a model is checked on in place of data, and whose errors may therefore be quoted."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from vertinumpyro.core.errors import ModelContractError, VertinumpyroError
from vertinumpyro.core.types import Model
from vertinumpyro.data import OBSERVED_SUFFIX, Schema
from vertinumpyro.model.user_code import text_of, where

__all__ = ["check_signature", "errors_on_stand_ins", "stand_in_columns"]

# What jax raises where Python asks for a value that is being traced.
_ASKS_FOR_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def stand_in_columns(
    schema: Schema, num_records: int, seed: int = 0, *, observed_fraction: float = 1.0
) -> dict[str, np.ndarray]:
    """Valid columns drawn from the schema's public domains: what a party sees in place of another's data.

    :param observed_fraction: of the values of each masked column.
    """
    rng = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {}
    for name, column in schema.columns.items():
        columns[name] = column.example(num_records, rng)
        if column.masked:
            columns[f"{name}{OBSERVED_SUFFIX}"] = rng.random(num_records) < observed_fraction
    return columns


@contextmanager
def errors_on_stand_ins() -> Iterator[None]:
    """Where the user's function runs on stand-ins: whatever it raises is a broken contract, and says which error.

    The message may quote the exception, because the function has seen no table.
    """
    try:
        yield
    except VertinumpyroError:
        raise
    except _ASKS_FOR_VALUES as error:
        raise ModelContractError(
            f"the model{where(error)} uses a column or a latent as a plain Python number, array or condition (see the "
            "cause above), as np.unique, int(), if and x[x > 0] do; use jnp.where and the like, and pass public "
            "numbers, such as how many groups the schema allows, in model_kwargs"
        ) from error
    except Exception as error:
        raise ModelContractError(
            f"the model raised {type(error).__name__} on stand-in records{where(error)}: {text_of(error)}"
        ) from error


def check_signature(model: Model, model_kwargs: Mapping[str, Any]) -> None:
    """Refuse a model that cannot be called as `model(data, num_records, **model_kwargs)`.

    :raises ModelContractError: with the signature to write.
    """
    try:
        signature = inspect.signature(model)
    except ValueError:
        return  # some callables hide theirs; the call itself will tell
    try:
        signature.bind({}, 1, **model_kwargs)
    except TypeError as error:
        arguments = ", ".join(["data", "num_records", *model_kwargs])
        raise ModelContractError(
            f"the model cannot be called as model({arguments}): {error}; write `def model({arguments}):`, or change "
            "model_kwargs, which gives what stands after num_records"
        ) from None
