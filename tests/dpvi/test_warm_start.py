"""Steps that start from noisy tables: what both cost together, one run for both, and what a party lets through."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from numpyro.infer import init_to_median
from numpyro.infer.autoguide import AutoIAFNormal, AutoNormal

from vertinumpyro.core.errors import ArgumentError, InferenceWarning, PlanSpentError, RangeError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, Schema, TableFacts, VerticalDataset
from vertinumpyro.dpvi import DPVI, inference, initial_state
from vertinumpyro.dpvi.settings import START_SHARE, WARM_STEPS, default_components
from vertinumpyro.dpvi.training_loop import CHECKPOINT
from vertinumpyro.marginals import MarginalInference
from vertinumpyro.model import party_plate, split_model
from vertinumpyro.mrf import Marginals, MRFPlan, VertiMRF
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.mrf.releases import ACROSS, OWN
from vertinumpyro.privacy import GradientPlan, NoiseSource, NoSteps, Plan, PoissonSampling
from vertinumpyro.privacy.ledger import Ledger, read_record
from vertinumpyro.reports.plain_language import plan_facts, report_facts
from vertinumpyro.reports.posterior import PosteriorReport
from vertinumpyro.reports.run_report import RunFacts
from vertinumpyro.secure import Crypten
from vertinumpyro.session import PRIVACY_RECORD, InProcessSession, Multiply, PartyTask, ProcessSession, Publish, Sum
from vertinumpyro.session.run import Payload, Run

N = 4000
SCHEMA = Schema(
    {
        "clinic": PartySchema({"ill": BinaryColumn(), "ward": CategoricalColumn(categories=("a", "b", "c"))}),
        "insurer": PartySchema({"claim": BinaryColumn(), "plan": CategoricalColumn(categories=("x", "y", "z"))}),
    }
)
FACTS = TableFacts(SCHEMA, N)
KEY = jax.random.key(0)
with_engine = pytest.mark.skipif(not has_engine(), reason="the engine of Markov fields: extra `mrf`")


@pytest.fixture(scope="module")
def dataset() -> VerticalDataset:
    """Ill people claim, and lie in the ward that their plan pays for."""
    rng = np.random.default_rng(0)
    ill, kind = rng.random(N) < 0.4, rng.integers(0, 3, N)
    flip = rng.random((2, N)) < 0.1
    clinic = {"ill": ill.astype(np.int32), "ward": np.where(flip[0], (kind + 1) % 3, kind).astype(np.int32)}
    insurer = {"claim": (ill ^ flip[1]).astype(np.int32), "plan": kind.astype(np.int32)}
    return VerticalDataset(SCHEMA, {"clinic": clinic, "insurer": insurer})


def steps_after(start: Plan | None, **changes) -> GradientPlan:
    settings = {
        "sampling": PoissonSampling(sampling_prob=1.0, num_steps=10, max_batch_size=N),
        "clip_norm": 1.0,
        "noise": NoiseSource(num_parties=2),
        "grid_bits": 24,
        "num_records": N,
        "parties": tuple(SCHEMA.parties),
        "delta": 1e-5,
        "start": start,
    }
    return GradientPlan.calibrated(epsilon=1.0, **{**settings, **changes})


def tables(epsilon: float = 0.5, **changes) -> MRFPlan:
    return VertiMRF().plan(FACTS, epsilon=epsilon, **changes)


# -- the plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
def test_every_row_is_the_cost_of_both_by_an_accountant_that_knows_nothing_of_us(relation):
    start = tables(relation=relation)
    plan = steps_after(start, relation=start.relation)
    assert 0.999 < plan.worst.epsilon <= 1.0
    for row, observer in zip(plan.adversaries, plan.observers, strict=True):
        mu = start.relation.sensitivity / start.event(observer).noise_multiplier
        sigma = plan.noisy_sum.effective_noise_multiplier(observer.colluders) / start.relation.sensitivity
        composed = from_gaussian_mechanism(1 / mu).compose(from_gaussian_mechanism(sigma).self_compose(10))
        assert row.epsilon == pytest.approx(composed.get_epsilon_for_delta(1e-5), rel=1e-3)
        assert row.epsilon > max(
            start.epsilon(row.adversary), dataclasses.replace(plan, start=None).epsilon(row.adversary)
        )


def test_nothing_is_said_of_add_remove_beside_tables_under_replace():
    """Their event states the shift under replace; half of it, as of a sum, would be less than the truth."""
    plan = steps_after(tables())
    assert dataclasses.replace(plan, start=None).comparisons
    assert plan.comparisons == ()
    assert all(row["claim"] for row in plan.table_rows())
    with pytest.raises(ArgumentError, match="add/remove"):
        _ = plan.comparison


def test_the_plan_counts_both_and_survives_json():
    plan = steps_after(tables())
    assert (plan.num_steps, plan.first_gradient, plan.num_gradients) == (12, 2, 10)
    assert plan.step_names[:3] == ("the parties' own tables", plan.start.step_names[1], "a noisy sum")
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.fingerprint() == plan.fingerprint()
    assert isinstance(again.start, MRFPlan)
    cold = steps_after(None)
    assert "start" not in cold.to_dict()  # as plans from before were written


def test_what_cannot_be_composed_is_refused():
    with pytest.raises(ArgumentError, match="Gaussian; let every step take all records"):
        steps_after(tables(), sampling=PoissonSampling.for_batch_size(100, N, 10))
    with pytest.raises(ArgumentError, match="start was planned for another num_records"):
        steps_after(VertiMRF().plan(TableFacts(SCHEMA, N + 1), epsilon=0.5))
    with pytest.raises(ArgumentError, match="start was planned for another relation"):
        steps_after(tables(epsilon=0.1, relation="add_remove"))
    with pytest.raises(ArgumentError, match="it takes 1 of epsilon=1 already"):
        steps_after(tables(epsilon=1.0))
    encoded = VertiMRF(encoder="sketch").plan(TableFacts(SCHEMA, N), epsilon=0.5, adversary="outside analyst")
    with pytest.raises(ArgumentError, match="'vertimrf' that is not Gaussian cannot come before the steps"):
        steps_after(encoded, adversary="outside analyst")


@pytest.mark.parametrize(("size", "cold", "warm"), [(1000, 20, 20), (30_000, 20, 75), (10**7, 20, 200)])
def test_many_records_carry_many_components_where_tables_find_them(size, cold, warm):
    assert (default_components(size, warm=False), default_components(size, warm=True)) == (cold, warm)


# -- which start -----------------------------------------------------------------------------------


@with_engine
def test_steps_start_from_tables_and_everybody_gets_epsilon():
    plan = DPVI(num_components=2, warm_start=True).plan(FACTS, epsilon=1.0)
    assert isinstance(plan.start, MRFPlan)
    assert (plan.sampling.full_batch, plan.num_gradients) == (True, WARM_STEPS)
    assert 0.999 < plan.worst.epsilon <= 1.0
    bought = [
        (plan.relation.sensitivity / plan.start.event(observer).noise_multiplier) ** 2 for observer in plan.observers
    ]
    whole = [tables(1.0).relation.sensitivity / tables(1.0).event(o).noise_multiplier for o in plan.observers]
    np.testing.assert_allclose(bought, START_SHARE * np.square(whole), rtol=1e-3)


@with_engine
def test_where_tables_hold_all_they_have_all_of_the_budget_and_the_plan_says_so():
    dpvi = DPVI(num_components=2)
    plan, whole = dpvi.plan(FACTS, epsilon=0.2), tables(0.2)
    assert (plan.num_gradients, plan.num_steps, plan.step_names) == (0, 2, plan.start.step_names)
    for observer in plan.observers:
        assert plan.event(observer) == plan.start.event(observer) == whole.event(observer)
        assert plan.row(observer) == plan.start.row(observer)
    assert plan.worst.epsilon <= 0.2
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert (again, again.fingerprint(), dpvi.split(SCHEMA, again).num_components) == (plan, plan.fingerprint(), 2)
    for said in (str(plan), repr(plan), plan_facts(plan, "fixed_point")["steps"], report_facts(plan, "")["steps"]):
        assert "none, since they would add nothing" in " ".join(said.split())
    assert not plan.steps_note == steps_after(tables()).steps_note == ""
    assert dpvi.computations(FACTS, plan) == VertiMRF().computations(FACTS, plan.start)


@with_engine
@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({"warm_start": True}, {}),
        ({"learning_rate": 0.1}, {}),
        ({"guide": AutoNormal}, {}),
        ({"diagnostics": True}, {}),
        ({}, {"num_steps": WARM_STEPS}),
        ({}, {"clip_norm": 1.0}),
        ({}, {"batch_size": N}),
    ],
    ids=lambda value: next(iter(value), "-"),
)
def test_who_asks_for_steps_has_them(settings, given):
    plan = DPVI(num_components=2, **settings).plan(FACTS, epsilon=0.2, **given)
    assert (plan.num_gradients, plan.start is not None) == (WARM_STEPS, True)
    assert plan.steps_note == ""


def tied(data, num_records):
    """The clinic's columns by themselves, the insurer's claim by two columns of its own."""
    ward = numpyro.sample("ward_probs", dist.Dirichlet(np.ones(3)))
    kind = numpyro.sample("plan_probs", dist.Dirichlet(np.ones(3)))
    chance = numpyro.sample("chance", dist.Beta(1.0, 1.0).expand([3, 2]).to_event(2))
    with party_plate("clinic", num_records):
        numpyro.sample("ward", dist.Categorical(ward), obs=data["ward"])
    with party_plate("insurer", num_records):
        numpyro.sample("plan", dist.Categorical(kind), obs=data["plan"])
        smokes = numpyro.sample("smokes", dist.Bernoulli(0.5), obs=data["smokes"])
        numpyro.sample("claim", dist.Bernoulli(chance[data["plan"], data["smokes"]]), obs=data["claim"])
    assert smokes is not None


@with_engine
def test_three_columns_that_a_party_ties_together_are_worth_steps():
    insurer = {**SCHEMA.parties["insurer"].columns, "smokes": BinaryColumn()}
    schema = Schema({"clinic": SCHEMA.parties["clinic"], "insurer": PartySchema(insurer)})
    plan = DPVI(tied).plan(TableFacts(schema, N), epsilon=0.2)
    assert (plan.num_gradients, isinstance(plan.start, MRFPlan)) == (WARM_STEPS, True)


@with_engine
@pytest.mark.parametrize(
    ("components", "epsilon", "steps"), [(2, 1.0, True), (1, 1.0, False), (20, 1.0, False), (20, 10.0, True)]
)
def test_a_mixture_is_worth_steps_where_they_see_a_component_beside_their_noise(components, epsilon, steps):
    assert bool(DPVI(num_components=components).plan(FACTS, epsilon=epsilon).num_gradients) is steps


@with_engine
def test_more_records_than_a_sum_has_room_for_are_learned_from_tables_and_steps_take_as_many_as_there_is_room_for():
    """A million records of many columns were refused, however the plan was asked for."""
    facts = TableFacts(SCHEMA, 20_000_000)
    assert DPVI(num_components=2).plan(facts, epsilon=10.0, delta=1e-9).num_gradients == 0
    for settings, given in (({"warm_start": False}, {}), ({}, {"num_steps": 5})):
        plan = DPVI(num_components=2, **settings).plan(facts, epsilon=10.0, delta=1e-9, **given)
        assert 1e5 < plan.sampling.max_batch_size < 2e6
        assert plan.num_gradients == given.get("num_steps", 150)
    with pytest.raises(ArgumentError, match=r"room for [0-9,]+ at this clip_norm; leave warm_start out"):
        DPVI(warm_start=True).plan(facts, epsilon=10.0, delta=1e-9)
    with pytest.raises(RangeError, match="lower clip_norm, the batch size"):
        DPVI(warm_start=False).plan(facts, epsilon=10.0, delta=1e-9, batch_size=20_000_000)


def test_a_plan_that_releases_nothing_is_refused():
    with pytest.raises(ArgumentError, match="it releases nothing; give steps"):
        dataclasses.replace(steps_after(None), sampling=NoSteps())


@with_engine
def test_the_mixture_is_that_of_the_plan():
    facts = TableFacts(SCHEMA, 20_000)
    plan = DPVI(warm_start=True).plan(facts, epsilon=1.0)
    alone = DPVI().plan(facts, epsilon=1.0)
    cold = DPVI(warm_start=False).plan(facts, epsilon=1.0)
    assert [DPVI().split(SCHEMA, given).num_components for given in (alone, plan, cold, None)] == [400, 50, 20, 20]
    assert {DPVI(num_components=3).split(SCHEMA, given).num_components for given in (alone, plan)} == {3}
    assert DPVI().kernel(facts, plan, KEY)[0].shape.num_components == 50


@with_engine
def test_the_mixture_of_a_plan_is_checked_once(monkeypatch):
    checked = []

    def counted(model, schema, kwargs):
        checked.append(split_model(model, schema, kwargs))
        return checked[-1]

    monkeypatch.setattr(inference, "split_model", counted)
    dpvi, facts = DPVI(), TableFacts(SCHEMA, 20_000)
    plan = dpvi.plan(facts, epsilon=1.0, num_steps=25)
    assert [split.num_components for split in checked] == [50]
    assert dpvi.split(SCHEMA, plan) is checked[0]


@with_engine
@pytest.mark.parametrize(
    ("dpvi", "settings", "why"),
    [
        ({"init_loc_fn": init_to_median}, {}, "init_loc_fn says where to start"),
        ({"guide": AutoIAFNormal}, {}, "no location"),
        ({}, {"epsilon": None, "noise_multiplier": 5.0}, "give epsilon"),
        ({}, {"batch_size": 100}, "take all records"),
        ({}, {"adversary": "outside analyst"}, "take all records"),
    ],
    ids=["init_loc_fn", "flow", "noise_multiplier", "batch_size", "adversary"],
)
def test_where_tables_cannot_be_had_the_start_is_random_or_refused(dpvi, settings, why):
    given = {"epsilon": 1.0, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert DPVI(num_components=2, **dpvi).plan(FACTS, **given).start is None
        with pytest.raises(ArgumentError, match=why):
            DPVI(num_components=2, warm_start=True, **dpvi).plan(FACTS, **given)


def test_columns_too_wide_for_tables_start_from_random_values():
    wide = {name: CategoricalColumn(categories=tuple(map(str, range(900)))) for name in ("a", "b")}
    facts = TableFacts(Schema({"clinic": PartySchema({"a": wide["a"]}), "bank": PartySchema({"b": wide["b"]})}), N)
    assert DPVI(num_components=2).plan(facts, epsilon=1.0).start is None
    with pytest.raises(ArgumentError, match="clique_limit" if has_engine() else "extra `mrf`"):
        DPVI(num_components=2, warm_start=True).plan(facts, epsilon=1.0)


def test_without_the_engine_the_start_is_random(monkeypatch):
    monkeypatch.setattr(initial_state, "has_engine", lambda: False)
    assert DPVI(num_components=2).plan(FACTS, epsilon=1.0).start is None
    with pytest.raises(ArgumentError, match="extra `mrf`"):
        DPVI(num_components=2, warm_start=True).plan(FACTS, epsilon=1.0)


# -- the run ---------------------------------------------------------------------------------------


def test_a_run_keeps_what_a_step_released_beside_the_state_that_replaces_itself(tmp_path):
    plan = steps_after(tables())
    with Run.opened(plan, tmp_path, results=CHECKPOINT) as run:
        for step in range(2):
            run.step(step, lambda: Payload({"tables": 1}, {"values": np.arange(3.0)}))
        run.commit_state(4, {".params['a/b']": np.ones(2)})
    with Run.opened(plan, tmp_path, results=CHECKPOINT, resume=True) as run:
        assert run.ledger.steps_spent == 6
        np.testing.assert_array_equal(run.stored(1).arrays["values"], np.arange(3.0))
        assert list(run.state()) == [".params['a/b']"]
        assert run.missing() == tuple(plan.step_names[2:6])
        run.commit_state(6, {".params['a/b']": np.zeros(2)})
    with Run.opened(plan, tmp_path, results=CHECKPOINT, resume=True) as run:
        assert (run.stored_steps, run.state()[".params['a/b']"].sum()) == (frozenset({0, 1}), 0.0)


class DiedError(Exception):
    pass


@pytest.mark.promise
@with_engine
@pytest.mark.parametrize("after", [1, 60], ids=["own tables", "some steps"])
def test_a_run_that_died_goes_on_where_it_was_and_spends_nothing_twice(dataset, tmp_path, monkeypatch, after):
    dpvi = DPVI(num_components=2)
    plan = dpvi.plan(dataset, epsilon=1.0, num_steps=80)

    def dying(reserve):
        def reserved(ledger, num_steps=1):
            if ledger.steps_spent + num_steps > after:
                raise DiedError
            return reserve(ledger, num_steps)

        return reserved

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "reserve", dying(Ledger.reserve))
        with pytest.raises(DiedError):
            dpvi.fit(dataset, plan, KEY, run_dir=tmp_path / "run", progress_bar=False)
    spent = read_record(tmp_path / "run" / PRIVACY_RECORD).steps_spent
    assert 0 < spent <= after
    released = []
    monkeypatch.setattr(InProcessSession, "publish", lambda *arguments: released.append("publish"))
    if after > 1:
        monkeypatch.setattr(InProcessSession, "cross_products", lambda *arguments: released.append("products"))
    posterior = dpvi.fit(dataset, plan, KEY, run_dir=tmp_path / "run", resume=True, progress_bar=False)
    assert not released
    posterior.marginals.save(tmp_path / "run")
    kept = Marginals.load(tmp_path / "run")
    assert kept.plan == plan.start
    assert {table.columns for table in kept.measurements} >= {("ill", "claim"), ("ward", "plan")}
    assert len(posterior.diagnostics.released_norm) == 82 - max(spent, 2)
    assert read_record(tmp_path / "run" / PRIVACY_RECORD).steps_spent == 82
    with pytest.raises(PlanSpentError):
        dpvi.fit(dataset, plan, KEY, progress_bar=False)


@with_engine
@pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning")
def test_it_learns_more_than_steps_from_random_values(dataset):
    nll = {}
    for warm in (True, False):
        dpvi = DPVI(num_components=4, warm_start=warm)
        plan = dpvi.plan(dataset, epsilon=0.2)
        posterior = dpvi.fit(dataset, plan, KEY, progress_bar=False, insecure_seed=1)
        nll[warm] = posterior.held_out_nll(dataset)
    assert nll[True] < nll[False] - 0.05, nll


@with_engine
def test_guides_of_the_users_start_there_too_and_a_saved_posterior_loads(dataset, tmp_path):
    dpvi = DPVI(num_components=2, guide=AutoNormal)
    plan = dpvi.plan(dataset, epsilon=2.0, num_steps=5)
    posterior = dpvi.fit(dataset, plan, KEY, progress_bar=False)
    independent = DPVI(num_components=1, warm_start=False, guide=AutoNormal)
    cold = independent.fit(dataset, independent.plan(dataset, epsilon=2.0, num_steps=5), KEY, progress_bar=False)
    assert posterior.held_out_nll(dataset) < cold.held_out_nll(dataset) - 0.2
    posterior.save(tmp_path / "posterior.npz")
    loaded = dpvi.load(tmp_path / "posterior.npz")
    assert loaded.plan == plan
    assert math.isclose(loaded.held_out_nll(dataset), posterior.held_out_nll(dataset), rel_tol=1e-6)


@with_engine
def test_the_steps_start_exactly_at_the_fit_however_small_its_shares(dataset, monkeypatch):
    """Through a simplex of single precision a share of 1e-8 comes back as another number, or as none."""
    found, started = [], []
    fit, run_steps = MarginalInference.fit, inference.run_steps

    def extreme(self, release, rng_key, **settings):
        posterior = fit(self, release, rng_key, **settings)
        found.append(np.linspace(-40.0, 40.0, posterior.split.num_parameters).astype(np.float32))
        return dataclasses.replace(posterior, middle=found[0])

    def remembered(session, run, kernel, runner, state, **settings):
        started.append(np.asarray(kernel.guide.location(state.params)))
        return run_steps(session, run, kernel, runner, state, **settings)

    monkeypatch.setattr(MarginalInference, "fit", extreme)
    monkeypatch.setattr(inference, "run_steps", remembered)
    dpvi = DPVI(num_components=2)
    posterior = dpvi.fit(dataset, dpvi.plan(dataset, epsilon=1.0, num_steps=3), KEY, progress_bar=False)
    np.testing.assert_array_equal(started[0], found[0])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(posterior.params))


@with_engine
@pytest.mark.parametrize("how", ["refused", "not finite"])
def test_a_fit_to_the_tables_that_fails_costs_no_step(dataset, monkeypatch, how):
    fit = MarginalInference.fit

    def failing(self, release, rng_key, **settings):
        if how == "refused":
            raise ArgumentError("no such law")
        posterior = fit(self, release, rng_key, **settings)
        return dataclasses.replace(posterior, middle=np.full_like(posterior.middle, np.nan))

    monkeypatch.setattr(MarginalInference, "fit", failing)
    dpvi = DPVI(num_components=2)
    plan = dpvi.plan(dataset, epsilon=1.0, num_steps=3)
    with pytest.warns(InferenceWarning, match=f"start from init_loc_fn's values: .*({how}|no such law)"):
        posterior = dpvi.fit(dataset, plan, KEY, progress_bar=False)
    assert len(posterior.diagnostics.released_norm) == 3
    assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(posterior.params))


@pytest.mark.promise
@with_engine
def test_without_steps_the_posterior_is_the_model_of_the_tables_and_spends_no_more(dataset, tmp_path, monkeypatch):
    dpvi = DPVI(num_components=2)
    plan, folder = dpvi.plan(dataset, epsilon=0.2), tmp_path / "run"
    posterior = dpvi.fit(dataset, plan, KEY, run_dir=folder, progress_bar=False)
    assert read_record(folder / PRIVACY_RECORD).steps_spent == plan.num_steps == 2
    assert posterior.marginals.plan == plan.start
    assert (posterior.diagnostics.released_norm.size, posterior.is_interval) == (0, False)
    assert "none, since they would add nothing" in repr(posterior)
    assert "did not end" not in posterior.convergence_note
    monkeypatch.setattr(MarginalInference, "fit", None)  # what is stored is not fitted again
    again = dpvi.fit(dataset, plan, KEY, run_dir=folder, resume=True, progress_bar=False)
    posterior.save(tmp_path / "posterior.npz")
    for found in (again, dpvi.load(tmp_path / "posterior.npz")):
        np.testing.assert_array_equal(found.centre(), posterior.centre())
    report = PosteriorReport(result=posterior, run=RunFacts(rng_key=KEY))
    assert "noisy gradients" not in report.summary(None)[0]
    with pytest.raises(PlanSpentError):
        dpvi.fit(dataset, plan, KEY, progress_bar=False)
    independent = DPVI(num_components=1, warm_start=False)
    cold = independent.fit(dataset, independent.plan(dataset, epsilon=2.0, num_steps=60), KEY, progress_bar=False)
    assert posterior.held_out_nll(dataset) < cold.held_out_nll(dataset) - 0.1


# -- a party ---------------------------------------------------------------------------------------


def test_a_partys_part_is_the_tables_then_the_steps(dataset):
    dpvi = DPVI(num_components=2, warm_start=False)
    plan = dataclasses.replace(dpvi.plan(dataset, epsilon=1.0, num_steps=10), start=tables(), plan_id="both")
    source = SystemRandomSource()
    work = dpvi.work(FACTS, "clinic", dataset.arrays("clinic"), plan, source)
    work.check(Publish(0, OWN))
    work.check(Multiply(1, ACROSS, {"release": 0}))
    for request in (
        Publish(2, OWN),
        Multiply(2, ACROSS, {"release": 0}),
        Multiply(1, ACROSS, {"release": 1}),
        Sum(0, "steps"),
    ):
        with pytest.raises(ArgumentError, match="not what the plan releases"):
            work.check(request)
    assert work.factor(Multiply(1, ACROSS, {"release": 0})).shape == (N, 5)
    without = dpvi.work(FACTS, "clinic", dataset.arrays("clinic"), dataclasses.replace(plan, start=None), source)
    with pytest.raises(ArgumentError, match="not what the plan releases"):
        without.check(Publish(0, OWN))


# -- between processes -----------------------------------------------------------------------------


@with_engine
@pytest.mark.skipif(Crypten().missing() is not None, reason="parties as processes: extra `crypten`")
@pytest.mark.parametrize("num_steps", [3, 0])
def test_parties_in_processes_release_tables_and_steps_in_one_run(dataset, tmp_path, num_steps):
    frame = dataset.to_frame()
    frame.insert(0, SCHEMA.id_column, [f"{i:05d}" for i in range(N)])
    build = functools.partial(DPVI, num_components=2, backend=Crypten())
    tasks = []
    for party, part in SCHEMA.parties.items():
        frame[[SCHEMA.id_column, *part.columns]].to_csv(tmp_path / f"{party}.csv", index=False)
        tasks.append(PartyTask(party=party, schema=SCHEMA.to_dict(), table=tmp_path / f"{party}.csv", build=build))
    dpvi = build()
    with ProcessSession(tasks) as session:
        plan = dpvi.plan(session, epsilon=2.0, num_steps=3) if num_steps else dpvi.plan(session, epsilon=0.2)
        posterior = dpvi.fit(session, plan, KEY, run_dir=tmp_path / "run", progress_bar=False)
    assert isinstance(plan.start, MRFPlan)
    for record in (tmp_path / "run", *(task.ledger_folder / plan.plan_id for task in tasks)):
        assert read_record(record / PRIVACY_RECORD).steps_spent == plan.num_steps == 2 + num_steps
    one = DPVI(num_components=1, warm_start=False)
    independent = one.fit(dataset, one.plan(dataset, epsilon=2.0, num_steps=60), KEY, progress_bar=False)
    assert posterior.held_out_nll(dataset) < independent.held_out_nll(dataset) - 0.1
