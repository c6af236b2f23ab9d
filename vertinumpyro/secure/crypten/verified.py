"""Verified tables over an engine's links and its dealer's, and their opening again after a crash.

Short, since `secure.verified_tables` has the protocol, without a link.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.secure.computation import CrossProducts, VectorSum, described
from vertinumpyro.secure.crypten.dealer import DealerClient
from vertinumpyro.secure.crypten.engine import Engine
from vertinumpyro.secure.input_form import codes_of
from vertinumpyro.secure.prime_field import from_integers
from vertinumpyro.secure.verified_tables import (
    Exchange,
    FromDealer,
    Nobody,
    Opening,
    Party,
    Step,
    VerifiedSum,
    add_up,
    result,
    statement_of,
)

_MARK = b"an opening of verified tables   "  # no share of a sum begins so but one in 2^256
_HASH = 32


def noisy_cross_products(
    engine: Engine, computation: CrossProducts, matrix: Factor, noise_share: np.ndarray
) -> np.ndarray:
    """A_i^T A_j of all i < j, and everybody's noise, of matrices of a known form; int64 [num_values].

    :raises CheckFailedError: a party failed a check; says which.
    """
    assert isinstance(engine.dealer, DealerClient)
    statement = statement_of(computation)
    party = Party(statement, engine.rank)
    steps = party.follow(functools.partial(codes_of, matrix, statement.digits[engine.rank]), noise_share)
    engine.dealer.ask_tables(described(computation))
    return _driven(engine, steps, Nobody(statement, engine.rank, party))


def noisy_sum(engine: Engine, computation: VectorSum, noisy_vector: np.ndarray) -> np.ndarray:
    """The sum of everybody's shares of such tables, noise in them; int64 [num_values].

    :raises CheckFailedError: a party opened something else than it had committed to.
    """
    statement = VerifiedSum(num_parties=engine.num_parties, num_values=computation.num_values)
    steps = add_up(statement, engine.rank, from_integers(noisy_vector))
    return _driven(engine, steps, Nobody(statement, engine.rank))


def _driven(engine: Engine, steps: Generator[Step, Any, np.ndarray], nobody: Nobody) -> np.ndarray:
    """What the steps come to; in a dry run, with what nobody answers."""
    assert isinstance(engine.dealer, DealerClient)
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return end.value
        heard = _heard(engine, step)
        answer = nobody.answer(step) if engine.dealer.is_dry_run else heard


def _heard(engine: Engine, step: Step) -> bytearray | Mapping[int, bytearray]:
    match step:
        case FromDealer():
            assert isinstance(engine.dealer, DealerClient)
            return engine.dealer.next_of_tables(step.size)
        case Exchange():
            return engine.swap_bytes(step.name, step.outgoing, step.sizes)
        case Opening():
            if engine.on_record is not None:
                everybodys = b"".join(step.commitments[rank] for rank in sorted(step.commitments))
                engine.on_record(b"".join([_MARK, step.digest, everybodys, step.message]))
            return _opened(engine, step.message)


def _opened(engine: Engine, message: bytes) -> Mapping[int, bytearray]:
    others = engine.links
    return engine.swap_bytes("opening", dict.fromkeys(others, message), dict.fromkeys(others, len(message)))


def is_opening(record: bytes) -> bool:
    """Whether `open_again` is for it."""
    return record.startswith(_MARK)


def open_again(engine: Engine, record: bytes) -> np.ndarray:
    """The result, by the message that was on record before any party sent one."""
    ends = len(_MARK) + _HASH * np.arange(engine.num_parties + 2)
    digest, *commitments = (record[start:end] for start, end in itertools.pairwise(ends.tolist()))
    message = record[ends[-1] :]
    messages = {**_opened(engine, message), engine.rank: message}
    return result(digest, dict(enumerate(commitments)), {rank: bytes(data) for rank, data in messages.items()})
