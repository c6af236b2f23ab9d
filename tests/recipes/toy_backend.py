"""The recipe's backend: the sums in floating point, as `Plaintext` has them, and integers in another order."""

import dataclasses
from typing import ClassVar, final

from vertinumpyro.core import compat, ring
from vertinumpyro.secure import BackendInfo, InProcess
from vertinumpyro.secure.backend import over_blocks, total
from vertinumpyro.secure.number_formats import fixed_point_format
from vertinumpyro.secure.plaintext import clipped_sum


@final
@dataclasses.dataclass(frozen=True)
class Backwards(InProcess):
    option: ClassVar[str] = "backwards"

    def info(self):
        nothing = {"who_learns_what": "everything", "dealer": "none", "ring": "none", "precision": "float64"}
        return BackendInfo(name="backwards", security_model="none", unproven=("floating point",), **nothing)

    def grid_bits(self, shape):
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape, *, score_norm=1.0):
        return 1e-11 * shape.batch_size * shape.clip_norm

    def clipped_noisy_sum(self, shape, contributions, prior, mask, noise_shares):
        with compat.x64():
            noise = ring.decode(total(noise_shares), self.grid_bits(shape))
            return over_blocks(lambda c, m: clipped_sum(shape, c, prior, m), contributions, mask) + noise

    def noisy_sum(self, vectors, noise_shares):
        return super().noisy_sum(vectors[::-1], noise_shares)
