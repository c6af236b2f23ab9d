import subprocess
import sys

import vertinumpyro.data as data

PUBLIC = {
    *("Schema", "Order", "PartySchema", "Rows", "Take", "OBSERVED_SUFFIX"),
    *("Column", "CodedColumn", "RealColumn", "BinnedColumn", "IntegerColumn", "CountColumn"),
    *("CategoricalColumn", "BinaryColumn", "Cells", "Kind", "Missing", "OutOfBounds"),
    *(
        "VerticalDataset",
        "CsvFormat",
        "DateColumn",
        "Determined",
        "Impossible",
        "read_ids",
        "read_table",
        "read_everything",
        "decode_table",
        "DatasetInfo",
        "TableFacts",
    ),
    *("draft_schema", "SchemaDraft"),
    *("align", "record_ids", "alignment_digest", "check_digests", "Linkage", "normalised_ids"),
    *("load_abalone", "load_adult", "load_dutch", "load_nltcs", "load_rand_hie", "load_wine"),
}


def test_public_names_are_pinned():
    assert set(data.__all__) == PUBLIC
    assert all(hasattr(data, name) for name in PUBLIC)


def test_importing_it_imports_no_jax_and_no_optional_package():
    check = (
        "import sys, vertinumpyro.data;"
        "print([m for m in ('jax', 'numpyro', 'statsmodels', 'torch') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
