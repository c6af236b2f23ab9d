"""Errors, randomness, fixed-point arithmetic and the types that every package shares."""
