"""A predictor that parties sum up: what a model with one may look like, and whose gradient its split computes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import potential_energy

from tests.model.cases import MASKED, UNIT, Refused
from tests.model.reference import own_columns, random_theta
from tests.model.sum_cases import OUTCOMES, data_of, joint_model_of, joint_schema_of, model_of, schema_of
from vertinumpyro.core import compat
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema
from vertinumpyro.model import party_plate, party_sum, split_model
from vertinumpyro.posterior.predictive import score_link
from vertinumpyro.secure import BatchShape, FixedPoint, Plaintext

NUM_RECORDS = 40
CLIP_NORM = 256.0  # longer than any record's gradient here


def released(split, backend, flat, data, num_records=NUM_RECORDS, clip_norm=CLIP_NORM):
    """The sum of the records' gradients as a step computes it, without noise; and its shape."""
    several = split.num_components > 1  # each party then clips its own part, at which nothing is cut here
    shape = BatchShape(
        batch_size=num_records,
        num_components=split.num_components,
        num_parties=len(split.parties),
        num_values=split.num_values,
        clip_norm=clip_norm,
        noise_stddev=0.0,
        link=score_link(split),
        clip_parts=(1,) * len(split.parties) if several else None,
    )
    noise, mask = np.zeros((1, split.num_values), np.int64), jnp.ones(num_records, bool)
    columns = [own_columns(split, p, data) for p in split.parties]

    def compute(flat):
        parts = [split.contribution(p, flat, own) for p, own in zip(split.parties, columns, strict=True)]
        return backend.clipped_noisy_sum(shape, parts, split.component_prior(flat), mask, noise)

    return compiled(split, backend, compute)(flat), shape


def compiled(split, backend, compute):
    """One program a split and backend: eagerly, every operation would be one of its own."""
    return split.compiled.setdefault(f"tests, {type(backend).__name__}", jax.jit(compute))


FAMILIES = [outcome for outcome in OUTCOMES if outcome != "logit by probabilities"]


@pytest.mark.parametrize(
    ("outcome", "num_parties"),
    # every outcome of two parties, one of any number
    [*((outcome, 2) for outcome in OUTCOMES), *((FAMILIES[0], number) for number in (1, 3, 5))],
)
def test_the_gradient_is_that_of_numpyros_potential_on_pooled_data(outcome, num_parties):
    check_gradient(model_of(num_parties, outcome), schema_of(num_parties, outcome))


@pytest.mark.parametrize(
    ("outcomes", "num_parties"),
    [
        (("logit", "counts"), 2),
        (("logit", "counts"), 3),
        (("logit", "logit"), 1),
        (("ordered", "linear"), 2),
        (("linear", "ordered"), 1),
        (("probit", "logit", "probit"), 3),
        (("events", "own factor"), 2),
    ],
)
def test_the_gradient_of_several_outcomes_is_that_of_numpyros_potential(outcomes, num_parties):
    check_gradient(joint_model_of(num_parties, outcomes), joint_schema_of(num_parties, outcomes))


def check_gradient(model, schema):
    num_parties = len(schema.parties)
    split, data = split_model(model, schema), data_of(schema, NUM_RECORDS)

    def pooled(flat):
        return potential_energy(handlers.seed(model, 0), (data, NUM_RECORDS), {}, split.unflatten(flat))

    expected = jax.jit(lambda flat: (-jax.grad(pooled)(flat), jax.grad(split.log_prior)(flat)))
    with compat.x64():
        for seed in range(3):
            flat = 0.5 * random_theta(split, seed).astype(float)  # no residual is so long that it is cut off
            exact, prior = expected(flat)
            in_floats, _ = released(split, Plaintext(), flat, data)
            np.testing.assert_allclose(split.gather(in_floats) + prior, exact, rtol=1e-5, atol=1e-5)
            assert np.abs(exact - prior).max() > 0.1
            if num_parties == 3:  # the integers' program takes longest to compile, and is one link after all parties
                in_integers, shape = released(split, FixedPoint(), flat, data)
                bound = FixedPoint().error_bound(shape, score_norm=1.0)
                assert np.linalg.norm(in_integers - in_floats) <= bound < 1e-4 * NUM_RECORDS * CLIP_NORM


def test_what_each_party_reads_is_its_own():
    split = split_model(model_of(3, "logit"), schema_of(3, "logit"))
    assert split.structure.party_latents["party1"] == ("party1_level", "party1_local", "party1_raw", "spread")
    assert set(split.shared["party0"]) >= {"bend", "intercept", "spread"}
    spread = int(split.unflatten(jnp.arange(float(split.num_parameters)))["spread"])
    assert np.sum(split.gather_index == spread) == 3  # one coordinate at each party
    assert (split.num_components, split.structure.component_site) == (1, None)
    assert [found.party for found in split.structure.summed] == ["party0"]
    assert split.structure.modelled_columns.keys() == {"y"}
    assert split.structure.covariates == tuple(name for name in split.schema.columns if name != "y")


