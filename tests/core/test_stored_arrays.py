import os

import numpy as np
import pytest

from vertinumpyro.core import files as stored_arrays
from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.files import (
    FileLock,
    create,
    load_arrays,
    read_metadata,
    replaced,
    save_arrays,
    write_arrays,
)


def test_round_trip(tmp_path):
    arrays = {"a/0": np.arange(6.0).reshape(2, 3), "b": np.array([], np.int64)}
    save_arrays(tmp_path / "x.npz", arrays, {"name": "ä", "value": 0.1})
    metadata, found = load_arrays(tmp_path / "x.npz")
    assert metadata == read_metadata(tmp_path / "x.npz") == {"name": "ä", "value": 0.1}
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[k], v) and found[k].dtype == v.dtype for k, v in arrays.items())
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_what_is_private_is_so_from_its_first_byte(tmp_path, monkeypatch, private, mode):
    seen = []

    def spied(path, arrays, metadata):
        seen.append(path.stat().st_mode & 0o777)
        write_arrays(path, arrays, metadata)
        seen.append(path.stat().st_mode & 0o777)

    monkeypatch.setattr(stored_arrays, "write_arrays", spied)
    (tmp_path / "x.npz.part").write_bytes(b"what a crash left")
    (tmp_path / "x.npz.part").chmod(0o644)
    umask = os.umask(0o022)
    try:
        stored_arrays.save_arrays(tmp_path / "x.npz", {"a": np.arange(2)}, {}, private=private)
    finally:
        os.umask(umask)
    assert seen == [mode, mode]
    assert (tmp_path / "x.npz").stat().st_mode & 0o777 == mode


def test_nothing_is_written_through_a_link_that_somebody_put_there(tmp_path):
    (tmp_path / "theirs").write_text("old")
    (tmp_path / "key").symlink_to(tmp_path / "theirs")
    with pytest.raises(FileExistsError):
        create(tmp_path / "key", private=True)
    with pytest.raises(ZeroDivisionError), replaced(tmp_path / "x", tmp_path / "key", private=True) as file:
        file.write(b"secret" * (1 // 0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"], "nothing half-written is left"
    assert (tmp_path / "theirs").read_text() == "old"


def test_a_lock_that_is_removed_is_held_by_one(tmp_path):
    first = FileLock(tmp_path, tmp_path / "run.lock")
    with pytest.raises(PlanSpentError, match="in use by another process"):
        FileLock(tmp_path, tmp_path / "run.lock")
    opened_before = open(tmp_path / "run.lock", "ab")  # noqa: SIM115
    first.release(removed=True)
    assert not list(tmp_path.iterdir())
    second = FileLock(tmp_path, tmp_path / "run.lock")
    late = object.__new__(FileLock)
    late._file, late._path = opened_before, tmp_path / "run.lock"
    assert not late._in_place()
    assert second._in_place()
    second.release(removed=True)
    opened_before.close()


def test_foreign_and_damaged_files(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(ArgumentError, match=r"no file x\.npz"):
        load_arrays(path)
    save_arrays(path, {"a": np.random.default_rng(0).random(100)}, {})
    whole = path.read_bytes()
    middle = len(whole) // 2
    damaged = {
        "text": b"hello",
        "empty": b"",
        "cut": whole[:middle],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
    }
    for content in damaged.values():
        path.write_bytes(content)
        with pytest.raises(ArgumentError, match="not a file that this library saved"):
            load_arrays(path)
    np.savez(path, metadata=np.array([{"a": 1}], dtype=object))  # a pickle, which must not be opened
    with pytest.raises(ArgumentError, match="not a file that this library saved"):
        load_arrays(path)
