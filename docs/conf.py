"""Sphinx: `sphinx-build -W --keep-going -b html docs docs/_build` (extra `docs`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from reference_pages import write_pages

from vertinumpyro import __version__

project = "vertinumpyro"
author = "the authors of vertinumpyro"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"vertinumpyro {release}"

# Docstrings have the words of the code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Optional engines; nothing that is documented needs one to be imported.
autodoc_mock_imports = ["crypten", "torch", "spu", "mbi", "arviz", "dask", "distributed"]


def setup(app) -> None:
    """Writes the pages that follow from the code before the rest is read."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "reference"))
