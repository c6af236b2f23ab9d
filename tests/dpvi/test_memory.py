"""What a fit takes beside the columns, as its plan states it."""

import re
import subprocess
import sys

from vertinumpyro.data import TableFacts, load_rand_hie
from vertinumpyro.dpvi import DPVI

# In a process of its own, whose peak nothing else made. Its table has 20,000 records, some hundred KiB of columns.
FIT = """
import re, sys
import jax
import vertinumpyro as vnp

def kib(what):
    return int(re.search(rf"{what}:\\s+(\\d+)", open("/proc/self/status").read())[1])

dataset = vnp.load_rand_hie()
dpvi = vnp.DPVI(num_components=20, warm_start=False)
plan = dpvi.plan(dataset, epsilon=1.0, delta=1e-5, num_steps=2)
stated, before = dpvi.memory(dataset, plan), kib("VmRSS")
dpvi.fit(dataset, plan, jax.random.key(0), progress_bar=False)
print(stated, 1024 * (kib("VmHWM") - before))
"""


def test_a_fit_takes_no_more_than_its_plan_states():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIT], capture_output=True, text=True, check=True)
    stated, taken = map(int, re.findall(r"\d+", done.stdout))
    assert 0 < taken <= stated < 4 * 2**30


def test_it_does_not_grow_with_the_records_and_block_size_bounds_it():
    schema = load_rand_hie().schema

    def stated(num_records, **settings):
        facts = TableFacts(schema, num_records)
        dpvi = DPVI(num_components=20, warm_start=False, **settings)
        return dpvi.memory(facts, dpvi.plan(facts, epsilon=1.0, delta=1e-9, num_steps=2, clip_norm=0.01))

    assert stated(4_000_000) <= 1.01 * stated(2_000_000)
    assert stated(2_000_000, block_size=500) < stated(2_000_000)
