"""Steps by noisy second moments: their H bounds every Hessian, and 20 of them come where 200 others do."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("sklearn", reason="the estimators are scikit-learn's: extra `report`")

from numpyro.infer.util import log_density

from tests.glm.conftest import SCHEMA
from tests.glm.test_glm import glm, without_privacy
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import CategoricalColumn, CountColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi.loop import ChunkRunner
from vertinumpyro.glm import FAMILIES, VerticalGLM, glm_model
from vertinumpyro.glm.curvature import MOST_COEFFICIENTS, CurvatureStart, accelerated_newton, design
from vertinumpyro.glm.model import INTERCEPT, terms_of
from vertinumpyro.mrf import Marginals
from vertinumpyro.mrf.cells import cell_columns
from vertinumpyro.secure import Crypten
from vertinumpyro.session import PartyTask, ProcessSession

needs_crypten = pytest.mark.skipif(Crypten().missing() is not None, reason=str(Crypten().missing()))

HELD = {"bank": ["income", "years", "late"], "telco": ["usage", "tariff"]}
BUILD = functools.partial(VerticalGLM, label="late", linear=["years"], backend=Crypten())
CURVED = [family for family in FAMILIES if family != "poisson"]
pytestmark = pytest.mark.filterwarnings(
    "ignore::vertinumpyro.core.rng.InsecureRandomnessWarning", "ignore::vertinumpyro.core.errors.InferenceWarning"
)


def test_accelerated_steps_reach_the_minimum_of_an_ill_conditioned_quadratic():
    steep, target = np.diag([1.0, 1e3]), np.array([2.0, -1.0])
    params: Any = {"theta": jnp.zeros(2)}
    optimizer = accelerated_newton(20)
    state: Any = optimizer.init(params)
    state = state._replace(inverse=jnp.asarray(np.linalg.inv(2 * steep)))  # twice as steep
    for _ in range(20):
        descent = {"theta": jnp.asarray(steep @ (np.asarray(params["theta"]) - target))}
        updates, state = optimizer.update(descent, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params["theta"], target, atol=1e-2)
    assert np.array_equal(params["theta"], state.before)  # the last one does not extrapolate


@pytest.fixture(scope="module")
def released(dataset):
    """By family: the start, its tables with hardly any noise, the model's arguments, the records of its columns."""
    found = {}
    for family in CURVED:
        model = glm(family)
        data, regression = model._prepared(dataset, None)
        start = CurvatureStart(regression, model._backend)
        plan = start.tables.plan(data, epsilon=2000.0)
        found[family] = start, start.tables.release(data, plan, insecure_seed=0), regression, data
    return found


@pytest.mark.parametrize("family", CURVED)
def test_h_bounds_the_hessian_of_the_potential_wherever_one_looks(released, family):
    start, tables, regression, data = released[family]
    H = np.linalg.inv(start.inverse(tables))
    model = functools.partial(glm_model, **regression.model_kwargs)
    sites = [INTERCEPT, *(term.site for term in regression.terms)]

    def potential(flat):
        parts = jnp.split(flat, np.cumsum([1, *(term.size for term in regression.terms)])[:-1])
        shaped = {s: p if p.size > 1 else p[0] for s, p in zip(sites, parts, strict=True)}
        return -log_density(model, (data.pooled(), data.num_records), {}, shaped)[0]

    hessian = jax.jit(jax.hessian(potential))
    for seed in range(4):
        exact = np.asarray(hessian(seed * 0.3 * jax.random.normal(jax.random.PRNGKey(seed), (len(H),))))
        roots = np.linalg.eigvals(np.linalg.solve(H, exact)).real
        assert roots.max() < 1.02, "but for what cells blur"
    assert roots.max() > 0.05, "and is no wild overestimate"


