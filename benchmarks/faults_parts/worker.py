"""One process of `faults.py`: starts a fit, or continues it, and writes down what leaves it.

    worker.py METHOD WHERE FOLDER [--resume]

FOLDER/tables/<party>.csv      small generated tables, made once
FOLDER/run                     the run: its plan is what `privacy.json` says
FOLDER/started                 there once the fit begins, and all processes stand
FOLDER/pids/<pid>              the parties' processes and the dealer's
FOLDER/witness/<who>.jsonl     what was handed on ("run") and what each party sends, before it is sent, flushed
FOLDER/step_s                  the time of a step of DPVI, once more than the first chunk was seen
FOLDER/lost_s                  the most time that one kill cost of what was counted
FOLDER/complete                the fit is done
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vertinumpyro.core import compat
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.horizontal import HorizontalDataset, HorizontalDPVI
from vertinumpyro.dpvi.training_loop import CHECKPOINT
from vertinumpyro.mrf import MRFPlan, VertiMRF
from vertinumpyro.privacy import ClientPlan, GradientPlan
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.regression import BayesianLinearRegression, VerticalLinearRegression, VerticalLogisticRegression
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.secure import FixedPoint
from vertinumpyro.secure.crypten import Crypten
from vertinumpyro.session import PRIVACY_RECORD, PartyTask, ProcessSession, Run, recorded_plan

NUM_RECORDS = 5_000
STEPS = {"in_process": 200, "crypten": 40, "horizontal": 20}
REAL = RealColumn(bounds=(0.0, 1.0))
SCHEMA = Schema(
    {
        "clinic": PartySchema(
            {"age": REAL, "ill": BinaryColumn(), "ward": CategoricalColumn(categories=tuple("abcd"))}
        ),
        "bank": PartySchema(
            {"debt": REAL, "kind": CategoricalColumn(categories=("x", "y", "z")), "own": BinaryColumn()}
        ),
    }
)


# -- what is fitted -------------------------------------------------------------------------------


def method(name: str, where: str) -> Any:
    """The method; called in the parties' processes too."""
    backend = Crypten() if where == "crypten" else FixedPoint()
    made: dict[str, Callable[[], Any]] = {
        "dpvi": lambda: DPVI(num_components=4, backend=backend),
        "vertimrf": lambda: VertiMRF(selection="adaptive", max_cells=8, iterations=300, backend=backend),
        "logistic": lambda: VerticalLogisticRegression(backend=backend),
        "linear": lambda: VerticalLinearRegression(backend=backend),
        "horizontal": lambda: HorizontalDPVI(dpvi=DPVI(num_components=4)),
        "bayesian_linear": lambda: BayesianLinearRegression(num_nodes=3),
    }
    return made[name]()


def watched_method(name: str, where: str, folder: Path, party: str) -> Any:
    """The method at a party, which from now on writes down what it sends. Not in the starter's own process."""
    if multiprocessing.parent_process() is not None:
        watch_party(Witness(folder, party))
    return method(name, where)


PLANS = {
    "dpvi": GradientPlan,
    "vertimrf": MRFPlan,
    "logistic": FunctionalMechanismPlan,
    "linear": FunctionalMechanismPlan,
    "horizontal": ClientPlan,
}


def new_plan(name: str, where: str, made: Any, data: Any) -> Any:
    if name == "dpvi":
        return made.plan(data, noise_multiplier=4.0, num_steps=STEPS[where], batch_size=100)
    if name == "horizontal":
        return made.plan(data, noise_multiplier=4.0, num_steps=STEPS["horizontal"], batch_size=100)
    if name == "vertimrf":
        return made.plan(data, epsilon=2.0, delta=1e-6)
    label = {"linear": "debt", "logistic": "ill"}[name]
    return made.plan(SCHEMA, label, num_records=NUM_RECORDS, epsilon=2.0, delta=1e-6)


def fit(name: str, where: str, data: Any, folder: Path, *, resume: bool, witness: Witness) -> Any:
    made, run_dir = method(name, where), folder / "run"
    settings: dict[str, Any] = {"run_dir": run_dir, "resume": resume}
    if name == "bayesian_linear":
        x, y = records(data)
        return made.fit(x, y, **settings)
    plan = recorded_plan(run_dir, PLANS[name]) if resume else new_plan(name, where, made, data)
    if name == "dpvi":
        settings["after_chunk"] = witness.of_steps(steps_of(run_dir))
    if name in ("dpvi", "horizontal"):
        return made.fit(data, plan, compat.random_key(0), progress_bar=False, **settings)
    return made.fit(data, plan, **settings)


