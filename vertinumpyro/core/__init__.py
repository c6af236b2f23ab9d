"""Errors, randomness, fixed-point arithmetic and the types that every package shares; and the version, for those that
may not import the library itself."""

__version__ = "0.2.0"