def test_what_each_partys_parts_read_of_several_outcomes_is_its_own():
    split = split_model(joint_model_of(2, ("logit", "counts")), joint_schema_of(2, ("logit", "counts")))
    assert [(found.sum_name, found.site, found.party) for found in split.structure.summed] == [
        ("eta0", "y0", "party1"),
        ("eta1", "y1", "party0"),
    ]
    assert split.structure.party_latents["party1"] == ("intercepts", "party1_common", "party1_level")
    assert split.num_components == 2
    assert split.num_values == 2 * (2 + 2 + 2 * 3)  # intercepts, shared ones, each outcome's own; not their means
    assert split.structure.modelled_columns.keys() == {"y0", "y1"}


def test_coefficients_of_one_outcome_are_multiplied_by_its_residual_alone():
    def model(data, num_records):
        common, first, second = latent("common", ()), latent("first", ()), latent("second", (3,))
        outcome(party_sum("eta", {"bank": common * data["income"], "telco": first * data["usage"]}), data, num_records)
        part = second[0] + second[1] * data["usage"] + second[2] * data["usage"] ** 2
        outcome(party_sum("other eta", {"bank": common, "telco": part}), data, num_records, "late", "telco")

    split = split_model(model, SCHEMA)
    assert dict(split.shared) == {"bank": ("common",), "telco": ()}
    data = data_of(SCHEMA, 8)
    own = split.contribution("telco", jnp.ones(5), own_columns(split, "telco", data))
    assert own.plated_scores.shape == (8, 2, 3)  # the first outcome has one: zeros, and noise for nobody
    np.testing.assert_allclose(own.plated_scores[:, 0, 0], data["usage"], rtol=1e-6)
    assert not own.plated_scores[:, 0, 1:].any()
    np.testing.assert_allclose(own.plated_scores[:, 1, 2], data["usage"] ** 2, rtol=1e-6)
    assert split.gather_index.tolist() == [0, 1, 5, 5, 2, 3, 4]
    assert split.gather(jnp.arange(1.0, 8.0)).tolist() == [1, 2, 5, 6, 7]


def test_of_a_vector_of_which_each_party_reads_its_own_the_rest_is_noise_and_is_left_out():
    def model(data, num_records):
        level, slopes, both = latent("level", ()), latent("slopes", (2,)), latent("zz", ())
        bank = level + slopes[0] * data["income"] + both * data["income"]
        outcome(party_sum("eta", {"bank": bank, "telco": slopes[1] * data["usage"] + both}), data, num_records)

    split = split_model(model, SCHEMA)
    released = jnp.arange(1.0, 1.0 + split.num_values)
    gathered = jax.jit(split.gather)(released)  # as a step is
    assert split.gather_index.tolist() == [0, 1, 4, 3, 4, 2, 3]
    assert gathered.tolist() == [1, 2, 6, 4 + 7]
    assert split.read.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("outcomes", [("logit",), ("logit", "logit")], ids=len)
def test_density_of_the_parties_numbers_is_numpyros(outcomes):
    schema, model = joint_schema_of(2, outcomes), joint_model_of(2, outcomes)
    split, data = split_model(model, schema), data_of(schema, NUM_RECORDS)
    flat, link = random_theta(split, 0), score_link(split)
    own = {p: own_columns(split, p, data) for p in split.parties}

    @jax.jit  # eagerly, every operation would be a program of its own
    def density(flat):
        parts = [split.log_density(p, flat, columns) for p, columns in own.items()]
        return link.log_density(link.total(split.component_prior(flat).log_weights, parts))

    found = density(flat)
    seeded = handlers.substitute(handlers.seed(model, 0), data=dict(split.constrain(flat)))
    trace = handlers.trace(seeded).get_trace(data, NUM_RECORDS)
    sites = [trace[f"y{number}"] for number in range(len(outcomes))]
    expected = sum(site["fn"].log_prob(site["value"]) for site in sites)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.promise
def test_the_model_runs_unmodified_under_numpyro():
    schema, model = joint_schema_of(2, ("logit", "counts")), joint_model_of(2, ("logit", "counts"))
    data = {name: jnp.asarray(column) for name, column in data_of(schema, 60).items()}
    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.01), Trace_ELBO())
    assert np.isfinite(svi.run(jax.random.key(0), 5, data, 60, progress_bar=False).losses).all()
    mcmc = MCMC(NUTS(model, max_tree_depth=3), num_warmup=10, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(0), data, 60)
    assert mcmc.get_samples()["party1_level"].shape == (5, 2, 3)
    assert not any("eta" in name for name in mcmc.get_samples())