def records(data: VerticalDataset) -> tuple[np.ndarray, np.ndarray]:
    """Features and target of whole records; one client each."""
    columns = data.pooled()
    features = np.column_stack([columns["age"], columns["ill"], columns["own"]]).astype(float)
    return features[:1000] - 0.5, columns["debt"][:1000].astype(float) - 0.5


# -- what leaves ----------------------------------------------------------------------------------


class Witness:
    """Writes down, and flushes, what leaves a process."""

    def __init__(self, folder: Path, who: str) -> None:
        self._path, self._pace = folder / "witness" / f"{who}.jsonl", folder / "step_s"
        self._path.parent.mkdir(exist_ok=True)

    def saw(self, what: str, step: int, content: bytes, count: int = 1) -> None:
        entry = {"what": what, "step": step, "count": count, "content": hashlib.sha256(content).hexdigest()}
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def of_steps(self, first: int) -> Callable[[int, Any], None]:
        """For `after_chunk`: the state after further steps."""
        done, since = first, 0.0

        def after_chunk(steps: int, params: Mapping[str, Any]) -> None:
            nonlocal done, since
            self.saw("state", done, digest(params), steps - done)
            now = time.perf_counter()
            if since:  # the first chunk compiles
                self._pace.write_text(str((now - since) / (steps - done)))
            done, since = steps, now

        return after_chunk


def digest(arrays: Mapping[str, Any]) -> bytes:
    return b"".join(name.encode() + np.ascontiguousarray(arrays[name]).tobytes() for name in sorted(arrays))


def watch_run(witness: Witness, name: str) -> None:
    """What the steps of a run hand on in this process; stored or new."""
    for kind, place in ((Run, 1), (ProcessSession, 2)):
        watch_steps(kind, place, witness)
    if name == "horizontal":
        watch_states(witness)


