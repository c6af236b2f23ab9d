"""Secure backends: the three cross-party protocols, their range proofs, and statements of who learns what."""

from vertinumpyro.secure.backend import BackendInfo, BackendStats, BatchShape, SecureBackend
from vertinumpyro.secure.fixed_point import FixedPoint
from vertinumpyro.secure.plaintext import Plaintext

__all__ = ["BackendInfo", "BackendStats", "BatchShape", "FixedPoint", "Plaintext", "SecureBackend"]
