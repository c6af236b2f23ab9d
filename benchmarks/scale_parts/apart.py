"""Two parties as processes of their own, each with its own file: what reading and the products between them take."""

from __future__ import annotations

import functools
import multiprocessing
import time
from pathlib import Path

from scale_parts.shared import DELTA, EPSILON
from scale_parts.tables import PARTIES, paths_of, schema_of

from vertinumpyro.mrf import VertiMRF
from vertinumpyro.secure import Crypten
from vertinumpyro.session import PartyTask, ProcessSession

__all__ = ["processes"]


def processes(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """Files to the release of all tables, `Crypten`; the peak of the largest process, and of each of the two kinds."""
    schema, ledgers = schema_of(num_columns), folder / "ledgers"
    build = functools.partial(VertiMRF, backend=Crypten())
    started = time.perf_counter()
    tasks = [
        PartyTask(
            party=party,
            schema=schema.to_dict(),
            table=paths_of(folder)[party],
            build=build,
            ledger=ledgers / party,
            spool=folder,
        )
        for party in PARTIES
    ]
    with ProcessSession(tasks) as session:
        joined = time.perf_counter()
        system = build()
        system.release(session, system.plan(session, epsilon=EPSILON, delta=DELTA))
        done = time.perf_counter()
        peaks = sorted(_peak_gib(process.pid) for process in multiprocessing.active_children())
        sent = session.traffic.bytes_sent
    assert session.num_records == num_records
    return {
        "seconds": done - started,
        "encoding": joined - started,
        "largest_gib": peaks[-1],
        "dealer_gib": peaks[0],
        "sent_mb": sent / 1e6,
    }


def _peak_gib(pid: int | None) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**20
