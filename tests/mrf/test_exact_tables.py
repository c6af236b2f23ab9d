"""Tables counted in blocks are those of all records at once, whatever sets of columns, in whatever order."""

import numpy as np
import pytest

from vertinumpyro.core import row_blocks
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.contingency import exact_tables, fine_tables
from vertinumpyro.mrf.measurements import count_table

SETS = [(1, 0), (0,), (3, 2, 1, 0), (0, 1, 2), (0, 1), (0, 1, 3), (2,), (0, 1)]


@pytest.mark.parametrize("rows", [64, 2**16])
def test_tables_in_blocks(dataset, monkeypatch, rows):
    monkeypatch.setattr(row_blocks, "ROWS", rows)
    columns = [c for c in VertiMRF().columns(dataset.schema) if c.party == "insurer"]
    arrays = dataset.arrays("insurer")
    codes, sizes = [c.codes(arrays) for c in columns], [c.num_cells for c in columns]
    for chosen, table in zip(SETS, exact_tables(columns, arrays, SETS), strict=True):
        np.testing.assert_array_equal(table, count_table([codes[i] for i in chosen], [sizes[i] for i in chosen]))
    assert exact_tables(columns, arrays, []) == []
    for column, table in zip(columns, fine_tables(columns, arrays), strict=True):
        np.testing.assert_array_equal(table, count_table([column.codes(arrays, fine=True)], [column.num_fine]))
