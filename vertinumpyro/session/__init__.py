"""Parties that work on one plan together: in one process, or each in its own.

Short because it says what others may use, and nothing else.
"""

from vertinumpyro.session.cost_estimate import RunCost, estimate_cost
from vertinumpyro.session.distributed import OrganisationSession, ProcessSession, between_processes
from vertinumpyro.session.party import check_alike
from vertinumpyro.session.party_computation import (
    HorizontalMethod,
    Method,
    Multiply,
    PartyComputation,
    Publish,
    ReleaseRequest,
    Sum,
    party_sources,
)
from vertinumpyro.session.reveal_to_one import PrivateOutput
from vertinumpyro.session.run import PRIVACY_RECORD, Payload, Run, lock_folder, recorded_plan, require_space
from vertinumpyro.session.session import InProcessSession, Session, SessionWrapper, account_of, session_of
from vertinumpyro.session.task import PartyTask

ForOne, JoinedSession = PrivateOutput, OrganisationSession  # as they were called before

__all__ = [
    "PRIVACY_RECORD",
    "ForOne",
    "HorizontalMethod",
    "InProcessSession",
    "JoinedSession",
    "Method",
    "Multiply",
    "OrganisationSession",
    "PartyComputation",
    "PartyTask",
    "Payload",
    "PrivateOutput",
    "ProcessSession",
    "Publish",
    "ReleaseRequest",
    "Run",
    "RunCost",
    "Session",
    "SessionWrapper",
    "Sum",
    "account_of",
    "between_processes",
    "check_alike",
    "estimate_cost",
    "lock_folder",
    "party_sources",
    "recorded_plan",
    "require_space",
    "session_of",
]
