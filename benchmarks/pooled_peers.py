"""Twins of columns at two parties against AIM's and SWIFT's on pooled columns, on public tables of others' benchmarks.

    python benchmarks/pooled_peers.py --tables FOLDER --quick
    python benchmarks/pooled_peers.py --tables FOLDER --json results/pooled_peers.json [--only monotone]
    python benchmarks/pooled_peers.py --tables FOLDER --only peers --peers FITS [--private-pgm|--swift PYTHON CLONE]

Tables that the library's defaults were chosen with: dutch, nltcs, adult. Untouched, named before any fit of the library
on them: titanic, compas, oulad, law_school, german, br2000, telco, bank, acs. FOLDER (without it
VERTINUMPYRO_DATA) has each as NAME/FILE; `peers_parts/tables.py` says which repository each file is from, its SHA-256,
and the public cells of each column, which both sides get. What is not there is left out, and said.

Ours: the columns alternately at two parties, the default field, epsilon for everyone, replace, delta = 1/n, seeded
noise (which has no privacy). AIM and SWIFT: their authors' code, all columns together, all triples as the workload,
their defaults (AIM's `max_model_size` 80, SWIFT's cliques of up to 10^7 cells), the same epsilon and delta. They
account for adding or removing a record; replacing one costs 2.2 and 2.18 times as much of their rho, of which they get
so much less (`vertimrf_parts/pooled_mechanisms.py`). For AIM, `vertimrf.py` says how to make PYTHON and CLONE; for
SWIFT, CLONE is a clone of github.com/google/dpsynth and PYTHON an environment of its own: `pip install "jax==0.11.0"
absl-py dp-accounting "etils[epath]" more-itertools pandas pydantic pyyaml tqdm git+https://github.com/ryan112358/mbi@361705d`.

AIM takes from half a minute to half an hour a fit, so `--only peers` keeps its and SWIFT's twins in FITS, writes their
distances, seconds, seeds and versions to `peers_parts/fits.json`, which is part of the repository, and starts no fit
that is in either, nor of a peer whose option is not given where the other's is; without both it writes down what FITS
has. The other parts take a peer's distance from a twin in FITS where there is one, else from that file, if it is of the
same table, cells and triples. AIM's is its twin's, or that of n independent records of its model where that
is less: its sampler may lose what the model has. A twin has n records; distances are mean total variation distances
(TVD) of 3-way tables, all or the same 500, and are not DP.

Keys: ratio        {table: {epsilon: mean TVD of our twins over that of AIM's}}; ratio_aim_twin over that of AIM's own
                   twin, even where its model has more; ratio_swift over SWIFT's
      geomean      {epsilon: geometric mean of the ratios of the untouched tables}; geomean_all of all of them;
                   geomean_aim_twin and the like of the other ratios
      tvd          {table: {ours, aim, aim_twin, swift: {epsilon: mean over seeds}; perfect: of n records drawn from the
                   table itself}}
      fits         {table: {ours, aim, swift: {epsilon: how many}}}
      monotone     {table: {largest_rise: of the median from one epsilon to the next up to 100, spread: of the fits
                   there, holds: whether the rise is within it}}
      seconds      {table: {ours, aim, swift: median of a fit}}; context
      left_out     names of the tables that are not in FOLDER
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from common import among_parties, compile_fast, environment, finish, kept, parser
from peers_parts.figures import (
    FIGURES,
    Fit,
    PeerFigures,
    compared_on,
    distance_of_tables,
    draw_records,
    draw_triples,
    its_twin,
    nearer,
)
from peers_parts.tables import TABLES
from tqdm.auto import tqdm
from vertimrf_parts.arms import ARMS, Arm, make_twin
from vertimrf_parts.small_epsilon import rise_over_budgets

from vertinumpyro.core.rng import InsecureRandomnessWarning
from vertinumpyro.data import VerticalDataset
from vertinumpyro.evaluation import k_way_tvd, tvd_floor
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy import PrivacyWarning

EPSILONS = (0.2, 0.8, 1.6)
GRID = (0.2, 0.8, 1.6, 10.0, 100.0)
PARTS = ("ratio", "monotone", "peers")
# Peers, and the options that say where their code is; ratios to the first have no name beside them.
PEERS = {"aim": "--private-pgm", "swift": "--swift"}
TWIN = "aim_twin"  # what AIM's own code releases, where the first counts its model too
PEER_ARMS = {"aim": ARMS["aim"], "swift": Arm(label="SWIFT, pooled", kind="swift", pooled=True)}
NUM_MARGINALS = 500
MARGINALS_SEED = 0
# What is kept of a fit beside its distance.
MADE_BY = ("model_tvd", "sampled_tvd", "seconds", "processor_seconds", "version", "packages")
PACKAGES = (
    *("chex", "dp_accounting", "jax", "jaxlib", "mbi", "networkx", "numpy", "opt_einsum", "optax", "pandas", "scipy"),
)


def distance(dataset: VerticalDataset, twin: pd.DataFrame) -> float:
    """Mean 3-way TVD. Not DP."""
    real, schema = dataset.to_frame(), dataset.schema
    return k_way_tvd(real, twin, schema, 3, rng=MARGINALS_SEED, num_marginals=NUM_MARGINALS).mean


def perfect(dataset: VerticalDataset) -> float:
    """The distance of as many records drawn from the table itself. Not DP."""
    return tvd_floor(dataset.to_frame(), dataset.schema, 3, rng=MARGINALS_SEED, num_marginals=NUM_MARGINALS).mean


def our_fit(dataset: VerticalDataset, epsilon: float, seed: int) -> Fit:
    """The default field of the columns at two parties."""
    system, held, started = VertiMRF(), among_parties(dataset, 2), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the papers' delta is 1/n
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        plan = system.plan(held, epsilon=epsilon, delta=1 / held.num_records)
        twin = system.fit(held, plan, insecure_seed=seed).sample_synthetic(rng_key=jax.random.key(seed))
    seconds = time.perf_counter() - started
    return Fit(distance(dataset, twin), seconds)


# -- peers' twins --------------------------------------------------------------------------------


def peer_path(folder: Path, name: str, peer: str, epsilon: float, seed: int) -> Path:
    """Where a peer's twin of a table is kept."""
    return folder / name / f"{peer}-{epsilon:g}-{seed}.npz"


