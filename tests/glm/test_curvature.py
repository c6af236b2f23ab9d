"""Steps by noisy second moments: their H bounds every Hessian, and 20 of them come where 200 others do."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn", reason="the estimators are scikit-learn's: extra `report`")

from numpyro.infer.util import log_density

from tests.glm.conftest import SCHEMA
from tests.glm.test_glm import glm, without_privacy
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    PartySchema,
    RealColumn,
    Schema,
    TableFacts,
    VerticalDataset,
)
from vertinumpyro.dpvi.second_moments import MOST_COEFFICIENTS, MomentsPlan, SecondMoments
from vertinumpyro.dpvi.training_loop import ChunkRunner
from vertinumpyro.glm import FAMILIES, VerticalGLM, glm_model
from vertinumpyro.secure import Crypten
from vertinumpyro.session import PartyTask, ProcessSession, estimate_cost, session_of

needs_crypten = pytest.mark.skipif(Crypten().missing() is not None, reason=str(Crypten().missing()))

HELD = {"bank": ["income", "years", "late"], "telco": ["usage", "tariff"]}
BUILD = functools.partial(VerticalGLM, label="late", linear=["years"], backend=Crypten())
CURVED = [family for family in FAMILIES if family not in ("poisson", "negative_binomial", "gamma", "survival")]
pytestmark = pytest.mark.filterwarnings(
    "ignore::vertinumpyro.core.rng.InsecureRandomnessWarning", "ignore::vertinumpyro.core.errors.InferenceWarning"
)


@pytest.mark.parametrize("family", CURVED)
def test_h_bounds_the_hessian_of_the_potential_wherever_one_looks(dataset, family):
    model = glm(family, epsilon=2000.0)
    data, regression = model._prepared(dataset, None)
    # the potential has no record scaled down, as whitened ones may be
    dpvi = dataclasses.replace(model._dpvi(regression, model.plan(data)), warm_start=SecondMoments(whiten=False))
    plan = dpvi.plan(data, epsilon=2000.0)
    kernel, state = dpvi.kernel(data, plan, jax.random.key(0))
    session, warm = session_of(data, dpvi.backend), dpvi._start_of(plan)
    with session.open(dpvi, plan, run_dir=None, results="none", insecure_seed=0) as run:
        moments = warm.release(session, run, kernel.guide.split)
    begun = warm.state(moments, plan, kernel, state, jax.random.key(0), progress_bar=False)
    H = np.linalg.inv(np.asarray(begun.optimizer_state.inverse, np.float64) / data.num_records)
    split, pooled = kernel.guide.split, functools.partial(glm_model, **regression.model_kwargs)

    def potential(flat):
        return -log_density(pooled, (data.pooled(), data.num_records), {}, split.unflatten(flat))[0]

    hessian = jax.jit(jax.hessian(potential))
    for seed in range(4):
        exact = np.asarray(hessian(seed * 0.3 * jax.random.normal(jax.random.key(seed), (len(H),))))
        roots = np.linalg.eigvals(np.linalg.solve(H, exact)).real
        assert roots.max() < 1.001
    assert roots.max() > 0.05, "and is no wild overestimate"


@pytest.mark.parametrize("family", [*CURVED, "poisson", "gamma"])
def test_the_defaults_few_steps_come_where_the_model_without_privacy_is(dataset, family):
    model = glm(family, epsilon=2000.0)
    plan = model.plan(dataset, clip_norm=4 * model.plan(dataset).clip_norm)
    assert (plan.num_gradients, plan.start is not None) == (20, True)
    model.fit(dataset, plan=plan)
    point = without_privacy(dataset, model.model_kwargs_)
    exact = [point["income_coef"], point["usage_coef"]]
    found = dict(zip(model.feature_names(), model.coef_, strict=True))
    unit = FAMILIES[family].unit
    np.testing.assert_allclose([found["income"], found["usage"]], exact, atol=0.08 * unit)
    assert isinstance(model.posterior_.plan.start, MomentsPlan)


@pytest.mark.parametrize("prior_scale", [1.0, 10.0])
def test_numbers_that_fill_a_tenth_of_their_bounds_are_known_at_a_large_epsilon(prior_scale):
    """Beside columns of which every value has a coefficient, so that some directions no record says anything of."""
    rng, number, unit = np.random.default_rng(2), 30_000, RealColumn(bounds=(-1, 1))
    age, *apart = rng.normal(size=(3, number))
    table: dict[str, Any] = {"age": np.clip(age / 3, -1, 1)}
    for name, width, own in zip(("kids", "work"), (1 / 20, 1 / 12), apart, strict=True):
        table[name] = np.clip(-0.7 + width * (age + own), -1, 1)
    eta = -2 + np.column_stack([*table.values()]) @ [0.8, -2.5, 1.5]
    table["y"] = rng.random(number) < 1 / (1 + np.exp(-eta))
    binary = {f"b{k}": rng.random(number) < 0.3 for k in range(6)}
    columns = {name: unit if name in ("age", "kids", "work") else BinaryColumn() for name in {**table, **binary}}
    held = {"bank": ["age", "y", "b0", "b1", "b2"], "telco": ["kids", "work", "b3", "b4", "b5"]}
    schema = Schema({party: PartySchema({name: columns[name] for name in names}) for party, names in held.items()})
    dataset = VerticalDataset.from_pooled(schema, pd.DataFrame({**table, **binary}))
    fitted = VerticalGLM(label="y", epsilon=1000.0, prior_scale=prior_scale, insecure_seed=3).fit(dataset)
    x = np.column_stack([np.ones(number), *(table[name] for name in ("age", "kids", "work")), *binary.values()])
    pooled, precision = np.zeros(10), np.diag([0.25, *[1.0] * 3, *[0.5] * 6]) / prior_scale**2
    for _ in range(20):
        rate = 1 / (1 + np.exp(-x @ pooled))
        hessian = (x * (rate * (1 - rate))[:, None]).T @ x + precision
        pooled += np.linalg.solve(hessian, x.T @ (table["y"] - rate) - precision @ pooled)
    spread = np.sqrt(np.diag(np.linalg.inv(hessian)))[1:4]
    found = fitted.summary().frame.loc[["age", "kids", "work"]]
    assert (found["std err"] < 1.2 * spread).all()
    assert (np.abs(found["coef"] - pooled[1:4]) < 0.3 * spread).all()


def test_everything_is_in_the_budget_and_who_sets_steps_takes_these():
    plan = glm().plan(num_records=3000, epsilon=1.0)
    assert plan.num_steps == plan.start.num_steps + 20
    assert 0.99 < plan.worst.epsilon <= 1.0
    assert plan.start.num_records == 3000
    others: list[dict[str, Any]] = [{"plan_settings": {"num_steps": 30}}, {"guide": "normal"}, {"learning_rate": 0.1},
                     {"curvature": False}, {"plan_settings": {"clip": "joint"}}]  # fmt: skip
    for settings in others:
        assert glm(**settings).plan(num_records=3000).start is None
    own = glm(curvature=True, plan_settings={"num_steps": 30}).plan(num_records=3000)
    assert (own.num_gradients, own.start is not None) == (30, True)


def test_more_coefficients_than_can_be_inverted_take_the_other_steps():
    wide = CategoricalColumn(categories=tuple(range(MOST_COEFFICIENTS)))
    schema = Schema({"a": PartySchema({"y": SCHEMA.columns["late"]}), "b": PartySchema({"v": wide})})
    model = glm(schema=schema, label="y", features=None, linear=())
    assert model.plan(num_records=3000).start is None
    model.curvature = True
    with pytest.raises(ArgumentError, match="up to 1500 coefficients"):
        model.plan(num_records=3000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"guide": "normal"}, 'curvature=True: it is for guide="point"'),
        ({"learning_rate": 0.1}, "no learning_rate"),
        ({"plan_settings": {"batch_size": 100}}, "leave noise_multiplier, batch_size and sampling out"),
    ],
)
def test_what_second_moments_are_not_for_is_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        glm(curvature=True, **settings).plan(num_records=3000)


@pytest.mark.parametrize("settings", [{}, {"family": "survival", "entry": None}])
def test_a_run_that_dies_keeps_the_moments_and_goes_on(dataset, tmp_path, monkeypatch, settings):
    model, calls = glm(**settings), []
    with monkeypatch.context() as patch:
        run = ChunkRunner.__call__

        def dying(self, state, chunk):
            calls.append(np.asarray(state.optimizer_state.inverse))
            if len(calls) == 4:  # two are rehearsals, the third is a step
                raise KeyboardInterrupt
            return run(self, state, chunk)

        patch.setattr(ChunkRunner, "__call__", dying)
        with pytest.raises(KeyboardInterrupt):
            model.fit(dataset, run_dir=tmp_path)
    kept = []

    def watching(self, state, chunk):
        kept.append(np.asarray(state.optimizer_state.inverse))
        return run(self, state, chunk)

    monkeypatch.setattr(ChunkRunner, "__call__", watching)
    model.fit(dataset, run_dir=tmp_path, resume=True)
    assert model.plan_.num_steps == model.plan_.start.num_steps + 20
    assert np.array_equal(kept[-1], calls[-1])
    assert not np.array_equal(kept[-1], np.eye(len(kept[-1])))
    assert model.posterior_.is_interval  # of a survival by the table of events, which was released before, too


@needs_crypten
@pytest.mark.parametrize("offset", [None, "usage"])  # a column of the party without the label
def test_parties_in_processes_learn_what_one_process_does(frame, tmp_path, offset):
    build = functools.partial(BUILD, offset=offset)
    schema = Schema(
        {party: PartySchema({name: SCHEMA.columns[name] for name in names}) for party, names in HELD.items()}
    )
    tasks = []
    for party, names in HELD.items():
        table = frame[names].copy()
        table.insert(0, "id", [f"{number:04d}" for number in range(len(frame))])
        table.to_csv(tmp_path / f"{party}.csv", index=False)
        tasks.append(
            PartyTask(
                party=party,
                schema=schema.to_dict(),
                table=tmp_path / f"{party}.csv",
                build=build,
                ledger=tmp_path / party,
            )
        )
    with ProcessSession(tasks) as session:
        apart = build()
        apart.fit(session, plan=apart.plan(session, epsilon=500.0), run_dir=tmp_path / "run")
    pooled = VerticalDataset.from_pooled(schema, frame[list(schema.columns)])
    here = glm(schema=schema, features=None, epsilon=500.0, offset=offset).fit(pooled)
    assert [one.half > 0 for one in apart.plan_.start.offsets] == ([False, True] if offset else [])
    assert apart.posterior_.is_interval
    np.testing.assert_allclose(apart.linear_predictor(pooled), here.linear_predictor(pooled), atol=0.15)


@needs_crypten
def test_a_run_is_rehearsed_where_the_parties_have_different_numbers_of_scores(dataset):
    plan = BUILD().plan(TableFacts(dataset.schema, 300), epsilon=1.0)
    assert len(set(plan.start.widths)) == 2
    task = PartyTask(party="bank", schema=dataset.schema.to_dict(), table="no such file", build=BUILD)
    cost = estimate_cost(task, plan, lambda session, folder: BUILD().fit(session, plan, run_dir=folder))
    assert cost.step is not None
    assert cost.further + 5 == plan.num_gradients  # the first, and four that are measured
