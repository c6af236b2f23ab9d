"""Programs are forgotten where a process has mapped half of what it may, and not before; libraries are no garbage."""

import gc
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vertinumpyro.core import compat
from vertinumpyro.data import BinaryColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.secure import FixedPoint
from vertinumpyro.session import session_of


@pytest.fixture
def process(tmp_path, monkeypatch):
    """What the system says of this process: a hundred mappings, and how many are allowed."""
    mapped, most = tmp_path / "maps", tmp_path / "max_map_count"
    mapped.write_text("7f00-7f01 r-xp\n" * 100)
    monkeypatch.setattr(compat, "_MAPPED", mapped)
    monkeypatch.setattr(compat, "_MOST_MAPPED", most)
    return most


@pytest.mark.parametrize(("most", "forgotten"), [("199\n", True), ("200\n", False), ("no number", False)])
def test_every_fit_begins_with_room_for_its_programs(process: Path, most: str, forgotten: bool):
    process.write_text(most)
    traced = []
    program = jax.jit(lambda x: traced.append(x.shape) or x + 1)
    program(jnp.ones(3))
    columns = {"clinic": BinaryColumn(), "insurer": BinaryColumn()}
    schema = Schema({party: PartySchema({f"{party}_x": column}) for party, column in columns.items()})
    table = VerticalDataset(schema, {party: {f"{party}_x": np.zeros(2, np.int32)} for party in columns})
    session_of(table, FixedPoint())
    assert program(jnp.ones(3)).sum() == 6
    assert len(traced) == 1 + forgotten


def test_other_systems_have_no_such_limit(process: Path):
    compat.evict_compiled()  # nobody wrote how many are allowed


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self):
        self.itself = self


def test_a_collection_passes_over_what_was_set_apart_and_finds_what_came_later():
    try:
        compat.freeze_gc()
        assert not any(found is vars(jax) for found in gc.get_objects())
        later = weakref.ref(Cycle())
        gc.collect()
        assert later() is None
    finally:
        gc.unfreeze()
    assert any(found is vars(jax) for found in gc.get_objects())


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
