"""NumPyro models of vertically split tables: the contract, the split, and the ready mixture."""

from vertinumpyro.model.column_roles import DrawnAt
from vertinumpyro.model.contract import ModelStructure, inspect_model
from vertinumpyro.model.mixture import mixture_model
from vertinumpyro.model.party_plate import party_plate
from vertinumpyro.model.party_sum import party_sum
from vertinumpyro.model.split import SplitModel, split_model
from vertinumpyro.model.unobserved import UNOBSERVED, Unobserved

__all__ = [
    "UNOBSERVED",
    "DrawnAt",
    "ModelStructure",
    "SplitModel",
    "Unobserved",
    "inspect_model",
    "mixture_model",
    "party_plate",
    "party_sum",
    "split_model",
]
