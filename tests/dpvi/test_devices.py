"""Several devices that share a batch take the steps of one device, up to the rounding of floats."""

import os
import re
import subprocess
import sys

import jax
import pytest

from tests.dpvi.four_devices import table
from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.dpvi import DPVI
from vertinumpyro.secure import Crypten, InsecureSimulation


def test_four_devices_of_the_host_fit_what_one_fits():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.dpvi.four_devices"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alike\n"), done.stderr


def test_more_devices_than_there_are():
    many, platform = len(jax.local_devices()) + 1, jax.default_backend().upper()
    method = DPVI(num_components=2, num_devices=many)
    plan = method.plan(table(), noise_multiplier=2.0, batch_size=20, num_steps=2)
    with pytest.raises(ArgumentError, match=f"num_devices={many}: JAX sees {many - 1} {platform} here"):
        method.fit(table(), plan, compat.random_key(0))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"num_devices": 0}, "num_devices=0; give 1 or more"),
        ({"num_devices": 2, "backend": Crypten()}, "which Crypten does not: leave num_devices out"),
        ({"num_devices": 2, "backend": InsecureSimulation(Crypten())}, "which InsecureSimulation does not: leave"),
    ],
)
def test_numbers_of_devices_that_no_fit_can_use(settings, match):
    with pytest.raises(ArgumentError, match=re.escape(match)):
        DPVI(**settings)
