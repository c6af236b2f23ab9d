"""NumPyro models learned from one release of noisy tables: as many as you like, at no further cost."""

from vertinumpyro.core.errors import InferenceWarning
from vertinumpyro.marginals.inference import MarginalInference, MarginalPosterior, release_marginals
from vertinumpyro.marginals.model_comparison import TableELPD, compare

__all__ = ["InferenceWarning", "MarginalInference", "MarginalPosterior", "TableELPD", "compare", "release_marginals"]
