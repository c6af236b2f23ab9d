"""Where values are missing, learned and drawn again: of reals and counts too, which have no code for it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import Predictive
from scipy import stats

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.data import BinaryColumn, CountColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI, TwinWarning
from vertinumpyro.marginals import MarginalInference, release_marginals
from vertinumpyro.marginals.expected_tables import ModelTables, TableKey
from vertinumpyro.model import UNOBSERVED, inspect_model, mixture_model, party_plate, split_model
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.cells import cell_columns

pytest.importorskip("mbi")
N = 4000


def schema(missing="category"):
    dose, visits = RealColumn(bounds=(0, 10), missing=missing), CountColumn(upper=9, missing=missing)
    clinic = PartySchema({"dose": dose, "visits": visits})
    return Schema({"clinic": clinic, "insurer": PartySchema({"old": BinaryColumn()})})


def table():
    """The dose of the old is missing often, and the visits' number of everyone at times."""
    rng = np.random.default_rng(0)
    old = (rng.random(N) < 0.5).astype(int)
    dose = np.where(rng.random(N) < 0.1 + 0.5 * old, np.nan, 10 * rng.beta(2 + 3 * old, 4))
    visits = np.where(rng.random(N) < 0.2, np.nan, np.minimum(rng.poisson(1 + 2 * old), 9))
    return pd.DataFrame({"dose": dose, "visits": visits, "old": old})


def shares(frame):
    """Of missing doses among the young and the old, and of missing visits."""
    absent, old = frame["dose"].isna(), frame["old"] == 1
    return np.array([absent[~old].mean(), absent[old].mean(), frame["visits"].isna().mean()])


def likely(data, num_records):
    """A model of its own, whose doses are missing by age, at the same party."""
    p = numpyro.sample("p", dist.Beta(1.0, 1.0).expand([3]).to_event(1))
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    with party_plate("clinic", num_records):
        old = numpyro.sample("old", dist.Bernoulli(p[0]), obs=data["old"])
        by_age = dist.Bernoulli(p[1 + jnp.asarray(old, int)])
        numpyro.sample("given", by_age, obs=data["dose_observed"])
        with handlers.mask(mask=data["dose_observed"]):
            numpyro.sample("dose", dist.Beta(a[0], a[1]), obs=data["dose"])


OWN = Schema(
    {
        "clinic": PartySchema({"dose": RealColumn(bounds=(0, 10), missing="mask"), "old": BinaryColumn()}),
        "insurer": PartySchema({"visits": CountColumn(upper=9, missing="mask")}),
    }
)


def test_twins_from_tables_have_the_missing_values_of_the_records():
    dataset, settings = VerticalDataset.from_pooled(schema(), table()), VertiMRF(max_cells=6)
    release = release_marginals(dataset, settings.plan(dataset, epsilon=20.0), settings, insecure_seed=0)
    posterior = MarginalInference(num_components=6, num_starts=1, num_steps=500).fit(release, jax.random.key(0))
    twin = posterior.sample_synthetic(20_000, rng_key=jax.random.key(1))
    assert set(posterior.twin_columns.masks) == {"dose", "visits"}
    assert shares(twin) == pytest.approx(shares(table()), abs=0.04)
    assert twin["dose"].mean() == pytest.approx(table()["dose"].mean(), abs=0.4)  # of those that are there


def test_tables_of_a_model_whose_values_are_missing_by_another_column_are_exact():
    split, columns = split_model(likely, OWN), cell_columns(OWN, max_cells=6)
    latents = {"p": jnp.array([0.3, 0.9, 0.4]), "a": jnp.array([2.0, 4.0])}
    supports = {"p": dist.constraints.unit_interval, "a": dist.constraints.positive}
    flat = split.flatten({name: biject_to(supports[name]).inv(value) for name, value in latents.items()})
    made = ModelTables(split, columns, [TableKey(("dose", "old"))])
    found = np.asarray(made(flat, made.sums)).reshape(made.shapes[0])
    masses = np.diff(stats.beta(2.0, 4.0).cdf(np.linspace(0, 1, 7)))
    for old, (share, given) in enumerate([(0.7, 0.9), (0.3, 0.4)]):
        assert found[:, old] == pytest.approx(share * np.append(given * masses, 1 - given), abs=2e-4)


