"""How long a private step takes: against d3p, against floating point, and as the problem grows.

    python benchmarks/dpvi_speed.py --quick
    python benchmarks/dpvi_speed.py --json results/dpvi_speed.json [--only ratios|growth]

Setting of the ratios: UCI Adult, 30,162 records, 13 columns at two parties, K = 20 components, about 2,800
released values, batches of 100 expected (Poisson, padded to about 180), clip 1, sigma 2.042. A step is all:
batches and exact noise from the operating system's generator, drawn in the background, local gradients,
cross-party arithmetic, update. Medians of interleaved runs in one process; milliseconds are context.

Keys:

ms_fixed_point       a step of the secure computation's arithmetic
ms_plaintext         a step of the floating-point oracle, with the same sampler and the same kind of noise
ms_zero_noise        a step of `FixedPoint` with batches and zero noise prepared ahead
ms_d3p               a step of d3p's non-partitioned DPSVI: same model with the component summed out,
                     AutoDiagonalNormal, batches of exactly 100 by its own sampler, its own strong generator
ratio_vs_d3p         ms_fixed_point / ms_d3p, at most 0.2 is wanted; null where d3p is not installed, and
                     `d3p_reason` says so (d3p needs jax 0.4.30: the extra `d3p`)
ratio_vs_plaintext   ms_fixed_point / ms_plaintext, at most 1.5 is wanted
noise_share          (ms_fixed_point - ms_zero_noise) / ms_fixed_point, at most 0.5 is wanted
spread               for each arm, interquartile range / median over the runs
compilations         of the loop over chunks, in all runs of an arm; must be 1
D, padded_n          released values, static batch size
growth               a list, one entry a configuration of n = 100, 1,000, 10,000; K = 10, 20, 50; P = 2, 4, 6,
                     and half of the columns, each in a process of its own: n (expected batch), padded_n, K,
                     P, columns, D = K d, ms and processor_ms a step (noise prepared ahead), compilations,
                     compile_seconds, peak_rss_mib (of that process, compiler included). Configurations cannot
                     be interleaved, so both are the fastest of 7 runs; processor time counts all threads and
                     not what else the machine does
growth_fit           processor_ms = fixed_ms + ms_per_component K + ns_per_weight 1e-6 n K c, n padded, c
                     columns: least squares of relative errors, and the largest_relative_error: time is linear
                     in n, K and columns. Tables of finite columns cost K d whatever n is, so n K d itself is an
                     upper bound: slowest_per_unit_over_base, the largest processor_ms / (n K d) over that of
                     n = 100, K = 20, P = 2, of all configurations not smaller than it; at most 1 where time
                     grows no faster than n K d

`--quick` takes few columns and components, two runs and two configurations: its values compare with nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from common import (
    DELTA,
    SIGMA,
    Experiment,
    adult,
    among_parties,
    chunks_without_noise,
    environment,
    finish,
    interleaved,
    median,
    parser,
    regrouped,
)
from jax.scipy.special import logsumexp
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal
from tqdm.auto import tqdm

from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.training_loop import Chunk, chunk_length_of, chunks
from vertinumpyro.secure import Backend, FixedPoint, Plaintext

try:
    import d3p.minibatch  # pyright: ignore[reportMissingImports]
    import d3p.random  # pyright: ignore[reportMissingImports]
    import d3p.svi  # pyright: ignore[reportMissingImports]
except ImportError as error:
    D3P_MISSING: str | None = f"d3p is not installed here ({error}); it needs jax 0.4.30, extra `d3p`"
else:
    D3P_MISSING = None

Arm = Callable[[], float]

Configuration = tuple[int, int, int, int]
"""Expected batch n, components K, parties P, columns."""

BASE = (100, 20, 2, 13)
GRID = list(itertools.product((100, 1_000, 10_000), (10, 20, 50), (2, 4, 6), (13,)))
GROWTH = [BASE, *(cell for cell in GRID if cell != BASE), *((n, 20, 2, 6) for n in (100, 1_000, 10_000))]
QUICK_BASE = (100, 3, 2, 3)
QUICK_GROWTH = [QUICK_BASE, (400, 3, 2, 3)]
QUICK_COLUMNS = {"demographic": ["age", "sex"], "financial": ["workclass"]}


# -- our arms -------------------------------------------------------------------------------------


def experiment_of(data: VerticalDataset, backend: Backend, n: int, num_components: int, steps: int) -> Experiment:
    """The paper's plan at one size."""
    dpvi = DPVI(backend=backend, num_components=num_components)
    plan = dpvi.plan(
        data,
        noise_multiplier=SIGMA,
        delta=DELTA,
        batch_size=min(n, data.num_records),
        num_steps=steps,
        allow_unproven=True,
    )
    return Experiment(dpvi, plan, data, data)


