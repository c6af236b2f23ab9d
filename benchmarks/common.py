"""What the benchmarks share: arguments, the JSON line, interleaved timing, and the Adult table.

Run a benchmark from the repository's root, with the library installed: `python benchmarks/NAME.py --quick`.
Timing is interleaved and reported as a ratio of medians: machines drift, ratios within one process much less.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax.scipy.special import logsumexp
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.core.rng import InsecureRandomnessWarning, InsecureSeededSource, RandomSource
from vertinumpyro.data import PartySchema, Schema, VerticalDataset
from vertinumpyro.data.datasets import load_adult
from vertinumpyro.dpvi import DPVI, DPVIState, Kernel, StepInput
from vertinumpyro.dpvi.training_loop import Chunk, ChunkRunner
from vertinumpyro.posterior.guide import Params, ReparameterisedGuide
from vertinumpyro.posterior.predictive import device_columns
from vertinumpyro.privacy import GradientPlan
from vertinumpyro.secure import Backend

DELTA = 1e-5
SIGMA = 2.042  # the DPVI paper's noise multiplier: epsilon = 1 by RDP, add/remove, q = 100/30162, T = 20,000

# -- arguments and results ------------------------------------------------------------------------


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The arguments that every benchmark has; its docstring is the help text."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="the same figures, smaller, in about a minute")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line to this file")
    made.add_argument("--out", type=Path, metavar="DIR", help="folder for figures (default: beside the JSON)")
    return made


def finish(results: Mapping[str, Any], args: argparse.Namespace, figures: Mapping[str, Figure]) -> None:
    """Save the figures, merge the results into the JSON file, and print them as one line, last."""
    folder = args.out or (args.json.parent if args.json else None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
    merged = with_stored(results, args)
    line = json.dumps(merged)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(line + "\n")
    print(line, flush=True)


def with_stored(results: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """These results as plain data within what earlier runs, with another `--only`, wrote to the JSON file."""
    return _merged(_stored(args.json), _plain(dict(results)))


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """New values over old ones, at every depth."""
    deeper = {k: _merged(old[k], v) for k, v in new.items() if isinstance(v, dict) and isinstance(old.get(k), dict)}
    return {**old, **new, **deeper}


def kept(path: Path | None, key: str, made: Callable[[], Any]) -> Any:
    """Plain data that takes long to make: what a file has of it, or made now and written there as soon as it is."""
    if path is None:
        return made()
    path.parent.mkdir(parents=True, exist_ok=True)
    if key in (found := _stored(path)):
        return found[key]
    value = made()
    written = path.with_suffix(".part")
    written.write_text(json.dumps(_stored(path) | {key: value}, indent=1))  # another run may have added some meanwhile
    os.replace(written, path)
    return value


def compile_fast(quick: bool) -> None:
    """Leaves out the compiler's optimisations in a quick run, which spends its minute on compiling."""
    if quick:
        jax.config.update("jax_disable_most_optimizations", True)


def environment() -> dict[str, str | int | None]:
    """Context for absolute times."""
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpyro": numpyro.__version__,
        "processor": platform.machine(),
        "cpu_count": os.cpu_count(),
    }


def _stored(path: Path | None) -> dict[str, Any]:
    """What earlier runs wrote."""
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def _plain(value: Any) -> Any:
    """Plain data for JSON, with null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, bool | str | int) or value is None:
        return value
    number = float(value)
    return round(number, 6) if math.isfinite(number) else None


# -- timing ---------------------------------------------------------------------------------------


def interleaved(arms: Mapping[str, Callable[[], float]], rounds: int, label: str) -> dict[str, list[float]]:
    """Milliseconds a step of each arm, `rounds` times in turn; an arm returns its own time for one round.

    Every arm runs once before, so that nothing compiles while the clock runs. The order turns around every
    other round, because the first arm of a round would otherwise always meet the same neighbour.
    """
    times: dict[str, list[float]] = {name: [] for name in arms}
    with tqdm(total=(rounds + 1) * len(arms), desc=label, unit="run") as bar:
        for index in range(-1, rounds):
            for name in list(arms) if index % 2 else list(reversed(list(arms))):
                milliseconds = arms[name]()
                bar.update()
                if index >= 0:
                    times[name].append(milliseconds)
    return times


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def peak_mib(pid: int) -> float:
    """Largest resident memory of a living process, where Linux tells it."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), math.nan)


