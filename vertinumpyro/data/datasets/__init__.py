"""Data sets to start with: one module each, with its public schema, its source and its loader."""

from vertinumpyro.data.datasets.abalone import load_abalone
from vertinumpyro.data.datasets.adult import load_adult
from vertinumpyro.data.datasets.dutch import load_dutch
from vertinumpyro.data.datasets.nltcs import load_nltcs
from vertinumpyro.data.datasets.rand_hie import load_rand_hie
from vertinumpyro.data.datasets.wine import load_wine

__all__ = ["load_abalone", "load_adult", "load_dutch", "load_nltcs", "load_rand_hie", "load_wine"]