def milliseconds_a_step(experiment: Experiment, make_chunks: Callable[[], Any]) -> float:
    """A whole run over the plan's steps, drawing of the first chunk included."""
    state, norm = experiment.same_start(), None
    started = time.perf_counter()
    for chunk in make_chunks():
        state, norm, _ = experiment.runner(state, chunk)
    elapsed = time.perf_counter() - started
    assert norm is not None
    assert np.isfinite(norm.released_norm).all()
    return 1e3 * elapsed / experiment.plan.num_steps


def exact_noise_arm(experiment: Experiment) -> Arm:
    """Batches and exact noise as `DPVI.fit` draws them."""
    return lambda: milliseconds_a_step(
        experiment, lambda: chunks(experiment.plan, experiment.num_values, SystemRandomSource(), 0)
    )


def zero_noise_arm(experiment: Experiment) -> Arm:
    """Everything prepared ahead, no noise."""
    plan = experiment.plan
    length = chunk_length_of(plan, experiment.num_values)
    ready: list[Chunk] = list(chunks_without_noise(experiment, SystemRandomSource(), length))
    return lambda: milliseconds_a_step(experiment, lambda: ready)


def compilations(experiment: Experiment) -> int:
    """How often the loop over chunks was compiled."""
    return experiment.runner._run._cache_size()  # type: ignore[attr-defined]


# -- d3p ------------------------------------------------------------------------------------------


def pooled_model(schema: Schema, num_components: int) -> Callable[..., None]:
    """`mixture_model` as d3p needs it: for arrays in the schema's order, the component summed out."""
    columns = list(schema.columns.items())

    def parameters(name: str, column: Any) -> Any:
        if column.kind == "real":
            a = numpyro.sample(f"{name}_a", dist.Gamma(1.0, 1.0))
            b = numpyro.sample(f"{name}_b", dist.Gamma(1.0, 1.0))
            return dist.Beta(a, b)
        if column.kind == "categorical":
            probs = numpyro.sample(f"{name}_probs", dist.Dirichlet(jnp.ones(column.num_categories)))
            return dist.Categorical(probs)
        return dist.Bernoulli(numpyro.sample(f"{name}_prob", dist.Beta(1.0, 1.0)))

    def model(*data: jax.Array, num_records: int) -> None:
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(num_components)))
        with numpyro.plate("components", num_components):
            likelihoods = [parameters(name, column) for name, column in columns]
        # log_prob of [b, 1] under K distributions is [b, K]
        parts = (law.log_prob(values[:, None]) for law, values in zip(likelihoods, data, strict=True))
        log_density = logsumexp(sum(parts, start=jnp.log(weights)), axis=-1)
        with numpyro.plate("records", num_records, subsample_size=len(data[0])):
            numpyro.factor("log_density", log_density)

    return model


