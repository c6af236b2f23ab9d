"""The three protocols from one party's side. Every party calls the same function with its own inputs.

Only the last line of each opens anything but uniformly masked values. Verified tables and committed sums run here over
an engine's links and its dealer's; `secure.verified_tables` and `secure.committed_sum` have them without a link.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import numpy as np

from vertinumpyro.core.row_blocks import Factor, factor_rows, ring_product
from vertinumpyro.secure.committed_sum import RING, VerifiedSum, answered, driven, sum_of_all
from vertinumpyro.secure.committed_sum import open_again as open_committed_again
from vertinumpyro.secure.computation import ClippedSum, CrossProducts, VectorSum, described
from vertinumpyro.secure.crypten import arithmetic, sigmoid
from vertinumpyro.secure.crypten.arithmetic import OneSided
from vertinumpyro.secure.crypten.dealer import DealerClient, Request
from vertinumpyro.secure.crypten.engine import Engine, torch
from vertinumpyro.secure.crypten.number_formats import EXP_BITS, WEIGHT_BITS, norm_bits
from vertinumpyro.secure.input_encoding import Layout, PartyInputs, PriorInputs, sums_of_tables
from vertinumpyro.secure.input_form import codes_of
from vertinumpyro.secure.number_formats import largest_weights
from vertinumpyro.secure.prime_field import PRIME
from vertinumpyro.secure.score_contract import Arithmetic
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.secure.verified_tables import FromDealer, Nobody, Party, Step, statement_of


def clipped_noisy_sum(
    engine: Engine,
    computation: ClippedSum,
    own: Iterable[PartyInputs],
    prior: PriorInputs,
    mask: np.ndarray,
    noise_share: np.ndarray,
) -> np.ndarray:
    """The noisy clipped sum on its grid, int64 [D].

    :param own: this party's numbers, block by block.
    :param mask: [num_blocks, n], False for padding; every party knows it.
    :param noise_share: this party's noise, int64 [D].
    """
    share = _tensor(noise_share)
    for block, rows in zip(own, mask, strict=True):
        engine.dealer.begin(f"clipped_noisy_sum {computation.shape} {computation.layout}")
        share = share + _clipped_sum(engine, computation, block, prior, rows)
    return engine.reveal(share).numpy()


def _clipped_sum(
    engine: Engine, computation: ClippedSum, own: PartyInputs, prior: PriorInputs, mask: np.ndarray
) -> Any:
    """This party's share of the clipped sum over one block."""
    shape, layout = computation.shape, computation.layout
    own = PartyInputs(*(_tensor(array) for array in own))
    # the parties' contributions are shares of it
    z = arithmetic.public(engine, own.log_density, _tensor(prior.log_weights))
    e = shape.link.weights(ShareArithmetic(engine), z)
    if shape.clips_locally:
        W = _cut_weights(engine, shape, e)
    else:
        W = _weights(engine, shape, e, _squared_norm(engine, shape, layout, e, own, prior))
    return _weighted_scores(engine, layout, W * _tensor(mask).long()[:, None], own, prior)


@final
class ShareArithmetic(Arithmetic):
    """`Arithmetic` on this party's shares: z in `LOG_BITS`, e in `EXP_BITS`."""

    stack = staticmethod(torch.stack)
    concatenate = staticmethod(torch.cat)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def exp_below_max(self, z: Any, halvings: int = 0) -> Any:
        """Rounds: those of the maximum, and four."""
        below = z - arithmetic.maximum(self._engine, z)
        return arithmetic.exp_nonpositive(
            self._engine, arithmetic.truncate(self._engine, below, halvings) if halvings else below
        )

    def capped_exp(self, z: Any) -> Any:
        return arithmetic.capped_exp(self._engine, z)

    def sigmoid_sum(self, z: Any) -> Any:
        return sigmoid.sigmoids(self._engine, z)

    def clip(self, z: Any) -> Any:
        return arithmetic.clipped(self._engine, z)

    def mills_ratio(self, t: Any) -> Any:
        return sigmoid.mills_ratio(self._engine, t)

    def sign(self, own: Any) -> Any:
        """Y has one owner, whose share is all of it, so it may be shifted."""
        return arithmetic.public(self._engine, 2 * (own >> EXP_BITS), -1)

    def times(self, sign: Any, x: Any) -> Any:
        """One round."""
        return arithmetic.multiply(sign, x)

    def portion(self, x: Any, e: Any) -> Any:
        """Two rounds; cut off or up."""
        return arithmetic.truncate(self._engine, arithmetic.multiply(x, e), EXP_BITS)

    def plus(self, e: Any, number: float | int) -> Any:
        return arithmetic.public(self._engine, e, round(number * (1 << EXP_BITS)))


