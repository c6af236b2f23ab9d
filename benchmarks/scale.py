"""Seconds and memory by the number of records: what each method takes from the parties' files on.

    python benchmarks/scale.py --quick
    python benchmarks/scale.py --json results/scale.json [--records 100000 1000000 10000000]
                               [--columns 16 100 1000] [--only marginals ratio]

Two parties with eight columns each: two values, text categories, an integer, reals, missing values. The tables are made
block by block from a fixed seed, straight into a Parquet file at each party, in another order of records at each, so
no process here ever holds one. Every figure is of a process of its own. Everybody's epsilon is 1 at delta = 1e-9.

Keys: scale.encode.N.{seconds,peak_gib}      files to encoded columns, checked and aligned
      scale.rows.N.{seconds,peak_gib}        N rows of N/10 persons in any order, in Parquet, to one encoded
                                             record each: count, sum, any and most frequent
      scale.marginals.N.{seconds,peak_gib}   files to a twin of N records in Parquet: secure marginals, `FixedPoint`;
                                             encoding, tables, rehearsal, field and twin are its parts
      scale.columns.D.{seconds,peak_gib}     files of D columns to a twin of as many records in Parquet, from the tables
                                             of a label by all others and of neighbours at each party; the compiler's
                                             seconds, `compile`, are in those of rehearsal and field
      scale.functional.N.{seconds,peak_gib}  files to the coefficients of a logistic regression
      scale.dpvi_step.N.{seconds,peak_gib}   a full-batch step of DPVI's automatic mixture, the median of several, clip
                                             norm 0.1, so that ten million records fit the ring; memory of all of it
      scale.sampling.N.{seconds,peak_gib}    a stored field to N records in Parquet
      scale.WHAT.{exponent,cpu_exponent}     of its seconds in N, between the two largest tables
      scale.ratio.N.{groupby,one_hot,worst}  the parties' exact tables across (all 64 pairs) by the library, from coded
                                             columns, over the same by pandas' groupby, and by a product of NumPy
                                             one-hot matrices; `worst` is over the faster of the two
      scale.dask.N.WORK_{here,one,two}       seconds of a party's local work by this process, and by one and by two
                                             workers, one thread each: WORK is encode (files to encoded columns),
                                             tables (all pairs at each party and across) or moments (a regression's own)
      scale.dask.N.{WORK_speedup,dask_speedup}  one worker over two, of each work and of all; needs two free cores
      scale.local_step.N.{seconds,travel,travel_ratio,bytes}  a party's own part of a block of a full-batch DPVI step,
                                             before anything secure; what it makes, on its way from a worker; the latter
                                             over the former; bytes a record
      scale.shared_product.N.{seconds,travel,travel_ratio}  a party's own part of a block of a product on shares; its
                                             masked block on its way from a worker, and the other party's to it; the
                                             latter over the former
      scale.device.N.{seconds,at_bandwidth,over_bandwidth}  both parties' parts of a full-batch step on JAX's device
                                             (`platform`); reading and writing the same bytes at the speed of a copy
                                             there; the former over the latter. On a GPU `cpu_over_device`, too
      scale.processes.N.{seconds,largest_gib} files to the release of all tables, two parties as processes, `Crypten`
                                             (extra crypten): the peak of the larger party's process; dealer_gib the
                                             dealer's, sent_mb what a party sends
      cpu_seconds beside them                of all processors, which other programs hardly lengthen

`--quick` takes 10,000 and 20,000 records; the tables of D columns have 100,000, and with `--quick` 10,000 and 16 and 48
columns. `--workload star:clinic_00 blocks:2` takes other tables of many columns. Memory is a process's peak resident
set, mapped files included.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scale_parts.tables import write_tables

COLUMNS = 16
MOST_FOR_RATIO = 1_000_000  # a one-hot matrix of all records takes gigabytes beyond that
APART = ("ratio", "dask", "local_step", "shared_product", "device")  # figures of their own, without an exponent
BY_RECORDS = ("encode", "rows", "marginals", "functional", "dpvi_step", "sampling", *APART, "processes")
ARMS = (*BY_RECORDS, "columns")
RECORDS_OF_MANY_COLUMNS = 100_000


def timed(arm: str, folder: Path, num_records: int, num_columns: int = COLUMNS, *words: str) -> dict[str, Any]:
    """One arm in a process of its own."""
    command = [sys.executable, __file__, "--child", arm, str(folder), str(num_records), str(num_columns), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{arm} at {num_records} records failed:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{arm} {num_records} x {num_columns}: {found}", file=sys.stderr, flush=True)
    return found


def exponent(seconds: dict[int, float]) -> float | None:
    """The slope of log seconds in log N between the two largest tables."""
    if len(seconds) < 2:
        return None
    (small, less), (large, more) = sorted(seconds.items())[-2:]
    return math.log(more / less) / math.log(large / small)


def run(records: list[int], arms: list[str], scratch: Path | None) -> dict[str, Any]:
    """Every arm on every table; tables go when they were used."""
    found: dict[str, Any] = {arm: {} for arm in arms}
    for num_records in records:
        with tempfile.TemporaryDirectory(dir=scratch) as name:
            folder = Path(name)
            write_tables(folder, num_records, COLUMNS)
            for arm in arms:
                if arm != "ratio" or num_records <= MOST_FOR_RATIO:
                    found[arm][num_records] = timed(arm, folder, num_records)
    for arm in arms:
        if arm not in APART:
            found[arm]["exponent"] = exponent({n: found[arm][n]["seconds"] for n in records})
            found[arm]["cpu_exponent"] = exponent({n: found[arm][n]["cpu_seconds"] for n in records})
    return {"scale": found}


def run_columns(columns: list[int], num_records: int, words: list[str], scratch: Path | None) -> dict[int, Any]:
    """Files to a twin, by the number of columns."""
    found = {}
    for num_columns in columns:
        with tempfile.TemporaryDirectory(dir=scratch) as name:
            write_tables(Path(name), num_records, num_columns)
            found[num_columns] = timed("columns", Path(name), num_records, num_columns, *words)
    return found


def main() -> None:
    """Run the chosen arms, or be one of them."""
    if sys.argv[1:2] == ["--child"]:
        from scale_parts.arms import run_arm

        run_arm(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
        return
    from common import environment, finish, parser

    arguments = parser(__doc__)
    arguments.add_argument("--records", type=int, nargs="+", help="numbers of records")
    arguments.add_argument("--columns", type=int, nargs="+", help="numbers of columns, even ones")
    arguments.add_argument("--workload", nargs="+", default=[], help="words for the tables of many columns")
    arguments.add_argument("--only", nargs="+", choices=ARMS, help="some arms; --json keeps the others")
    arguments.add_argument("--scratch", type=Path, help="folder for the tables (1 GB for ten million records)")
    args = arguments.parse_args()
    if args.only and "sampling" in args.only and "marginals" not in args.only:
        arguments.error("--only sampling draws from the field of marginals: name both")
    records = args.records or ([10_000, 20_000] if args.quick else [100_000, 1_000_000, 10_000_000])
    chosen = args.only or list(ARMS)
    by_records = [arm for arm in chosen if arm != "columns"]
    found = run(records, by_records, args.scratch) if by_records else {"scale": {}}
    if "columns" in chosen:
        columns = args.columns or ([16, 48] if args.quick else [16, 100, 1_000])
        found["scale"]["columns"] = run_columns(
            columns, records[0] if args.quick else RECORDS_OF_MANY_COLUMNS, args.workload, args.scratch
        )
    finish({"environment": environment(), **found}, args, {})


if __name__ == "__main__":
    main()
