"""Tables written a block of records at a time, as CSV or Parquet: a twin of any length, in one block's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from vertinumpyro.core.errors import ArgumentError

__all__ = ["Write", "check_target", "table_writer", "write_in_blocks"]

Write: TypeAlias = Callable[[pd.DataFrame], None]


def check_target(path: Path) -> None:
    """Refuses a name that ends in neither .csv nor .parquet, and one in a folder that does not exist.

    Raises:
        ArgumentError: says which.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ArgumentError(f"{path.name} is neither .csv nor .parquet; choose one")
    if not path.parent.is_dir():
        raise ArgumentError(f"there is no folder {str(path.parent)!r}; create it first")


@contextlib.contextmanager
def table_writer(path: Path) -> Iterator[Write]:
    """Inside, call what it gives with one block of records after the other; all have the same columns and types.

    The file is what one block with all records would be, but for Parquet's row groups, of which each block has its own.

    Raises:
        ArgumentError: as `check_target`.
    """
    check_target(path)
    with contextlib.ExitStack() as opened:
        yield _csv(path, opened) if path.suffix == ".csv" else _parquet(path, opened)


def write_in_blocks(path: Path, blocks: Iterable[pd.DataFrame]) -> None:
    """One table, a block of its records after the other.

    Raises:
        ArgumentError: as `check_target`.
    """
    with table_writer(path) as write:
        for frame in blocks:
            write(frame)


def _csv(path: Path, opened: contextlib.ExitStack) -> Write:
    file = opened.enter_context(path.open("w", encoding="utf-8", newline=""))

    def write(frame: pd.DataFrame) -> None:
        frame.to_csv(file, index=False, header=not file.tell())

    return write


def _parquet(path: Path, opened: contextlib.ExitStack) -> Write:
    import pyarrow as pa  # here, because a CSV user needs none of it
    import pyarrow.parquet

    writer: list[Any] = []

    def write(frame: pd.DataFrame) -> None:
        schema = writer[0].schema if writer else None
        block = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        if not writer:
            writer.append(opened.enter_context(pyarrow.parquet.ParquetWriter(path, block.schema)))
        writer[0].write_table(block)

    return write