def test_a_party_may_have_no_part_and_a_part_no_latent():
    def model(data, num_records):
        weight = latent("weight", ())
        eta = party_sum("eta", {"telco": weight * data["usage"], "bank": 0.3 * data["income"]})
        outcome(eta, data, num_records)

    third = Schema({**SCHEMA.parties, "shop": PartySchema({"visits": RealColumn(bounds=(0, 1))})})
    split = split_model(model, third)
    assert dict(split.shared) == {"bank": (), "telco": ("weight",), "shop": ()}
    data = data_of(third, 8)
    with compat.x64():
        summed, _ = released(split, Plaintext(), jnp.ones(1), data, 8)
    residual = data["default"] - 1 / (1 + np.exp(-data["usage"] - 0.3 * data["income"]))
    np.testing.assert_allclose(summed, [residual @ data["usage"]], rtol=1e-5)


# -- what is refused ----------------------------------------------------------------------------------

SCHEMA = Schema(
    {
        "bank": PartySchema({"income": RealColumn(bounds=(0, 1)), "default": BinaryColumn()}),
        "telco": PartySchema({"usage": UNIT, "debt": MASKED, "late": BinaryColumn()}),
    }
)
refused = Refused()


def latent(name, shape=(2,)):
    return numpyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))


def predictor(data, **changes):
    w = latent("w")
    return party_sum("eta", {"bank": w[0] * data["income"], "telco": w[1] * data["usage"], **changes})


def outcome(eta, data, num_records, name="default", party="bank"):
    with party_plate(party, num_records):
        numpyro.sample(name, dist.Bernoulli(logits=eta), obs=data[name])


@refused("party_sum 'eta'", "'bank'", "'usage'", "'telco'", "move the term to the part of 'telco'")
def part_with_anothers_column(data, num_records):
    outcome(predictor(data, bank=latent("b", ()) * data["usage"]), data, num_records)


@refused("party_sum 'eta'", "'bank'", "'debt_observed'", "'telco'")
def part_with_anothers_mask(data, num_records):
    outcome(predictor(data, bank=latent("b", ()) * data["debt_observed"]), data, num_records)


@refused("party_sum 'eta'", "'shop'", "no such party", "'bank', 'telco'")
def part_of_nobody(data, num_records):
    outcome(predictor(data, shop=latent("s", ())), data, num_records)


@refused("party_sum 'eta'", "'telco'", "shape (2, 1)", "x @ w")
def part_of_another_shape(data, num_records):
    outcome(predictor(data, telco=latent("t", ()) * data["usage"][:, None])[0], data, num_records)


@refused("party_sum('eta', ...)", "at least one")
def no_part(data, num_records):
    outcome(party_sum("eta", {}) + latent("t", ()), data, num_records)


@refused("two party_sums named 'eta'")
def a_name_twice(data, num_records):
    first = predictor(data)
    outcome(first + party_sum("eta", {"bank": data["income"]}), data, num_records)


@refused("the model has 7 party_sums", "'eta', 'sum0'", "takes 6 at most", "fit two models")
def seven_sums(data, num_records):
    outcome(predictor(data), data, num_records)
    for number in range(6):
        eta = party_sum(f"sum{number}", {"bank": latent(f"s{number}", ())})
        with party_plate("telco", num_records):
            numpyro.sample(f"late{number}", dist.Bernoulli(logits=eta), obs=data["late"])


@refused("party_sums ['eta']", "observes ['late']", "read none", "party_sum('late', {'telco': ...})")
def another_observed_site(data, num_records):
    outcome(predictor(data), data, num_records)
    outcome(latent("s", ()), data, num_records, "late", "telco")


@refused("sites ['default', 'late']", "party_sum 'eta'", "a sum of its own", "once for each")
def two_sites_of_one_sum(data, num_records):
    eta = predictor(data)
    outcome(eta, data, num_records)
    outcome(eta, data, num_records, "late", "telco")


@refused("site 'default' of party 'bank'", "party_sums ['eta', 'second']", "in one party_sum")
def a_site_of_two_sums(data, num_records):
    second = party_sum("second", {"telco": latent("s", ()) * data["usage"]})
    outcome(predictor(data) + second, data, num_records)


@refused("party_sum 'second'", "part of party 'telco'", "reads party_sum 'eta'", "each party's part of 'second'")
def a_part_that_reads_a_sum(data, num_records):
    eta = predictor(data)
    outcome(eta, data, num_records)
    outcome(party_sum("second", {"telco": latent("s", ()) * eta}), data, num_records, "late", "telco")


@refused("no observed site reads party_sum 'second'", "numpyro.sample")
def a_second_sum_that_nothing_reads(data, num_records):
    outcome(predictor(data), data, num_records)
    party_sum("second", {"telco": latent("s", ()) * data["usage"]})


