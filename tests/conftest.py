"""Set-up of every test run: array shapes in signatures are checked, and XLA compiles a program once.

VERTINUMPYRO_UNCHECKED_SHAPES leaves out the first, a fifth of the time of tests that trace models.
"""

import atexit
import gc
import os
import shutil
import tempfile
from importlib.metadata import version

# Tests trace the same programs again and again, in workers and in parties' processes that inherit the environment.
# A folder that is there already is used, so that several runs may share one.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="executables-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Two thirds of the time is XLA: programs as it compiles them fastest, unless the environment says how. The emitters of
# before compile in 70% of the time; XLA ends the process at a flag that it does not know, as 0.12 does at this one.
if "XLA_FLAGS" not in os.environ:
    flags = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
    if version("jaxlib").startswith("0.10."):
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join(flags)

# Keys and accounts that a user's runs leave behind.
if not os.path.basename(os.environ.get("XDG_DATA_HOME", "")).startswith("user-data-"):
    os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="user-data-")
    atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)

# Workers share the machine, and threads of OpenBLAS and OpenMP spin while they wait for each other: boosted trees took
# ten times their processor time. Before NumPy is read.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# One server forks the processes of all groups: with what any of them wants, whichever of them is the first.
os.environ.setdefault(
    "VERTINUMPYRO_LIBRARIES",
    "vertinumpyro.dpvi vertinumpyro.mrf vertinumpyro.regression vertinumpyro.glm vertinumpyro.secure.crypten.protocol",
)

from hypothesis import settings
from jaxtyping import install_import_hook

# Ran once, at the commit that it names, on modules that have other names today: the files beside it are what is tested.
collect_ignore = ["golden/make.py"]

# No test asks how long something takes: on a machine that works on something else it would fail.
settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")

# Tracing makes objects by the million, nearly none of them in cycles: 8% of the time went into looking for those.
gc.set_threshold(50_000, 20, 10)

# The floors that compute on arrays. The others check their arguments themselves and name the fix, and a
# type checker in front of them would hide that message from its own tests.
ARRAY_MODULES = [
    "vertinumpyro.core.ring",
    "vertinumpyro.dpvi",
    "vertinumpyro.model",
    "vertinumpyro.secure",
]

# Must come before the first import of these modules; pytest loads this file before any other in tests/.
if not os.environ.get("VERTINUMPYRO_UNCHECKED_SHAPES"):
    install_import_hook(ARRAY_MODULES, "beartype.beartype")
