"""A member of a study, in a process of its own.

The order names this member's number, everybody's certificates and addresses, this party's files, the method and the
plan; it holds nothing of another party's.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import socket
import ssl
import sys
from pathlib import Path

import jax
import numpy as np

from tests.session.parties import method
from tests.session.test_processes import released
from vertinumpyro.core.errors import VertinumpyroError
from vertinumpyro.core.files import save_arrays
from vertinumpyro.privacy import Plan
from vertinumpyro.secure.crypten.backend import run_dealer
from vertinumpyro.session import OrganisationSession, PartyTask
from vertinumpyro.session.run import Run
from vertinumpyro.transport import Address, Certificate, Communicator, Identity, Peer, connect_all


def seat_of(order, listener) -> Communicator:
    rank, certificates = order["rank"], order["certificates"]
    names = [*order["schema"]["parties"], "the dealer"]
    peers = {
        other: Peer(
            name=names[other],
            certificate=Certificate(certificates[other]),
            dial=Address("127.0.0.1", order["ports"][other]) if other < rank else None,
        )
        for other in range(len(certificates))
        if other != rank
    }
    links = connect_all(
        Identity(Path(order["identity"])),
        peers,
        topic=order["topic"].encode(),
        listener=listener,
        wait_s=60,
        timeout_s=order["timeout_s"],
    )
    return Communicator(rank, len(names) - 1, links, order["timeout_s"])


def keep_received(path: Path) -> None:
    """Writes every byte that arrives here, decrypted, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("wb")
    honest = ssl.SSLSocket.recv_into

    def recv_into(connection, buffer, *arguments):
        count = honest(connection, buffer, *arguments)
        file.write(bytes(memoryview(buffer)[:count]))
        file.flush()
        return count

    ssl.SSLSocket.recv_into = recv_into


def run_party(order, listener) -> None:
    if order.get("keep_received"):
        keep_received(Path(order["out"]) / "received.bin")
    if (largest := order.get("largest_file")) is not None:  # as a disk that is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    name = order["method"]
    task = PartyTask(
        party=order["party"],
        schema=order["schema"],
        table=Path(order["table"]),
        build=functools.partial(method, name, "crypten"),
        ledger=Path(order["ledger"]),
        approved=order["approved"],
    )
    if (stop := order.get("stop_before_keeping")) is not None:
        honest = Run.keep

        def keep(run, index, released):
            if index == stop:
                os._exit(9)
            honest(run, index, released)

        if order["party"] == order["stops"]:
            Run.keep = keep
    made, plan, out = task.build(), Plan.from_dict(order["plan"]), Path(order["out"])
    with OrganisationSession(seat_of(order, listener), task) as session:
        settings = {"run_dir": out, "resume": order["resume"]}
        if name == "dpvi":
            found = made.fit(session, plan, jax.random.key(3), progress_bar=False, **settings)
            arrays = {k: np.asarray(v) for k, v in found.guide_params.items()}
        else:
            arrays = released(session, made, plan, out, resume=order["resume"])
        words = {"num_records": session.num_records}
        (out / "traffic.json").write_text(json.dumps(vars(session.traffic)))
    save_arrays(out / "found.npz", arrays, words)


def take_part(path: Path, listener: socket.socket) -> None:
    order = json.loads(path.read_text())
    try:
        run_dealer(seat_of(order, listener)) if order["party"] is None else run_party(order, listener)
    except VertinumpyroError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(2)
