"""Predictions between parties: what the label's party is told, that nobody else is told anything, and who refuses."""

import dataclasses
import pickle
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from tests.glm.conftest import CUTPOINTS, FEATURES, LABELS, SCHEMA, TIMES, UNIT
from vertinumpyro.core.errors import AlignmentError, ArgumentError, PrivacyError
from vertinumpyro.data import PartySchema, Schema, VerticalDataset
from vertinumpyro.glm import FAMILIES, VerticalPredictor
from vertinumpyro.regression.dataframe_input import in_table_units
from vertinumpyro.regression.glm_settings import Regression
from vertinumpyro.secure import Crypten, FixedPoint
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.session import OrganisationSession, PartyTask, ProcessSession
from vertinumpyro.transport import Address, Communicator, Peer, connect_all, make_identity

THREE = Schema({**SCHEMA.parties, "shop": PartySchema({"spent": UNIT})})
COEFFICIENTS = {"income": [1.5], "years": [-0.7], "usage": [-2.0], "tariff": [0.4, -0.9, 0.1], "spent": [0.8]}
BANDS = {"bernoulli": (0.1, 0.5, 0.8), "probit": (0.3,), "normal": (0.0, 12.5), "poisson": (0.5, 1.0, 4.0)}


def predictor(family="bernoulli", reveal="score", schema=SCHEMA, **settings):
    features = (*FEATURES, "spent") if schema is THREE else FEATURES
    regression = Regression.of(
        schema, LABELS[family], family=family, features=features, linear=["years"], prior_scale=1.0, scale=0.1,
        cutpoints={"ordinal": CUTPOINTS, "survival": TIMES}.get(family), concentration=2.0,
        time="until" if family == "survival" else None,
    )  # fmt: skip
    coefficients = np.concatenate([COEFFICIENTS[term.column] for term in regression.terms])
    if family == "normal":
        coefficients = coefficients / 10
    given = {"regression": regression.of_its_columns, "coefficients": tuple(coefficients), "intercept": 0.3}
    return VerticalPredictor(**{**given, "reveal": reveal, "allow_not_dp": True, **settings})


def expected(made, records):
    """(linear predictor, mean) from all columns."""
    eta = made.regression.predictor(records.pooled(), np.asarray(made.coefficients), made.intercept)
    return eta, made.regression.of_label.mean(eta)


@pytest.fixture(scope="module")
def records():
    return VerticalDataset.example(THREE, 90, np.random.default_rng(3))


@pytest.fixture(scope="module")
def tables(records, tmp_path_factory):
    """New records at three parties, whose rows stand in different orders, without a label."""
    folder = tmp_path_factory.mktemp("records")
    frame = records.to_frame()
    frame.insert(0, "id", [f"{i:03d}" for i in range(len(frame))])
    wanted = {"bank": ["income", "years"], "telco": ["usage", "tariff"], "shop": ["spent"]}
    files = {party: folder / f"{party}.csv" for party in wanted}
    for party, columns in wanted.items():
        frame[["id", *columns]].sample(frac=1.0, random_state=len(party)).to_csv(files[party], index=False)
    return files


def tasks_of(made, tables, folder, **others):
    """A task of each party; `others` names what one of them was given in the predictor's place."""
    return [
        PartyTask(party=p, schema=made.schema.to_dict(), table=tables[p], build=others.get(p, made).build,
                  ledger=folder / p, told=folder / f"{p}.csv")
        for p in made.schema.parties
    ]  # fmt: skip


