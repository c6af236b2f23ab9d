"""NumPyro models learned from one release of noisy tables: as many as you like, at no further cost."""

from vertinumpyro.core.errors import InferenceWarning
from vertinumpyro.marginals.inference import MarginalInference, MarginalPosterior, release_marginals

__all__ = ["InferenceWarning", "MarginalInference", "MarginalPosterior", "release_marginals"]
