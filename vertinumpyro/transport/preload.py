"""Imported by the server of `process_group`, and by nobody else: reads the libraries that its processes will want.

What is set apart here stays apart in every process that is forked, which so shares the memory of it besides.
"""

import contextlib
import importlib
import os

from vertinumpyro.core.programs import set_apart
from vertinumpyro.transport.process_group import LIBRARIES

for _name in os.environ.get(LIBRARIES, "").split():
    with contextlib.suppress(Exception):  # not installed, or broken: the process that needs it says so
        importlib.import_module(_name)

set_apart()
