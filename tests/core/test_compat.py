import jax
import pytest

from vertinumpyro.core import compat


@pytest.mark.parametrize(
    ("after_0_4", "cache", "expected"),
    [(True, "folder", (0,)), (True, None, (0,)), (False, None, (0,)), (False, "folder", ())],
)
def test_memory_is_given_away_where_the_cache_of_executables_keeps_track_of_it(
    monkeypatch, tmp_path, after_0_4, cache, expected
):
    monkeypatch.setattr(compat, "_AFTER_0_4", after_0_4)
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", None if cache is None else str(tmp_path))
        assert compat.overwritable(0) == expected
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
