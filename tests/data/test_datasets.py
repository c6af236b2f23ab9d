import hashlib
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError, DataError
from vertinumpyro.data import (
    Schema,
    VerticalDataset,
    datasets,
    load_abalone,
    load_adult,
    load_dutch,
    load_nltcs,
    load_rand_hie,
    load_wine,
)
from vertinumpyro.data import datasets as rand_hie
from vertinumpyro.data.datasets import FOLDER_VARIABLE, Source, cache_folder

needs_folder = pytest.mark.skipif(
    not os.environ.get(FOLDER_VARIABLE), reason=f"{FOLDER_VARIABLE} names no folder of data sets"
)
needs_statsmodels = pytest.mark.skipif(
    importlib.util.find_spec("statsmodels") is None, reason="statsmodels (extra: report) is not installed"
)

# (loader, arguments, records, columns, columns at the first party)
LOADERS = {
    "rand_hie": (load_rand_hie, {}, 20_190, 10, 5),
    "adult": (load_adult, {}, 30_162, 13, 7),
    "adult test": (load_adult, {"split": "test"}, 15_060, 13, 7),
    "adult income": (load_adult, {"layout": "with_income"}, 30_162, 14, 7),
    "nltcs": (load_nltcs, {}, 21_574, 16, 8),
    "wine red": (load_wine, {}, 1_599, 12, 6),
    "wine white": (load_wine, {"color": "white"}, 4_898, 12, 6),
    "abalone": (load_abalone, {}, 4_177, 9, 4),
    "dutch": (load_dutch, {}, 60_420, 12, 7),
}


def test_every_public_loader_is_listed_here():
    assert {loader.__name__ for loader, *_ in LOADERS.values()} == {n for n in vars(datasets) if n.startswith("load_")}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=needs_statsmodels if c == "rand_hie" else needs_folder) for c in LOADERS],
)
def test_loaders(case):
    load, arguments, num_records, num_columns, num_first = LOADERS[case]
    dataset = load(**arguments)
    assert dataset.num_records == num_records
    assert len(dataset.schema.columns) == num_columns
    assert len(dataset.schema.column_names(dataset.parties[0])) == num_first
    assert Schema.from_toml(dataset.schema.to_toml()) == dataset.schema
    _assert_decoded_table_encodes_to_itself(dataset)


def _assert_decoded_table_encodes_to_itself(dataset):
    again = VerticalDataset.from_pooled(dataset.schema, dataset.to_frame()).pooled()
    for name, array in dataset.pooled().items():
        np.testing.assert_allclose(again[name], array, atol=1e-5, err_msg=name)


@needs_statsmodels
def test_rand_hie_bins_keep_lumps_and_means():
    original, decoded = rand_hie._table(), load_rand_hie().to_frame()
    assert original is not None
    for name in original.columns:
        before, after = original[name].to_numpy(), decoded[name].to_numpy()
        assert abs(after.mean() - before.mean()) < 0.05 * before.std()
        assert (after == 0).mean() == (before == 0).mean()


def test_rand_hie_says_how_to_get_statsmodels(monkeypatch):
    monkeypatch.setattr(rand_hie, "_table", lambda: None)
    with pytest.raises(DataError, match=r"vertinumpyro\[report\]"):
        load_rand_hie()


@pytest.mark.parametrize(
    ("load", "arguments"),
    [(load_adult, {"layout": "all"}), (load_adult, {"split": "dev"}), (load_wine, {"color": "rose"})],
)
def test_unknown_choices(load, arguments):
    with pytest.raises(ArgumentError, match="choose"):
        load(**arguments)


def test_adult_reads_the_original_format(tmp_path):
    folder = tmp_path / "adult"
    folder.mkdir()
    rest = "77516, Bachelors, 13, Never-married, {}, Not-in-family, White, Male, 2174, 0, 40, United-States"
    lines = ["|1x3 Cross validator"]
    lines += [f"39, State-gov, {rest.format(job)}, >50K." for job in ("Adm-clerical", "?")]
    (folder / "adult.test").write_text("\n".join([*lines, "", ""]))
    dataset = load_adult(layout="with_income", split="test", folder=tmp_path)
    assert dataset.num_records == 1
    assert dataset.to_frame()["income"].tolist() == [">50K"]


def test_wine_reads_the_original_and_the_plain_format(tmp_path):
    numbers = [7.4, 0.7, 0, 1.9, 0.076, 11, 34, 0.9978, 3.51, 0.56, 9.4, 5]
    (tmp_path / "wine").mkdir()
    header = ";".join(f'"column {i}"' for i in range(12))
    (tmp_path / "wine/winequality-red.csv").write_text(f"{header}\n{';'.join(map(str, numbers))}\n")
    (tmp_path / "wine/winequality-white.csv").write_text(",".join(map(str, numbers)))
    red, white = (load_wine(color, folder=tmp_path).pooled() for color in ("red", "white"))
    assert red["quality"].tolist() == [5]
    assert all((red[name] == white[name]).all() for name in red)


CONTENT = b"1,2\n"
GOOD = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache, no data folder, and a public home that is a local file."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "home.csv"
    path.write_bytes(CONTENT)
    return path


def source(home, sha256=GOOD):
    return Source(path="toy/toy.csv", home="A toy", url=home.as_uri(), sha256=sha256)


def test_fetches_once_and_then_reads_the_cache(home):
    path = source(home).locate()
    assert path == cache_folder() / "toy/toy.csv"
    assert path.read_bytes() == CONTENT
    home.unlink()
    assert source(home).locate() == path
    assert [p.name for p in path.parent.iterdir()] == ["toy.csv"]


def test_a_wrong_checksum_is_refused_and_leaves_nothing(home):
    with pytest.raises(DataError, match="SHA-256"):
        source(home, sha256="0" * 64).locate()
    assert not cache_folder().exists()


def test_a_damaged_cache_is_fetched_again(home):
    path = source(home).locate()
    path.write_bytes(b"damaged")
    assert source(home).locate().read_bytes() == CONTENT


def test_an_unreachable_home_names_the_way_out(home):
    home.unlink()
    with pytest.raises(DataError, match=FOLDER_VARIABLE):
        source(home).locate()


def test_a_named_folder_is_used_without_a_checksum(home, tmp_path, monkeypatch):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/toy.csv").write_bytes(b"other line endings\r\n")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert source(home).locate() == tmp_path / "toy/toy.csv"


def test_a_named_folder_without_the_file_is_an_error(home, tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        source(home).locate(tmp_path / "elsewhere")


@pytest.mark.parametrize("load", [load_nltcs, load_dutch])
def test_data_without_a_public_address_say_how_to_get_them(home, load):
    with pytest.raises(DataError, match=r"Put it at FOLDER/.*folder=FOLDER"):
        load()


def test_the_default_cache_is_in_the_home_folder(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "vertinumpyro"
