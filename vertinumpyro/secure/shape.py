"""The public size of a batch, all that a range proof needs: formats, inputs and backends stand on it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.privacy.gradient_plan import check_local_clip
from vertinumpyro.secure.score_functions import SOFTMAX, ScoreFunction


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchShape:
    """The public size of one `clipped_noisy_sum`: all that a range proof needs.

    A large batch comes in blocks: memory holds one at a time, their sums are added before anything is opened, and the
    noise is added once.

    :ivar batch_size: padded records n in a block.
    :ivar num_blocks: blocks in a batch.
    :ivar num_components: K.
    :ivar num_parties: P.
    :ivar num_values: length D of the released vector.
    :ivar clip_norm: C, the bound on the L2 norm of a record's contribution.
    :ivar noise_stddev: standard deviation of the total noise in one coordinate, in the units of C.
    :ivar link: how the parties' contributions become weights.
    :ivar clip_parts: of a record whose weights are bounded, the parties' parts of C^2, in proportion to these whole
        numbers: each party clips its own scores (`number_formats`). None: one clip of the whole record, on shares.
    :ivar residual_bound: b, with `clip_parts`: a weight is cut to [-b, b]; of several outcomes one b for each, or one
        for all.
    """

    batch_size: int
    num_components: int
    num_parties: int
    num_values: int
    clip_norm: float
    noise_stddev: float
    link: ScoreFunction = SOFTMAX
    num_blocks: int = 1
    clip_parts: tuple[int, ...] | None = None
    residual_bound: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        """Checks the sizes, and whether the link can be clipped so."""
        for name in ("batch_size", "num_components", "num_parties", "num_values", "num_blocks"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")
        self.link.check_components(self.num_components)
        check_local_clip(self.clip_parts, self.residual_bound, self.num_parties)
        if self.clip_parts is not None and not self.link.signed:
            raise ArgumentError(
                f"clip_parts: the weights of the link {self.link.name!r} are no bounded residual, so a record is "
                "clipped as a whole; leave clip_parts out"
            )
        if self.clip_parts is None and self.link.signed and self.num_components > 1:
            raise ArgumentError(
                f"clip_parts is None, and the {self.num_components} weights of the link {self.link.name!r} have signs, "
                "for which the clip of a whole record is not proved; give the parties' parts"
            )
        if len(self.residual_bounds) != self.num_components:
            raise ArgumentError(
                f"residual_bound has {len(self.residual_bounds)} numbers for {self.num_components} outcomes; give one "
                "for each"
            )

    @property
    def clips_locally(self) -> bool:
        """Whether each party clips its own scores, so that no norm is computed together."""
        return self.clip_parts is not None

    @property
    def residual_bounds(self) -> tuple[float, ...]:
        """The b of each component."""
        bound = self.residual_bound
        return bound if isinstance(bound, tuple) else (bound,) * self.num_components

    @property
    def num_inputs(self) -> int:
        """Z, the numbers that a record's parties contribute to the link."""
        return self.link.num_inputs(self.num_components)

    def contributed(self, contribution: Float[Array, "n _"], party: int | None = None) -> Float[Array, "n Z"]:
        """What a party, by its number, or the prior puts in under the link's bound."""
        return self.link.contributed(contribution, self.num_components, party)

    @property
    def num_padded(self) -> int:
        """Records that one sum is over, padding included."""
        return self.batch_size * self.num_blocks

    def blocks(self, rows: Any) -> Any:
        """A batch's rows [n] as [num_blocks, batch_size], padded with zeros: record 0, which the mask leaves out."""
        module = jnp if isinstance(rows, jax.Array) else np
        return module.pad(rows, (0, self.num_padded - len(rows))).reshape(self.num_blocks, self.batch_size)