def keep_peer_fit(
    path: Path, dataset: VerticalDataset, peer: str, epsilon: float, seed: int, pooled_by: tuple[str, str]
) -> None:
    """Fit a peer and write its twin's codes with what made it."""
    python, clone = pooled_by
    before = _childrens_seconds()
    triples = draw_triples(dataset, NUM_MARGINALS, MARGINALS_SEED)
    twin = make_twin(dataset, PEER_ARMS[peer], epsilon, seed, pooled_by=pooled_by, triples=triples)
    of_model = {}
    if twin.tables is not None:
        drawn = draw_records(dataset, triples, twin.tables, seed)
        both = {"model_tvd": twin.tables, "sampled_tvd": drawn}
        of_model = {key: distance_of_tables(dataset, triples, tables) for key, tables in both.items()}
    about = {
        "mechanism": peer,
        "epsilon": epsilon,
        "seed": seed,
        **of_model,
        "seconds": twin.seconds,
        "processor_seconds": _childrens_seconds() - before,  # others may run on the machine, or a fit be stopped
        "version": _output("git", "-C", clone, "rev-parse", "HEAD"),
        "packages": json.loads(_output(python, "-c", _VERSIONS, *PACKAGES)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".part")
    with open(written, "wb") as file:
        np.savez_compressed(file, codes=twin.table.to_numpy().astype(np.uint16), about=json.dumps(about))
    os.replace(written, path)


_VERSIONS = """
import importlib.metadata, json, sys
there = {d.name.replace("-", "_"): d for d in importlib.metadata.distributions() if d.name}
def version(d):
    commit = json.loads(d.read_text("direct_url.json") or "{}").get("vcs_info", {}).get("commit_id")
    return f"{d.version}, {commit}" if commit else d.version
print(json.dumps({name: version(there[name]) for name in sys.argv[1:] if name in there}))
"""


def _childrens_seconds() -> float:
    """Processor time of the processes that ended so far."""
    times = os.times()
    return times.children_user + times.children_system


def _output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def peer_fit(path: Path, dataset: VerticalDataset) -> dict[str, Any]:
    """A twin's distance, and what made it."""
    stored = np.load(path)
    twin = pd.DataFrame(stored["codes"].astype(np.int64), columns=list(dataset.schema.columns))
    about = json.loads(str(stored["about"]))
    return {"tvd": distance(dataset, twin), **{key: about[key] for key in MADE_BY if key in about}}


def run_peers(tables: Mapping[str, VerticalDataset], settings: Settings) -> None:
    """Fit what is not kept yet, every table once before any twice, and write down figures of all."""
    if settings.peers is None:
        raise SystemExit("--only peers needs --peers FITS, a folder to keep the peers' twins in")
    compared = {name: compared_by_us(name, dataset) for name, dataset in tables.items()}
    for peer in settings.pooled_by or PEERS:
        tasks = [(s, name, e) for s in range(settings.repeats) for name in tables for e in settings.epsilons]
        missing: dict[tuple[str, float], list[int]] = {}
        for seed, name, epsilon in tqdm(tasks, desc=PEER_ARMS[peer].label, unit="fit"):
            path = peer_path(settings.peers, name, peer, epsilon, seed)
            if not path.exists():
                if seed in settings.figures.fits(name, compared[name], peer, epsilon):
                    continue
                if peer not in settings.pooled_by:
                    missing.setdefault((name, epsilon), []).append(seed)
                    continue
                keep_peer_fit(path, tables[name], peer, epsilon, seed, settings.pooled_by[peer])
            settings.figures.add(name, compared[name], peer, epsilon, seed, peer_fit(path, tables[name]))
        if missing:
            raise SystemExit(f"{peer} not fitted: {_listed(missing)}; needs {PEERS[peer]} PYTHON CLONE, see above")


def _listed(missing: Mapping[tuple[str, float], Sequence[int]]) -> str:
    return "; ".join(
        f"{name} at {e:g}, seed{'s' * (len(seeds) > 1)} {' and '.join(map(str, seeds))}"
        for (name, e), seeds in missing.items()
    )


def compared_by_us(name: str, dataset: VerticalDataset) -> dict[str, str]:
    """What all distances of a table follow from beside the twins."""
    return compared_on(dataset, TABLES[name].sha256, NUM_MARGINALS, MARGINALS_SEED)


# -- what is compared -----------------------------------------------------------------------------


class Settings(NamedTuple):
    """The size of the run, and where fits are kept."""

    peers: Path | None
    keep: Path | None
    pooled_by: Mapping[str, tuple[str, str]]
    repeats: int
    epsilons: tuple[float, ...] = EPSILONS
    grid: tuple[float, ...] = GRID
    figures: PeerFigures = PeerFigures()

    def our_fits(self, name: str, dataset: VerticalDataset, epsilon: float) -> list[Fit]:
        """Ours of a table at one epsilon."""
        return [
            Fit(*kept(self.keep, f"{name} {epsilon:g} {seed}", lambda s=seed: our_fit(dataset, epsilon, s)))
            for seed in range(self.repeats)
        ]

    def peer_fits(
        self,
        name: str,
        dataset: VerticalDataset,
        peer: str,
        epsilon: float,
        counted: Callable[[Mapping[str, Any]], Fit] = nearer,
    ) -> list[Fit]:
        """All of a peer's of a table at one epsilon: by twins that are kept, and by figures of others."""
        recorded = self.figures.fits(name, compared_by_us(name, dataset), peer, epsilon, counted)
        paths = self.peers.joinpath(name).glob(f"{peer}-{epsilon:g}-*.npz") if self.peers else ()
        twins = {int(path.stem.rsplit("-", 1)[1]): peer_fit(path, dataset) for path in paths}
        kept_there = {seed: counted(twin) for seed, twin in twins.items()}
        return [fit for _, fit in sorted({**recorded, **kept_there}.items())]


def run_ratio(tables: Mapping[str, VerticalDataset], settings: Settings) -> dict[str, Any]:
    """Ours beside the peers'."""
    tvd: dict[str, Any] = {}
    fits: dict[str, Any] = {}
    seconds: dict[str, Any] = {}
    for name, dataset in tqdm(tables.items(), desc="ratio", unit="table"):
        fits_of = {
            "ours": {f"{e:g}": settings.our_fits(name, dataset, e) for e in settings.epsilons},
            **{p: {f"{e:g}": settings.peer_fits(name, dataset, p, e) for e in settings.epsilons} for p in PEERS},
            TWIN: {f"{e:g}": settings.peer_fits(name, dataset, "aim", e, its_twin) for e in settings.epsilons},
        }
        there = {arm: {e: found for e, found in by.items() if found} for arm, by in fits_of.items()}
        tvd[name] = {arm: {e: float(np.mean([f.tvd for f in of])) for e, of in by.items()} for arm, by in there.items()}
        tvd[name]["perfect"] = perfect(dataset)
        fits[name] = {arm: {e: len(of) for e, of in by.items()} for arm, by in there.items()}
        seconds[name] = {arm: _median(f.seconds for of in by.values() for f in of) for arm, by in there.items()}
    return {**compared(tvd), "tvd": tvd, "fits": fits, "seconds": seconds}


def _median(values: Iterable[float]) -> float | None:
    """None of none."""
    return statistics.median(found) if (found := list(values)) else None


def compared(tvd: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The ratios to each peer, and their geometric means at each epsilon over the tables that have one there."""

    def means(ratio: Mapping[str, Mapping[str, float]], names: list[str]) -> dict[str, float]:
        epsilons = dict.fromkeys(e for name in names for e in ratio[name])
        return {e: statistics.geometric_mean(ratio[n][e] for n in names if e in ratio[n]) for e in epsilons}

    untouched, found = [name for name in tvd if not TABLES[name].tuned], {}
    for place, peer in enumerate([*PEERS, TWIN]):
        to = f"_{peer}" if place else ""
        ratio = {
            name: {e: arms["ours"][e] / theirs for e, theirs in arms.get(peer, {}).items()}
            for name, arms in tvd.items()
        }
        found |= {
            f"ratio{to}": ratio,
            f"geomean{to}": means(ratio, untouched),
            f"geomean_all{to}": means(ratio, list(tvd)),
        }
    return found


def run_monotone(tables: Mapping[str, VerticalDataset], settings: Settings) -> dict[str, Any]:
    """Whether more budget ever makes a worse twin."""
    found = {
        name: rise_over_budgets({e: [f.tvd for f in settings.our_fits(name, dataset, e)] for e in settings.grid})
        for name, dataset in tqdm(tables.items(), desc="monotone", unit="table")
    }
    return {"monotone": found}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=PARTS, default=PARTS[:2], help="parts to run (the first two)")
    arguments.add_argument("--tables", type=Path, default=os.environ.get("VERTINUMPYRO_DATA"), help="folder of tables")
    arguments.add_argument("--names", nargs="+", choices=list(TABLES), default=list(TABLES), help="tables (all)")
    arguments.add_argument("--peers", type=Path, metavar="FITS", help="folder of the peers' twins")
    arguments.add_argument("--figures", type=Path, default=FIGURES, help="file of peers' figures (the repository's)")
    arguments.add_argument("--keep", type=Path, help="a file of our fits, taken up again by the next run")
    arguments.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS, help="of ratio and peers")
    arguments.add_argument("--repeats", type=int, default=1, help="seeds at each epsilon (1)")
    for peer, option in PEERS.items():
        arguments.add_argument(
            option, dest=peer, nargs=2, metavar=("PYTHON", "CLONE"), help=f"for --only peers: {PEER_ARMS[peer].label}"
        )
    args = arguments.parse_args()
    if args.tables is None:
        arguments.error("--tables FOLDER, or VERTINUMPYRO_DATA, says where the tables are")
    compile_fast(args.quick)
    read = {name: TABLES[name].read(args.tables) for name in (args.names[:1] if args.quick else args.names)}
    tables = {name: dataset for name, dataset in read.items() if dataset is not None}
    pooled_by = {peer: tuple(given) for peer in PEERS if (given := getattr(args, peer))}
    figures = PeerFigures(args.figures)
    settings = Settings(args.peers, args.keep, pooled_by, args.repeats, tuple(args.epsilons), figures=figures)
    if args.quick:
        settings = settings._replace(epsilons=(0.8,), grid=(0.8, 100.0))
    results: dict[str, Any] = {"environment": environment(), "left_out": [n for n in read if n not in tables]}
    if "peers" in args.only:
        run_peers(tables, settings)
    if "ratio" in args.only:
        results |= run_ratio(tables, settings)
    if "monotone" in args.only:
        results |= run_monotone(tables, settings)
    finish(results, args, {})


if __name__ == "__main__":
    main()
