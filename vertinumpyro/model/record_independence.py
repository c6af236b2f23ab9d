"""Refuses a model in which a record's log density depends on the other records, or anything on how many there are.

The parties evaluate records one by one, so such a model would be fitted to another posterior than its own,
finite and without a word. That a record's log density reads no other record is shown from the model's operations
(`record_dependence`), whatever the values are: a mean of records is refused also where it matters to a rare record
alone. Numbers at random latents on stand-in records are compared besides: they find what depends on how many records
there are, and stand in for the operations that have no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.model.record_dependence import reads_others, written_at
from vertinumpyro.model.stand_in_runs import NUM_RECORDS, StandInRuns

__all__ = ["check_records_are_independent"]

# Standard deviations of the random latents: near 0 and far.
_SCALES = (0.1, 0.5, 1.0)

# What the prior is compared at: one record, as the parties evaluate the model, and a great many.
_NUMBERS = (1, 1009)

# Relative to the log density (or to 1), in double and in single precision. One program does the same arithmetic on a
# record whatever stands beside it.
_SAME_PROGRAM = {True: 1e-9, False: 1e-5}
# Two programs may round everything differently. 1e-4 leaves room for 12 of double precision's 16 digits to be lost,
# or for a part that the model computes in single precision.
_TWO_PROGRAMS = {True: 1e-4, False: 1e-2}

_INSTEAD = (
    "Use each record's own columns, and in place of what is computed from all records a public number from the "
    "schema, such as a centre and a scale from a column's bounds, in model_kwargs"
)
_SIZES_ONLY = (
    "num_records may size plates and nothing else; pass a public number in model_kwargs, which is the same "
    "wherever the model is evaluated"
)


def check_records_are_independent(runs: StandInRuns, parties: Mapping[str, str]) -> None:
    """Compare records with other records beside them, and with each one alone; and the prior at two numbers of records.

    :param parties: the party of each observed site.
    :raises ModelContractError: names the first site that differs, what makes it differ, and what to write.
    """
    _check_globals(runs)
    for name, found in runs.dependence().items():
        if reads_others(found, NUM_RECORDS):
            where = "records change places" if found.origin is None else written_at(found.origin)
            raise ModelContractError(_mixes_records(name, parties.get(name), where))
    for seed, scale in enumerate(_SCALES):
        theta = runs.theta(seed, scale)
        columns, others = runs.columns(2 * seed), runs.columns(2 * seed + 1)
        stays = np.random.default_rng(seed).permutation(NUM_RECORDS) % 2 == 0
        mixed = {name: np.where(stays, column, others[name]) for name, column in columns.items()}
        first, second, both = (runs.together(theta, data) for data in (columns, others, mixed))
        alone = runs.alone(theta, columns)
        for name in runs.of_records:
            if _differ(both[name], np.where(stays, first[name], second[name]), _SAME_PROGRAM[runs.in_double]):
                raise ModelContractError(_mixes_records(name, parties.get(name), None))
            if _differ(first[name], alone[name], _TWO_PROGRAMS[runs.in_double]):
                raise ModelContractError(_counts_records(name, parties.get(name)))


def _check_globals(runs: StandInRuns) -> None:
    """The prior at two numbers of records: the same program, or else the same numbers."""
    (text, few), (other_text, many) = (runs.globals_at(num_records) for num_records in _NUMBERS)
    for seed, scale in enumerate(_SCALES if text != other_text else ()):
        expected, found = (at(runs.theta(seed, scale)) for at in (few, many))
        for name, numbers in found.items():
            if any(_differ(*pair, _TWO_PROGRAMS[runs.in_double]) for pair in zip(numbers, expected[name], strict=True)):
                what = "the prior of" if len(numbers) > 1 else "the log density of the public site"
                raise ModelContractError(f"{what} '{name}' changes with num_records. {_SIZES_ONLY}")


def _mixes_records(name: str, party: str | None, where: str | None) -> str:
    by = "" if where is None else f" ({where})"
    return (
        f"site '{name}'{'' if party is None else f' of party {party!r}'}: its log density for a record changes when "
        f"other records are there{by}, but the parties evaluate records one by one. {_INSTEAD}"
    )


def _counts_records(name: str, party: str | None) -> str:
    what = (
        f"the prior of the component '{name}'"
        if party is None
        else f"site '{name}' of party '{party}': its log density"
    )
    return (
        f"{what} changes with num_records, or with a record's place among the others, but the parties evaluate "
        f"records one by one. {_SIZES_ONLY}"
    )


def _differ(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two arrays differ by more than rounding; the same NaN or infinity in both is no difference."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        close = np.abs(a - b) <= tolerance * np.maximum(1.0, np.minimum(np.abs(a), np.abs(b)))
    return not np.all((a == b) | (np.isnan(a) & np.isnan(b)) | (close & np.isfinite(a) & np.isfinite(b)))