@refused("site 'late' of party 'telco'", "party_sum 'second'", "no secure step computes", "the very sum")
def a_second_outcome_of_another_distribution(data, num_records):
    outcome(predictor(data), data, num_records)
    eta = party_sum("second", {"telco": latent("s", ()) * data["usage"]})
    with party_plate("telco", num_records):
        numpyro.sample("late", dist.Bernoulli(logits=3 * eta), obs=data["late"])


@refused(
    "site 'time' of party 'bank'", "no secure step computes (Weibull)", "observe whether it was seen", "PiecewiseHazard"
)
def a_time_until_an_event(data, num_records):
    eta = party_sum("eta", {"telco": latent("s", ()) * data["usage"]})
    with party_plate("bank", num_records):
        numpyro.sample("time", dist.Weibull(jnp.exp(eta), 2.0), obs=data["income"])


@refused(
    "no secure step computes (BernoulliProbs)", "Poisson(jnp.exp(eta)) of the column", 'MarginalGLM(family="cloglog")'
)
def a_complementary_log_log(data, num_records):
    eta = party_sum("eta", {"telco": latent("s", ()) * data["usage"]})
    with party_plate("bank", num_records):
        numpyro.sample("default", dist.Bernoulli(probs=-jnp.expm1(-jnp.exp(eta))), obs=data["default"])


@refused("reads columns ['income'] besides party_sum 'eta'", "of a factor of a rate, as an exposure, the logarithm")
def an_exposure_outside_the_sum(data, num_records):
    eta = predictor(data)
    with party_plate("bank", num_records):
        numpyro.sample("default", dist.Poisson(data["income"] * jnp.exp(eta)), obs=data["default"])


@refused("party_sum 'eta'", "discrete latent 'z'", "one of them")
def beside_a_mixture(data, num_records):
    with numpyro.plate("records", num_records):
        numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    outcome(predictor(data), data, num_records)


@refused("no observed site reads party_sum 'eta'", "numpyro.sample")
def sum_that_nothing_reads(data, num_records):
    predictor(data)
    outcome(latent("s", ()), data, num_records)


@refused("site 'default' of party 'bank'", "latents ['s']", "part of 'bank'", "public number")
def latent_besides(data, num_records):
    outcome(predictor(data) + latent("s", ()), data, num_records)


@refused("site 'default' of party 'bank'", "columns ['income']", "part of 'bank'")
def column_besides(data, num_records):
    outcome(predictor(data) + data["income"], data, num_records)


@refused("site 'default' of party 'bank' reads column 'usage' of party 'telco'")
def anothers_column_besides(data, num_records):
    outcome(predictor(data) + data["usage"], data, num_records)


@refused("site 'default' of party 'bank'", "party_sum 'eta'", "Bernoulli", "the very sum")
def twice_the_sum(data, num_records):
    outcome(2 * predictor(data), data, num_records)


@refused("site 'default' of party 'bank'", "party_sum 'eta'", "Bernoulli", "the very sum")
def another_distribution(data, num_records):
    eta = predictor(data)
    with party_plate("bank", num_records):
        numpyro.sample("default", dist.Laplace(eta, 1.0), obs=data["default"])


@refused("site 'late' of party 'telco'", "masked by ['debt_observed']", "leave such records out")
def masked_outcome(data, num_records):
    eta = predictor(data)
    with party_plate("telco", num_records), handlers.mask(mask=data["debt_observed"]):
        numpyro.sample("late", dist.Bernoulli(logits=eta), obs=data["late"])


@refused("latent 'v' reads column", "must not depend on the data")
def prior_that_reads_the_sum(data, num_records):
    eta = predictor(data)
    numpyro.sample("v", dist.Normal(eta.sum() + data["income"].sum(), 1.0))
    outcome(eta, data, num_records)


@refused("latent 'v' reads party_sum 'eta'", "must not depend on the data")
def prior_that_reads_the_sum_alone(data, num_records):
    eta = predictor(data)
    numpyro.sample("v", dist.Normal(eta.sum(), 1.0))
    outcome(eta, data, num_records)


@refused("site 'both'", "numpyro.factor", "observe the outcome's column")
def factor_of_the_sum(data, num_records):
    eta = predictor(data)
    with party_plate("bank", num_records):
        numpyro.factor("both", eta * data["default"])


@refused("site 'default'", "changes when other records are there")
def part_that_mixes_records(data, num_records):
    centred = data["income"] - data["income"].mean()
    outcome(predictor(data, bank=latent("b", ()) * centred), data, num_records)


@pytest.mark.parametrize("name", refused)
def test_refused_with_names_and_the_fix(name):
    refused.check(name, SCHEMA)
