"""Public facts in words, for the terminal and the report alike: domains, plans, backends, numbers."""

from __future__ import annotations

import math
from typing import Any

from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    Column,
    CountColumn,
    IntegerColumn,
    RealColumn,
)
from vertinumpyro.privacy import PoissonSampling, PrivacyPlan
from vertinumpyro.privacy.ledger import SpendablePlan

__all__ = ["count", "domain", "duration", "plan_facts", "report_facts", "report_rows", "rounded_up"]

_LONGEST_LIST = 48


def domain(column: Column) -> str:
    """A column's public domain, say "0 to 60 in 15 bins"."""
    rule = {"forbid": "", "mask": ", may be missing", "category": ", missing is a category"}[column.missing]
    return _domain(column) + rule


def rounded_up(epsilon: Any) -> str:
    """An ε to three decimals, never below its value; "∞" where nothing is guaranteed."""
    value = float(epsilon)
    if not math.isfinite(value):
        return "∞"
    # ε comes from a bisection of width 1e-7 that errs upwards; that much is not worth a digit.
    return f"{math.ceil(round(value * 1000, 3)) / 1000:.3f}"


def count(number: int, noun: str) -> str:
    """A number with its noun, say "20,190 records"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def plan_facts(plan: PrivacyPlan, backend: str) -> dict[str, str]:
    """What a plan fixes, in words."""
    shares = f"{plan.noise.kind}, {count(plan.num_shares, 'share')}"
    if plan.noise.collusion_threshold:
        shares += f", up to {count(plan.noise.collusion_threshold, 'colluder')}"
    return {
        "records": f"{plan.num_records:,} (public)",
        "steps": f"{plan.num_steps:,}",
        "batches": _batches(plan),
        "clip norm C": f"{plan.clip_norm:g}",
        "noise": f"σ = {plan.noise_multiplier:g}, discrete Gaussian on grid 2^-{plan.grid_bits}; {shares}",
        "backend": backend,
        "plan": plan.fingerprint(),
    }


def report_facts(plan: PrivacyPlan, backend: str) -> dict[str, str]:
    """The same as short entries, for a grid of cards."""
    return {
        "records N (public)": f"{plan.num_records:,}",
        "steps": f"{plan.num_steps:,}",
        "records per step, expected": f"{plan.expected_batch_size:,.0f}",
        "batch indices": f"{plan.batch_indices} to the parties",
        "clip norm C": f"{plan.clip_norm:g}",
        "noise multiplier σ": f"{plan.noise_multiplier:g}",
        "noise": f"{plan.noise.kind}, {count(plan.num_shares, 'share')}",
        "noise grid": f"2^-{plan.grid_bits}",
        "backend": backend,
        "plan": plan.plan_id[:16],
    }


def report_rows(plan: SpendablePlan) -> list[dict[str, str]]:
    """The privacy table with the keys of a report's rows."""
    return [
        {
            "adversary": row["adversary"],
            "knows": ", ".join(row["knows"]) or "the releases",
            "relation": row["relation"].replace("_", "/"),
            "epsilon": rounded_up(row["epsilon"]),
            "delta": f"{row['delta']:g}",
            "effective_noise": f"{row['noise_multiplier']:.4g} C",
            "status": f"{row['guarantee']}, {row['proof']}" if row["claim"] else "for comparison, no claim",
        }
        for row in plan.table_rows()
    ]


def _batches(plan: PrivacyPlan) -> str:
    sampling = plan.sampling
    if isinstance(sampling, PoissonSampling):
        if sampling.full_batch:
            return "all records in every step"
        return (
            f"Poisson, q = {sampling.sampling_prob:.4g}, {plan.expected_batch_size:,.0f} records expected, "
            f"indices {plan.batch_indices} to the parties"
        )
    return f"disjoint, {plan.expected_batch_size:,.0f} records"


def _domain(column: Column) -> str:
    match column:
        case CategoricalColumn():
            return _listed(column.categories)
        case BinaryColumn():
            return _listed(column.categories or (0, 1))
        case IntegerColumn():
            return _integers(column)
        case CountColumn():
            return f"0 to {column.upper}"
        case BinnedColumn():
            edges = column.bin_edges
            return f"{edges[0]:g} to {edges[-1]:g} in {column.num_cells} bins"
        case RealColumn():
            return f"{column.bounds[0]:g} to {column.bounds[1]:g}"
    return column.kind


def _integers(column: IntegerColumn) -> str:
    ends = column.bounds or column.edges or (0, 0)
    last = ends[-1]
    groups = "" if column.num_cells == last - ends[0] + 1 else f" in {column.num_cells} groups"
    return f"{ends[0]} to {last}{groups}"


def _listed(categories: tuple[Any, ...]) -> str:
    shown = ""
    for index, category in enumerate(categories):
        item = f"{category:g}" if isinstance(category, float) else str(category)
        if len(shown) + len(item) > _LONGEST_LIST:
            return f"{shown}, … ({len(categories)} categories)"
        shown += f"{', ' if index else ''}{item}"
    return shown
