"""Public facts in words, for the terminal and the report alike: plans, backends, numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vertinumpyro.privacy import GradientPlan, Plan, PoissonSampling
from vertinumpyro.privacy.accounting import rounded_up
from vertinumpyro.privacy.gradient_plan import NO_STEPS, bounds_of_outcomes
from vertinumpyro.privacy.plan import rows_in_words

_FALSE_ALARMS = 0.05


def count(number: int, noun: str) -> str:
    """A number with its noun, say "20,190 records"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def headline(plan: Plan) -> str:
    """The largest ε of all whom the plan covers, and who they are."""
    names = [observer.name for observer in plan.covered]
    everyone = f"everyone: {', '.join(names)}" if len(names) > 1 else names[0]
    if math.isinf(plan.worst.epsilon):
        return f"No guarantee against {plan.worst.adversary}, δ = {plan.delta:g}"
    return f"ε ≤ {rounded_up(plan.worst.epsilon)}, δ = {plan.delta:g}, against {everyone}"


def in_words(plan: Plan) -> list[str]:
    """What each adversary could find out about one person at most: the power of a test, a sentence for each ε.

    Of (ε, δ)-DP follows that a test of one record against another with false alarms α has power e^ε α + δ at most.
    """
    names: dict[tuple[float, str], list[str]] = {}
    for row in plan.table_rows():
        if row["claim"] and math.isfinite(float(row["epsilon"])):
            names.setdefault((float(row["epsilon"]), _question(row)), []).append(row["adversary"])
    sentences = []
    for (epsilon, question), who in names.items():
        power = min(math.exp(min(epsilon, 700.0)) * _FALSE_ALARMS + plan.delta, 1.0)
        power = min(power, 1 - math.exp(-epsilon) * (1 - _FALSE_ALARMS - plan.delta))
        text = " and ".join(who)
        sentences.append(
            f"{text[:1].upper()}{text[1:]}: a test whether {question}, with "
            f"{_FALSE_ALARMS:.0%} false alarms, is right of at most {math.ceil(1000 * power) / 10:g}% of those whom it "
            f"concerns; a blind guess of {_FALSE_ALARMS:.0%}."
        )
    return sentences


def _question(row: Mapping[str, Any]) -> str:
    """What a row's two neighbouring tables differ in."""
    if row["relation"] == "add_remove":
        return "one person's record counts or is zeroed"
    of = ""
    if row["guarantee"] == "VPDP":
        holds = any("columns" in known for known in row["knows"])
        of = "in columns that it does not hold " if holds else "in that party's columns "
    return f"one person's record {of}is one thing or another"


def cautions(plan: Plan) -> list[str]:
    """Who gets more than the noise was calibrated to, in words."""
    lines = []
    if plan.above:
        lines.append(
            f"The noise was calibrated to one adversary alone, {plan.adversary}, ε = "
            f"{rounded_up(plan.epsilon(plan.adversary))}; {rows_in_words(plan.above)}."
        )
    if plan.uncovered:
        lines.append(f"Not covered: {rows_in_words(plan.uncovered)}. A larger collusion_threshold covers coalitions.")
    return lines


def at_most(num_bytes: int) -> str:
    """Memory, as a plan states it."""
    return f"at most {num_bytes / 2**30:.1f} GiB"


def plan_facts(plan: GradientPlan, backend: str) -> dict[str, str]:
    """What a plan fixes, in words."""
    shares = f"{plan.noise.kind}, {count(plan.num_shares, 'share')}"
    if plan.noise.collusion_threshold:
        shares += f", up to {count(plan.noise.collusion_threshold, 'colluder')}"
    if not plan.num_gradients:
        return {
            "records": f"{plan.num_records:,} (public)",
            **_without_steps(plan),
            "noise": shares,
            "backend": backend,
            "plan": plan.fingerprint(),
        }
    return {
        "records": f"{plan.num_records:,} (public)",
        "start": _start(plan),
        "steps": f"{plan.num_gradients:,}",
        "batches": _batches(plan),
        "clip norm C": _clip(plan),
        "noise": f"σ = {plan.noise_multiplier:g}, discrete Gaussian on grid 2^-{plan.grid_bits}; {shares}",
        "backend": backend,
        "plan": plan.fingerprint(),
    }


def _clip(plan: GradientPlan) -> str:
    if plan.clip_parts is None:
        return f"{plan.clip_norm:g}"
    parts = " : ".join(map(str, plan.clip_parts))
    residuals = " and ".join(f"{bound:g}" for bound in bounds_of_outcomes(plan.residual_bound))
    scores = " of standardised scores" if plan.standardisation else ""
    return f"{plan.clip_norm:g}; each party clips its own part of C²{scores}, {parts}; residuals up to {residuals}"


def report_facts(plan: GradientPlan, backend: str) -> dict[str, str]:
    """The same as short entries, for a grid of cards."""
    if not plan.num_gradients:
        return {
            "records N (public)": f"{plan.num_records:,}",
            **_without_steps(plan),
            "noise": f"{plan.noise.kind}, {count(plan.num_shares, 'share')}",
            "backend": backend,
            "plan": plan.plan_id[:16],
        }
    return {
        "records N (public)": f"{plan.num_records:,}",
        "start": _start(plan),
        "steps": f"{plan.num_gradients:,}",
        "records per step, expected": f"{plan.expected_batch_size:,.0f}",
        "batch indices": f"{plan.batch_indices} to the parties",
        "clip norm C": _clip(plan),
        "noise multiplier σ": f"{plan.noise_multiplier:g}",
        "noise": f"{plan.noise.kind}, {count(plan.num_shares, 'share')}",
        "noise grid": f"2^-{plan.grid_bits}",
        "backend": backend,
        "plan": plan.plan_id[:16],
    }


def holder_facts(plan: Any, backend: str) -> dict[str, str]:
    """What every plan of holders of whole records fixes, in words."""
    return {
        "records N (public)": f"{plan.num_records:,}, together at {', '.join(plan.holders)}",
        "noise": f"discrete Gaussian, {count(len(plan.holders), 'share')}, one from each holder",
        "backend": backend,
        "plan": plan.plan_id[:16],
    }


def report_rows(plan: Plan) -> list[dict[str, str]]:
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


def _without_steps(plan: GradientPlan) -> dict[str, str]:
    assert plan.start is not None
    return {"learned from": f"noisy tables, {count(plan.start.num_steps, 'release')}", "steps": NO_STEPS}


def _start(plan: GradientPlan) -> str:
    if plan.start is None:
        return "random values"
    what = "noisy second moments" if plan.start.kind == "second_moments" else "noisy tables"
    return f"{what}, {count(plan.start.num_steps, 'release')}, paid from the same ε"


def _batches(plan: GradientPlan) -> str:
    sampling = plan.sampling
    if isinstance(sampling, PoissonSampling):
        if sampling.full_batch:
            return "all records in every step"
        return (
            f"Poisson, q = {sampling.sampling_prob:.4g}, {plan.expected_batch_size:,.0f} records expected, "
            f"indices {plan.batch_indices} to the parties"
        )
    return f"disjoint, {plan.expected_batch_size:,.0f} records"
