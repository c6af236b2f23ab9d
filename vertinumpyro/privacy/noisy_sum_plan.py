"""What the plans of noisy sums share: one mechanism, its steps, and the noise of each share."""

from __future__ import annotations

import functools

import numpy as np

from vertinumpyro.core.rng import RandomSource
from vertinumpyro.privacy.accounting import PrivacyEvent
from vertinumpyro.privacy.adversary import Adversary, NoiseSource, NoisySum
from vertinumpyro.privacy.discrete_gaussian import sample_discrete_gaussian
from vertinumpyro.privacy.plan import Plan
from vertinumpyro.privacy.release import Release
from vertinumpyro.privacy.sampling import Sampling

__all__ = ["NoisySumPlan"]


class NoisySumPlan(Plan):
    """A plan that releases one noisy sum of clipped vectors at every step.

    A subclass is a frozen dataclass with these fields, and says who adds the noise.
    """

    sampling: Sampling
    clip_norm: float
    noise_multiplier: float
    grid_bits: int
    noise: NoiseSource

    @functools.cached_property
    def noisy_sum(self) -> NoisySum:
        """The released mechanism, as the accounting sees it."""
        return NoisySum(
            sampling=self.sampling,
            num_records=self.num_records,
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            grid_bits=self.grid_bits,
            noise=self.noise,
        )

    @property
    def covered(self) -> tuple[Adversary, ...]:
        """See `Plan.covered`."""
        return self.noise.covered(self.observers)

    @property
    def releases(self) -> tuple[Release, ...]:
        """The noisy sums of all steps."""
        return (self.noisy_sum,)

    def event(self, observer: Adversary) -> PrivacyEvent:
        """See `Plan.event`."""
        return self.noisy_sum.event(observer)

    @property
    def first_gradient(self) -> int:
        """How many steps of the ledger come before the first noisy sum."""
        return 0

    @property
    def num_gradients(self) -> int:
        """How many noisy sums there are."""
        return self.noisy_sum.num_steps

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of a noisy sum; never divide by the realised size."""
        return self.sampling.expected_batch_size(self.num_records)

    @property
    def num_shares(self) -> int:
        """How many noise vectors are added to each sum."""
        return self.noise.num_shares

    def noise_variance_per_share(self) -> int:
        """⌈C²σ²4^f/(n − c)⌉ of n shares of which c may not count, in grid units²."""
        return self.noisy_sum.share_variance

    def draw_noise_share(self, num_values: int, num_steps: int, source: RandomSource) -> np.ndarray:
        """One share of the noise: int64 `[num_steps, num_values]`, in units of 2^-grid_bits. Secret."""
        flat = sample_discrete_gaussian(self.noise_variance_per_share(), num_steps * num_values, source)
        return flat.reshape(num_steps, num_values)
