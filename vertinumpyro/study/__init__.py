"""What organisations agree on before anything runs, who approved it, and how they meet."""

from vertinumpyro.study.agreement import LINKAGE, Agreement, Member
from vertinumpyro.study.approval import Approval, Policy, check_approvals
from vertinumpyro.study.network import bind_address, connect_members, gather

__all__ = [
    "LINKAGE",
    "Agreement",
    "Approval",
    "Member",
    "Policy",
    "bind_address",
    "check_approvals",
    "connect_members",
    "gather",
]
