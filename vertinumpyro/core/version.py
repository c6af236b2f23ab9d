"""The library's version, for floors that may not import the package itself."""

__all__ = ["__version__"]

__version__ = "0.1.0"
