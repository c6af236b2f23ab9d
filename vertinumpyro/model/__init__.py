"""NumPyro models of vertically split tables: the contract, the split, and the ready mixture."""

from vertinumpyro.model.contract import ModelStructure, inspect_model
from vertinumpyro.model.dummy_data import UNOBSERVED, Unobserved
from vertinumpyro.model.hazards import OwnFactor, PiecewiseHazard
from vertinumpyro.model.mixture import mixture_model
from vertinumpyro.model.party_plate import party_plate, party_sum
from vertinumpyro.model.site_trace import DrawnAt
from vertinumpyro.model.split import SplitModel, split_model

__all__ = [
    "UNOBSERVED",
    "DrawnAt",
    "ModelStructure",
    "OwnFactor",
    "PiecewiseHazard",
    "SplitModel",
    "Unobserved",
    "inspect_model",
    "mixture_model",
    "party_plate",
    "party_sum",
    "split_model",
]