def noisy_cross_products(
    engine: Engine, computation: CrossProducts, matrix: Factor, noise_share: np.ndarray
) -> np.ndarray:
    """A_i^T A_j of all i < j, and everybody's noise, modulo 2^64.

    One round for each block of records, whose products are added as shares, and one in which the sum is opened. The
    dealer gives each party a uniform matrix M_p of its own, and all parties shares of every M_i^T M_j. Party p sends
    A_p - M_p =: D_p to all others. As A_i = D_i + M_i, the product is A_i^T D_j, which party i computes, and D_i^T M_j,
    which party j computes, and M_i^T M_j. A thread multiplies one block while the next is made and sent.
    """
    share, multiplying = noise_share.copy(), None
    with ThreadPoolExecutor(1) as pool:
        for rows in computation.blocks:
            block = computation.of_block(rows)
            engine.dealer.begin(str(block))
            request = Request("pairs", tuple((block.num_records, width) for width in block.widths))
            own = factor_rows(matrix, rows)
            (mask,) = engine.dealer.drawn(request)
            hidden = engine.swap_masked(own - mask, dict(enumerate(request.shapes)))
            if multiplying is not None:
                share += multiplying.result()
            multiplying = pool.submit(_own_products, engine.rank, block, own, mask, hidden)
            (corrected,) = engine.dealer.corrected(request)
            share += corrected
        share += 0 if multiplying is None else multiplying.result()
    return engine.reveal(torch.from_numpy(share)).numpy()


def _own_products(
    rank: int, computation: CrossProducts, own: np.ndarray, mask: np.ndarray, hidden: Mapping[int, np.ndarray]
) -> np.ndarray:
    """What this party computes of a block's products, the others' at 0; int64, flat, all i < j in turn."""
    pieces = [np.zeros(0, np.int64)]
    for i, j in itertools.combinations(range(computation.num_parties), 2):
        if rank == i:
            pieces.append(ring_product(own, hidden[j]).ravel())
        elif rank == j:
            pieces.append(ring_product(hidden[i], mask).ravel())
        else:
            pieces.append(np.zeros(computation.widths[i] * computation.widths[j], np.int64))
    return np.concatenate(pieces)


def noisy_sum(engine: Engine, noisy_vector: np.ndarray) -> np.ndarray:
    """The sum of every party's vector, its noise already added by the party itself; modulo 2^64. Needs no dealer."""
    return engine.reveal(_tensor(noisy_vector)).numpy()


def _squared_norm(
    engine: Engine, shape: BatchShape, layout: Layout, e: Any, own: PartyInputs, prior: PriorInputs
) -> Any:
    """Shares of nn / C'^2, never too small, with `EXP_BITS` + `norm_bits`: sum_k e_k (sum_l G_kl e_l).

    A party's squared norms are its share of the diagonal of G; the prior's Gram matrix is public. The sum over l is
    truncated with an error below 1, which is made up for before it is multiplied by e_k, or where e_k may be negative,
    and at least -1, after that.
    """
    weighted = e @ _tensor(prior.gram)
    if any(layout.shared):
        gram = own.gram + torch.diag_embed(own.squared_norm)
        weighted = weighted + arithmetic.matmul(gram, e.unsqueeze(-1)).squeeze(-1)
    else:
        weighted = weighted + arithmetic.multiply(e, own.squared_norm)
    truncated = arithmetic.truncate(engine, weighted, EXP_BITS)
    if shape.link.signed:
        return arithmetic.public(engine, arithmetic.multiply(e, truncated).sum(-1), 1 << EXP_BITS)
    return arithmetic.multiply(e, arithmetic.public(engine, truncated, 1)).sum(-1)


def _weights(engine: Engine, shape: BatchShape, e: Any, squared_norm: Any) -> Any:
    """Shares of W = w e with 30 fractional bits, w = 1 / sqrt(max(den^2, nn / C'^2))."""
    bits = EXP_BITS + norm_bits(shape)
    if shape.link.normalised:
        den = arithmetic.truncate(engine, arithmetic.square(e.sum(-1)), EXP_BITS - norm_bits(shape))
        least = arithmetic.public(engine, den, 1)
    else:
        least = arithmetic.public(engine, torch.zeros_like(squared_norm), 1 << bits)
    value = arithmetic.larger(engine, least, squared_norm)
    w = arithmetic.inverse_sqrt(engine, value, bits)
    return arithmetic.truncate(engine, arithmetic.multiply(w[:, None], e), EXP_BITS)


def _cut_weights(engine: Engine, shape: BatchShape, e: Any) -> Any:
    """Shares of W = clip(e, -b, b) with 30 fractional bits; no work where b = 1, as |e| is at most 1 and a unit."""
    largest = largest_weights(shape, EXP_BITS)
    return (e if largest is None else arithmetic.cut(engine, e, largest, EXP_BITS + 2)) * (1 << WEIGHT_BITS - EXP_BITS)


