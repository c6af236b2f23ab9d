"""Parties that work on one plan together: in one process, or each in its own."""

from vertinumpyro.session.in_process import InProcessSession
from vertinumpyro.session.joined import JoinedSession
from vertinumpyro.session.party import check_alike
from vertinumpyro.session.passed_on import PassedOn
from vertinumpyro.session.processes import ProcessSession, between_processes
from vertinumpyro.session.rehearsal import RunCost, rehearsed_cost
from vertinumpyro.session.run import PRIVACY_RECORD, Payload, Run, held, recorded_plan, require_space
from vertinumpyro.session.session import Session, session_of
from vertinumpyro.session.task import PartyTask
from vertinumpyro.session.telling import ForOne
from vertinumpyro.session.work import ForHolders, Method, Work, party_sources

__all__ = [
    "PRIVACY_RECORD",
    "ForHolders",
    "ForOne",
    "InProcessSession",
    "JoinedSession",
    "Method",
    "PartyTask",
    "PassedOn",
    "Payload",
    "ProcessSession",
    "Run",
    "RunCost",
    "Session",
    "Work",
    "between_processes",
    "check_alike",
    "held",
    "party_sources",
    "recorded_plan",
    "rehearsed_cost",
    "require_space",
    "session_of",
]