# -- what is told ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_says_all_that_the_family_makes_of_the_predictor(family, records):
    made = predictor(family)
    eta, mean = expected(made, records)
    found = made.predict(records)
    np.testing.assert_allclose(found["score"], eta, atol=2.0**-31)
    if FAMILIES[family].classes:
        labels = np.array(SCHEMA.columns[LABELS[family]].labels)
        assert list(found[LABELS[family]]) == list(labels[mean.argmax(axis=1)])
        np.testing.assert_allclose(found[[f"probability of {name}" for name in labels]], mean, atol=1e-8)
    else:
        column = SCHEMA.columns[LABELS[family]]
        expected_mean = mean if family == "survival" else in_table_units(column, mean)
        np.testing.assert_allclose(found[LABELS[family]], expected_mean, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("family", ["bernoulli", "probit", "ordinal"])
def test_a_class_is_told_alone(family, records):
    made = predictor(family, "class")
    _, mean = expected(made, records)
    found = made.predict(records)
    assert list(found.columns) == [LABELS[family]]
    assert len(found[LABELS[family]].unique()) == mean.shape[1]
    assert list(found[LABELS[family]]) == list(predictor(family).predict(records)[LABELS[family]])


@pytest.mark.parametrize("family", BANDS)
def test_a_band_holds_the_mean(family, records):
    made = predictor(family, BANDS[family])
    _, mean = expected(made, records)
    values = mean[:, 1] if mean.ndim == 2 else in_table_units(SCHEMA.columns[LABELS[family]], mean)
    found = made.predict(records)
    assert list(found["band"]) == list(np.searchsorted(BANDS[family], values, side="right"))
    assert len(found["band"].unique()) == len(BANDS[family]) + 1
    assert np.all((found["from"] <= values) & (values <= found["to"]))


def test_what_the_grid_of_bands_is_asked_for_fits_its_bits(records):
    for family in BANDS:
        made = predictor(family, BANDS[family])
        total = sum(made.vector(party, records.arrays(party)) for party in ("bank", "telco"))
        largest = max(abs(int(x) - t) for x in total for t in made.bands.thresholds)
        assert largest < 2**made.bands.bits


# -- between processes -----------------------------------------------------------------------------


def test_parties_in_processes_tell_the_labels_party_alone(records, tables, tmp_path):
    made = predictor(schema=THREE)
    with ProcessSession(tasks_of(made, tables, tmp_path)) as session:
        assert made.predict(session) is None
        assert session.traffic.rounds < 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bank.csv"]
    assert (tmp_path / "bank.csv").stat().st_mode & 0o777 == 0o600, "it is about single records"
    found = pd.read_csv(tmp_path / "bank.csv", dtype={"id": str})
    assert list(found["id"]) == [f"{i:03d}" for i in range(90)]
    pd.testing.assert_frame_equal(found.drop(columns="id"), made.predict(records), atol=1e-9)


@pytest.mark.skipif(Crypten().missing() is not None, reason=str(Crypten().missing()))
def test_parties_in_processes_compare_on_shares(records, tables, tmp_path):
    made = predictor(reveal=(0.2, 0.5, 0.7), schema=THREE)
    assert made.backend == Crypten()
    with ProcessSession(tasks_of(made, tables, tmp_path)) as session:
        made.predict(session)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bank.csv"]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "bank.csv").drop(columns="id"), made.predict(records))


def test_organisations_tell_the_labels_party_alone(records, tables, tmp_path):
    """Over real TLS, each with a program of its own; no dealer, no agreement, as there is no plan."""
    made = predictor(schema=THREE)
    tasks = tasks_of(made, tables, tmp_path)
    keys = [make_identity(tmp_path / "keys" / task.party, task.party) for task in tasks]
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in tasks]
    ports = [listener.getsockname()[1] for listener in listeners]

    def at_organisation(rank):
        peers = {
            other: Peer(name=tasks[other].party, certificate=keys[other].certificate,
                        dial=Address("127.0.0.1", ports[other]) if other < rank else None)
            for other in range(len(tasks)) if other != rank
        }  # fmt: skip
        links = connect_all(keys[rank], peers, topic=b"predictions", listener=listeners[rank], wait_s=30, timeout_s=30)
        with OrganisationSession(Communicator(rank, len(tasks), links, 30), tasks[rank]) as session:
            return made.predict(session)

    with ThreadPoolExecutor(len(tasks)) as pool:
        bank, *others = pool.map(at_organisation, range(len(tasks)))
    assert others == [None, None]
    assert list(bank["id"]) == [f"{i:03d}" for i in range(90)]
    pd.testing.assert_frame_equal(bank.drop(columns="id"), made.predict(records))


def test_a_party_tells_nothing_but_what_it_agreed_to(tables, tmp_path):
    made = predictor()
    other = dataclasses.replace(made, coefficients=tuple(1000 * value for value in made.coefficients))
    cases = [
        (tasks_of(made, tables, tmp_path), other, "agreed to tell something else"),
        (tasks_of(made, tables, tmp_path, telco=other), made, "party 'telco': this party agreed to tell something"),
    ]
    for tasks, asked, message in cases:
        with ProcessSession(tasks) as session, pytest.raises(ArgumentError, match=message):
            asked.predict(session)
    assert not list(tmp_path.iterdir())


def test_records_are_matched_and_columns_checked_before_anything_is_sent(tables, tmp_path):
    made, table = predictor(), tmp_path / "other.csv"
    pd.read_csv(tables["telco"], dtype={"id": str}).iloc[1:].to_csv(table, index=False)
    with pytest.raises(AlignmentError):
        ProcessSession(tasks_of(made, {**tables, "telco": table}, tmp_path / "ledgers"))
    wide = dataclasses.replace(UNIT, bounds=(-2.0, 2.0))
    schema = Schema({**made.schema.parties, "telco": PartySchema({"usage": wide})})
    for given, message in [
        (schema, "'telco', column 'usage' has another public domain"),
        (Schema({"bank": made.schema.parties["bank"]}), "'telco', column 'usage' is in the model and not in"),
        (Schema({"telco": made.schema.parties["telco"]}), "'bank' is told the predictions and is no party"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            made.predict(VerticalDataset.example(given, 5, np.random.default_rng(0)))


# -- what is refused -------------------------------------------------------------------------------


def test_nothing_is_told_before_somebody_said_that_it_is_not_dp():
    with pytest.raises(PrivacyError, match="no epsilon covers; give allow_not_dp=True"):
        predictor(allow_not_dp=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reveal": "everything"}, 'must be "score", "class" or rising'),
        ({"family": "poisson", "reveal": "class"}, "family='poisson' has none"),
        ({"family": "ordinal", "reveal": (0.5,)}, "has no mean"),
        ({"reveal": (0.5, 0.2)}, "rising values between 0 and 1"),
        ({"reveal": (0.5, 1.0)}, "rising values between 0 and 1"),
        ({"reveal": ()}, "one or more rising values"),
        ({"backend": FixedPoint()}, "for parties in processes"),
        ({"reveal": "class", "backend": SecureAggregation()}, "does not compare"),
        ({"intercept": float("nan")}, "does not fit"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(settings, message):
    with pytest.raises(ArgumentError, match=message):
        predictor(**settings)


def test_it_spends_no_plan_and_shows_no_record(records):
    made = predictor()
    for call in (lambda: made.check(records, None), lambda: made.work(records, "bank", {}, None, None)):
        with pytest.raises(ArgumentError, match="spends no plan"):
            call()
    assert pickle.loads(pickle.dumps(made)) == made
    assert isinstance(made.build(), VerticalPredictor)
