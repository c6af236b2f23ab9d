"""A step of the cross-party sum on Adult's shape, under every backend, and whole methods between processes.

    VERTINUMPYRO_DATA=... python benchmarks/secure_backends.py --quick
    python benchmarks/secure_backends.py --json results/secure_backends.json [--only plaintext fixed_point crypten]
    python benchmarks/secure_backends.py --json results/secure_backends.json --only methods

100 records, 20 components, all 13 columns at two parties, one `clipped_noisy_sum` a step on one machine. Arms take
turns; a turn is one untimed step and then `--steps` timed ones in a row (the paper's: one), and `seconds` is the
median over turns of the time of a step, as the process that starts the others sees it: encoding, handing each party
its numbers, the protocol, the answer. Drawing noise and the local gradients are left out everywhere.

Keys, each {seconds, bytes, rounds, max_error}; `bytes` and `rounds` of one party a step, `max_error` the largest
distance of a coordinate from float64, over that of the clip norm:

plaintext, fixed_point          in one process
crypten                         the library's protocol, a process per party, party 0 deals: insecure
crypten_ttp                     the same with a third process as the dealer, fetched a step ahead
crypten_ttp_without_prefetch    the same, asking the dealer at every product, as CrypTen does
crypten_paper, crypten_paper_ttp      the paper's formulation (Eqs. 20-30, Algorithms 2 and 3) under the same engine,
                                the dealer's answers fetched ahead as well
crypten_paper_lean, crypten_paper_lean_ttp    the same without Algorithm 2's comparisons for its operands' signs, which
                                the paper's CrypTen needs and a product by our exact truncation does not
spu_aby3, spu_cheetah           SPU's protocols for three nodes (one of them without data) and for two; messages
                                instead of rounds, which SPU does not tell
spu_semi2k                      the same where a party deals: insecure

crypten_speedup_vs_paper        seconds of crypten_paper over crypten, or with the third-party dealer if that is less
crypten_speedup_vs_paper_first_party, crypten_speedup_vs_paper_ttp      both
crypten_speedup_vs_paper_lean, crypten_speedup_vs_paper_lean_ttp     the same over the lean one
prefetch_gain                   seconds of crypten_ttp_without_prefetch over crypten_ttp
settings, environment; num_values is D

methods.<method>.<data>.<backend>   methods with a process for each party, from tables to what is released: vertimrf on
                                NLTCS and Adult, logistic, linear and some steps of dpvi on Adult, all records
    seconds                     of the secure part: all that the parties were asked for, as the starter sees it
    seconds_from_start          from the start of the processes, which read and match the tables, to what is released
    bytes, rounds               of one party with the others (SPU: messages); what agreeing and recording take included
    dealer_bytes                from the dealer, a step ahead
    equal                       whether all that is released is bit for bit what one process releases with the same
                                noise; null for dpvi, whose batches the parties toss
    product_rounds              vertimrf under CrypTen: rounds of the cross products alone, the opening among them

Needs the extra `crypten`, or `spu`, which stops at jax 0.4.34; the keys of the other's arms are null, or what a run in
the other environment wrote to the same `--json`. One turn of one step for spu_cheetah. `--quick` keeps every key with
two columns, three components, ten records and one turn; of the methods 300 records, and three of Adult's columns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import SIGMA, adult, environment, finish, interleaved, median, parser, regrouped, with_stored
from paper_protocol.crypten import CryptenPaper
from secure_parts.methods import measured_methods, with_nulls

from vertinumpyro.core import compat
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.dpvi import DPVI
from vertinumpyro.posterior.predictive import device_columns
from vertinumpyro.privacy import PoissonSampling
from vertinumpyro.secure import BatchShape, Crypten, FixedPoint, InProcess, InsecureSimulation, Plaintext, Spu
from vertinumpyro.transport import Traffic

QUICK_COLUMNS = {"demographic": ["age"], "financial": ["workclass"]}
SLOW = ("crypten_paper", "crypten_paper_ttp", "crypten_paper_lean", "crypten_paper_lean_ttp", "spu_cheetah")
Problem = tuple[BatchShape, list[Contribution], ComponentPrior, jax.Array]


def rehearsal(**settings: Any) -> InsecureSimulation:
    """The library's CrypTen processes, fed by this one."""
    return InsecureSimulation(Crypten(**settings), timeout_s=300.0)


def paper(**settings: Any) -> InsecureSimulation:
    """The same processes on the paper's formulation."""
    return InsecureSimulation(CryptenPaper(**settings), timeout_s=300.0)


def backends() -> dict[str, InProcess]:
    """Every arm's backend, by key."""
    return {
        "plaintext": Plaintext(),
        "fixed_point": FixedPoint(),
        "crypten": rehearsal(dealer="first_party"),
        "crypten_ttp": rehearsal(),
        "crypten_ttp_without_prefetch": rehearsal(prefetch=False),
        "crypten_paper": paper(dealer="first_party"),
        "crypten_paper_ttp": paper(),
        "crypten_paper_lean": paper(dealer="first_party", lean=True),
        "crypten_paper_lean_ttp": paper(lean=True),
        "spu_aby3": InsecureSimulation(Spu()),
        "spu_semi2k": InsecureSimulation(Spu(protocol="SEMI2K")),
        "spu_cheetah": InsecureSimulation(Spu(protocol="CHEETAH"), timeout_s=600.0),
    }


def is_here(backend: InProcess) -> bool:
    """Whether what it needs is installed."""
    return not isinstance(backend, InsecureSimulation) or backend.backend.missing() is None


