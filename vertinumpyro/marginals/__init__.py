"""NumPyro models learned from one release of noisy tables: as many as you like, at no further cost."""

from vertinumpyro.core.errors import InferenceWarning
from vertinumpyro.marginals.inference import MarginalInference, release_marginals
from vertinumpyro.marginals.posterior import MarginalPosterior

__all__ = ["InferenceWarning", "MarginalInference", "MarginalPosterior", "release_marginals"]
