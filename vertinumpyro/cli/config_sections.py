"""The sections of a run's configuration, a dataclass each: their keys, types, ranges, and what each key means.

`schema json` and the documentation's reference of all keys are made from these classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from vertinumpyro.cli.toml_dataclass import at_least_zero, one_of, positive
from vertinumpyro.secure import BACKENDS

__all__ = [
    "SECTIONS",
    "DataSettings",
    "FitSettings",
    "MRFSettings",
    "ModelSettings",
    "PrivacySettings",
    "QualitySettings",
    "RegressionSettings",
    "RunSettings",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """`[data]`: each party's file, how CSV is written, and who the parties are.

    Args:
        holders: organisations that hold whole records, each other ones, of a schema with one party; the other keys are
            then for them.
        unmatched: what becomes of records that some parties do not have. "drop" leaves them out, and makes the number
            of the others public.
        files: by party, its table: .csv, .tsv, one of these with .gz, or .parquet.
        ledgers: by party, the folder of its records of what was spent, where that is not beside its file.
        spool: a folder on a disk with room, for tables that are too large for memory: files are then read in blocks,
            and the encoded columns lie there while the process runs, in files without a name.
        workers: who computes on blocks of the records: a number of processes, or the address of a Dask cluster,
            "tls://scheduler:8786". With a backend between processes each party has as many of its own.
        num_records: N, where it should be known without reading a file.
        separator: between the fields of CSV files; one text, or a table by party. By default a comma, in .tsv a tab.
        encoding: of CSV files, as Python names it; one text, or a table by party. By default UTF-8.
        decimal: the decimal point of CSV files, "." or ","; one text, or a table by party.
        id_column: what the files call the ids, where they do not say as the schema; one text, or a table by party.
    """

    holders: list | None = None
    unmatched: Literal["refuse", "drop"] = "refuse"
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ledgers: Mapping[str, str] = dataclasses.field(default_factory=dict)
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

    Args:
        function: "module:name" of the model; left out, a mixture is built from the schema.
        folder: where the module is imported from, beside the configuration by default.
        num_components: K of the library's mixture; left out, it follows from the number of records.
        kwargs: further arguments of the function: public numbers.
    """

    function: str | None = None
    folder: str | None = None
    num_components: int | None = positive()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """`[privacy]`: the budget, and against whom it holds.

    Args:
        epsilon: ε, which no adversary exceeds; the noise is calibrated to it.
        noise_multiplier: instead of epsilon: the noise's standard deviation over the clip norm.
        delta: δ of every row of the privacy table.
        adversary: narrows epsilon to this one row of the table, as "outside analyst", on purpose: others then get more.
        relation: which tables are neighbours: one record replaced by any other, or one contribution there or zeroed.
        noise: "collaborative": a share from each party. "trusted": one aggregator adds all of it.
        collusion_threshold: epsilon covers coalitions of up to so many parties, too.
        batch_indices: whether parties know which records are in a batch.
        allow_unproven: goes on where a bound is not proved.
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

    Args:
        num_steps: T, of DPVI.
        batch_size: expected number of records of a step; left out, all of them or what pays.
        clip_norm: C, the largest norm of what one record adds to a step.
        clip: of a model with a `party_sum`, "local", where each party clips its own scores, or "joint", on shares.
        residual_bound: with "local", where a residual is cut off, as a share of the largest one; of several outcomes
            the same share of each.
        guide: the shape of the variational posterior.
        learning_rate: of Adam at its first step.
        block_size: records of a batch that are computed at a time, which bounds the memory.
        num_devices: devices that share the records of a batch, in one process.
        warm_start: whether steps begin at the model fitted to noisy tables, which part of the budget buys.
        backend: who computes the step across the parties: "fixed_point" and "plaintext" in one process, which sees
            every column; "crypten" and "spu" with a process for each party.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class MRFSettings:
    """`[mrf]`: for `--method vertimrf` and `marginals`.

    Args:
        encoder: how tables across parties are computed: by a secure product, or by the VertiMRF paper's reports to a
            server. "sketch_shared_key" is not private.
        selection: "all" measures every table once, "adaptive" lets released tables choose the next.
        workload: pairs of columns, or words for many: "star:COLUMN" (it with each other one), "chains" (each party's
            columns with their neighbours), "blocks:K" (all pairs of K neighbours); only their tables are released.
        bins: by column, how many cells it is cut into.
        max_cells: the most cells of one column.
        clique_limit: the most cells of all maximal cliques of the field together.
        memory_limit: bytes that tables, estimates and field may take; what may take more is refused before it is spent.
        iterations: the most steps of the field's fit.
        num_keys: hash keys of each pair of columns, for sketches.
        recovery: release finer histograms of columns in cells, from which values within a cell are drawn.
        cross_share: part of the budget that tables across parties get.
        recovery_share: part that the finer histograms get.
    """

    encoder: Literal["secure_marginals", "sketch", "randomized_response", "sketch_shared_key"] | None = None
    selection: Literal["all", "adaptive"] | None = None
    workload: list | None = None
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

    Args:
        label: the column to predict.
        features: the columns to predict it from; left out, all others.
        expand: ordered columns that get a coefficient for each value.
        feature_bits: fractional bits of a feature.
        estimator: the mean of the "noise_aware" posterior, or the "minimiser" of the noisy objective.
        ridge: of the minimiser, in standard deviations of the noise.
        prior_variance: of each coefficient.
        surrogate: the quadratic that stands for the logistic loss.
        score_range: of the surrogate "range".
        threshold: where predicted classes are cut: at the score of the largest expected accuracy, or at 0.
        noise_variance: of `bayesian_linear`: the label's variance around the line.
        projection: of `bayesian_linear`: clip at a multiple of each column's standard deviation, which a part of the
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

    Args:
        part: of epsilon and of delta, for noisy tables that the twin is not learned from, and that are compared with
            it. The method gets the rest, so both together cost what [privacy] says.
        twin: of `--method quality`: a synthetic table, .csv or .parquet, to be compared; [privacy] is then what the
            score costs.
    """

    part: float | None = positive()
    twin: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """`[run]`: where the outputs go, and the method where the command line names none.

    Args:
        out: folder of the outputs.
        method: left out, the one that makes the nearest twin that the model allows.
        seed: of the model's randomness. It protects nothing and may be known.
        num_synthetic: records of the twin; left out, as many as the table has.
        diagnostics: also what is computed on the data without noise, as an objective or a ROC curve: NOT DP.
    """

    out: str = "run"
    method: Literal[
        "dpvi", "vertimrf", "marginals", "logistic", "linear", "bayesian_linear", "horizontal",
        "quality",
    ] | None = None  # fmt: skip
    seed: int = at_least_zero()
    num_synthetic: int | None = positive()
    diagnostics: bool = False


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
