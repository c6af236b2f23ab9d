"""How a step clips its records, chosen from the model and the schema alone, and the step's public size.

A regression across parties (`party_sum`) has one residual a record, which is bounded. So each party clips its own part,
and nothing of a norm is computed together (`secure.local_clip`): the residual is cut to b of the largest one, and party
p's scores to C / (b unit) sqrt(part_p), in the units of the predictor's derivatives.

**Parts of C^2** are in proportion to the columns that a party's part of the sum reads, and one more at the outcome's
party, for the intercept. A column adds at most 1 to the squared norm of a record's scores, be it one number in [-1, 1]
or indicators of its values, however many coefficients it has: in proportion to coefficients a column of 50 values would
get 50 times the room of one that adds as much. So with C = b unit sqrt(columns) no such record's scores are scaled at
all, and what is cut is the residual: as much as a clip of the whole record cuts there.

| given | b | C |
|---|---|---|
| nothing | 0.6 / unit | 0.6 sqrt(columns) |
| clip_norm | C / (unit sqrt(columns)) | as given |
| residual_bound | as given | b unit sqrt(columns) |

b is at least 1/1024 and at most 1.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import OBSERVED_SUFFIX
from vertinumpyro.dpvi.defaults import default_clip_norm, num_scores
from vertinumpyro.model.split import SplitModel
from vertinumpyro.posterior.columns import score_link
from vertinumpyro.privacy import NoiseSource, PrivacyPlan, Sampling
from vertinumpyro.privacy.clip import LEAST_RESIDUAL_BOUND
from vertinumpyro.secure import BatchShape

__all__ = ["Clip", "batch_shape", "check_clip", "chosen_clip"]

_BLOCK_VALUES = 2**24  # records times released values that a block of a batch holds: what memory it takes


class Clip(NamedTuple):
    """A plan's clip.

    norm:           C.
    parts:          the parties' parts of C^2, in proportion; None for the clip of a whole record.
    residual_bound: b.
    """

    norm: float
    parts: tuple[int, ...] | None = None
    residual_bound: float = 1.0

    @classmethod
    def of(cls, plan: PrivacyPlan) -> Clip:
        """A plan's."""
        return cls(plan.clip_norm, plan.clip_parts, plan.residual_bound)


def chosen_clip(
    split: SplitModel,
    clip: Literal["joint", "local"] | None,
    clip_norm: float | None,
    residual_bound: float | None,
) -> Clip:
    """What `DPVI.plan` was given, and the module's table for the rest.

    :raises ArgumentError: a clip by parts is asked of a model without a `party_sum`, or b without such a clip.
    """
    summed = split.structure.summed
    if clip == "local" and summed is None:
        raise ArgumentError(
            'clip="local" cuts the residual of a party_sum, and the model has none: a record is clipped as a whole; '
            "leave clip out"
        )
    if clip == "joint" or summed is None:
        if residual_bound is not None:
            fix = "leave it out" if summed is None else 'choose clip="local"'
            raise ArgumentError(
                f"residual_bound={residual_bound:g}: a record that is clipped as a whole has none; {fix}"
            )
        return Clip(default_clip_norm(num_scores(split.schema)) if clip_norm is None else clip_norm)
    parts = _parts(split)
    longest = summed.outcome.unit * math.sqrt(sum(parts))
    if clip_norm is None:
        clip_norm = default_clip_norm(sum(parts)) if residual_bound is None else residual_bound * longest
    if residual_bound is None:
        residual_bound = float(f"{min(1.0, max(LEAST_RESIDUAL_BOUND, clip_norm / longest)):.4g}")
    return Clip(clip_norm, parts, residual_bound)


def _parts(split: SplitModel) -> tuple[int, ...]:
    """For each party the columns that its part of the sum reads, and the intercept; 0 where nothing is learned."""
    summed = split.structure.summed
    assert summed is not None
    parts = []
    for party in split.parties:
        columns = {name.removesuffix(OBSERVED_SUFFIX) for name in summed.columns.get(party, ())}
        read = len(columns) + (party == summed.party)
        parts.append(max(1, read) if summed.latents.get(party) else 0)
    return tuple(parts)


def check_clip(split: SplitModel, plan: PrivacyPlan) -> None:
    """Refuses a plan whose clip has no part for what a party of this model learns.

    :raises ArgumentError: says so.
    """
    if plan.clip_parts is None:
        return
    summed = split.structure.summed
    learning = [] if summed is None else [party for party in split.parties if summed.latents.get(party)]
    given = [party for party, part in zip(plan.parties, plan.clip_parts, strict=True) if part]
    if given != learning:
        raise ArgumentError(
            f"plan: its clip has parts for {given}, and the model learns from {learning or 'no party_sum'}; make a new "
            "plan"
        )


def batch_shape(
    split: SplitModel,
    sampling: Sampling,
    noise: NoiseSource,
    clip: Clip,
    noise_multiplier: float,
    block_size: int | None,
) -> BatchShape:
    """The public size of a step.

    :param block_size: see `DPVI`.
    """
    largest = block_size or max(1, _BLOCK_VALUES // split.num_values)
    num_blocks = -(-sampling.max_batch_size // largest)
    return BatchShape(
        batch_size=-(-sampling.max_batch_size // num_blocks),
        num_blocks=num_blocks,
        num_components=split.num_components,
        num_parties=len(split.parties),
        num_values=split.num_values,
        clip_norm=clip.norm,
        noise_stddev=noise_multiplier * clip.norm * (noise.num_shares / noise.num_covering) ** 0.5,
        link=score_link(split),
        clip_parts=clip.parts,
        residual_bound=clip.residual_bound,
    )
