"""Imported by the server of `process_group`, and by nobody else: reads the libraries that its processes will want.

What is set apart here stays apart in every process that is forked, which so shares the memory of it besides.

Short because a server of processes imports it and nothing else.
"""

import contextlib
import importlib
import os

from vertinumpyro.core.compat import freeze_gc
from vertinumpyro.transport.process_group import LIBRARIES

for _name in os.environ.get(LIBRARIES, "").split():
    with contextlib.suppress(Exception):  # not installed, or broken: the process that needs it says so
        importlib.import_module(_name)

freeze_gc()
