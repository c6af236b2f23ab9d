"""Floor 5: regressions learned from one or two noisy sums."""

from vertinumpyro.regression.bayesian_linear import BayesianLinearRegression
from vertinumpyro.regression.functional_mechanism import (
    NoisyFitWarning,
    PooledTable,
    VerticalLinearRegression,
    VerticalLogisticRegression,
)
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.regression.linear_plan import RegressionPlan
from vertinumpyro.regression.posteriors import NoisyStatistics

__all__ = [
    "BayesianLinearRegression",
    "FunctionalMechanismPlan",
    "NoisyFitWarning",
    "NoisyStatistics",
    "PooledTable",
    "RegressionPlan",
    "VerticalLinearRegression",
    "VerticalLogisticRegression",
]
