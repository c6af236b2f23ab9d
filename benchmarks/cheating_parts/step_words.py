"""What a step of DPVI sends today, and what it would send with tags on all that is shared: `docs/steps_that_cheat.md`.

    python benchmarks/cheating_parts/step_words.py

Counted by `Crypten().cost`, a dry run of the protocol at one of two parties, for 1,000 and for 2,000 records of Adult;
the difference is what a record takes. What the dealer shares out is counted by kind on the way.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.datasets import load_adult
from vertinumpyro.dpvi import DPVI
from vertinumpyro.glm import VerticalGLM
from vertinumpyro.secure import ClippedSum, CrossProducts, Crypten
from vertinumpyro.secure.crypten import dealer
from vertinumpyro.secure.input_form import InputForm

SIZES = (1_000, 2_000)
WORD, TAG = 16, 16  # bytes modulo 2^128, of which 2^64 are the number's, and of its tag
BITS_TAGS = 64 * 8  # of a word of 64 bits: a tag of 8 bytes for each


def per_record(what: ClippedSum) -> dict[str, float]:
    """Today's bytes of a record and step, and what tags would make of them."""
    small, large = (_counted(what, size) for size in SIZES)
    each = defaultdict(float, {name: (large[name] - small[name]) / (SIZES[1] - SIZES[0]) for name in large})
    tags = TAG * each["numbers drawn"] + BITS_TAGS * (each["bits drawn"] + each["bits corrected"])
    return {
        "rounds": large["rounds"],
        "sent": each["sent"],
        "of which scores": 8 * each["scores drawn"],
        "dealt": each["dealt"],
        "sent, tagged, without scores": 2 * (each["sent"] - 8 * each["scores drawn"]),
        "dealt, tagged": tags + (WORD + TAG) * each["numbers corrected"] + 8 * each["bits corrected"],
        "of which tags of bits": BITS_TAGS * (each["bits drawn"] + each["bits corrected"]),
        "scores": each["scores drawn"],
    }


def _kind(request: dealer.Request, part: Any, name: str) -> str:
    """A party's own mask of its scores needs no tag: nobody else has a share of it."""
    own = request.kind == "one_sided" and request.option == 0 and name == "drawn"
    return f"{'scores' if own else 'bits' if part.bits else 'numbers'} {name}"


def _counted(what: ClippedSum, size: int) -> Counter[str]:
    """Of one step: traffic, and words that the first party and the dealer share."""
    of_size = dataclasses.replace(what, shape=dataclasses.replace(what.shape, batch_size=size, num_blocks=1))
    found: Counter[str] = Counter()
    real = {name: getattr(dealer.DealerClient, name) for name in ("begin", "drawn", "corrected")}

    def begin(self: Any, program: str) -> None:
        found["steps"] += 1
        real["begin"](self, program)

    def counting(name: str, parts: Callable[[dealer.Request], Any]) -> Callable[..., Any]:
        def count(self: Any, request: dealer.Request) -> Any:
            for part in parts(request):
                found[_kind(request, part, name)] += math.prod(part.shape)
            return real[name](self, request)

        return count

    changed = {
        "begin": begin,
        "drawn": counting("drawn", lambda request: dealer._drawn(request, 0)),
        "corrected": counting("corrected", dealer._corrected),
    }
    try:
        for name, change in changed.items():
            setattr(dealer.DealerClient, name, change)
        cost = Crypten().cost(of_size)
    finally:
        for name, was in real.items():
            setattr(dealer.DealerClient, name, was)
    for name in found:
        found[name] //= 1 if name == "steps" else found["steps"]
    found.update(rounds=cost.traffic.rounds, sent=cost.traffic.bytes_sent, dealt=cost.dealer_traffic.bytes_received)
    return found


def proof_of_bits(num_bits: int) -> dict[str, float]:
    """Bytes of a record: so many columns of two cells, proved as section 13 of the proofs has it."""
    rows = InputForm.of_tables(((), (2,) * num_bits), 0)
    costs = [
        Crypten().cost(CrossProducts(num_records=size, widths=(0, 2 * num_bits), form=rows), rank=1) for size in SIZES
    ]
    return {
        "sent": (costs[1].traffic.bytes_sent - costs[0].traffic.bytes_sent) / (SIZES[1] - SIZES[0]),
        "dealt": (costs[1].dealer_traffic.bytes_received - costs[0].dealer_traffic.bytes_received)
        / (SIZES[1] - SIZES[0]),
        "rounds": costs[1].traffic.rounds,
    }


def steps(data: VerticalDataset) -> dict[str, ClippedSum]:
    """A step of the mixture, and of a regression whose parties clip for themselves."""
    mixture = DPVI(backend=Crypten(), num_components=20, warm_start=False)
    plan = mixture.plan(data, epsilon=1.0, delta=1e-5, num_steps=100, batch_size=1_000)
    regression = VerticalGLM(family="bernoulli", label="sex", backend=Crypten())
    planned = regression.plan(data, epsilon=1.0, delta=1e-5)
    found = {
        "mixture": mixture.computations(data, plan),
        "regression": regression.computations(data, planned),
    }
    return {name: next(c for c, _ in every if isinstance(c, ClippedSum)) for name, every in found.items()}


if __name__ == "__main__":
    of_adult = steps(load_adult())
    shown = {name: {**per_record(what), "values": what.num_values} for name, what in of_adult.items()}
    print(json.dumps({**shown, "proof of 550 bits": proof_of_bits(550)}, indent=1))
