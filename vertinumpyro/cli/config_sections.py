"""The sections of a run's configuration, a dataclass each: their keys, types, ranges, and what each key means. A table
of a TOML file is checked against them by name; `schema json` and the documentation's reference of all keys are made
from them.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.schema_checks import suggest
from vertinumpyro.secure import BACKENDS, Backend, Crypten

_Section = TypeVar("_Section")

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Mapping: "a table",
    list: "a list of texts",
}


def positive(default: Any = None) -> Any:
    """A field for a number above 0."""
    return dataclasses.field(default=default, metadata={"positive": True})


def at_least_zero() -> Any:
    """A field for a number from 0 on, by default 0."""
    return dataclasses.field(default=0, metadata={"at_least_zero": True})


def one_of(choices: typing.Iterable[str], default: str) -> Any:
    """A field for one of some names."""
    return dataclasses.field(default=default, metadata={"choices": tuple(choices)})


def check_keys(place: str, table: Mapping[str, Any], known: typing.Iterable[str]) -> None:
    """Refuse keys that nobody reads: a misspelt setting would silently keep its default.

    :raises ArgumentError: names the key and the closest known one.
    """
    known = list(known)
    for key in table:
        if key not in known:
            raise ArgumentError(f"{place}: unknown key {key!r}; {suggest(key, known)}")


def read_section(cls: type[_Section], place: str, table: Any) -> _Section:
    """Build `cls` from a table of the file.

    :param cls: a dataclass; its annotations give each key's type, `positive` its range.
    :raises ArgumentError: names the place, the key and the fix.
    """
    if not isinstance(table, Mapping):
        raise ArgumentError(f"{place} is not a table; write its keys under {place}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    check_keys(place, table, fields)
    hints = typing.get_type_hints(cls)
    values = {key: _checked(f"{place} {key}", value, hints[key]) for key, value in table.items()}
    for key, value in values.items():
        if fields[key].metadata.get("positive") and not value > 0:
            raise ArgumentError(f"{place} {key} = {value}; give a number above 0")
        if fields[key].metadata.get("at_least_zero") and value < 0:
            raise ArgumentError(f"{place} {key} = {value}; give 0 or more")
        if value not in fields[key].metadata.get("choices", (value,)):
            raise ArgumentError(f"{place} {key} = {value!r}; {suggest(value, fields[key].metadata['choices'])}")
    return cls(**values)


def _checked(place: str, value: Any, hint: Any) -> Any:
    """The value as its hint wants it; the settings are public, so an error may quote them."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        kinds = [(option, typing.get_origin(option) or option) for option in options]
        hint = next((option for option, kind in kinds if kind is not Literal and isinstance(value, kind)), options[0])
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ArgumentError(f"{place} = {value!r}; {suggest(value, choices)}")
        return value
    expected = typing.get_origin(hint) or hint
    expected = Mapping if issubclass(expected, Mapping) else expected
    if expected is float and type(value) is int:
        value = float(value)
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise ArgumentError(f"{place} = {value!r}; give {_WORDS[expected]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(f"{place} = {value!r}; give a finite number")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """`[data]`: each party's file, how CSV is written, and who the parties are.

    :param holders: organisations that hold whole records, each other ones, of a schema with one party; the other keys
        are then for them.
    :param unmatched: what becomes of records that some parties do not have. "drop" leaves them out, and makes the
        number of the others public.
    :param files: by party, its table: .csv, .tsv, one of these with .gz, or .parquet.
    :param ledgers: by party, the folder of its records of what was spent, where that is not beside its file.
    :param account: whether what all runs on a file cost is added up, beside the file or where `ledgers` says; a folder
        is for one account of all files. Reports say which. Parties that are processes always keep theirs.
    :param total_epsilon: what all runs on a file may cost together: one beyond it is refused before it begins.
    :param spool: a folder on a disk with room, for tables that are too large for memory: files are then read in blocks,
        and the encoded columns lie there while the process runs, in files without a name.
    :param workers: who computes on blocks of the records: a number of processes, or the address of a Dask cluster,
        "tls://scheduler:8786". With a backend between processes each party has as many of its own.
    :param num_records: N, where it should be known without reading a file.
    :param separator: between the fields of CSV files; one text, or a table by party. By default a comma, in .tsv a tab.
    :param encoding: of CSV files, as Python names it; one text, or a table by party. By default UTF-8.
    :param decimal: the decimal point of CSV files, "." or ","; one text, or a table by party.
    :param id_column: what the files call the ids, where they do not say as the schema; one text, or a table by party.
    """

    holders: list | None = None
    unmatched: Literal["refuse", "drop"] = "refuse"
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ledgers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    account: bool | str = True
    total_epsilon: float | None = positive()
    spool: str | None = None
    workers: int | str | None = None
    num_records: int | None = positive()
    separator: str | Mapping[str, str] | None = None
    encoding: str | Mapping[str, str] | None = None
    decimal: str | Mapping[str, str] | None = None
    id_column: str | Mapping[str, str] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """`[model]`: a NumPyro model of your own, or the library's mixture.

    :param function: "module:name" of the model; left out, a mixture is built from the schema.
    :param folder: where the module is imported from, beside the configuration by default.
    :param num_components: K of the library's mixture; left out, it follows from the number of records.
    :param kwargs: further arguments of the function: public numbers.
    """

    function: str | None = None
    folder: str | None = None
    num_components: int | None = positive()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """`[privacy]`: the budget, and against whom it holds.

    :param epsilon: ε, which no adversary exceeds; the noise is calibrated to it.
    :param noise_multiplier: instead of epsilon: the noise's standard deviation over the clip norm.
    :param delta: δ of every row of the privacy table.
    :param adversary: narrows epsilon to this one row of the table, as "outside analyst", on purpose: others then get
        more.
    :param relation: which tables are neighbours: one record replaced by any other, or one contribution there or zeroed.
    :param noise: "collaborative": a share from each party. "trusted": one aggregator adds all of it.
    :param collusion_threshold: epsilon covers coalitions of up to so many parties, too.
    :param batch_indices: whether parties know which records are in a batch.
    :param allow_unproven: goes on where a bound is not proved.
    """

    epsilon: float | None = positive()
    noise_multiplier: float | None = positive()
    delta: float | None = positive()
    adversary: str | None = None
    relation: Literal["replace", "add_remove"] | None = None
    noise: Literal["collaborative", "trusted"] | None = None
    collusion_threshold: int | None = None
    batch_indices: Literal["known", "hidden"] | None = None
    allow_unproven: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitSettings:
    """`[fit]`: how long and with what; keys left out take the library's defaults.

    :param num_steps: T, of DPVI.
    :param batch_size: expected number of records of a step; left out, all of them or what pays.
    :param clip_norm: C, the largest norm of what one record adds to a step.
    :param clip: of a model with a `party_sum`, "local", where each party clips its own scores, or "joint", on shares.
    :param residual_bound: with "local", where a residual is cut off, as a share of the largest one; of several outcomes
        the same share of each.
    :param guide: the shape of the variational posterior.
    :param learning_rate: of Adam at its first step.
    :param block_size: records of a batch that are computed at a time, which bounds the memory.
    :param num_devices: devices that share the records of a batch, in one process.
    :param warm_start: whether steps begin at the model fitted to noisy tables, which part of the budget buys.
    :param backend: who computes the step across the parties: "fixed_point" and "plaintext" in one process, which sees
        every column; "crypten" and "spu" with a process for each party.
    :param security: of "crypten": with "malicious", the default, tables across parties, products of numbers within
        public bounds (regressions by moments, second moments) and sums hold whatever all parties but one send; with
        "semi-honest" only if all follow the protocol, in a little less time. Steps and predictions want that in either.
    """

    num_steps: int | None = positive()
    batch_size: int | None = positive()
    clip_norm: float | None = positive()
    clip: Literal["joint", "local"] | None = None
    residual_bound: float | None = positive()
    guide: Literal["diagonal", "full_rank", "low_rank", "iaf"] | None = None
    learning_rate: float | None = positive()
    block_size: int | None = positive()
    num_devices: int | None = positive()
    warm_start: bool | None = None
    backend: str = one_of(BACKENDS, "fixed_point")
    security: Literal["malicious", "semi-honest"] | None = None


def backend_of(settings: FitSettings) -> Backend:
    """Who computes across the parties."""
    kind = BACKENDS[settings.backend]
    if settings.security is None:
        return kind()
    if kind is not Crypten:
        raise ArgumentError(f'[fit] security = "{settings.security}" is for backend = "crypten"; leave it out')
    return kind(security=settings.security)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MRFSettings:
    """`[mrf]`: for `--method vertimrf` and `marginals`.

    :param encoder: how tables across parties are computed: by a secure product, or by the VertiMRF paper's reports to a
        server. "sketch_shared_key" is not private.
    :param selection: "all" measures every table once, "adaptive" lets released tables choose the next.
    :param workload: pairs of columns, or words for many: "star:COLUMN" (it with each other one), "chains" (each party's
        columns with their neighbours), "blocks:K" (all pairs of K neighbours); only their tables are released.
    :param triples: tables of two columns of one party with one of another, chosen from a first look at all pairs:
        "auto" as many as pay, a number as many at most, false none.
    :param target: a column that the twin is to predict: all triples are of it.
    :param bins: by column, how many cells it is cut into.
    :param max_cells: the most cells of one column.
    :param clique_limit: the most cells of all maximal cliques of the field together; by default what `memory_limit`
        leaves for them, and a core fits in about a minute.
    :param memory_limit: bytes that tables, estimates and field may take; what may take more is refused before it is
        spent.
    :param iterations: the most steps of the field's fit.
    :param num_keys: hash keys of each pair of columns, for sketches.
    :param recovery: release finer histograms of columns in cells, from which values within a cell are drawn.
    :param cross_share: part of the budget that tables across parties get.
    :param recovery_share: part that the finer histograms get.
    """

    encoder: Literal["secure_marginals", "sketch", "randomized_response", "sketch_shared_key"] | None = None
    selection: Literal["all", "adaptive"] | None = None
    workload: list | None = None
    triples: Literal["auto"] | bool | int | None = None
    target: str | None = None
    bins: Mapping[str, Any] | None = None
    max_cells: int | None = positive()
    clique_limit: int | None = positive()
    memory_limit: int | None = positive()
    iterations: int | None = positive()
    num_keys: int | None = positive()
    recovery: bool | None = None
    cross_share: float | None = None
    recovery_share: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionSettings:
    """`[regression]`: for `--method logistic`, `linear` and `bayesian_linear`.

    :param label: the column to predict.
    :param features: the columns to predict it from; left out, all others.
    :param expand: ordered columns that get a coefficient for each value.
    :param feature_bits: fractional bits of a feature.
    :param estimator: the mean of the "noise_aware" posterior, or the "minimiser" of the noisy objective.
    :param ridge: of the minimiser, in standard deviations of the noise.
    :param prior_variance: of each coefficient.
    :param surrogate: the quadratic that stands for the logistic loss.
    :param score_range: of the surrogate "range".
    :param threshold: where predicted classes are cut: at the score of the largest expected accuracy, or at 0.
    :param noise_variance: of `bayesian_linear`: the label's variance around the line.
    :param projection: of `bayesian_linear`: clip at a multiple of each column's standard deviation, which a part of the
        budget buys first.
    """

    label: str | None = None
    features: list | None = None
    expand: list | None = None
    feature_bits: int | None = positive()
    estimator: Literal["noise_aware", "minimiser"] | None = None
    ridge: float | None = positive()
    prior_variance: float | None = positive()
    surrogate: Literal["range", "taylor", "fitted"] | None = None
    score_range: float | None = positive()
    threshold: Literal["expected", "zero"] | None = None
    noise_variance: float | None = positive()
    projection: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class QualitySettings:
    """`[quality]`: a score of the twin, bought with a part of the budget; without this section there is none.

    :param part: of epsilon and of delta, for noisy tables that the twin is not learned from, and that are compared with
        it. The method gets the rest, so both together cost what [privacy] says.
    :param twin: of `--method quality`: a synthetic table, .csv or .parquet, to be compared; [privacy] is then what the
        score costs.
    """

    part: float | None = positive()
    twin: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """`[run]`: where the outputs go, and the method where the command line names none.

    :param out: folder of the outputs.
    :param method: left out, the one that makes the nearest twin that the model allows.
    :param seed: of the model's randomness. It protects nothing and may be known.
    :param num_synthetic: records of the twin; left out, as many as the table has.
    :param diagnostics: also what is computed on the data without noise, as an objective or a ROC curve: NOT DP.
    :param allow_long: fit, or draft a study, even where that will take more than ten minutes, as --allow-long does.
    """

    out: str = "run"
    method: Literal[
        "dpvi", "vertimrf", "marginals", "logistic", "linear", "bayesian_linear", "horizontal",
        "quality",
    ] | None = None  # fmt: skip
    seed: int = at_least_zero()
    num_synthetic: int | None = positive()
    diagnostics: bool = False
    allow_long: bool = False


SECTIONS: Mapping[str, type] = {
    "data": DataSettings,
    "model": ModelSettings,
    "privacy": PrivacySettings,
    "fit": FitSettings,
    "mrf": MRFSettings,
    "regression": RegressionSettings,
    "quality": QualitySettings,
    "run": RunSettings,
}
