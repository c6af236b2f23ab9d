"""Floor 5: regressions learned from one or two noisy sums."""

from vertinumpyro.regression.bayesian_linear import BayesianLinearRegression
from vertinumpyro.regression.linear_plan import RegressionPlan
from vertinumpyro.regression.posteriors import NoisyStatistics

__all__ = ["BayesianLinearRegression", "NoisyStatistics", "RegressionPlan"]
