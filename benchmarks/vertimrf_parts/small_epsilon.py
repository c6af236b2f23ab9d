"""Small budgets against AIM and MST of the pooled table, and whether more budget ever makes a worse twin."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common import kept
from tqdm.auto import tqdm

from vertinumpyro.data import VerticalDataset

__all__ = ["SmallEpsilon", "ratios", "rise_over_budgets", "small_epsilon"]

Fit = Callable[[VerticalDataset, str, float, int], float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallEpsilon:
    """The size of the part.

    Attributes:
        fits: so many of each arm at every ε that end with a twin, of at most twice as many.
        small: the budgets of the comparison.
        grid: those over which the distance may not rise.
        kept: a JSON file of fits; those in it are not done again, and each new one is added as soon as it is there.
    """

    fits: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"everyone": 5})
    small: tuple[float, ...] = (0.1, 0.2, 0.4)
    grid: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 10.0)
    kept: Path | None = None


def small_epsilon(tables: Mapping[str, VerticalDataset], fit: Fit, settings: SmallEpsilon) -> dict[str, Any]:
    """The keys `everyone`, `failed` and `monotone`; `fit` gives the mean 3-way TVD of a twin, None if it failed."""
    medians: dict[str, Any] = {name: {} for name in tables}
    failed: dict[str, dict[str, int]] = {}
    monotone: dict[str, Any] = {}
    for name, dataset in tables.items():
        for arm, fits in settings.fits.items():
            grid = settings.grid if arm == "everyone" else settings.small
            found, errors = _all_fits(dataset, arm, grid, fits, _kept(fit, name, settings.kept), name)
            if errors:
                failed[f"{name} {arm}"] = {f"{e:g}": count for e, count in errors.items()}
            medians[name][arm] = {f"{e:g}": statistics.median(values) for e, values in found.items()}
            if arm == "everyone":
                monotone[name] = rise_over_budgets(found)
    return {"everyone": medians, "failed": failed, **({"monotone": monotone} if monotone else {})}


def ratios(medians: Mapping[str, Mapping[str, Mapping[str, float]]], arm: str) -> dict[str, dict[str, float]]:
    """Everyone's distance over that of a pooled mechanism, where both are there."""
    found = {
        name: {e: arms["everyone"][e] / theirs for e, theirs in arms.get(arm, {}).items() if e in arms["everyone"]}
        for name, arms in medians.items()
        if "everyone" in arms
    }
    return {name: of for name, of in found.items() if of}


def _all_fits(
    dataset: VerticalDataset, arm: str, epsilons: tuple[float, ...], fits: int, fit: Fit, name: str
) -> tuple[dict[float, list[float]], Counter[float]]:
    """The distances, and how many fits failed beside them."""
    found: dict[float, list[float]] = {e: [] for e in epsilons}
    failed: Counter[float] = Counter()
    with tqdm(total=len(epsilons) * fits, desc=f"{name}: {arm}", unit="fit") as bar:
        for e in epsilons:
            for seed in range(2 * fits):
                if len(found[e]) == fits:
                    break
                if (distance := fit(dataset, arm, e, seed)) is None:
                    failed[e] += 1
                else:
                    found[e].append(distance)
                    bar.update()
            if not found[e]:
                raise SystemExit(f"{arm} on {name}: none of {2 * fits} fits at ε = {e:g} ended with a twin")
    return found, failed


def _kept(fit: Fit, name: str, path: Path | None) -> Fit:
    """The same, with what a file has of it."""
    return lambda dataset, arm, epsilon, seed: kept(
        path, f"{name} {arm} {epsilon:g} {seed}", lambda: fit(dataset, arm, epsilon, seed)
    )


def rise_over_budgets(fits: Mapping[float, list[float]]) -> dict[str, Any]:
    """The largest rise of the median from one budget to the next, and the widest range of one budget's fits there."""
    steps = list(zip(fits, list(fits)[1:], strict=False))
    rises = {(a, b): statistics.median(fits[b]) - statistics.median(fits[a]) for a, b in steps}
    a, b = max(rises, key=lambda step: rises[step])
    spread = max(max(fits[e]) - min(fits[e]) for e in (a, b))
    return {"largest_rise": rises[a, b], "from": a, "to": b, "spread": spread, "holds": rises[a, b] <= spread}
