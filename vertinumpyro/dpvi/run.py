"""One fit in progress: its privacy record, its checkpoint, and the loop over chunks."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import checkpoint
from vertinumpyro.dpvi.kernel import DPVIState, Kernel
from vertinumpyro.dpvi.loop import ChunkRunner, device_columns
from vertinumpyro.dpvi.posterior import Diagnostics
from vertinumpyro.dpvi.stream import chunks
from vertinumpyro.privacy import PrivacyPlan
from vertinumpyro.privacy.ledger import Spending, resume_spending, start_spending

__all__ = ["CHECKPOINT", "PRIVACY_RECORD", "Run"]

PRIVACY_RECORD = "privacy.json"
CHECKPOINT = "checkpoint.npz"


@dataclasses.dataclass
class Run:
    """One fit in progress: the ledger, the checkpoint and the loop over chunks."""

    kernel: Kernel
    plan: PrivacyPlan
    run_dir: Path | None
    secure_noise: bool = True  # of every step so far, those before a resume included

    def open_ledger(self, resume: bool) -> Spending:
        """Start to spend the plan, or continue it."""
        if resume and self.run_dir is None:
            raise ArgumentError("resume=True needs run_dir, the folder of the run to continue")
        if self.run_dir is None:
            return start_spending(self.plan)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        record = self.run_dir / PRIVACY_RECORD
        return resume_spending(self.plan, record) if resume else start_spending(self.plan, record)

    def restored(self, state: DPVIState) -> DPVIState:
        """The checkpoint's state; the first state if the run stopped before its first checkpoint."""
        if self.run_dir is None or not (path := self.run_dir / CHECKPOINT).exists():
            return state
        metadata = checkpoint.read_metadata(path)
        if metadata["fingerprint"] != self.plan.fingerprint():
            raise ArgumentError(
                f"{CHECKPOINT} in run_dir belongs to another plan; choose the folder of this plan's run"
            )
        self.secure_noise &= metadata["secure_noise"]
        return checkpoint.load_tree(path, state)

    def steps(
        self,
        state: DPVIState,
        dataset: VerticalDataset,
        spending: Spending,
        source: RandomSource,
        progress_bar: bool,
    ) -> tuple[DPVIState, Diagnostics]:
        """All remaining steps. Steps are counted as released before they are computed."""
        self.secure_noise &= source.secure
        started = time.perf_counter()
        runner = ChunkRunner(self.kernel, device_columns(dataset))
        first = self.first_step(spending)
        norms, objectives = [], []
        with tqdm(total=self.plan.num_steps, initial=first, disable=not progress_bar, unit="step") as bar:
            for chunk in chunks(self.plan, self.kernel.guide.split.num_values, source, first):
                spending.reserve(chunk.num_active)
                state, info, internal = runner(state, chunk)
                norms.append(info.released_norm)
                objectives += [] if internal.objective is None else [internal.objective]
                self.save(state)
                bar.update(chunk.num_active)
        diagnostics = Diagnostics(
            released_norm=np.concatenate([np.zeros(0), *norms]),
            objective=np.concatenate(objectives) if objectives else None,
            seconds=time.perf_counter() - started,
        )
        return state, diagnostics

    def first_step(self, spending: Spending) -> int:
        """Where a run may start; steps that a resumed sampling cannot use are counted as spent."""
        first = self.plan.sampling.resume_step(self.plan.num_records, spending.steps_spent)
        if first > spending.steps_spent:
            spending.reserve(first - spending.steps_spent)
        return first

    def save(self, state: DPVIState) -> None:
        """Write the checkpoint, if there is a folder for it."""
        if self.run_dir is not None:
            metadata = {"fingerprint": self.plan.fingerprint(), "secure_noise": self.secure_noise}
            checkpoint.save_tree(self.run_dir / CHECKPOINT, state, metadata)