def watch_states(witness: Witness) -> None:
    """The states of a method that tells nobody of them before its end."""
    honest = Run.commit_state

    def commit_state(run: Run, num_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        honest(run, num_steps, arrays)
        witness.saw("state", run.ledger.steps_spent - num_steps, digest(arrays), num_steps)

    Run.commit_state = commit_state  # type: ignore[method-assign]


def watch_steps(kind: Any, place: int, witness: Witness, what: str = "handed on") -> None:
    honest = kind.step

    def step(*arguments: Any) -> Any:
        found = honest(*arguments)
        if found is not None:
            witness.saw(what, arguments[place], digest(found.arrays))
        return found

    kind.step = step


def watch_party(witness: Witness) -> None:
    """What a party publishes, and the messages with which it opens anything: before they are sent."""
    from vertinumpyro.secure.crypten.engine import Engine
    from vertinumpyro.session.party import Party
    from vertinumpyro.session.reveal_once import RevealLog

    watch_steps(Run, 1, witness, "published")
    at: dict[str, int | None] = {"step": None}  # None: pads hide what is opened
    opened, iterate, reveal = RevealLog.opened, Party._iterate, Engine._opened

    def watched_opened(openings: Any, step: int, *arguments: Any) -> Any:
        at["step"] = step
        try:
            return opened(openings, step, *arguments)
        finally:
            at["step"] = None

    def watched_iterate(party: Any, words: Any, arrays: Any) -> Any:
        at["step"] = words["step"]
        try:
            return iterate(party, words, arrays)
        finally:
            at["step"] = None

    def watched_reveal(engine: Any, share: Any, why: str) -> Any:
        step = at["step"]
        if why == "reveal" and step is not None:
            witness.saw("opening", step, share.contiguous().numpy().tobytes())
            at["step"] = step + 1
        return reveal(engine, share, why)

    RevealLog.opened, Party._iterate, Engine._opened = watched_opened, watched_iterate, watched_reveal  # type: ignore[assignment]


# -- what was lost --------------------------------------------------------------------------------


def steps_of(run_dir: Path) -> int:
    """Steps on record so far."""
    return read_record(run_dir / PRIVACY_RECORD).steps_spent if (run_dir / PRIVACY_RECORD).exists() else 0


def steps_behind(folder: Path) -> int:
    """Steps of DPVI that any ledger counts and that did not go into the stored state."""
    checkpoint = folder / "run" / CHECKPOINT
    stored = np.load(checkpoint) if checkpoint.exists() else None
    used = 0 if stored is None else max(int(stored[name]) for name in stored.files if "count" in name)
    apart = folder.glob("tables/*.ledger/*/" + PRIVACY_RECORD)
    counted = [steps_of(folder / "run"), *(read_record(path).steps_spent for path in apart)]
    return max(counted) - used


class Losses:
    """How far each kill set the steps back, over the attempts of a run."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._steps, self._name = folder, folder / "lost_steps", name
        if name in ("dpvi", "horizontal"):
            known = self._known()
            self._steps.write_text(json.dumps([*known, steps_behind(folder) - sum(known)]))

    def _known(self) -> list[int]:
        return json.loads(self._steps.read_text()) if self._steps.exists() else []

    def in_seconds(self, found: Any, seconds: float) -> float:
        if self._name in ("dpvi", "horizontal"):
            made, pace = len(found.diagnostics.released_norm), self._folder / "step_s"
            a_step = float(pace.read_text()) if pace.exists() else seconds / max(made, 1)
            return max(self._known()) * a_step
        if self._name == "vertimrf":
            return found.seconds["parties"] if found.missing else 0.0
        return 0.0  # the others end with an error where a release was lost


# -- the process ----------------------------------------------------------------------------------


def made_tables(folder: Path) -> dict[str, Path]:
    """The parties' files; the same in every run, and complete or not there."""
    tables = folder / "tables"
    tables.mkdir(exist_ok=True)
    files = {party: tables / f"{party}.csv" for party in SCHEMA.parties}
    if not all(path.exists() for path in files.values()):
        frame = VerticalDataset.example(SCHEMA, NUM_RECORDS, np.random.default_rng(0)).to_frame()
        frame.insert(0, SCHEMA.id_column, [f"{i:06d}" for i in range(NUM_RECORDS)])
        for party, part in SCHEMA.parties.items():
            write(files[party], frame.loc[:, [SCHEMA.id_column, *part.columns]])
    return files


def write(path: Path, frame: pd.DataFrame) -> None:
    draft = path.with_suffix(".draft")
    frame.to_csv(draft, index=False)
    os.replace(draft, path)


def main() -> None:
    name, where, folder, *rest = sys.argv[1:]
    run(name, where, Path(folder), resume="--resume" in rest)


def run(name: str, where: str, folder: Path, *, resume: bool) -> None:
    warnings.simplefilter("ignore")
    files, witness = made_tables(folder), Witness(folder, "run")
    watch_run(witness, name)
    resume = resume and (folder / "run" / PRIVACY_RECORD).exists()
    losses = Losses(folder, name)
    if where == "in_process":
        dataset = VerticalDataset.from_files(SCHEMA, files)
        finish(
            name,
            where,
            HorizontalDataset(dataset) if name == "horizontal" else dataset,
            folder,
            resume,
            witness,
            losses,
        )
        return
    watched = partial(watched_method, name, where, folder)
    tasks = [
        PartyTask(party=party, schema=SCHEMA.to_dict(), table=path, build=partial(watched, party))
        for party, path in files.items()
    ]
    with ProcessSession(tasks, timeout_s=60.0) as session:
        (folder / "pids").mkdir(exist_ok=True)
        for pid in session.pids:
            (folder / "pids" / str(pid)).touch()
        finish(name, where, session, folder, resume, witness, losses)


def finish(name: str, where: str, data: Any, folder: Path, resume: bool, witness: Witness, losses: Losses) -> None:
    (folder / "started").touch()
    started = time.perf_counter()
    found = fit(name, where, data, folder, resume=resume, witness=witness)
    (folder / "lost_s").write_text(str(losses.in_seconds(found, time.perf_counter() - started)))
    (folder / "complete").touch()


if __name__ == "__main__":  # as a module with a name, so that the parties' processes can import it
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from faults_parts import worker

    worker.main()
