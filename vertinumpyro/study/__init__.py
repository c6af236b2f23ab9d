"""What organisations agree on before anything runs, who approved it, and how they meet."""

from vertinumpyro.study.agreement import LINKAGE, Agreement, Member
from vertinumpyro.study.approval import Approval, check_approvals
from vertinumpyro.study.meeting import bound, gather, meet
from vertinumpyro.study.policy import Policy

__all__ = ["LINKAGE", "Agreement", "Approval", "Member", "Policy", "bound", "check_approvals", "gather", "meet"]
