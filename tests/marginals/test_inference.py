"""Models fitted to one release: both laws, both methods, twins, stored posteriors, and what is refused."""

import copy
import dataclasses
import math
import pickle
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.initialization import init_to_median
from scipy.special import gammaln

import vertinumpyro as vnp
from tests.compilations import compilations
from tests.marginals.conftest import SCHEMA, SETTINGS, TRUTH, apart, by_age, dataset_of, simulated
from vertinumpyro.core.errors import ArgumentError, ModelContractError
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.evaluation import combine_estimates, cross_party_tvd, k_way_tvd, pairwise_tvd
from vertinumpyro.marginals import InferenceWarning, MarginalInference, compare, inference, release_marginals
from vertinumpyro.marginals.table_likelihood import TableLikelihood
from vertinumpyro.model import party_plate
from vertinumpyro.mrf.field import require_engine
from vertinumpyro.posterior.synthesis import TwinWarning, rehearse_twin
from vertinumpyro.privacy import FitTime

KEY = jax.random.key(0)


def has_engine():
    try:
        require_engine()
    except ArgumentError:
        return False
    return True


needs_engine = pytest.mark.skipif(not has_engine(), reason="Markov random fields: extra `mrf`")


WEIGHTS = np.array([0.65, 0.35])
AGED = WEIGHTS[:, None] * np.stack([1 - TRUTH["old_prob"], TRUTH["old_prob"]], 1)  # [group, old]
BY_AGE = {"share": AGED[:, 1].sum(), "plan_probs": (AGED / AGED.sum(0)).T @ TRUTH["plan_probs"]}


MADE = {m: MarginalInference(by_age, method=m, num_steps=300, num_starts=1) for m in ("svi", "nuts")}
ALONE = MarginalInference(apart, law="tables", num_steps=300, num_starts=1)


@pytest.fixture(scope="module")
def posterior(release):
    return MADE["svi"].fit(release, KEY, num_samples=600, progress_bar=False)


def test_fits_to_one_release_are_compared_by_the_tables_that_they_predict(posterior, release):
    """Age and plan depend on each other: 5 parameters have all of their table, 3 have none of that."""
    with pytest.warns(InferenceWarning, match="times as far"), pytest.warns(TwinWarning, match="'weight'"):
        other = ALONE.fit(release, KEY, num_samples=300, progress_bar=False)
    scores = {"apart": other.elpd(release), "by age": posterior.elpd(release)}
    assert [scores[name].p for name in scores] == pytest.approx([3, 5], abs=0.3)
    table = compare(scores)
    assert list(table.index) == ["by age", "apart"]
    (counts,) = (m.values for m in release.measurements if m.columns == ("old", "plan"))
    shares = counts / counts.sum()
    information = (shares * np.log(shares / shares.sum(0) / shares.sum(1, keepdims=True))).sum() * release.num_records
    assert table["elpd_diff"]["apart"] == pytest.approx(information - 2, rel=0.05)
    assert 0 < scores["apart"].noise_se < table["dse"]["apart"] < scores["apart"].se + scores["by age"].se
    cells: Any = other.check_tables(release)
    assert list(cells["table"].unique()) == ["old x plan"]
    assert abs(cells["z"]).max() > 4 > 2 > abs(posterior.check_tables(release)["z"]).max()
    np.testing.assert_allclose(cells["released"], counts.ravel())
    with pytest.raises(ArgumentError, match="there are 1; give two or more"):
        compare({"apart": scores["apart"]})
    with pytest.raises(ArgumentError, match="release: it is none, or of other columns"):
        posterior.elpd(None)