def d3p_arm(data: VerticalDataset, n: int, num_components: int, steps: int) -> Arm:
    """d3p's own loop, as in its examples: `subsample_batchify_data` inside a jitted `fori_loop`."""
    model = pooled_model(data.schema, num_components)
    svi = d3p.svi.DPSVI(
        model,
        AutoDiagonalNormal(model, init_scale=0.1),
        numpyro.optim.Adam(0.01),
        Trace_ELBO(),
        clipping_threshold=1.0,
        dp_scale=SIGMA,
        num_records=data.num_records,
    )
    arrays = tuple(jnp.asarray(data.pooled()[name]) for name in data.schema.columns)
    init_batches, get_batch = d3p.minibatch.subsample_batchify_data(arrays, batch_size=n)
    _, batches = init_batches(d3p.random.PRNGKey(1))
    first = svi.init(d3p.random.PRNGKey(2), *get_batch(0, batches))

    @jax.jit
    def run(state: Any) -> Any:
        body = lambda i, carry: svi.update(carry[0], *get_batch(i, batches))  # noqa: E731
        return jax.lax.fori_loop(0, steps, body, (state, jnp.zeros(())))

    def arm() -> float:
        started = time.perf_counter()
        _, loss = jax.block_until_ready(run(first))
        assert np.isfinite(loss)
        return 1e3 * (time.perf_counter() - started) / steps

    return arm


# -- parts ----------------------------------------------------------------------------------------


