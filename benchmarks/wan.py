"""Parties on a network that is far: rounds, bytes and seconds of what the library does between organisations.

    VERTINUMPYRO_DATA=... python benchmarks/wan.py --json results/wan.json [--only step_100 marginals ...]
    python benchmarks/wan.py --only linkage --networks 50_100
    python benchmarks/wan.py --only glm glm_step_1000 glm_step_30162 --networks 50_100 --num-steps 100
    python benchmarks/wan.py --backend spu --only step_100 marginals logistic --networks 50_100
    python benchmarks/wan.py --only marginals functional --networks 0_1000 50_100
    python benchmarks/wan.py --backend semi_honest --only marginals functional --networks 0_1000 50_100
    python benchmarks/wan.py --quick

Two parties and CrypTen's dealer, or SPU's third node (ABY3; keys begin with `wan_spu`, and "rounds" are messages), each
in a network namespace of this machine, over mutual TLS 1.3; a switch between them (`wan_parts/emulator.py`) delays and
limits. Needs root, iproute2 and /dev/net/tun. All of them share this machine's cores.

Keys `wan.<round trip in ms>_<Mbit/s>.<what>.{seconds,rounds,bytes,estimate}`:

step_100, step_1000     a step of DPVI on Adult's shape, 20 components, 100 or 1,000 records: the median of steps once
                        the dealer works ahead; `bytes` sent by a party to the other, `dealer_bytes` it gets from the
                        dealer; `cpu_seconds` of a party
glm_step_1000, glm_step_30162       the same of `VerticalGLM`, family "bernoulli", with the income as its label
marginals, logistic, glm            secure marginals, logistic regression from noisy sums, and `VerticalGLM`, of all of
                        Adult: from the first connection to what is released, with TLS, the matching of records,
                        agreement and ledgers; `num_steps` releases, of glm `--num-steps` or its own default; the
                        median of three runs, but for glm
functional              linear regression from noisy sums, of 30,000 records of five numbers at each party; the same
survival                `VerticalGLM`, family "survival", of the 6,524 people of `flchain`
linkage                 private set intersection of 100,000 ids at each party, of which half are common; `cpu_seconds`
                        of a party; no estimate
estimate                before anything has run: of a step, computing on this machine, half a round trip for each
                        round, and the bytes, as `plan` prints it; of a method, all that a run takes at a party, as
                        `doctor` rehearses it on stand-ins; on the slowest line as `doctor` measures it, and rehearsed
                        by as many processes at once as there are parties, since they share this machine, each with the
                        others' ends, and a dealer's, in threads: their mean, as all go in lockstep; `estimate_near`
                        without any line is the computing in it

`wan.<..>.line.{round_trip_s,bits_per_second,sustained_bits_per_second}`: what `doctor` measures there.

`bytes_per_record` of a step: sent by a party, over its records. Keys `wan_semi_honest`: CrypTen with
security="semi-honest", which leaves out what tables and numbers are verified by. `--quick`: a round trip of 10 ms,
1,000 ids, three of Adult's columns.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import optax
from common import environment, finish, parser, regrouped, written
from noise_aware_parts import public_survival
from tqdm.auto import tqdm
from wan_parts import member
from wan_parts.emulator import Network, missing, network

from vertinumpyro.data import PartySchema, RealColumn, Schema, TableFacts, VerticalDataset
from vertinumpyro.data.datasets import load_adult
from vertinumpyro.dpvi import DPVI
from vertinumpyro.glm import VerticalGLM
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy import Plan, PoissonSampling
from vertinumpyro.secure.between_processes import BetweenProcesses
from vertinumpyro.secure.computation import ClippedSum, described
from vertinumpyro.transport import NetworkProfile, make_identity

NETWORKS = [(rtt, mbit) for rtt in (0, 10, 50) for mbit in (100, 1000)]
GLM_STEPS = ("glm_step_1000", "glm_step_30162")
KEYS = {"crypten": "wan", "semi_honest": "wan_semi_honest", "spu": "wan_spu"}
WHAT = ("step_100", "step_1000", *GLM_STEPS, "marginals", "logistic", "functional", "glm", "survival", "linkage")
QUICK_COLUMNS = {"demographic": ["age"], "financial": ["hours_per_week", "income"]}
SHORT, RUNS = ("marginals", "logistic", "functional"), 3
LABEL, NUMBER = "income", "x0"
LONGEST_S = 900.0


def step(
    dataset: VerticalDataset, num_records: int, num_components: int | None, backend: BetweenProcesses
) -> ClippedSum:
    """The step of a plan on this table, with so many records in its batch; of a regression without components."""
    if num_components is None:
        facts = TableFacts(dataset.schema, num_records)
        system: Any = VerticalGLM(label=LABEL, backend=backend)
        plan = system.plan(facts, epsilon=1.0)
    else:
        facts = TableFacts(dataset.schema, 30 * num_records)
        system = DPVI(num_components=num_components, optimizer=optax.adam(0.01), backend=backend, warm_start=False)
        sampling = PoissonSampling(sampling_prob=1 / 30, num_steps=10, max_batch_size=num_records)
        plan = system.plan(facts, sampling=sampling, noise_multiplier=2.0, delta=1e-5)
    *_, (computation, _) = system.computations(facts, plan)
    assert isinstance(computation, ClippedSum)
    return dataclasses.replace(computation, shape=dataclasses.replace(computation.shape, batch_size=num_records))


class Runs:
    """One table, its files and the members' identities, for every network."""

    def __init__(self, dataset: VerticalDataset, folder: Path, args: argparse.Namespace) -> None:
        self.dataset, self.folder, self.args = dataset, folder, args
        self.quick, self.num_steps = args.quick, args.num_steps
        self.backend: BetweenProcesses = member.BACKENDS[args.backend]
        helpers = self.backend.helpers(len(dataset.schema.parties))
        self.names = [*dataset.schema.parties, *(f"helper{number}" for number, _ in enumerate(helpers))]
        self.files = written(dataset, folder)
        for name in self.names:
            make_identity(folder / name, name)
        self.number = 0

    def measured(self, net: Network, what: str, line: NetworkProfile) -> dict[str, Any]:
        """One thing on one network."""
        orders = [self._order(what) for _ in range(RUNS if what in SHORT else 1)]  # a plan runs once
        estimate = {} if what == "linkage" else self._estimate(orders[0], line)  # and a rehearsal spends none
        runs = [self._run(net, order) for order in orders]
        answers = sorted(runs, key=_slowest)[len(runs) // 2]
        found = answers[0]
        found["seconds"] = _slowest(answers)
        if "cpu_seconds" in found:
            found["cpu_seconds"] = max(answer["cpu_seconds"] for answer in answers)
        if "step" in what:
            found["bytes_per_record"] = found["bytes"] / _records(what)
        return {**found, **estimate}

    def line(self, net: Network) -> NetworkProfile:
        """The slowest link of any member, as they measure it together."""
        found = self._run(net, {"what": "lines"})
        speeds = {name: min(one[name] for one in found) for name in ("bits_per_second", "sustained_bits_per_second")}
        return NetworkProfile(round_trip_s=max(one["round_trip_s"] for one in found), **speeds)

    def _order(self, what: str) -> dict[str, Any]:
        schema = self.dataset.schema
        if what == "linkage":
            return {"what": what, "ids": 1_000 if self.quick else 100_000}
        if "step" in what:
            records = _records(what)
            made = step(self.dataset, records, None if what in GLM_STEPS else 3 if self.quick else 20, self.backend)
            return {"what": "step", "steps": 3 if self.quick else 7, "computation": described(made)}
        facts = TableFacts(schema, self.dataset.num_records)
        budget = {"epsilon": 1.0, "delta": 1e-5}
        system: Any = VertiMRF(backend=self.backend)
        if what in ("logistic", "functional"):
            system = member.METHODS[what](backend=self.backend)
            label = LABEL if what == "logistic" else NUMBER
            plan: Plan = system.plan(schema, label, num_records=facts.num_records, **budget)
        elif what in ("glm", "survival"):
            num_steps = self.num_steps or (4 if self.quick and what == "glm" else None)
            chosen: dict[str, Any] = {"num_steps": num_steps} if num_steps else {}
            plan = member.METHODS[what](backend=self.backend).plan(facts, **budget, **chosen)
        else:
            plan = system.plan(facts, **budget)
        return {
            "what": what,
            "names": self.names,
            "plan": plan.to_dict(),
            "schema": schema.to_dict(),
            "tables": [str(self.files.paths[party]) for party in schema.parties],
        }

    def _estimate(self, order: dict[str, Any], line: NetworkProfile) -> dict[str, float]:
        """Before there is a network; as many parties at once as will share this machine's cores."""
        order = {**order, "backend": self.args.backend}
        num_parties = len(self.dataset.schema.parties)
        count = 1 if self.backend.own_links else num_parties  # such a rehearsal has all members already
        spawn = get_context("spawn")  # what a run imports, it imports too
        barrier = (spawn.Barrier(count),)
        with ProcessPoolExecutor(count, mp_context=spawn, initializer=member.together, initargs=barrier) as pool:
            costs = [found.result() for found in [pool.submit(member.rehearsed, order) for _ in range(count)]]
        lines = {"estimate": line, "estimate_near": NetworkProfile(round_trip_s=0.0, bits_per_second=math.inf)}
        return {name: statistics.fmean(cost.on(one) for cost in costs) for name, one in lines.items()}

    def _run(self, net: Network, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.number += 1
        folder = self.folder / f"run-{self.number}"
        folder.mkdir()
        certificates = [(self.folder / name / "certificate.pem").read_text() for name in self.names]
        go, processes = folder / "go", []
        for rank, name in enumerate(self.names):
            own = {
                **order,
                "backend": self.args.backend,
                "rank": rank,
                "names": self.names,
                "addresses": [net.address(other) for other in net.hosts],
                "certificates": certificates,
                "identity": str(self.folder / name),
                "answer": str(folder / f"{rank}.json"),
                "ready": str(folder / f"{rank}.ready"),
                "go": str(go),
            }
            (folder / f"{rank}.order").write_text(json.dumps(own))
            command = [sys.executable, "-m", "wan_parts.member", str(folder / f"{rank}.order")]
            processes.append(subprocess.Popen(net.command(net.hosts[rank], command), cwd=Path(__file__).parent))
        until = time.monotonic() + LONGEST_S
        while not all((folder / f"{rank}.ready").exists() for rank in range(len(self.names))):
            _still_alive(processes, until)
        go.touch()
        answers = [folder / f"{rank}.json" for rank in range(len(self.names) - 1)]
        while not all(answer.exists() for answer in answers):
            _still_alive(processes, until)
        for process in processes:
            process.wait(timeout=60)
        return [json.loads(answer.read_text()) for answer in answers]


def numbers(num_records: int) -> VerticalDataset:
    """Five numbers at each of two parties."""
    number = RealColumn(bounds=(0.0, 1.0))
    parts = [PartySchema({f"x{p + i}": number for i in range(5)}) for p in (0, 5)]
    schema = Schema({"first": parts[0], "second": parts[1]})
    return VerticalDataset.example(schema, num_records, np.random.default_rng(0))


def _records(what: str) -> int:
    """Of a step."""
    return int(what.split("_")[-1])


def _slowest(answers: list[dict[str, Any]]) -> float:
    return max(answer["seconds"] for answer in answers)


def _still_alive(processes: list[subprocess.Popen[bytes]], until: float) -> None:
    time.sleep(0.02)
    if any(process.poll() not in (None, 0) for process in processes) or time.monotonic() > until:
        for process in processes:
            process.kill()
        raise SystemExit("a member of the run failed; its error is above")


def main(args: argparse.Namespace) -> None:
    """Measure, and print one line of JSON."""
    if reason := missing():
        raise SystemExit(f"benchmarks/wan.py emulates a network: {reason}")
    whole = load_adult(layout="with_income")
    dataset = regrouped(whole, QUICK_COLUMNS).take(np.arange(300)) if args.quick else whole
    chosen = [tuple(map(int, name.split("_"))) for name in args.networks or ()]
    networks = chosen or ([(10, 100)] if args.quick else NETWORKS)
    wanted = args.only or WHAT
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="wan-") as folder, tqdm(total=len(networks) * len(wanted)) as bar:
        runs = Runs(dataset, Path(folder), args)
        tables = {"survival": public_survival.load, "functional": lambda: numbers(300 if args.quick else 30_000)}
        others = {}
        for what in tables.keys() & set(wanted):
            (own := Path(folder) / what).mkdir()
            others[what] = Runs(tables[what](), own, args)
        hosts = [f"host{number}" for number in range(len(runs.names))]
        for rtt, mbit in networks:
            with network(hosts, round_trip_s=rtt / 1000, bits_per_second=mbit * 1e6) as net:
                bar.set_description(f"{rtt} ms, {mbit} Mbit/s: lines")
                line = runs.line(net)
                found[f"{rtt}_{mbit}"] = {"line": dataclasses.asdict(line)}
                for what in wanted:
                    bar.set_description(f"{rtt} ms, {mbit} Mbit/s: {what}")
                    found[f"{rtt}_{mbit}"][what] = others.get(what, runs).measured(net, what, line)
                    bar.update()
                    print(f"{rtt}_{mbit} {what}: {found[f'{rtt}_{mbit}'][what]}", file=sys.stderr, flush=True)
    finish({KEYS[args.backend]: found, "environment": environment()}, args, {})


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=WHAT, help="some of these alone")
    arguments.add_argument("--backend", choices=KEYS, default="crypten", help="whose protocols")
    arguments.add_argument("--num-steps", type=int, help="of glm; its own default otherwise")
    names = [f"{rtt}_{mbit}" for rtt, mbit in NETWORKS]
    arguments.add_argument("--networks", nargs="+", choices=names, help="some of these alone; --json keeps the others")
    main(arguments.parse_args())
