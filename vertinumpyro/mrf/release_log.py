"""What a run has released so far, stored as soon as it is released, so that a fit that died can go on from there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import final

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.stored_arrays import load_arrays, save_arrays
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.stored import Released, columns_from_list, columns_to_list, named, pack_released, unpack_released

__all__ = ["RELEASED", "ReleaseLog", "step_names"]

RELEASED = "released.npz"


@final
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ReleaseLog:
    """The releases of one plan by their steps.

    A step is reserved in the ledger before it is computed and stored here afterwards. After a crash between the two
    its tables are lost and stay spent: to compute them again would release them twice.

    Attributes:
        plan: the plan.
        columns: the columns in cells.
        path: the file; None keeps everything in memory.
        first_step: steps reserved before this process.
        secure_noise: whether all noise so far came from the operating system's CSPRNG.
        steps: what is released.
    """

    plan: MRFPlan
    columns: tuple[CellColumn, ...]
    path: Path | None
    first_step: int = 0
    secure_noise: bool = True
    steps: dict[int, Released] = dataclasses.field(default_factory=dict)

    @classmethod
    def opened(
        cls, run_dir: Path | None, plan: MRFPlan, columns: Sequence[CellColumn], first_step: int | None
    ) -> ReleaseLog:
        """A new log, or what a run stored before it died.

        Args:
            run_dir: the run's folder.
            plan: the plan.
            columns: the columns in cells.
            first_step: of a run that is continued, how many steps its ledger counts; None starts a run.

        Raises:
            ArgumentError: the stored tables are another plan's or of other cells, or the file is damaged.
        """
        path = None if run_dir is None else run_dir / RELEASED
        log = cls(plan=plan, columns=tuple(columns), path=path, first_step=first_step or 0)
        if first_step is None:
            log._write()
        elif path is not None and path.exists():
            log._read(path)
        return log

    def add(self, step: int, released: Released, *, secure_noise: bool) -> None:
        """Keeps what a step released; on disk when this returns."""
        self.steps[step] = released
        self.secure_noise &= secure_noise
        self._write()

    def missing(self) -> tuple[str, ...]:
        """Names of the steps that were reserved before this process and are not stored: spent, and lost."""
        names = step_names(self.plan)
        return tuple(names[step] for step in range(self.first_step) if step not in self.steps)

    def _write(self) -> None:
        if self.path is None:
            return
        entries, arrays = {}, {}
        for step, released in self.steps.items():
            entries[str(step)], own = pack_released(released, f"{step}/")
            arrays |= own
        metadata = {
            "fingerprint": self.plan.fingerprint(),
            "columns": columns_to_list(self.columns),
            "secure_noise": self.secure_noise,
            "steps": entries,
        }
        save_arrays(self.path, arrays, metadata)

    def _read(self, path: Path) -> None:
        metadata, arrays = load_arrays(path)
        with named(path.name):
            if metadata["fingerprint"] != self.plan.fingerprint():
                raise ArgumentError("it belongs to another plan; choose the folder of this plan's run")
            if columns_from_list(metadata["columns"]) != self.columns:
                raise ArgumentError("its columns have other cells; restore schema, bins and max_cells of the run")
            self.secure_noise = bool(metadata["secure_noise"])
            for step, entry in metadata["steps"].items():
                if not 0 <= int(step) < self.first_step:
                    raise ArgumentError("it holds a step that the privacy record does not count")
                self.steps[int(step)] = unpack_released(entry, arrays, self.columns, f"{step}/")


def step_names(plan: MRFPlan) -> tuple[str, ...]:
    """The steps that a ledger counts, in words."""
    local = "the parties' own tables"
    if plan.num_rounds:
        return (local, "the first look across parties", *(f"round {i + 1}" for i in range(plan.num_rounds)))
    return (local, "the tables across parties")[: plan.num_steps]