def ratios(args: argparse.Namespace) -> dict[str, Any]:
    """All arms interleaved in this process."""
    n, K, *_ = QUICK_BASE if args.quick else BASE
    steps, rounds = (60, 2) if args.quick else (600, 7)
    data = adult_table(args.quick)
    fixed = experiment_of(data, FixedPoint(), n, K, steps)
    plain = experiment_of(data, Plaintext(), n, K, steps)
    arms = {
        "fixed_point": exact_noise_arm(fixed),
        "plaintext": exact_noise_arm(plain),
        "zero_noise": zero_noise_arm(fixed),
    }
    if D3P_MISSING is None:
        arms["d3p"] = d3p_arm(data, n, K, max(1, steps // 6))
    times = interleaved(arms, rounds, "steps")
    ms = {name: median(values) for name, values in times.items()}
    spread = {name: float(np.subtract(*np.percentile(v, [75, 25]))) / ms[name] for name, v in times.items()}
    compiled = {"fixed_point": compilations(fixed), "plaintext": compilations(plain)}
    assert set(compiled.values()) == {1}, f"the loop was compiled more than once: {compiled}"
    return {
        **{f"ms_{name}": value for name, value in ms.items()},
        "ratio_vs_d3p": ms["fixed_point"] / ms["d3p"] if D3P_MISSING is None else None,
        "d3p_reason": D3P_MISSING,
        "ratio_vs_plaintext": ms["fixed_point"] / ms["plaintext"],
        "noise_share": (ms["fixed_point"] - ms["zero_noise"]) / ms["fixed_point"],
        "spread": spread,
        "compilations": compiled,
        "D": fixed.num_values,
        "padded_n": fixed.plan.sampling.max_batch_size,
    }


def growth(args: argparse.Namespace) -> dict[str, Any]:
    """Every configuration in a fresh process, so that its peak memory is its own."""
    cells = []
    configurations = QUICK_GROWTH if args.quick else GROWTH
    for configuration in tqdm(configurations, desc="growth", unit="configuration"):
        command = [sys.executable, str(Path(__file__).resolve()), "--cell", ",".join(map(str, configuration))]
        child = subprocess.run(command + ["--quick"] * args.quick, stdout=subprocess.PIPE, text=True, check=True)
        cells.append(json.loads(child.stdout.splitlines()[-1]))
    _print_table(cells)
    return {"growth": cells, "growth_fit": _fit(cells)}


def cell(configuration: Configuration, quick: bool) -> dict[str, Any]:
    """One configuration: several short chunks, so that a second compilation would show."""
    n, num_components, num_parties, num_columns = configuration
    steps = max(6, min(200, 20_000 // n)) // (4 if quick else 1)
    data = among_parties(adult_table(quick), num_parties, num_columns)
    experiment = experiment_of(data, FixedPoint(), n, num_components, steps)
    source, length = SystemRandomSource(), max(1, steps // 3)

    def ready() -> list[Chunk]:
        return list(chunks_without_noise(experiment, source, length))

    started = time.perf_counter()
    milliseconds_a_step(experiment, ready)
    compile_seconds = time.perf_counter() - started
    runs = [_both_clocks(lambda: milliseconds_a_step(experiment, ready), steps) for _ in range(7)]
    ms, processor_ms = (min(times) for times in zip(*runs, strict=True))
    assert compilations(experiment) == 1, "the loop was compiled more than once"
    return {
        "n": n,
        "padded_n": experiment.plan.sampling.max_batch_size,
        "K": num_components,
        "P": num_parties,
        "columns": num_columns,
        "D": experiment.num_values,
        "ms": ms,
        "processor_ms": processor_ms,
        "compilations": compilations(experiment),
        "compile_seconds": compile_seconds,
        "peak_rss_mib": _peak_rss_mib(),
    }


def _both_clocks(arm: Arm, steps: int) -> tuple[float, float]:
    """(wall, processor) milliseconds a step of one run."""
    before = time.process_time()
    wall = arm()
    return wall, 1e3 * (time.process_time() - before) / steps


def _peak_rss_mib() -> float:
    """Largest resident set of this process.

    From Linux's own status file where there is one: `ru_maxrss` keeps the parent's size across a spawn there.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def adult_table(quick: bool) -> VerticalDataset:
    """Adult's training records; the first 3,000 and few columns when quick."""
    data, _ = adult(num_train=3_000 if quick else None)
    return regrouped(data, QUICK_COLUMNS) if quick else data


def _fit(cells: list[dict[str, Any]]) -> dict[str, float]:
    """The two readings of growth that the docstring explains."""
    names = ("padded_n", "K", "columns", "D", "processor_ms")
    n, K, columns, D, ms = (np.array([c[name] for c in cells], float) for name in names)
    design = np.stack([np.ones_like(ms), K, n * K * columns], axis=1) / ms[:, None]
    coefficients, *_ = np.linalg.lstsq(design, np.ones_like(ms), rcond=None)
    units = n * D
    return {
        "fixed_ms": coefficients[0],
        "ms_per_component": coefficients[1],
        "ns_per_weight": 1e6 * coefficients[2],
        "largest_relative_error": np.abs(design @ coefficients - 1).max(),
        "slowest_per_unit_over_base": (ms / units)[units >= units[0]].max() / (ms[0] / units[0]),
    }


def _print_table(cells: list[dict[str, Any]]) -> None:
    names = [
        "n",
        "padded_n",
        "K",
        "P",
        "columns",
        "D",
        "ms",
        "processor_ms",
        "compilations",
        "compile_seconds",
        "peak_rss_mib",
    ]
    rows = [[f"{c[name]:.2f}" if isinstance(c[name], float) else str(c[name]) for name in names] for c in cells]
    widths = [max(len(row[i]) for row in [names, *rows]) for i in range(len(names))]
    for row in [names, *rows]:
        print("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))


PARTS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"ratios": ratios, "growth": growth}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", choices=list(PARTS), help="run one part; --json keeps the other's results")
    arguments.add_argument("--cell", metavar="n,K,P,columns", help="one configuration of growth, for its own process")
    args = arguments.parse_args()
    if args.cell:
        n, K, P, columns = map(int, args.cell.split(","))
        print(json.dumps(cell((n, K, P, columns), args.quick)))
        return
    results: dict[str, Any] = {"environment": environment()}
    for name in [args.only] if args.only else list(PARTS):
        results |= PARTS[name](args)
    finish(results, args, {})


if __name__ == "__main__":
    main()
