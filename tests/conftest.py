"""Set-up of every test run: array shapes in signatures are checked while the tests run."""

from jaxtyping import install_import_hook

# The floors that compute on arrays. The others check their arguments themselves and name the fix, and a
# type checker in front of them would hide that message from its own tests.
ARRAY_MODULES = [
    "vertinumpyro.core.ring",
    "vertinumpyro.dpvi",
    "vertinumpyro.model",
    "vertinumpyro.secure",
]

# Must come before the first import of these modules; pytest loads this file before any other in tests/.
install_import_hook(ARRAY_MODULES, "beartype.beartype")
