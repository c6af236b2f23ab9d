"""Floor 4: the cross-party protocols and the backends that compute them."""

from vertinumpyro.secure.backend import BackendInfo, BackendStats, BatchShape, SecureBackend
from vertinumpyro.secure.fixed_point import FixedPoint
from vertinumpyro.secure.plaintext import Plaintext

__all__ = ["BackendInfo", "BackendStats", "BatchShape", "FixedPoint", "Plaintext", "SecureBackend"]
