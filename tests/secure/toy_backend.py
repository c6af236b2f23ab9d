"""A whole backend in one short class: it computes every record's gradient, clips it, and rounds the sum."""

import jax.numpy as jnp

from vertinumpyro.core import compat, ring
from vertinumpyro.secure.backend import BackendInfo, InProcess, check_shape, over_blocks, total
from vertinumpyro.secure.input_bounds import SCORE_BOUND, bounded, bounded_prior
from vertinumpyro.secure.number_formats import fixed_point_format
from vertinumpyro.secure.plaintext import FloatArithmetic


class Toy(InProcess):
    option = "toy"

    def info(self):
        nothing = {"who_learns_what": "everybody everything", "dealer": "none", "ring": "modulo 2^64"}
        return BackendInfo(name="toy", security_model="none", precision="float64", **nothing)

    def grid_bits(self, shape):
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape, *, score_norm=SCORE_BOUND):
        return 1e-11 * shape.batch_size * shape.clip_norm

    def clipped_noisy_sum(self, shape, contributions, prior, mask, noise_shares):
        limits, bits = (shape.clip_norm, shape.link.bounded), self.grid_bits(shape)
        prior = bounded_prior(prior, *limits)

        def summed(contributions, mask):
            check_shape(shape, contributions, prior, mask)
            parties = [bounded(c, *limits).without_tables() for c in contributions]
            e = shape.link.weights(FloatArithmetic(), sum((c.log_density for c in parties), start=prior.log_weights))
            r = e / e.sum(-1, keepdims=True)
            g = [r @ prior.scores]
            for c in parties:
                g += [(r[..., None] * c.plated_scores).reshape(len(r), -1), (r[..., None] * c.shared_scores).sum(1)]
            g = jnp.concatenate(g, axis=1)
            factor = mask / jnp.maximum(1, jnp.linalg.norm(g, axis=1) / shape.clip_norm)
            return ring.encode(factor @ g, bits)

        with compat.x64():
            return ring.decode(over_blocks(summed, contributions, mask) + total(noise_shares), bits)
