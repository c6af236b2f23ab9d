"""The transforms of latents are NumPyro's own maps, up to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints

from vertinumpyro.core import compat
from vertinumpyro.model.enumeration import transform_to


@pytest.mark.parametrize("shape", [(1,), (4, 2), (3, 40), (600,)])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_a_simplex_is_numpyros_with_its_gradient_and_jacobian(shape, scale):
    with compat.x64():
        rng = np.random.default_rng(0)
        x, weights = (
            jnp.asarray(scale * rng.normal(size=shape)),
            jnp.asarray(rng.normal(size=(*shape[:-1], shape[-1] + 1))),
        )
        ours, theirs = transform_to(constraints.simplex), biject_to(constraints.simplex)
        np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-9, atol=1e-300)
        found, expected = (jax.grad(lambda x, of=of: (weights * of(x)).sum())(x) for of in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(
            ours.log_abs_det_jacobian(x, ours(x)), theirs.log_abs_det_jacobian(x, theirs(x)), rtol=1e-9
        )


def test_in_single_precision_a_simplex_is_positive_and_adds_up_to_one():
    x = jnp.asarray(np.random.default_rng(0).normal(scale=4.0, size=(50, 399)), jnp.float32)
    found = transform_to(constraints.simplex)(x)
    assert found.dtype == jnp.float32
    assert (found[:, 0] > 0).all()
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-4)


@pytest.mark.parametrize(
    "support",
    [constraints.positive, constraints.unit_interval, constraints.real_vector, constraints.interval(2.0, 5.0)],
)
def test_other_supports_have_numpyros_own(support):
    assert transform_to(support) == biject_to(support)


def test_simplices_in_a_larger_event_are_found():
    support = constraints.independent(constraints.simplex, 1)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    assert type(transform_to(support).base_transform) is type(transform_to(constraints.simplex))
    np.testing.assert_allclose(transform_to(support)(x), biject_to(support)(x), rtol=1e-5)
    assert transform_to(support).log_abs_det_jacobian(x, transform_to(support)(x)).shape == ()


def test_a_simplex_takes_no_scan_of_slices():
    """NumPyro's cumulative product is slices and pads for each of its levels."""

    def slices_and_pads(transform):
        program = str(jax.make_jaxpr(jax.grad(lambda x: transform(x)[0]))(jnp.zeros(399)))
        return program.count("slice[") + program.count("pad[")

    assert 3 * slices_and_pads(transform_to(constraints.simplex)) < slices_and_pads(biject_to(constraints.simplex))
