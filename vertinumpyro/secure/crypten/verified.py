"""Verified tables and committed sums over an engine's links and its dealer's, and their opening again after a crash.

Short, since `secure.verified_tables` and `secure.committed_sum` have the protocols, without a link.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.secure.committed_sum import (
    RING,
    SumStep,
    VerifiedSum,
    add_up,
    answered,
    driven,
    nobodys_answer,
)
from vertinumpyro.secure.committed_sum import open_again as open_committed_again
from vertinumpyro.secure.computation import CrossProducts, VectorSum, described
from vertinumpyro.secure.crypten.dealer import DealerClient
from vertinumpyro.secure.crypten.engine import Engine
from vertinumpyro.secure.input_form import codes_of
from vertinumpyro.secure.prime_field import PRIME
from vertinumpyro.secure.verified_tables import FromDealer, Nobody, Party, Step, statement_of


def noisy_cross_products(
    engine: Engine, computation: CrossProducts, matrix: Factor, noise_share: np.ndarray
) -> np.ndarray:
    """A_i^T A_j of all i < j, and everybody's noise, of matrices of a known form; int64 [num_values].

    :raises CheckFailedError: a party failed a check; says which.
    """
    dealer = _dealer(engine)
    statement = statement_of(computation)
    party = Party(statement, engine.rank)
    steps = party.follow(functools.partial(codes_of, matrix, statement.digits[engine.rank]), noise_share)
    nobody = Nobody(statement, engine.rank, party)

    def hear(step: Step) -> bytearray | Mapping[int, bytes | bytearray]:
        heard = dealer.next_of_tables(step.size) if isinstance(step, FromDealer) else _heard(engine, step)
        return nobody.answer(step) if dealer.is_dry_run else heard

    dealer.ask_tables(described(computation))
    return driven(steps, hear)


def noisy_sum(engine: Engine, computation: VectorSum, noisy_vector: np.ndarray) -> np.ndarray:
    """The sum of everybody's vectors, or shares of such tables, noise in them; int64 [num_values].

    :raises CheckFailedError: a party opened something else than it had committed to.
    """
    dealer = _dealer(engine)
    modulus = PRIME if computation.of_shares else RING
    statement = VerifiedSum(num_parties=engine.num_parties, num_values=computation.num_values, modulus=modulus)

    def hear(step: SumStep) -> Mapping[int, bytes | bytearray]:
        heard = _heard(engine, step)
        return nobodys_answer(statement, engine.rank, step) if dealer.is_dry_run else heard

    return driven(add_up(statement, engine.rank, noisy_vector), hear)


def open_again(engine: Engine, record: bytes) -> np.ndarray:
    """The result, by the message that was on record before any party sent one."""
    return open_committed_again(record, engine.rank, engine.num_parties, engine.swap_bytes)


def _heard(engine: Engine, step: SumStep) -> Mapping[int, bytes | bytearray]:
    return answered(step, engine.swap_bytes, engine.on_record)


def _dealer(engine: Engine) -> DealerClient:
    assert isinstance(engine.dealer, DealerClient)
    return engine.dealer
