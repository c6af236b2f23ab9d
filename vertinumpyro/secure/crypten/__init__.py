"""The CrypTen backend: one process per party and one for a dealer; semi-honest security.

`Crypten` is the backend; `vertinumpyro.session` runs an inference on it with every party's columns in that party's
process alone. Importing this package needs neither CrypTen nor torch.
"""

from vertinumpyro.secure.crypten.backend import Crypten
from vertinumpyro.secure.crypten.compat import is_installed

__all__ = ["Crypten", "is_installed"]
