"""Errors, randomness, fixed-point arithmetic and the types that every package shares; and the version, for those that
may not import the library itself.

Short because it says what others may use, and nothing else.
"""

__version__ = "0.2.0"