def test_of_few_records_the_exact_posterior_is_that_of_every_table_that_they_can_be(release):
    """Six records in four cells: posterior means and deviations beside sums over all 84 tables, on a grid of theta."""
    schema = Schema({"clinic": PartySchema({"old": BinaryColumn()}), "bank": PartySchema({"rich": BinaryColumn()})})

    def model(data, num_records):
        share, rich = (numpyro.sample(name, dist.Beta(2.0, 2.0)) for name in ("share", "rich_share"))
        with party_plate("clinic", num_records):
            numpyro.sample("old", dist.Bernoulli(share), obs=data["old"])
        with party_plate("bank", num_records):
            numpyro.sample("rich", dist.Bernoulli(rich), obs=data["rich"])

    number, columns = 6, {"old": np.array([1, 1, 1, 1, 1, 0]), "rich": np.array([0, 0, 0, 0, 1, 0])}
    records = VerticalDataset.from_pooled(schema, pd.DataFrame(columns))
    found = release_marginals(records, SETTINGS.plan(records, epsilon=12.0), SETTINGS, insecure_seed=1)
    fit = MarginalInference(model, method="augmentation", num_steps=200, num_starts=1)
    with pytest.raises(ArgumentError, match="each of 4,000 records, and is for at most 2,000"):
        fit.fit(release, KEY)
    draws = fit.fit(found, KEY, num_samples=2000, progress_bar=False).sample(KEY, 2000)

    (table,) = found.measurements
    tables = np.array([t for t in np.ndindex(*[number + 1] * 4) if sum(t) == number])
    grid = (np.arange(100) + 0.5) / 100
    old, rich = np.meshgrid(grid, grid, indexing="ij")
    cells = np.stack([(1 - old) * (1 - rich), (1 - old) * rich, old * (1 - rich), old * rich])
    log_tables = -gammaln(tables + 1).sum(1) - ((table.values.ravel() - tables) ** 2).sum(1) / 2 / table.stddev**2
    weights = np.exp(log_tables[:, None, None] + np.einsum("tc,cij->tij", tables, np.log(cells))).sum(0)
    weights *= old * (1 - old) * rich * (1 - rich)
    weights /= weights.sum()
    for name, values in {"share": old, "rich_share": rich}.items():
        mean = (weights * values).sum()
        assert np.mean(draws[name]) == pytest.approx(mean, abs=0.015)
        assert np.std(draws[name]) == pytest.approx(np.sqrt((weights * (values - mean) ** 2).sum()), abs=0.01)


def test_the_tables_law_is_taken_where_they_determine_the_model(posterior):
    assert (posterior.law, posterior.why) == ("tables", "the tables determine every parameter")


def test_both_methods_agree_and_hold_the_truth(release, posterior):
    by_nuts = MADE["nuts"].fit(release, KEY, num_samples=600, progress_bar=False)
    assert by_nuts.law == "tables"
    draws, chain = (p.sample(jax.random.key(1), 600) for p in (posterior, by_nuts))
    for name, truth in BY_AGE.items():
        svi, nuts = np.asarray(draws[name]), np.asarray(chain[name])
        assert np.abs(svi.mean(0) - nuts.mean(0)).max() < 0.5 * nuts.std(0).max(), name
        assert np.allclose(svi.std(0), nuts.std(0), rtol=0.35), name
        assert (np.abs(nuts.mean(0) - truth) < 4.5 * nuts.std(0)).all(), name


def test_more_noise_is_known_and_compiles_nothing(dataset, posterior):
    plan = SETTINGS.plan(dataset, epsilon=0.5)
    noisy = vnp.release_marginals(dataset, plan, SETTINGS, insecure_seed=1)
    programs = dict(MADE["svi"]._programs)
    noisier = MADE["svi"].fit(noisy, KEY, num_samples=600, progress_bar=False)
    assert programs == MADE["svi"]._programs
    wide = np.asarray(noisier.sample(KEY, 400)["plan_probs"]).std(0)
    assert (wide > 1.3 * np.asarray(posterior.sample(KEY, 400)["plan_probs"]).std(0)).all()


def test_many_tables_and_rubins_rules(posterior, dataset):
    with pytest.warns(TwinWarning, match="'claims'"):
        tables = posterior.sample_synthetic(1000, rng_key=KEY, num_tables=8)
    assert [len(table) for table in tables] == [1000] * 8
    assert not any(tables[0].equals(other) for other in tables[1:])
    assert list(tables[0].columns) == ["old", "plan"]
    means = np.array([table["old"].mean() for table in tables])
    low, high = combine_estimates(means, means * (1 - means) / 1000).interval()
    assert low < dataset.to_frame()["old"].mean() < high
    with pytest.raises(ArgumentError, match="num_tables=0"):
        posterior.sample_synthetic(rng_key=KEY, num_tables=0)