def _weighted_scores(engine: Engine, layout: Layout, W: Any, own: PartyInputs, prior: PriorInputs) -> Any:
    """Shares of the released vector without its noise: W times scores that only their party knows.

    A table's scores are the same for all records of one value, so its records' weights are added up by value first
    (the party's indicators are the secret factor), and the sums are multiplied by the table in a second round.
    """
    n, K = W.shape
    parties = range(engine.num_parties)
    tables = [[table for table in of_party if table[0]] for of_party in layout.tables]
    by_component, flat = W.T.reshape(K, n, 1), W.reshape(n * K, 1)
    plated = [OneSided(p, by_component, own.plated, (K, n, layout.written_out(p))) for p in parties]
    shared = [OneSided(p, flat, own.shared, (n * K, layout.shared[p])) for p in parties]
    indicators = _indicators(own.codes, [num_values for num_values, _ in tables[engine.rank]])
    by_value = [OneSided(p, W, indicators, (n, sum(num_values for num_values, _ in tables[p]))) for p in parties]
    found = arithmetic.one_sided(engine, [*plated, *shared, *by_value])
    plated_sums, shared_sums, weights = (found[i : i + len(parties)] for i in range(0, len(found), len(parties)))
    table_sums = iter(_times_tables(engine, tables, weights, own.tables))
    blocks = [W.sum(0) @ _tensor(prior.scores)]
    for p in parties:
        of_tables = [next(table_sums) for _ in tables[p]]
        sums = sums_of_tables(layout, p, plated_sums[p].reshape(K, -1), of_tables, lambda parts: torch.cat(parts, -1))
        blocks += [sums.reshape(-1), shared_sums[p].reshape(-1)]
    return torch.cat(blocks)


def _indicators(codes: Any, sizes: Sequence[int]) -> Any:
    """[n, all V]: 1 at each record's row of each table."""
    columns = [torch.nn.functional.one_hot(codes[:, index], size) for index, size in enumerate(sizes)]
    return torch.cat([torch.zeros((len(codes), 0), dtype=torch.long), *columns], dim=-1)


def _times_tables(engine: Engine, tables: Sequence[Sequence[tuple[int, int]]], weights: Sequence[Any], own: Any) -> Any:
    """For each table of each party the sum over its values [K, d]; `weights` of each party are [K, all V]."""
    products, start = [], 0
    for party, sizes in enumerate(tables):
        of_table = weights[party].split([num_values for num_values, _ in sizes], dim=-1) if sizes else ()
        for (num_values, width), weight in zip(sizes, of_table, strict=True):
            shape = (len(weight), num_values, width)
            scores = own[start : start + math.prod(shape)].view(shape) if party == engine.rank else None
            start += math.prod(shape) if party == engine.rank else 0
            products.append(OneSided(party, weight.unsqueeze(-1), scores, shape))
    return [sums.squeeze(1) for sums in arithmetic.one_sided(engine, products)] if products else []


def _tensor(array: Any) -> Any:
    """A writable tensor: arrays that come from JAX are read-only."""
    return torch.from_numpy(np.array(array))


def verified_cross_products(
    engine: Engine, computation: CrossProducts, matrix: Factor, noise_share: np.ndarray
) -> np.ndarray:
    """A_i^T A_j of all i < j, and everybody's noise, of matrices of a known form; int64 [num_values].

    :raises CheckFailedError: a party failed a check; says which.
    """
    dealer, statement = _dealer(engine), statement_of(computation)
    party = Party(statement, engine.rank)
    steps = party.follow(functools.partial(codes_of, matrix, statement.digits[engine.rank]), noise_share)
    nobody = Nobody(statement, engine.rank, party)

    def hear(step: Step) -> bytearray | Mapping[int, bytes | bytearray]:
        if isinstance(step, FromDealer):
            heard = dealer.next_of_tables(step.size)
        else:
            heard = answered(step, engine.swap_bytes, engine.on_record)
        return nobody.answer(step) if dealer.is_dry_run else heard

    dealer.ask_tables(described(computation))
    return driven(steps, hear)


def verified_sum(engine: Engine, computation: VectorSum, noisy_vector: np.ndarray) -> np.ndarray:
    """The sum of everybody's vectors, or shares of such tables, noise in them; int64 [num_values].

    :raises CheckFailedError: a party opened something else than it had committed to.
    """
    modulus = PRIME if computation.of_shares else RING
    statement = VerifiedSum(num_parties=engine.num_parties, num_values=computation.num_values, modulus=modulus)
    dry_run = _dealer(engine).is_dry_run
    return sum_of_all(statement, engine.rank, noisy_vector, engine.swap_bytes, engine.on_record, is_dry_run=dry_run)


def open_again(engine: Engine, record: bytes) -> np.ndarray:
    """The result, by the message that was on record before any party sent one."""
    return open_committed_again(record, engine.rank, engine.num_parties, engine.swap_bytes)


def _dealer(engine: Engine) -> DealerClient:
    assert isinstance(engine.dealer, DealerClient)
    return engine.dealer
