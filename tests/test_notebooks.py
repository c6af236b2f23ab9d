"""Every notebook runs from its first cell to its last, in a kernel of this environment."""

import os
from pathlib import Path

import pytest

from vertinumpyro.data.datasets import FOLDER_VARIABLE

nbclient = pytest.importorskip("nbclient", reason="nbclient (extra: test) is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat (extra: test) is not installed")
pytest.importorskip("ipykernel", reason="ipykernel (extra: test) is not installed")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SECONDS_PER_CELL = 300
NEEDS = {"synthetic_twin": "mbi"}  # notebook: an optional engine that it is about
READS_ADULT = {"bank_and_telco"}


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_notebook_runs(path, tmp_path):
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem], reason="the notebook needs an engine of the current lane only")
    if path.stem in READS_ADULT and not os.environ.get(FOLDER_VARIABLE):
        pytest.skip(f"the notebook reads Adult: set {FOLDER_VARIABLE} to the folder of its files")
    notebook = nbformat.read(path, as_version=4)
    context = {"metadata": {"path": str(tmp_path)}}  # what a notebook writes lands there
    nbclient.NotebookClient(notebook, timeout=SECONDS_PER_CELL, kernel_name="python3", resources=context).execute()
