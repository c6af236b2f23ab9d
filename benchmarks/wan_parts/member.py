"""One member of a run over the emulated network: `python -m wan_parts.member ORDER.json`, at its own host.

The order names this member, everybody's certificates and addresses, and what to do; the answer is a JSON file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from noise_aware_parts import public_survival

from vertinumpyro.core.compat import freeze_gc
from vertinumpyro.glm import VerticalGLM
from vertinumpyro.marginals import release_marginals
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy import Plan
from vertinumpyro.regression import VerticalLinearRegression, VerticalLogisticRegression
from vertinumpyro.secure import Crypten, Spu
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost
from vertinumpyro.secure.computation import ClippedSum, computation_of
from vertinumpyro.secure.private_set_intersection import common_places, find_common
from vertinumpyro.session import OrganisationSession, PartyTask, RunCost, Session, estimate_cost
from vertinumpyro.study.network import check_network, slowest_line
from vertinumpyro.transport import Address, Certificate, Communicator, Identity, Peer, PeerError, connect_all, connected

PORT = 7450
WAIT_S = 600.0
WARM_UP = 2  # steps before the dealer works ahead
METHODS: Mapping[str, Any] = {
    "marginals": VertiMRF,
    "logistic": VerticalLogisticRegression,
    "functional": VerticalLinearRegression,
    "glm": partial(VerticalGLM, label="income"),
    "survival": partial(VerticalGLM, **public_survival.SETTINGS),
}


BACKENDS: dict[str, BetweenProcesses] = {
    "crypten": Crypten(),
    "semi_honest": Crypten(security="semi-honest"),
    "spu": Spu(),
}


def backend_of(order: Mapping[str, Any]) -> BetweenProcesses:
    """Whose protocols are measured."""
    return BACKENDS[order["backend"]]


def seat_of(order: Mapping[str, Any]) -> Communicator:
    """Links to all others over mutual TLS; who has the higher number dials."""
    rank, names = order["rank"], order["names"]
    num_parties = len(names) - len(backend_of(order).helpers(2))
    listener = socket.create_server((order["addresses"][rank], PORT + rank))
    peers = {
        other: Peer(
            name=name,
            certificate=Certificate(order["certificates"][other]),
            dial=Address(order["addresses"][other], PORT + other) if other < rank else None,
        )
        for other, name in enumerate(names)
        if other != rank
    }
    identity = Identity(Path(order["identity"]))
    second = listener.dup()
    links = connect_all(identity, peers, topic=b"benchmark", listener=listener, wait_s=WAIT_S, timeout_s=WAIT_S)
    if not backend_of(order).own_links:
        return Communicator(rank, num_parties, links, WAIT_S)
    carriers = connected(identity, peers, topic=b"carriers", listener=second, wait_s=WAIT_S)
    return Communicator(rank, num_parties, links, WAIT_S, carriers)


def steps(order: Mapping[str, Any], communicator: Communicator) -> dict[str, Any]:
    """Steps of the clipped noisy sum on zeros, which take what any numbers take."""
    computation = computation_of(order["computation"])
    assert isinstance(computation, ClippedSum)
    end = backend_of(order).end(communicator, communicator.num_parties)
    inputs = computation.zeros(communicator.rank)
    seconds, rounds, sent, dealt, used_cpu = [], 0, 0, 0, 0.0
    for number in range(order["steps"] + WARM_UP):
        if number == WARM_UP:
            used_cpu = time.process_time()
        before, from_dealer, started = end.traffic.snapshot(), end.dealer_traffic.snapshot(), time.perf_counter()
        computation.at(end, inputs)
        seconds.append(time.perf_counter() - started)
        used = end.traffic.since(before)
        rounds, sent = used.rounds, used.bytes_sent
        dealt = end.dealer_traffic.since(from_dealer).bytes_received
    used_cpu = (time.process_time() - used_cpu) / order["steps"]
    end.close()
    timed = sorted(seconds[WARM_UP:])
    found = {"seconds": timed[len(timed) // 2], "rounds": rounds, "bytes": sent, "dealer_bytes": dealt}
    return {**found, "cpu_seconds": used_cpu}


def lines(communicator: Communicator) -> dict[str, Any]:
    """The slowest of this member's links, as `doctor` measures them."""
    found = slowest_line(check_network(communicator, {}).values())
    return {**dataclasses.asdict(found), "seconds": 0.0}


