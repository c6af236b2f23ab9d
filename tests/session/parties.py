"""What runs in the parties' processes of these tests: methods, and what a test changes there before they start."""

import functools
import hashlib
import json
import multiprocessing
import os

import numpy as np

from vertinumpyro.dpvi import DPVI
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.regression import VerticalLinearRegression, VerticalLogisticRegression
from vertinumpyro.secure import FixedPoint, committed_sum
from vertinumpyro.secure.crypten import Crypten
from vertinumpyro.secure.spu import Spu

BACKENDS = {"crypten": Crypten(), "spu": Spu(), "fixed_point": FixedPoint()}
INSTALLED = [name for name in ("crypten", "spu") if BACKENDS[name].missing() is None]


def method(name, backend):
    """A small one of every kind."""
    fields = {"max_cells": 4, "iterations": 10, "clique_limit": 1000, "backend": BACKENDS[backend]}
    made = {
        "dpvi": lambda: DPVI(num_components=2, backend=BACKENDS[backend]),
        "dpvi in blocks": lambda: DPVI(num_components=2, backend=BACKENDS[backend], block_size=25),
        "all": lambda: VertiMRF(**fields),
        "adaptive": lambda: VertiMRF(selection="adaptive", num_rounds=2, tables_per_round=2, **fields),
        "triples": lambda: VertiMRF(triples=2, **fields),
        "linear": lambda: VerticalLinearRegression(backend=BACKENDS[backend]),
        "logistic": lambda: VerticalLogisticRegression(backend=BACKENDS[backend]),
        "moments": lambda: _by_moments(backend),
    }
    return made[name]()


def _by_moments(backend):
    from tests.session.regressions import regression

    return regression(backend)


class EveryMethod:
    """One session for all methods: the plan says which of them it is for."""

    def __init__(self, backend):
        self.backend = BACKENDS[backend]
        self._method = functools.partial(method, backend=backend)

    def _of(self, plan):
        if plan.kind == "functional_mechanism":
            return self._method(plan.model)
        if plan.kind == "vertimrf":
            return self._method("adaptive" if plan.num_rounds else "triples" if plan.num_triples else "all")
        return self._method("dpvi" if plan.start is None else "moments")

    def check(self, facts, plan):
        self._of(plan).check(facts, plan)

    def work(self, facts, party, columns, plan, source):
        return self._of(plan).work(facts, party, columns, plan, source)


def here_is_a_party():
    """The starter makes the method of the first task too, and must not be changed."""
    return multiprocessing.parent_process() is not None


def silent(backend):
    """A party that leaves out its noise."""
    from vertinumpyro.privacy import GradientPlan

    honest = GradientPlan.draw_noise_share
    if here_is_a_party():
        GradientPlan.draw_noise_share = lambda plan, *arguments: 0 * honest(plan, *arguments)
    return method("dpvi", backend)


def with_spoilt_batches(backend):
    """A party whose batches hold one record in every place."""
    from vertinumpyro.privacy.sampling import Batches, BatchStream

    honest = BatchStream.next
    if here_is_a_party():
        spoil = lambda drawn: Batches(np.full_like(drawn.indices, 7), np.ones_like(drawn.mask))  # noqa: E731
        BatchStream.next = lambda stream, count: spoil(honest(stream, count))
    return method("dpvi", backend)


def telling_batches(path, backend):
    """A party that writes down a digest of the batches that it checked."""
    from vertinumpyro.privacy.sampling import Batches

    honest = Batches.check

    def check(batches, *arguments):
        found = honest(batches, *arguments)
        digests = [hashlib.sha256(a.tobytes() + b.tobytes()).hexdigest() for a, b in zip(*found, strict=True)]
        append(path, *digests)
        return found

    if here_is_a_party():
        Batches.check = check
    return method("dpvi", backend)


def dying(place, path, name, backend):
    """A party that writes down what it sends to be opened, and dies once, at a place around the opening."""
    from vertinumpyro.session.reveal_once import RevealLog
    from vertinumpyro.session.run import Run

    def die(now):
        if now == place and not os.path.exists(f"{path}.died"):
            append(f"{path}.died", now)
            os._exit(9)

    honest_put, honest_opened = Run.put, RevealLog.opened

    def put(run, step, payload):
        sent, opened = payload.words.get("sent"), "values" in payload.arrays
        when = "opened" if opened else "sent" if sent else "ready"
        die(f"before {when}")
        kept = honest_put(run, step, payload)
        die(f"after {when}")
        return kept

    def opened(openings, *arguments):
        values = honest_opened(openings, *arguments)
        die("answering")
        return values

    if here_is_a_party():
        Run.put, RevealLog.opened = put, opened
        watch_openings(path, backend)
    return method(name, backend)


def watch_openings(path, backend):
    """Writes down a digest of every message that opens something, before it is sent."""
    if backend == "crypten":
        from vertinumpyro.secure.crypten.engine import Engine

        honest, honest_committed = Engine._opened, committed_sum._opened

        def opened(engine, share, why):
            if why == "reveal":
                append(path, hashlib.sha256(share.contiguous().numpy().tobytes()).hexdigest())
            return honest(engine, share, why)

        def opened_committed(send, message, others):
            append(path, hashlib.sha256(message).hexdigest())
            return honest_committed(send, message, others)

        Engine._opened, committed_sum._opened = opened, opened_committed
    else:
        from vertinumpyro.secure.spu import node

        honest_exchange = node.exchange

        def exchange(links, outgoing, sizes):
            if any(len(message) > 2 for message in outgoing.values()):  # ports have two bytes
                append(path, hashlib.sha256(max(outgoing.values(), key=len)).hexdigest())
            return honest_exchange(links, outgoing, sizes)

        node.exchange = exchange


def append(path, *lines):
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
