"""Floor 6: every party as a process of its own, with its own table alone."""

from vertinumpyro.runtime.cost import cost_of_a_step
from vertinumpyro.runtime.session import Session
from vertinumpyro.runtime.task import PartyTask

__all__ = ["PartyTask", "Session", "cost_of_a_step"]
