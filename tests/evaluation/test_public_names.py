import subprocess
import sys

from vertinumpyro import evaluation


def test_all_is_sorted_and_complete():
    assert sorted(evaluation.__all__) == list(evaluation.__all__)
    assert all(getattr(evaluation, name).__doc__ is not None for name in evaluation.__all__)


def test_import_brings_neither_jax_nor_the_optional_packages():
    heavy = "{'jax', 'matplotlib', 'sklearn'} & set(sys.modules)"
    code = f"import sys, vertinumpyro.evaluation; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True)
