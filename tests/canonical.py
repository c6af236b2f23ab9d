"""One small table at two parties, with every kind of method on it: programs that tests share are compiled once."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.horizontal import HorizontalDataset, HorizontalDPVI
from vertinumpyro.marginals import release_marginals
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy import Plan
from vertinumpyro.regression import BayesianLinearRegression, VerticalLinearRegression, VerticalLogisticRegression

NUM_RECORDS, NUM_COMPONENTS = 64, 2
KEY = jax.random.PRNGKey(0)
SCHEMA = Schema(
    {
        "clinic": PartySchema({"age": RealColumn(bounds=(0.0, 1.0)), "ill": BinaryColumn()}),
        "bank": PartySchema(
            {"income": RealColumn(bounds=(0.0, 1.0)), "plan": CategoricalColumn(categories=("a", "b"))}
        ),
    }
)


def drawn(num_records: int = NUM_RECORDS, seed: int = 0) -> VerticalDataset:
    """Ill people are older, earn less and have plan "b"."""
    rng = np.random.default_rng(seed)
    ill = rng.integers(2, size=num_records).astype(np.int32)
    age, income = (
        np.clip(rng.normal(mean, 0.1), 0, 1).astype(np.float32) for mean in (0.3 + 0.4 * ill, 0.7 - 0.4 * ill)
    )
    return VerticalDataset(SCHEMA, {"clinic": {"age": age, "ill": ill}, "bank": {"income": income, "plan": ill}})


@dataclasses.dataclass(frozen=True)
class Method:
    """A method in one process: its plan for a table, a run of it, and the arrays that the run released."""

    plan: Callable[[VerticalDataset], Plan]
    fit: Callable[..., Any]
    released: Callable[[Any], list[Any]]


def _steps() -> Method:
    dpvi = DPVI(num_components=NUM_COMPONENTS, warm_start=False)
    return Method(
        lambda data: dpvi.plan(data, noise_multiplier=8.0, num_steps=3, batch_size=16),
        lambda data, plan, **run: dpvi.fit(data, plan, KEY, progress_bar=False, **run),
        lambda posterior: jax.tree_util.tree_leaves(posterior.params),
    )


def _steps_of_holders() -> Method:
    dpvi = HorizontalDPVI(DPVI(num_components=NUM_COMPONENTS))

    def dealt(data: VerticalDataset) -> HorizontalDataset:
        return HorizontalDataset(data, np.arange(data.num_records) % 3)

    return Method(
        lambda data: dpvi.plan(dealt(data), noise_multiplier=8.0, num_steps=3, batch_size=16),
        lambda data, plan, **run: dpvi.fit(dealt(data), plan, KEY, progress_bar=False, **run),
        lambda posterior: jax.tree_util.tree_leaves(posterior.params),
    )


SYSTEM = VertiMRF(max_cells=3, iterations=10, clique_limit=1_000)


def _tables(fit: Callable[..., Any]) -> Method:
    return Method(
        lambda data: SYSTEM.plan(data, epsilon=3.0), fit, lambda found: [m.values for m in found.measurements]
    )


def _regression(kind: type, label: str) -> Method:
    def plan(data: VerticalDataset) -> Plan:
        return kind().plan(data.schema, label, num_records=data.num_records, epsilon=5.0, delta=1e-5)

    return Method(plan, lambda data, plan, **run: kind().fit(data, plan, **run), lambda fit: [fit.moments_.matrix])


def _bayesian() -> Method:
    def model() -> BayesianLinearRegression:
        return BayesianLinearRegression(epsilon=1.0, target_bound=1.0)

    def fit(data: VerticalDataset, plan: Plan, **run: Any) -> Any:
        pooled = data.pooled()
        given = {} if run.get("resume") else {"plan": plan}  # a run that goes on has its own
        return model().fit(np.column_stack([pooled["age"], pooled["ill"]]), pooled["income"], **given, **run)

    return Method(lambda data: model().plan(num_records=data.num_records, num_features=2), fit, lambda fit: [fit.coef_])


METHODS = {
    "dpvi": _steps(),
    "dpvi of holders": _steps_of_holders(),
    "vertimrf": _tables(SYSTEM.fit),
    "marginals": _tables(lambda data, plan, **run: release_marginals(data, plan, SYSTEM, **run)),
    "linear": _regression(VerticalLinearRegression, "income"),
    "logistic": _regression(VerticalLogisticRegression, "ill"),
    "bayesian": _bayesian(),
}
