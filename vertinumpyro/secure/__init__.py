"""Secure backends: the three cross-party protocols, their range proofs, and statements of who learns what.

Short because it says what others may use, and nothing else.
"""

from vertinumpyro.secure.backend import Backend, BackendInfo, InProcess, in_process
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost, PartyEnd, PartyProtocol
from vertinumpyro.secure.computation import ClippedSum, Computation, CrossProducts, VectorSum
from vertinumpyro.secure.crypten import Crypten
from vertinumpyro.secure.fixed_point import FixedPoint
from vertinumpyro.secure.plaintext import Plaintext
from vertinumpyro.secure.score_functions import (
    LINKS,
    BernoulliLogitLink,
    BernoulliProbitLink,
    GammaLink,
    JointLink,
    NegativeBinomialLink,
    NormalLink,
    OrderedLogitLink,
    OwnFactorLink,
    PoissonLink,
    ScoreFunction,
    ScoreLink,
    SoftmaxLink,
)
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.secure.simulation import InsecureSimulation
from vertinumpyro.secure.spu import Spu

__all__ = [
    "BACKENDS",
    "LINKS",
    "SPU",
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
    "GammaLink",
    "InProcess",
    "InsecureRehearsal",
    "InsecureSimulation",
    "JointLink",
    "NegativeBinomialLink",
    "NormalLink",
    "OrderedLogitLink",
    "OwnFactorLink",
    "PartyEnd",
    "PartyProtocol",
    "Plaintext",
    "PoissonLink",
    "ScoreFunction",
    "ScoreLink",
    "SoftmaxLink",
    "Spu",
    "VectorSum",
    "in_process",
]

SPU = Spu  # as its library writes it
InsecureRehearsal = InsecureSimulation  # as it was called before

BACKENDS: dict[str, type[Backend]] = {kind.option: kind for kind in (FixedPoint, Plaintext, Crypten, Spu)}
"""Every backend that configurations and the command line can name, by that name."""