def test_steps_learn_them_and_a_mask_alone_is_not_learned():
    assert not (MASKS := inspect_model(mixture_model(schema("mask"), 2), schema("mask"))).modelled_masks
    assert MASKS.complete_columns == ()
    found = inspect_model(mixture_model(schema(), 2), schema())
    assert found.modelled_masks == {"dose": "dose_observed", "visits": "visits_observed"}
    dataset = VerticalDataset.from_pooled(schema(), table())
    dpvi = DPVI(num_components=2, warm_start=False)
    plan = dpvi.plan(dataset, noise_multiplier=0.01, num_steps=60, clip_norm=4.0)  # which clips nobody
    posterior = dpvi.fit(dataset, plan, jax.random.key(0), progress_bar=False)
    twin = posterior.sample_synthetic(8000, rng_key=jax.random.key(1))
    assert shares(twin) == pytest.approx(shares(table()), abs=0.06)


def test_the_density_of_a_record_counts_whether_its_values_are_there():
    """Against the density of all records in one program, the component summed out by hand."""
    model = mixture_model(schema(), 2)
    split = split_model(model, schema())
    flat = jax.random.normal(jax.random.key(3), (split.num_parameters,))
    arrays = VerticalDataset.from_pooled(schema(), table().head(50)).pooled()
    columns = {p: {n: jnp.asarray(a) for n, a in arrays.items() if _owner(n) == p} for p in split.parties}
    parts = [split.log_density(party, flat, columns[party]) for party in split.parties]
    latents = split.constrain(flat)
    weights, total = np.log(np.asarray(latents["weights"])), 0.0
    for k in range(2):
        of_record = weights[k]
        for name, density in (
            ("dose", dist.Beta(latents["dose_a"][k], latents["dose_b"][k])),
            ("visits", dist.Poisson(latents["visits_rate"][k])),
            ("old", dist.Bernoulli(latents["old_prob"][k])),
        ):
            here = arrays.get(f"{name}_observed", np.ones(50, bool))
            of_record = of_record + np.where(here, np.asarray(density.log_prob(arrays[name])), 0.0)
            if name != "old":
                present = np.asarray(latents[f"{name}_present"])[k]
                of_record = of_record + np.where(here, np.log(present), np.log1p(-present))
        total = np.logaddexp(total, of_record) if k else of_record
    found = jax.nn.logsumexp(split.component_prior(flat).log_weights + sum(parts), axis=1)
    assert np.asarray(found) == pytest.approx(total, rel=1e-4)


def _owner(name):
    return schema().party_of(name.removesuffix("_observed"))


def test_a_model_that_leaves_a_wanted_mask_out_is_told():
    def model(data, num_records):
        a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
        with party_plate("clinic", num_records), handlers.mask(mask=data["dose_observed"]):
            numpyro.sample("dose", dist.Beta(a, 1.0), obs=data["dose"])

    only = Schema({"clinic": PartySchema({"dose": RealColumn(bounds=(0, 1), missing="category")})})
    assert DPVI(model).twin_columns(only).complete == ("dose",)
    with pytest.warns(TwinWarning, match=r"'dose' will have no missing values .* numpyro.sample\('dose_observed'"):
        DPVI(model).twin_columns(only).warn(stacklevel=1)


def test_whether_a_value_is_missing_may_not_depend_on_the_value():
    def model(data, num_records):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with party_plate("clinic", num_records):
            numpyro.sample("given", dist.Bernoulli(logits=a * data["dose"]), obs=data["dose_observed"])
            with handlers.mask(mask=data["dose_observed"]):
                numpyro.sample("dose", dist.Beta(jnp.exp(a), 1.0), obs=data["dose"])

    with pytest.raises(ModelContractError, match="site 'given' draws whether 'dose' is missing, and its distribution"):
        inspect_model(model, OWN)


def test_numpyros_predictive_draws_masks_of_data_in_which_nothing_is_observed():
    drawn = Predictive(mixture_model(schema(), 3), num_samples=4)(jax.random.key(0), UNOBSERVED, 500)
    assert drawn["dose_observed"].shape == drawn["dose"].shape == (4, 500)
    assert 0 < drawn["dose_observed"].mean() < 1
