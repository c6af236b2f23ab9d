"""Secure backends: the three cross-party protocols, their range proofs, and statements of who learns what."""

from vertinumpyro.secure.backend import Backend, BackendInfo, BatchShape, InProcess, in_process
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost
from vertinumpyro.secure.computation import ClippedSum, Computation, CrossProducts, VectorSum
from vertinumpyro.secure.crypten import Crypten
from vertinumpyro.secure.fixed_point import FixedPoint
from vertinumpyro.secure.joint_link import JointLink
from vertinumpyro.secure.link import ScoreLink, SoftmaxLink
from vertinumpyro.secure.links import LINKS
from vertinumpyro.secure.party_end import PartyEnd
from vertinumpyro.secure.plaintext import Plaintext
from vertinumpyro.secure.probit_link import BernoulliProbitLink
from vertinumpyro.secure.rehearsal import InsecureRehearsal
from vertinumpyro.secure.residual_links import BernoulliLogitLink, NormalLink, OrderedLogitLink, PoissonLink
from vertinumpyro.secure.spu import Spu

__all__ = [
    "BACKENDS",
    "LINKS",
    "Backend",
    "BackendInfo",
    "BatchShape",
    "BernoulliLogitLink",
    "BernoulliProbitLink",
    "BetweenProcesses",
    "ClippedSum",
    "Computation",
    "Cost",
    "CrossProducts",
    "Crypten",
    "FixedPoint",
    "InProcess",
    "InsecureRehearsal",
    "JointLink",
    "NormalLink",
    "OrderedLogitLink",
    "PartyEnd",
    "Plaintext",
    "PoissonLink",
    "ScoreLink",
    "SoftmaxLink",
    "Spu",
    "VectorSum",
    "in_process",
]

BACKENDS: dict[str, type[Backend]] = {kind.option: kind for kind in (FixedPoint, Plaintext, Crypten, Spu)}
"""Every backend that configurations and the command line can name, by that name."""
