"""The SPU backend: the protocols as JAX functions that SecretFlow's SPU compiles and runs between processes.

`Spu` is the backend. Importing this package does not import SPU, whose 0.9.5 stops at jax 0.4.34.
"""

from vertinumpyro.secure.spu.backend import Spu
from vertinumpyro.secure.spu.node import is_installed

__all__ = ["Spu", "is_installed"]
