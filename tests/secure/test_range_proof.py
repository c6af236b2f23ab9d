import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.secure.problems import shape_of
from vertinumpyro.core.errors import RangeError
from vertinumpyro.secure import FixedPoint, Plaintext

BACKENDS = [FixedPoint(), Plaintext()]


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_norm": 2000.0}, "clip_norm"),
        ({"clip_norm": 1e-4}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"batch_size": 2**32}, "lower clip_norm, the batch size or the noise"),
        ({"noise_stddev": 1e9}, "lower clip_norm, the batch size or the noise"),
        ({"noise_stddev": math.inf}, "noise_stddev"),
        ({"noise_stddev": -1.0}, "noise_stddev"),
        ({"num_values": 2**21}, "lower the number of components"),
    ],
    ids=str,
)
def test_refuses_what_could_wrap_and_says_what_to_lower(backend, change, message):
    with pytest.raises(RangeError, match=message):
        backend.grid_bits(dataclasses.replace(shape_of(), **change))


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_refuses_too_many_components(backend):
    with pytest.raises(RangeError, match="lower the number of components"):
        backend.grid_bits(shape_of(K=500))


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@given(
    batch_size=st.integers(1, 2**32),
    clip_norm=st.floats(2.0**-10, 2.0**10),
    noise_stddev=st.floats(0, 1e10),
    num_parties=st.integers(1, 8),
)
def test_no_accepted_shape_can_wrap(backend, batch_size, clip_norm, noise_stddev, num_parties):
    shape = dataclasses.replace(
        shape_of(P=num_parties), batch_size=batch_size, clip_norm=clip_norm, noise_stddev=noise_stddev
    )
    try:
        bits = backend.grid_bits(shape)
    except RangeError:
        assume(False)
    largest = batch_size * Fraction(clip_norm) + 12 * Fraction(noise_stddev)
    assert largest * 2**bits < 2**63


def test_precision_is_spent_where_there_is_room():
    assert FixedPoint().grid_bits(shape_of(n=100)) == 51
    assert FixedPoint().grid_bits(shape_of(n=2**20, clip_norm=1.0)) == 42