def test_a_posterior_is_stored_and_restored(posterior, tmp_path):
    posterior.save(tmp_path / "posterior.npz")
    restored = MarginalInference(by_age).load(tmp_path / "posterior.npz")
    assert np.array_equal(restored.draws, posterior.draws)
    assert restored.plan.fingerprint() == posterior.plan.fingerprint()
    assert (restored.law, restored.why) == ("tables", posterior.why)
    pickled = pickle.loads(pickle.dumps(posterior))
    assert repr(pickled) == repr(posterior)
    assert posterior.is_interval
    assert not dataclasses.replace(posterior, law="field").is_interval
    assert "is no interval" in repr(dataclasses.replace(posterior, law="field"))
    assert all(np.array_equal(a, pickled.sample(KEY, 5)[name]) for name, a in posterior.sample(KEY, 5).items())
    with pytest.raises(ArgumentError, match="saved for another model"):
        MarginalInference(num_components=8).load(tmp_path / "posterior.npz")


def test_a_release_is_stored_and_restored(release, tmp_path):
    release.save(tmp_path)
    restored = vnp.Marginals.load(tmp_path)
    assert restored.plan.fingerprint() == release.plan.fingerprint()
    assert all(
        np.array_equal(a.values, b.values) for a, b in zip(restored.measurements, release.measurements, strict=True)
    )
    assert restored.fine_stddevs == release.fine_stddevs
    assert repr(restored) == repr(release) == repr(copy.deepcopy(pickle.loads(pickle.dumps(release))))
    with pytest.raises(ArgumentError, match=r"holds no marginals\.npz"):
        vnp.Marginals.load(tmp_path / "elsewhere")


def test_finer_histograms_have_the_noise_that_the_plan_says(dataset):
    plan = SETTINGS.plan(dataset, epsilon=1.0)
    released = vnp.release_marginals(dataset, plan, SETTINGS, insecure_seed=3)
    for column in released.columns:
        if column.name in released.fine:
            codes = column.codes(dataset.arrays(column.party), fine=True)
            noise = released.fine[column.name] - np.bincount(codes, minlength=column.num_fine)
            stddev = released.fine_stddevs[column.name]
            assert (noise**2).mean() == pytest.approx(stddev**2, abs=6 * stddev**2 * np.sqrt(2 / len(noise)))


@pytest.mark.promise
@needs_engine
def test_a_mixture_is_learned_through_the_field(release, dataset):
    posterior = MarginalInference(num_components=8, num_steps=600, settings=SETTINGS).fit(
        release, KEY, progress_bar=False
    )
    assert posterior.law == "field"
    assert "components" in posterior.why
    twin, real = posterior.sample_synthetic(rng_key=KEY), dataset.to_frame()
    assert list(twin.columns) == list(real.columns)
    loose = real[["plan", "claims"]].sample(frac=1, random_state=0, ignore_index=True)
    shuffled = pd.concat([real[["old", "ill", "weight"]], loose], axis=1)
    distances = [cross_party_tvd(pairwise_tvd(real, t, dataset.schema), dataset.schema) for t in (twin, shuffled)]
    assert distances[0] < 0.5 * distances[1]


