import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.stored_arrays import load_arrays, read_metadata, save_arrays


def test_round_trip(tmp_path):
    arrays = {"a/0": np.arange(6.0).reshape(2, 3), "b": np.array([], np.int64)}
    save_arrays(tmp_path / "x.npz", arrays, {"name": "ä", "value": 0.1})
    metadata, found = load_arrays(tmp_path / "x.npz")
    assert metadata == read_metadata(tmp_path / "x.npz") == {"name": "ä", "value": 0.1}
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[k], v) and found[k].dtype == v.dtype for k, v in arrays.items())
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


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