# -- data -----------------------------------------------------------------------------------------


def adult(*, num_train: int | None = None, num_test: int | None = None) -> tuple[VerticalDataset, VerticalDataset]:
    """Adult's training and test records at two parties; of each all, or the first so many."""
    return _first(load_adult(split="train"), num_train), _first(load_adult(split="test"), num_test)


def _first(dataset: VerticalDataset, num_records: int | None) -> VerticalDataset:
    return dataset.take(np.arange(dataset.num_records)[:num_records])


def regrouped(dataset: VerticalDataset, parties: Mapping[str, Iterable[str]]) -> VerticalDataset:
    """The same records with some of the columns at other parties: party -> names of its columns."""
    columns, arrays = dataset.schema.columns, dataset.pooled()
    schema = Schema({party: PartySchema({n: columns[n] for n in names}) for party, names in parties.items()})
    return VerticalDataset(schema, {p: {n: arrays[n] for n in schema.column_names(p)} for p in schema.parties})


def at_one_party(dataset: VerticalDataset) -> VerticalDataset:
    """The non-partitioned table."""
    return regrouped(dataset, {"everyone": list(dataset.schema.columns)})


def among_parties(dataset: VerticalDataset, num_parties: int, num_columns: int | None = None) -> VerticalDataset:
    """The columns, all or evenly chosen ones, dealt out to `num_parties` parties in turn."""
    names = list(dataset.schema.columns)
    names = [names[i * len(names) // (num_columns or len(names))] for i in range(num_columns or len(names))]
    return regrouped(dataset, {f"party_{i}": names[i::num_parties] for i in range(num_parties)})


# -- runs -----------------------------------------------------------------------------------------


def paper_inference(backend: Backend, num_components: int) -> DPVI:
    """The DPVI paper's mixture and optimiser. Here, so that a party's process can import it."""
    return DPVI(backend=backend, optimizer=optax.adam(0.01), num_components=num_components)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """DPVI on one table under one plan: compiled once, run as often as wanted.

    Adult is public, so the plan may be run again and again, past `DPVI.fit`, which spends it once.
    """

    dpvi: DPVI
    plan: GradientPlan
    train: VerticalDataset
    test: VerticalDataset

    @cached_property
    def kernel(self) -> Kernel:
        return self.dpvi.kernel(self.train, self.plan, compat.random_key(0))[0]

    @cached_property
    def runner(self) -> ChunkRunner:
        return ChunkRunner(self.kernel, device_columns(self.train))

    @property
    def num_values(self) -> int:
        return self.kernel.guide.split.num_values

    @property
    def epochs_a_step(self) -> float:
        return self.plan.expected_batch_size / self.plan.num_records

    @cached_property
    def location(self) -> str:
        """The guide parameter that holds the location of flat theta."""
        return f"{self.kernel.guide.guide.prefix}_loc"

    @cached_property
    def _first_params(self) -> Params:
        guide, dpvi = self.kernel.guide, self.dpvi
        key = compat.random_key(0)
        return ReparameterisedGuide.create(dpvi.guide, guide.split, dpvi.init_loc_fn, key)[1]

    def start(self, seed: int) -> DPVIState:
        """A first state of its own for every seed; tables with the same columns start at the same values."""
        init_key, step_key = jax.random.split(compat.random_key(seed))
        theta = self.kernel.guide.split.init(self.dpvi.init_loc_fn, init_key)
        params = {**self._first_params, self.location: theta}
        return self.kernel.init(step_key, params)

    @cached_property
    def _first_state(self) -> DPVIState:
        return self.start(0)

    def same_start(self) -> DPVIState:
        """The state of seed 0 in fresh buffers, which a runner may overwrite."""
        return jax.tree_util.tree_map(jnp.array, self._first_state)

    def held_out_nll(self, params: Params) -> float:
        """Mean negative log density of the test records at the guide's location, in nats a record."""
        return float(self._nll(params))

    @cached_property
    def _nll(self) -> Callable[[Params], jax.Array]:
        split, location = self.kernel.guide.split, self.location
        blocks, weights = _blocks(self.test)

        def of_block(theta: jax.Array, block: Any) -> jax.Array:
            columns, weight = block
            parts = (split.log_density(party, theta, columns[party]) for party in split.parties)
            joint = sum(parts, start=split.component_prior(theta).log_weights)
            return (weight * logsumexp(joint, axis=-1)).sum()

        @jax.jit
        def nll(params: Params) -> jax.Array:
            sums = jax.lax.map(lambda block: of_block(params[location], block), (blocks, weights))
            return -sums.sum() / weights.sum()

        return nll

    def curve(
        self, seed: int, chunks: Iterable[Chunk], evaluations: int, bar: tqdm | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps and held-out NLL at about `evaluations` equidistant points and at the end of one run."""
        state, done = self.start(seed), 0
        steps, values = [0], [self.held_out_nll(state.params)]
        for chunk in chunks:
            state, _, _ = self.runner(state, chunk)
            done += chunk.num_active
            if done >= self.plan.num_steps * len(steps) // evaluations or done == self.plan.num_steps:
                steps.append(done)
                values.append(self.held_out_nll(state.params))
            if bar is not None:
                bar.update(chunk.num_active)
                bar.set_postfix_str(f"NLL {values[-1]:.3f}")
        return np.array(steps), np.array(values)


def chunks_without_noise(experiment: Experiment, source: RandomSource, length: int) -> Iterable[Chunk]:
    """NOT DP: the plan's batches, and zero where its noise belongs."""
    plan = experiment.plan
    batches = plan.sampling.start(plan.num_records, source)
    zeros = np.zeros((length, plan.num_shares, experiment.num_values), np.int64)
    while batches.step < plan.num_steps:
        count = min(length, plan.num_steps - batches.step)
        indices, mask = (np.pad(a, ((0, length - count), (0, 0))) for a in batches.next(count))
        yield Chunk(StepInput(indices, mask, zeros), np.arange(length) < count)


@dataclasses.dataclass(frozen=True)
class Files:
    """The parties' files, and the table that they hold when they are read."""

    paths: Mapping[str, Path]
    dataset: VerticalDataset


def written(dataset: VerticalDataset, folder: Path) -> Files:
    """Each party's columns in a file of its own."""
    schema, frame = dataset.schema, dataset.to_frame()
    frame.insert(0, schema.id_column, [f"{i:06d}" for i in range(dataset.num_records)])
    paths = {party: folder / f"{party}.csv" for party in schema.parties}
    for party, part in schema.parties.items():
        frame[[schema.id_column, *part.columns]].to_csv(paths[party], index=False)
    return Files(paths, VerticalDataset.from_files(schema, paths))


def insecure_source(insecure_seed: int) -> InsecureSeededSource:
    """A repeatable source, for arms that must see the same batches. NOT DP; the warning of it is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        return InsecureSeededSource(insecure_seed)


def _blocks(dataset: VerticalDataset, size: int = 1024) -> tuple[Any, jax.Array]:
    """Every party's columns as [blocks, size], padded with the first record, and weights that are 0 there."""
    n = dataset.num_records
    count = -(-n // size)
    index = np.where(np.arange(count * size) < n, np.arange(count * size), 0)
    cut = jax.tree_util.tree_map(lambda column: column[index].reshape(count, size), device_columns(dataset))
    return cut, jnp.asarray((np.arange(count * size) < n).reshape(count, size), jnp.float32)
