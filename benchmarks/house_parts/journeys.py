"""One journey of `house.py`, in a process of its own, which imports everything first and traces the fit alone.

    journeys.py JOURNEY FILE

FILE gets {JOURNEY: {"file: function": calls}}; of `dpvi` "step" too, the same between two chunks of steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any

import jax
import numpy as np
from house_parts.tracing import Calls, files_of, import_everything

import vertinumpyro as vnp

NUM_RECORDS = 400
PARTY_STEPS = 8

Found = dict[str, dict[str, int]]


def table() -> vnp.VerticalDataset:
    """The first records of RAND HIE: ten columns of every kind at two parties."""
    return vnp.load_rand_hie().take(np.arange(NUM_RECORDS))


def written(folder: Path) -> dict[str, Path]:
    """A file for each party."""
    data, paths = table(), {}
    frame = data.to_frame()
    frame.insert(0, data.schema.id_column, [f"p{i:05d}" for i in range(NUM_RECORDS)])
    for party, part in data.schema.parties.items():
        paths[party] = folder / f"{party}.csv"
        frame[[data.schema.id_column, *part.columns]].to_csv(paths[party], index=False)
    return paths


def mixture(**settings: Any) -> vnp.DPVI:
    return vnp.DPVI(num_components=4, warm_start=False, **settings)


# -- the journeys ---------------------------------------------------------------------------------


def dpvi(_: Path) -> Found:
    """`DPVI.fit` in this process: 20 steps."""
    data, calls, method = table(), Calls(), mixture()
    plan = method.plan(data, noise_multiplier=8.0, num_steps=20)
    with calls.traced():
        method.fit(data, plan, jax.random.PRNGKey(0), progress_bar=False)
    return {"dpvi": calls.taken(), "step": one_step()}


def one_step() -> dict[str, int]:
    """What runs from one chunk of steps to the next, once all programs are there, and the kernel that jax traced."""
    data, calls, method, chunks = table(), Calls(), mixture(), []
    plan = method.plan(data, noise_multiplier=8.0, num_steps=40, batch_size=50)
    with calls.traced():
        method.fit(
            data,
            plan,
            jax.random.PRNGKey(0),
            progress_bar=False,
            after_chunk=lambda step, params: chunks.append(calls.taken()),
        )
    kernel = next(name for name in chunks[0] if name.endswith(": Kernel.step"))
    return {kernel: 1, **chunks[-2]}  # the last one ends the run


def tables(_: Path) -> Found:
    """A release of tables, and a model learned from them."""
    data, calls = table(), Calls()
    plan = vnp.VertiMRF().plan(data, epsilon=1.0, delta=1e-5)
    with calls.traced():
        release = vnp.release_marginals(data, plan)
        vnp.MarginalInference().fit(release, jax.random.PRNGKey(0))
    return {"tables": calls.taken()}


def vertical_glm(_: Path) -> Found:
    """`VerticalGLM.fit` in this process."""
    from vertinumpyro.glm import VerticalGLM

    data, calls = table(), Calls()
    model = VerticalGLM(family="bernoulli", label="hlthg")
    plan = model.plan(data, epsilon=1.0)
    with calls.traced():
        model.fit(data, plan=plan)
    return {"vertical_glm": calls.taken()}


CONFIG = """
schema = "schema.toml"
[data.files]
insurer = "insurer.csv"
clinic = "clinic.csv"
[privacy]
epsilon = 1.0
delta = 1e-5
"""


def cli_fit(folder: Path) -> Found:
    """`vertinumpyro fit config.toml`, from files to a twin and its report, by the method that it takes itself."""
    written(folder)
    (folder / "schema.toml").write_text(table().schema.to_toml())
    (folder / "config.toml").write_text(CONFIG)
    main, calls, shown = command(), Calls(), io.StringIO()
    sys.argv = ["vertinumpyro", "fit", str(folder / "config.toml")]
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            with calls.traced():
                main()
        except SystemExit as end:
            code = end.code
        else:
            code = 0
    if code:
        raise RuntimeError(shown.getvalue())
    return {"cli_fit": calls.taken()}


def command() -> Callable[[], None]:
    """What the console script `vertinumpyro` calls."""
    import tomllib

    project = tomllib.loads((Path(vnp.__file__).parents[1] / "pyproject.toml").read_text())
    module, _, name = project["project"]["scripts"]["vertinumpyro"].partition(":")
    return getattr(importlib.import_module(module), name)


def crypten_party(folder: Path) -> Found:
    """One of two parties of DPVI under CrypTen, from the first thing that its process does: 8 steps."""
    from vertinumpyro.session import PartyTask, ProcessSession

    files, schema = written(folder), table().schema
    tasks = [
        PartyTask(party=party, schema=schema.to_dict(), table=path, build=AtParty(folder / f"{party}.json"))
        for party, path in files.items()
    ]
    with ProcessSession(tasks) as session:
        method: Any = tasks[0].build()
        plan = method.plan(session, epsilon=1.0, num_steps=PARTY_STEPS)
        method.fit(session, plan, jax.random.PRNGKey(0), progress_bar=False)
    found = [json.loads((folder / f"{party}.json").read_text()) for party in files]
    return {"crypten_party": max(found, key=lambda calls: len(files_of(calls)))}


_AT_PARTY = Calls()


@dataclasses.dataclass(frozen=True)
class AtParty:
    """Builds the method, and has the party's process traced from when it reads this, which is the first it does."""

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return _read, (self.path, os.getpid())

    def __call__(self) -> vnp.DPVI:
        from vertinumpyro.secure.crypten import Crypten

        if _AT_PARTY.running:  # multiprocessing forgets what was to be done at the end when it starts
            util.Finalize(None, self._write, exitpriority=100)
        return mixture(backend=Crypten())

    def _write(self) -> None:
        if _AT_PARTY.running:
            _AT_PARTY.end()
            self.path.write_text(json.dumps(_AT_PARTY.taken()))


def _read(path: Path, starter: int) -> AtParty:
    if os.getpid() != starter and not _AT_PARTY.running:
        import_everything()
        _AT_PARTY.begin()
    return AtParty(path)


# -- the process ----------------------------------------------------------------------------------

JOURNEYS = {made.__name__: made for made in (dpvi, crypten_party, tables, cli_fit, vertical_glm)}


def main() -> None:
    name, path = sys.argv[1:]
    warnings.simplefilter("ignore")
    import_everything()
    with tempfile.TemporaryDirectory(prefix="journey-") as folder:
        Path(path).write_text(json.dumps(JOURNEYS[name](Path(folder))))


if __name__ == "__main__":  # as a module with a name, so that the parties' processes can import it
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from house_parts import journeys

    journeys.main()
