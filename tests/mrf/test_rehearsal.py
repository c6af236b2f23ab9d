"""What follows the releases is tried, and its memory proved, before anything is spent."""

import dataclasses
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")

from tests.mrf.conftest import SCHEMA, frame
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import CategoricalColumn, PartySchema, Schema, TableFacts, VerticalDataset
from vertinumpyro.mrf import VertiMRF, table_selection, vertimrf
from vertinumpyro.mrf import preflight as rehearsal
from vertinumpyro.mrf.preflight import rehearse_field
from vertinumpyro.mrf.twin import MarkovTwin
from vertinumpyro.privacy import OUTSIDE_ANALYST, PrivacyWarning
from vertinumpyro.session import InProcessSession

SYSTEM = VertiMRF(max_cells=3, iterations=20, clique_limit=1_000)
ADAPTIVE = dataclasses.replace(SYSTEM, selection="adaptive", num_rounds=2, tables_per_round=2)
SKETCH = dataclasses.replace(SYSTEM, encoder="sketch", num_keys=50)
RESPONSE = dataclasses.replace(SYSTEM, encoder="randomized_response")


class ServersError(Exception):
    pass


def planned(system, facts, **settings):
    """A plan for everyone; sketches have none but for the outside analyst."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return system.plan(facts, adversary=OUTSIDE_ANALYST if system.encoder == "sketch" else None, **settings)


def fail(*args, **kwargs):
    raise ServersError


@pytest.fixture(scope="module")
def few():
    held = {"clinic": ("smoker", "ill"), "insurer": ("visits", "income")}
    schema = Schema({party: PartySchema({n: SCHEMA.columns[n] for n in own}) for party, own in held.items()})
    return VerticalDataset.from_pooled(schema, frame(num_records=200)[list(schema.columns)])


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (table_selection, "select_measurements"),
        (vertimrf, "fit_graphical_model"),
        (rehearsal, "worst_fitted"),
        (rehearsal, "pack_released"),
        (rehearsal, "pack_model"),
        (MarkovTwin, "sample_synthetic"),
    ],
)
def test_a_fit_that_cannot_end_well_spends_nothing(few, tmp_path, monkeypatch, where, name):
    plan = ADAPTIVE.plan(few, epsilon=3.0)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, fail)
        patch.setattr(InProcessSession, "open", None)
        with pytest.raises(ServersError):
            ADAPTIVE.fit(few, plan, run_dir=tmp_path)
    assert not list(tmp_path.iterdir())
    ADAPTIVE.fit(few, plan, run_dir=tmp_path)


@pytest.mark.parametrize("system", [SYSTEM, ADAPTIVE, SKETCH, RESPONSE], ids=lambda s: s.encoder + s.selection)
def test_stand_ins_are_uniform_and_as_many_as_large_and_as_noisy_as_what_is_released(few, monkeypatch, system):
    plan, seen = planned(system, few, epsilon=8.0), []

    def estimate(columns, measurements):
        seen.append(measurements)
        return system._field(plan, columns, measurements, iterations=1)

    with monkeypatch.context() as patch:
        patch.setattr(VerticalDataset, "arrays", fail)  # nothing of a party is looked at
        rehearse_field(few.schema, system.columns(few.schema), plan, estimate)
    twin = system.fit(few, plan)
    stand_ins = seen[-1]
    assert all(np.ptp(m.values) < 1e-9 and m.values.sum() == pytest.approx(few.num_records) for m in stand_ins)
    released = twin.measurements
    chosen = len(stand_ins) - plan.num_rounds * plan.tables_per_round
    assert [m.columns for m in stand_ins[:chosen]] == [m.columns for m in released[:chosen]]
    assert len(stand_ins) == len(released)
    if system is SKETCH or system is RESPONSE:  # theirs follows from the reports
        return
    assert [m.stddev for m in stand_ins] == [m.stddev for m in released]


def test_one_step_of_mirror_descent_is_rehearsed_not_all(few, monkeypatch):
    taken, original = [], vertimrf.fit_graphical_model

    def fit(*args, iterations, **kwargs):
        taken.append(iterations)
        return original(*args, iterations=iterations, **kwargs)

    monkeypatch.setattr(vertimrf, "fit_graphical_model", fit)
    SYSTEM.fit(few, SYSTEM.plan(few, epsilon=3.0))
    assert taken == [1, SYSTEM.iterations]


def test_only_finer_histograms_are_enough_for_a_field():
    """One binned column at each party, and nothing across: no table that a field could be fitted to."""
    schema = Schema({"a": PartySchema({"x": SCHEMA.columns["age"]}), "b": PartySchema({"y": SCHEMA.columns["age"]})})
    rng = np.random.default_rng(0)
    held = VerticalDataset.from_pooled(schema, pd.DataFrame({name: rng.uniform(0, 100, 200) for name in "xy"}))
    twin = SYSTEM.fit(held, SYSTEM.plan(held, epsilon=3.0, cross_share=0.0))
    assert twin.measurements == ()
    assert twin.fine.keys() == {"x", "y"}


# -- memory --------------------------------------------------------------------------------------------


def wide_facts(*sizes, num_records=2000):
    """A party for each column."""
    columns = {f"c{i}": CategoricalColumn(categories=tuple(map(str, range(size)))) for i, size in enumerate(sizes)}
    return TableFacts(Schema({f"p{name}": PartySchema({name: c}) for name, c in columns.items()}), num_records)


def test_cliques_take_what_memory_leaves_and_a_minute_unless_a_limit_says_otherwise():
    facts, few, many = wide_facts(*[20] * 8), VertiMRF(memory_limit=2**30), VertiMRF(memory_limit=2**34)
    plan = planned(few, facts, epsilon=3.0)
    cells = [s._most_cells(s.columns(facts.schema), plan) for s in (few, many, VertiMRF(clique_limit=5_000))]
    assert cells == [120_000, 120_000, 5_000]
    tight = dataclasses.replace(few, memory_limit=few.memory(facts.schema, plan) - 2**20)
    assert 400 < tight._most_cells(tight.columns(facts.schema), plan) < 120_000
    assert tight.memory(facts.schema, plan) <= tight.memory_limit
    planned(tight, facts, epsilon=3.0)


@pytest.mark.parametrize(
    ("system", "facts", "remedy"),
    [
        (VertiMRF(clique_limit=10**8), wide_facts(*[20] * 8), "lower clique_limit"),
        (VertiMRF(), wide_facts(*[400] * 32), r"'c0' with 400 cells.*set bins or lower max_cells"),
        (VertiMRF(encoder="sketch", num_keys=10**6), wide_facts(200, 200), "lower num_keys"),
    ],
    ids=["clique_limit", "tables", "num_keys"],
)
def test_what_may_not_fit_is_refused_when_it_is_planned_and_says_what_to_change(system, facts, remedy):
    with pytest.raises(ArgumentError, match=f"GiB, beyond memory_limit=2147483648.*{remedy}.*raise memory_limit"):
        planned(system, facts, epsilon=3.0)
    with pytest.raises(ArgumentError, match="memory_limit must be at least 1"):
        dataclasses.replace(system, memory_limit=0)


def test_it_is_refused_before_anything_is_spent_too(few, tmp_path):
    plan = SYSTEM.plan(few, epsilon=3.0)
    with pytest.raises(ArgumentError, match="memory_limit"):
        dataclasses.replace(SYSTEM, memory_limit=10**6).fit(few, plan, run_dir=tmp_path)
    assert not list(tmp_path.iterdir())
    SYSTEM.fit(few, plan, run_dir=tmp_path)


@pytest.mark.parametrize("system", [SYSTEM, ADAPTIVE], ids=["all", "adaptive"])
def test_the_bound_counts_every_table(dataset, monkeypatch, system):
    plan = system.plan(dataset, epsilon=30.0)
    found = system.release(dataset, plan)
    cells = sum(m.values.size for m in found.measurements) + sum(values.size for values in found.fine.values())
    assert cells <= rehearsal._table_cells(found.columns, plan) < 10 * cells


SCRIPT = """
import numpy as np, pandas as pd
from vertinumpyro.data import CategoricalColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.mrf import VertiMRF
column = CategoricalColumn(categories=tuple(f"v{i}" for i in range(200)))
schema = Schema({"a": PartySchema({"x": column}), "b": PartySchema({"y": column})})
rng = np.random.default_rng(0)
frame = pd.DataFrame({name: [f"v{i}" for i in rng.integers(200, size=1000)] for name in "xy"})
held = VerticalDataset.from_pooled(schema, frame)
system = VertiMRF(iterations=3)
twin = system.fit(held, system.plan(held, epsilon=3.0))
assert twin.measurements[0].values.shape == (200, 200)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_two_columns_of_200_categories_fit_in_2_gib():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < VertiMRF().memory_limit