def task_of(order: Mapping[str, Any], rank: int) -> PartyTask:
    """A party's part of a whole method."""
    return PartyTask(
        party=order["names"][rank],
        schema=order["schema"],
        table=Path(order["tables"][rank]),
        build=partial(METHODS[order["what"]], backend=backend_of(order)),
        approved=Plan.from_dict(order["plan"]).fingerprint(),
    )


def release(order: Mapping[str, Any], session: Session, folder: Path | None = None) -> None:
    """All that the method's plan buys."""
    plan = Plan.from_dict(order["plan"])
    if order["what"] == "marginals":
        release_marginals(session, plan)
    else:
        METHODS[order["what"]](backend=backend_of(order)).fit(session, plan, run_dir=folder)


_here: list[Any] = []  # a barrier, where rehearsals share the cores


def together(barrier: Any) -> None:
    """For the processes of several rehearsals: none begins before all can."""
    _here.append(barrier)


def rehearsed(order: Mapping[str, Any]) -> RunCost | Cost:
    """What a step or a whole method takes at the first party, before there is a network or a table."""
    backend_of(order).load()
    freeze_gc()
    _here[0].wait()
    if order["what"] == "step":
        return backend_of(order).cost(computation_of(order["computation"]))
    return estimate_cost(task_of(order, 0), Plan.from_dict(order["plan"]), partial(release, order))


def method(order: Mapping[str, Any], communicator: Communicator) -> dict[str, Any]:
    """A whole method, from the first connection to what it releases."""
    with OrganisationSession(communicator, task_of(order, communicator.rank)) as session:
        release(order, session)
        ended = time.time()
        return {
            "ended": ended,
            "cpu_seconds": time.process_time() - order["started_cpu"],
            "num_steps": Plan.from_dict(order["plan"]).num_steps,
            "rounds": session.traffic.rounds,
            "bytes": session.traffic.bytes_sent,
            "dealer_bytes": session.dealer_traffic.bytes_received,
        }


def linkage(order: Mapping[str, Any], communicator: Communicator) -> dict[str, Any]:
    """Private set intersection of ids of which half are common."""
    count = order["ids"]
    first = communicator.rank * (count // 2)
    found = common_places(communicator, [f"id{number}" for number in range(first, first + count)], topic=b"benchmark")
    ended, used = time.time(), [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    assert len(found) == count - count // 2
    sent = sum(link.traffic.bytes_sent for link in communicator.links.values())
    return {
        "ended": ended,
        "rounds": max(link.traffic.rounds for link in communicator.links.values()),
        "bytes": sent,
        "cpu_seconds": sum(one.ru_utime + one.ru_stime for one in used) - order["started_cpu"],
    }


def main(path: Path) -> None:
    """Carry out an order."""
    order = json.loads(path.read_text())
    backend_of(order).load()
    freeze_gc()  # as `join` does
    order["started_cpu"] = time.process_time()
    Path(order["ready"]).touch()
    while not Path(order["go"]).exists():  # imports are not what is measured
        time.sleep(0.01)
    started = time.time()
    communicator = seat_of(order)
    if communicator.rank >= communicator.num_parties:
        if order["what"] in ("linkage", "lines"):
            find_common(communicator) if order["what"] == "linkage" else check_network(communicator, {})
            return
        with contextlib.suppress(PeerError):  # the parties have done
            helper = backend_of(order).helpers(communicator.num_parties)[communicator.rank - communicator.num_parties]
            helper.run(communicator, *helper.arguments)
        return
    if order["what"] == "lines":
        found = lines(communicator)
    else:
        found = {"step": steps, "linkage": linkage}.get(order["what"], method)(order, communicator)
    if "ended" in found:
        found["seconds"] = found.pop("ended") - started
    written = Path(order["answer"] + ".part")
    written.write_text(json.dumps(found))
    os.replace(written, order["answer"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