def problem_of(quick: bool) -> Problem:
    """The first records of Adult as a batch, at the parameters where a fit starts."""
    n, K = (10, 3) if quick else (100, 20)
    train, _ = adult(num_train=1_000, num_test=1)
    data = regrouped(train, QUICK_COLUMNS) if quick else train
    dpvi = DPVI(num_components=K)
    sampling = PoissonSampling(sampling_prob=n / data.num_records, num_steps=1_000, max_batch_size=n)
    plan = dpvi.plan(data, noise_multiplier=SIGMA, clip_norm=1.0, sampling=sampling)
    kernel, state = dpvi.kernel(data, plan, compat.random_key(0))
    contributions = jax.jit(kernel.local)(state, device_columns(data), jnp.arange(n))
    prior = jax.jit(kernel.component_prior)(state)
    return kernel.shape, contributions, prior, jnp.ones(n, bool)


class Arm:
    """One backend on one problem."""

    def __init__(self, backend: InProcess, problem: Problem, steps: int) -> None:
        self._backend, self._problem, self._steps = backend, problem, steps
        in_processes = isinstance(backend, InsecureSimulation)
        step = partial(backend.clipped_noisy_sum, problem[0])
        self._step = step if in_processes else jax.jit(step)

    def run(self) -> np.ndarray:
        """One step; its noise is zero, which costs as much as any."""
        shape, contributions, prior, mask = self._problem
        with compat.x64():
            noise = jnp.zeros((shape.num_parties, shape.num_values), jnp.int64)
            return np.asarray(self._step(contributions, prior, mask, noise))

    def __call__(self) -> float:
        """Milliseconds a step of one turn."""
        self.run()
        started = time.perf_counter()
        for _ in range(self._steps):
            self.run()
        return 1e3 * (time.perf_counter() - started) / self._steps

    def facts(self, exact: np.ndarray) -> dict[str, float]:
        """Bytes and rounds of a step, and its error."""
        before = self._traffic()
        error = np.abs(self.run() - exact).max() / self._problem[0].clip_norm
        cost = self._traffic().since(before)
        return {"bytes": cost.bytes_sent, "rounds": cost.rounds, "max_error": error}

    def _traffic(self) -> Traffic:
        return self._backend.traffic if isinstance(self._backend, InsecureSimulation) else Traffic()


def measured(args: argparse.Namespace, problem: Problem) -> dict[str, Any]:
    """Every arm's figures, but for those whose packages are missing."""
    chosen = {name: backend for name, backend in backends().items() if args.only is None or name in args.only}
    here = {name: backend for name, backend in chosen.items() if is_here(backend)}
    arms = {name: Arm(backend, problem, 1 if name in SLOW else args.steps) for name, backend in here.items()}
    try:
        cheetah = {name: arm for name, arm in arms.items() if name == "spu_cheetah"}
        others = {name: arm for name, arm in arms.items() if name not in cheetah}
        times = interleaved(others, args.turns, "a turn of every arm")
        times |= {name: [arm()] for name, arm in cheetah.items()}
        exact = Arm(Plaintext(), problem, 1).run()
        facts = {name: arm.facts(exact) for name, arm in arms.items()}
    finally:
        for backend in here.values():
            if isinstance(backend, InsecureSimulation):
                backend.close()
    return {name: {"seconds": median(times[name]) / 1e3, **facts[name]} for name in arms}


def ratios(results: Mapping[str, Any]) -> dict[str, float | None]:
    """What is compared, where both arms ran."""

    def over(slow: str, fast: str) -> float | None:
        both = results.get(slow), results.get(fast)
        return both[0]["seconds"] / both[1]["seconds"] if both[0] and both[1] else None

    first_party, third_party = over("crypten_paper", "crypten"), over("crypten_paper_ttp", "crypten_ttp")
    return {
        "crypten_speedup_vs_paper": min(first_party, third_party) if first_party and third_party else None,
        "crypten_speedup_vs_paper_first_party": first_party,
        "crypten_speedup_vs_paper_ttp": third_party,
        "crypten_speedup_vs_paper_lean": over("crypten_paper_lean", "crypten"),
        "crypten_speedup_vs_paper_lean_ttp": over("crypten_paper_lean_ttp", "crypten_ttp"),
        "prefetch_gain": over("crypten_ttp_without_prefetch", "crypten_ttp"),
    }


def steps(args: argparse.Namespace) -> dict[str, Any]:
    """All that a step of each backend costs."""
    problem = problem_of(args.quick)
    shape = problem[0]
    settings = {
        "batch_size": shape.batch_size,
        "num_components": shape.num_components,
        "num_values": shape.num_values,
        "num_parties": shape.num_parties,
        "turns": args.turns,
        "steps": args.steps,
    }
    chosen = [name for name in backends() if args.only is None or name in args.only]
    results = {**dict.fromkeys(chosen), **with_stored(measured(args, problem), args)}
    return {**results, **ratios(results), "settings": settings}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=[*backends(), "methods"], help="some arms, or whole methods")
    arguments.add_argument("--turns", type=int, help="turns of every arm (5; quick: 1)")
    arguments.add_argument("--steps", type=int, default=5, help="timed steps of a turn (5)")
    args = arguments.parse_args()
    args.turns = args.turns or (1 if args.quick else 5)
    results = steps(args) if args.only != ["methods"] else {}
    if args.only is None or "methods" in args.only:
        results |= with_stored({"methods": measured_methods(args.quick)}, args)
        results["methods"] = with_nulls(results["methods"])
    finish({**results, "environment": environment()}, args, {})


if __name__ == "__main__":
    main()
