"""Regressions learned from one or two noisy sums."""

from vertinumpyro.regression.bayesian_linear import BayesianLinearRegression
from vertinumpyro.regression.bayesian_linear_plan import BayesianLinearPlan, RegressionPlan
from vertinumpyro.regression.dataframe_input import PooledTable
from vertinumpyro.regression.functional_mechanism import VerticalLinearRegression, VerticalLogisticRegression
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.regression.posteriors import NoisyStatistics
from vertinumpyro.regression.sklearn_compat import OwnBudgets
from vertinumpyro.regression.vertical_estimator import NoisyFitWarning

__all__ = [
    "BayesianLinearPlan",
    "BayesianLinearRegression",
    "FunctionalMechanismPlan",
    "NoisyFitWarning",
    "NoisyStatistics",
    "OwnBudgets",
    "PooledTable",
    "RegressionPlan",
    "VerticalLinearRegression",
    "VerticalLogisticRegression",
]