def test_a_number_and_every_value_have_their_rows_in_the_moments():
    columns = {"real": RealColumn(bounds=(0.0, 4.0)), "count": CountColumn(upper=40), "y": CountColumn(upper=3),
               "kind": CategoricalColumn(categories=("a", "b", "c"), missing="category")}  # fmt: skip
    schema = Schema({"p": PartySchema(columns)})
    terms = {term.column: term for term in terms_of(schema, "y")}
    cells = {column.name: column for column in cell_columns(schema, {}, 8)}
    np.testing.assert_allclose(design(terms["real"], cells["real"])[:, 0], np.arange(-7, 8, 2) / 8, atol=1e-5)
    counts = design(terms["count"], cells["count"])[:, 0]
    assert np.all(np.diff(counts) > 0)
    assert -1 <= counts[0] < -0.8 < 0.8 < counts[-1] <= 1
    assert np.array_equal(design(terms["kind"], cells["kind"]), np.eye(4))


@pytest.mark.parametrize("family", CURVED)
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
    assert isinstance(model.posterior_.marginals, Marginals)


def test_everything_is_in_the_budget_and_who_sets_steps_takes_these():
    plan = glm().plan(num_records=3000, epsilon=1.0)
    assert plan.num_steps == plan.start.num_steps + 20
    assert 0.99 < plan.worst.epsilon <= 1.0
    assert plan.start.num_records == 3000
    others: list[dict[str, Any]] = [{"plan_settings": {"num_steps": 30}}, {"guide": "normal"}, {"learning_rate": 0.1},
                     {"curvature": False}, {"family": "poisson"}]  # fmt: skip
    for settings in others:
        assert glm(**settings).plan(num_records=3000).start is None
    own = glm(curvature=True, plan_settings={"num_steps": 30}).plan(num_records=3000)
    assert (own.num_gradients, own.start is not None) == (30, True)


def test_a_table_too_wide_for_moments_takes_the_other_steps():
    wide = [CategoricalColumn(categories=tuple(range(n))) for n in (700, 600)]
    parts = {"a": {"u": wide[0], "y": SCHEMA.columns["late"]}, "b": {"v": wide[1]}}
    schema = Schema({party: PartySchema(columns) for party, columns in parts.items()})
    model = glm(schema=schema, label="y", features=None, linear=())
    assert model.plan(num_records=3000).start is None
    model.curvature = True
    with pytest.raises(ArgumentError, match="cells"):
        model.plan(num_records=3000)
    assert sum(term.size for term in terms_of(schema, "y")) < MOST_COEFFICIENTS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "poisson"}, "bounded curvature, which poisson has not; family='poisson'"),
        ({"guide": "normal"}, 'curvature=True: it is for guide="point"'),
        ({"learning_rate": 0.1}, "no learning_rate"),
        ({"plan_settings": {"batch_size": 100}}, "leave noise_multiplier, batch_size and sampling out"),
    ],
)
def test_what_second_moments_are_not_for_is_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        glm(curvature=True, **settings).plan(num_records=3000)


def test_a_run_that_dies_keeps_the_moments_and_goes_on(dataset, tmp_path, monkeypatch):
    model, calls = glm(), []
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


def test_between_organisations_a_table_comes_first_and_few_rounds_after(dataset):
    model = glm(backend=Crypten())
    data, _ = model._prepared(dataset, None)
    plan = model.plan(data)
    (product, once), (summed, times) = model.computations(data, plan)
    assert (type(product).__name__, once) == ("CrossProducts", 1)
    assert (type(summed).__name__, times) == ("ClippedSum", 20)


@needs_crypten
def test_parties_in_processes_learn_what_one_process_does(frame, tmp_path):
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
                build=BUILD,
                ledger=tmp_path / party,
            )
        )
    with ProcessSession(tasks) as session:
        apart = BUILD()
        apart.fit(session, plan=apart.plan(session, epsilon=500.0), run_dir=tmp_path / "run")
    pooled = VerticalDataset.from_pooled(schema, frame[list(schema.columns)])
    here = glm(schema=schema, features=None, epsilon=500.0).fit(pooled)
    assert apart.plan_.start is not None
    assert apart.posterior_.marginals is not None
    np.testing.assert_allclose(apart.linear_predictor(pooled), here.linear_predictor(pooled), atol=0.15)