@needs_engine
def test_a_mixture_starts_about_the_fields_records_but_where_the_guide_has_a_start():
    held = {"clinic": ("old",), "bank": ("plan",)}
    few = Schema({party: PartySchema({n: SCHEMA.columns[n] for n in names}) for party, names in held.items()})
    records = dataset_of(simulated(0, 500), few)
    release = release_marginals(records, SETTINGS.plan(records, epsilon=8.0), SETTINGS, insecure_seed=0)

    def first(**settings):
        made = MarginalInference(num_components=3, num_steps=100, settings=SETTINGS, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return made.fit(release, KEY, num_samples=10, progress_bar=False).draws[0]

    by_default = first()
    assert np.array_equal(by_default, first())
    near = partial(AutoDelta, init_loc_fn=init_to_median)
    assert not np.allclose(by_default, first(guide=near))
    model = vnp.mixture_model(few, 3, shape_rate=0.01)  # of which nothing is known here
    assert np.array_equal(first(guide=near), first(guide=near, model=model, law="field"))


@needs_engine
def test_doses_that_cluster_are_learned():
    rng = np.random.default_rng(0)
    ill = rng.random(4000) < 0.5
    dose = rng.normal(np.array([0.09, 0.34, 0.59, 0.84])[rng.integers(0, 4, 4000)], 0.015)
    schema = Schema(
        {
            "clinic": PartySchema({"ill": BinaryColumn()}),
            "bank": PartySchema({"dose": RealColumn(bounds=(0, 1))}),
        }
    )
    dataset = VerticalDataset.from_pooled(schema, pd.DataFrame({"ill": ill, "dose": dose}))
    release = release_marginals(dataset, SETTINGS.plan(dataset, epsilon=10.0), insecure_seed=1)
    made = MarginalInference(law="field", num_components=40, num_steps=600, settings=SETTINGS)
    twin = made.fit(release, KEY, progress_bar=False).sample_synthetic(rng_key=KEY)
    assert k_way_tvd(dataset.to_frame(), twin, schema, 1, rng=0).mean < 0.02  # 0.08 at the paper's prior of shapes


@needs_engine
@pytest.mark.filterwarnings("ignore::vertinumpyro.core.errors.InferenceWarning")
@pytest.mark.parametrize("misfits", [[1.0], [50.0, 5.0], [math.nan, 20.0, 30.0]], ids=["near", "far once", "far"])
def test_a_mixture_that_ends_very_far_from_the_tables_begins_again_at_other_records(release, monkeypatch, misfits):
    """As where components became one, which no further step parts."""
    asked = iter([*misfits, 7.0])
    monkeypatch.setattr(TableLikelihood, "misfit", lambda *_, **__: next(asked))
    made = MarginalInference(law="field", num_components=2, num_steps=100, settings=SETTINGS)
    assert made.fit(release, KEY, progress_bar=False).misfit == 7.0
    assert next(asked, None) is None  # of each start, and of what was taken


@needs_engine
def test_a_model_that_the_tables_leave_open_goes_by_the_field(release):
    held = {"clinic": ("old", "ill"), "bank": ("plan",)}
    few = Schema({party: PartySchema({n: release.schema.columns[n] for n in names}) for party, names in held.items()})
    made = MarginalInference(vnp.mixture_model(few, 3), num_steps=200, num_starts=1, settings=SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InferenceWarning)
        posterior = made.fit(release, KEY, progress_bar=False)
    assert (posterior.law, posterior.why) == ("field", "the tables leave some parameters to the prior")


@needs_engine
def test_steps_on_the_fields_records_that_end_too_early_say_so_and_no_others(release):
    def far_away(data, num_records):
        """Claims, whose mean is some thousand times as large as where the steps start."""
        log_rate = numpyro.sample("log_rate", dist.Normal(0.0, 10.0))
        with party_plate("bank", num_records):
            numpyro.sample("claims", dist.Poisson(1e-3 * jnp.exp(log_rate)), obs=data["claims"])

    def said(num_steps):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", InferenceWarning)
            MarginalInference(far_away, law="field", num_steps=num_steps, settings=SETTINGS).fit(
                release, KEY, progress_bar=False
            )
        return any("the last tenth of the steps still gained" in str(one.message) for one in found)

    assert [said(100), said(600)] == [True, False]


@needs_engine
def test_what_the_last_steps_gained_is_told_from_the_chance_of_batches(release, monkeypatch):
    """Batches' own means of the log density differ by some hundredths of a nat."""
    found, fit = [], inference.fit_to_field

    def recorded(*args, **kwargs):
        found.append(fit(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(inference, "fit_to_field", recorded)
    made = MarginalInference(num_components=8, num_steps=100, settings=SETTINGS)
    made.fit(release, jax.random.key(0), progress_bar=False)
    with compilations() as compiled:
        made.fit(release, jax.random.key(1), progress_bar=False)
    assert not {"_run", "objective", "_each_alone"} & set(compiled), "a further fit is of the same programs"
    assert max(abs(one.trend) for one in found) < 0.002


def test_the_field_without_its_engine_says_what_to_install(release, monkeypatch):
    def missing():
        raise ArgumentError("pip install 'vertinumpyro[mrf]'")

    monkeypatch.setattr(inference, "require_engine", missing)
    with pytest.raises(ArgumentError, match="mrf"):
        MarginalInference(num_components=8).fit(release, KEY, progress_bar=False)


def test_a_model_that_cannot_have_made_the_tables_is_said(release):
    with pytest.warns(InferenceWarning, match="times as far"):
        ALONE.fit(release, KEY, num_samples=300, progress_bar=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"law": "exact"}, "law='exact'"),
        ({"method": "vi"}, "method='vi'"),
        ({"law": "field", "method": "nuts"}, 'method="nuts"'),
        ({"num_steps": 5}, "num_steps=5"),
        ({"num_starts": 0}, "num_starts=0"),
        ({"model": "mixture"}, "model is no function"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ArgumentError, match=words):
        MarginalInference(**settings)


def test_what_is_no_release_is_refused(dataset):
    with pytest.raises(ArgumentError, match="release_marginals"):
        MarginalInference().fit(dataset, KEY)


class WithoutSample(dist.BernoulliProbs):
    def sample(self, key, sample_shape=()):
        raise NotImplementedError("no sampler")


def of_old(distribution):
    def model(data, num_records):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with party_plate("clinic", num_records):
            numpyro.sample("old", distribution(p, data), obs=data["old"])
        with party_plate("bank", num_records):
            numpyro.sample("plan", dist.Categorical(logits=p * jnp.arange(3.0)), obs=data["plan"])

    return model


def test_what_the_release_could_not_be_used_for_is_told_before_it(release):
    masked_by_itself = of_old(lambda p, data: dist.Bernoulli(p).mask(data["old"] > 0))
    with pytest.raises(ModelContractError, match=r"site 'old' of party 'clinic' .* or its mask reads 'old' too"):
        MarginalInference(masked_by_itself, settings=SETTINGS).rehearse(release.schema, release.plan)
    undrawn = of_old(lambda p, data: WithoutSample(p))
    with pytest.raises(ArgumentError, match=r"simulates records .* NotImplementedError: no sampler"):
        MarginalInference(undrawn, law="tables", settings=SETTINGS).rehearse(release.schema, release.plan)
    split = MarginalInference(undrawn, settings=SETTINGS).rehearse(release.schema, release.plan)
    assert not rehearse_twin(split).drawn
    law, why = MarginalInference(undrawn, settings=SETTINGS)._law(
        TableLikelihood(split, release),
        TableLikelihood(split, release).cells(release),
        *jax.random.split(jax.random.key(0)),
    )
    assert law is None
    assert "no sampler" in why


@pytest.mark.parametrize("part", ["tables", "model"])
def test_what_takes_long_is_asked_for(part, release, posterior, monkeypatch):
    long = FitTime(before={"the tables": 4000.0}, after={"the model": 4000.0})
    if part == "tables":
        data = dataset_of(simulated(0, 200))
        plan = SETTINGS.plan(data, epsilon=1.0)
        plan.keep_time(long)
        with pytest.raises(ArgumentError, match=r"allow_long: .* 67 min on this machine \(the tables 67 min\)"):
            release_marginals(data, plan, SETTINGS)  # of what follows it nothing counts
        assert release_marginals(data, plan, SETTINGS, allow_long=True).plan is plan
        return
    monkeypatch.setattr(inference, "model_time", lambda *_, **settings: long)
    again = MADE["svi"].fit(release, KEY, num_samples=600, progress_bar=False)  # it was found to be short
    assert np.array_equal(again.draws, posterior.draws)
    other = MarginalInference(by_age, num_steps=100, num_starts=1)
    with pytest.raises(ArgumentError, match="allow_long"):
        other.fit(release, KEY, num_samples=10, progress_bar=False)
    other.fit(release, KEY, num_samples=10, progress_bar=False, allow_long=True)
