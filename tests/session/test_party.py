"""What a party refuses, whoever asks: the commands that reach its process, one party without the others.

The others are an echo: they show what this party shows, so all agree on everything.
"""

import dataclasses
import json

import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError, BackendError, PlanSpentError, SchemaError
from vertinumpyro.data import TableFacts, VerticalDataset, read_table
from vertinumpyro.dpvi import DPVI
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.releases import ACROSS, OWN, PADS, ROUND
from vertinumpyro.privacy import DisjointBatches, NoiseSource
from vertinumpyro.regression import VerticalLinearRegression
from vertinumpyro.regression import noisy_moments as linear_steps
from vertinumpyro.secure import Crypten
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.session import party
from vertinumpyro.session.party_computation import Begin, Iterate, Multiply, Publish, Request, Reveal, Sum
from vertinumpyro.session.reveal_once import SharedRandomSource
from vertinumpyro.transport import Traffic


class Seat:
    rank, num_parties, is_dry_run = 0, 2, False

    def __init__(self):
        self.differs = False

    def all_gather(self, message, size):
        assert len(message) == size
        return [message, bytes(size) if self.differs else message]

    def broadcast(self, message, *, limit):
        return message


def test_parties_with_other_schemas_end_before_a_table_is_read(two, tmp_path):
    (clinic, _), seat = two.tasks(lambda: VerticalLinearRegression(backend=Crypten()), tmp_path), Seat()
    clinic, seat.differs = dataclasses.replace(clinic, table=tmp_path / "nowhere.csv"), True
    with pytest.raises(SchemaError, match=r"'clinic' has another schema than 'bank': .* order of columns"):
        party.Party.seated(seat, clinic)


class End(PartyProtocol):
    """The other party's numbers are 0; `sent` is what left this one to be opened."""

    rank, num_parties = 0, 2
    traffic = dealer_traffic = Traffic()

    def __init__(self):
        self.on_record, self.sent, self.masks = None, [], []

    def _set_on_record(self, on_record):
        self.on_record = on_record

    def _reveal(self, values):
        message = np.ascontiguousarray(values, np.int64).tobytes()
        if self.on_record is not None:
            self.on_record(message)
        return self.open(message)

    def open(self, message):
        self.sent.append(message)
        return np.frombuffer(message, np.int64)

    def _everyones(self, digest):
        return [digest, digest]

    def _clipped_noisy_sum(self, computation, own, prior, mask, noise):
        self.masks.append(mask)
        return self._reveal(noise)

    def _noisy_cross_products(self, computation, matrix, noise_share):
        return self._reveal(noise_share)

    def _noisy_sum(self, computation, noisy_vector):
        return self._reveal(noisy_vector)


class Process:
    """A party's process as it stands after `begin`; another one on the same `folder` is a second start."""

    def __init__(self, tables, folder, method, plan, *, resume=False, **task):
        settings = dataclasses.replace(tables.tasks(None, folder)[0], **task)
        frame = read_table(settings.table, tables.schema, settings.party)
        own = VerticalDataset.from_frames(tables.schema.restrict(settings.party), {settings.party: frame})
        self.seat, self.end, self.replies = Seat(), End(), []
        self.party = party.Party(self.seat, self.end, settings, TableFacts(tables.schema, own.num_records), own, method)
        self.folder = settings.ledger
        self.ask(do="begin", plan=plan.to_dict(), resume=resume)

    def ask(self, arrays=None, **words):
        """The reply: words and arrays, as a release's or as `begin`'s."""
        with self.party.answering():
            self.replies.append(self.party.do(Request.from_dict(json.loads(json.dumps(words))), arrays or {}))
        return self.replies[-1]

    def refuses(self, match, kinds=(ArgumentError, PlanSpentError), **words):
        """It does, and nothing was counted or sent; the process would end, and the next one go on."""
        before = self.steps, list(self.end.sent), len(self.replies)
        with pytest.raises(kinds, match=match):
            self.party.do(Request.from_dict(words), {})
        assert (self.steps, self.end.sent, len(self.replies)) == before

    @property
    def steps(self):
        return self.party._run.ledger.steps_spent

    def stop(self):
        self.party._run.ledger.pause()


@pytest.fixture(scope="module")
def adaptive():
    return VertiMRF(max_cells=4, iterations=10, selection="adaptive", num_rounds=2, tables_per_round=2)


def adaptive_plan(two, adaptive):
    return adaptive.plan(two.dataset, epsilon=3.0)


@pytest.mark.parametrize(
    ("request_", "plain"),
    [
        (Publish(0, "own"), '{"do": "publish", "step": 0, "what": "own", "words": {}}'),
        (Multiply(None, "p", {"a": 1}), '{"do": "cross_products", "step": null, "what": "p", "words": {"a": 1}}'),
        (Sum(2, "r", {"a": [1]}), '{"do": "sum", "step": 2, "what": "r", "words": {"a": [1]}}'),
        (Iterate(3, 4), '{"do": "iterate", "step": 3, "count": 4}'),
        (Reveal("ab"), '{"do": "tell", "digest": "ab"}'),
        (Begin({"kind": "x"}, True), '{"do": "begin", "plan": {"kind": "x"}, "resume": true}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_requests_travel_as_they_always_did(request_, plain):
    """Parties compare digests of this text, and their records hold them."""
    assert json.dumps(request_.to_dict()) == plain
    assert Request.from_dict(json.loads(plain)) == request_


@pytest.mark.parametrize(
    "words",
    [
        {"do": "iterate", "step": 0},
        {"do": "iterate", "step": 0, "count": 1, "more": 1},
        {"do": "publish", "step": 0, "what": 1, "words": {}},
        {"do": "sum", "step": 0, "what": "a", "words": []},
        {"do": "begin", "plan": {}, "resume": "yes"},
    ],
    ids=str,
)
def test_a_request_of_another_form_is_refused(words):
    with pytest.raises(ArgumentError, match=f"{words['do']}: .* run one version everywhere"):
        Request.from_dict(words)


ALL_PAIRS = [["age", "debt"], ["age", "kind"], ["ill", "debt"], ["ill", "kind"]]


def first_look(**changes):
    return {"do": "sum", "step": 1, "what": ROUND, "words": {"pairs": ALL_PAIRS, "release": 0}, **changes}


def a_round(step, pairs, release=None):
    words = {"pairs": pairs, "release": step - 1 if release is None else release}
    return {"do": "sum", "step": step, "what": ROUND, "words": words}


def at_the_first_round(two, tmp_path, adaptive):
    process = Process(two, tmp_path, adaptive, adaptive_plan(two, adaptive))
    process.ask(do="publish", step=0, what=OWN, words={})
    process.ask(do="cross_products", step=None, what=PADS, words={})
    process.ask(**first_look())
    assert process.steps == 2
    return process


def test_a_step_of_chosen_tables_is_released_once_and_as_it_was(two, tmp_path, adaptive):
    process = at_the_first_round(two, tmp_path, adaptive)
    _, first = process.replies[-1]
    swapped = [ALL_PAIRS[i] for i in (1, 0, 2, 3)]
    process.refuses("something else", **first_look(words={"pairs": swapped, "release": 0}))
    sent = len(process.end.sent)
    _, again = process.ask(**first_look())
    np.testing.assert_array_equal(again["values"], first["values"])
    assert len(process.end.sent) == sent  # answered from the record
    _, own = process.ask(do="publish", step=0, what=OWN, words={})
    _, twice = process.ask(do="publish", step=0, what=OWN, words={})
    assert all(np.array_equal(own[name], twice[name]) for name in own)
    assert process.steps == 2


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({**a_round(2, ALL_PAIRS[:2]), "step": 1}, "different tables"),  # the first look, with a round's noise
        (a_round(2, ALL_PAIRS[:2], release=0), "its own noise"),
        (a_round(2, ALL_PAIRS[:2], release=2), "its own noise"),
        (a_round(2, ALL_PAIRS[:2], release=-1), "its own noise"),
        (a_round(3, ALL_PAIRS[:2]), "in their order"),
        (a_round(2, ALL_PAIRS[:3]), "pays for 2 tables, got 3"),
        (a_round(2, [ALL_PAIRS[0], ALL_PAIRS[0]]), "different tables"),
        (a_round(2, [["age", "ill"]]), "two parties' columns"),
        (a_round(2, [["debt", "age"]]), "two parties' columns"),
        (a_round(99, ALL_PAIRS[:2]), "no step 99"),
        (a_round(-1, ALL_PAIRS[:2], release=0), "no step -1"),
        (a_round(True, ALL_PAIRS[:2], release=0), "no step True"),
        ({**a_round(2, ALL_PAIRS[:2]), "step": 2.0}, "no step 2.0"),
        ({**a_round(2, ALL_PAIRS[:2]), "step": "2"}, "no step '2'"),
        ({**a_round(2, ALL_PAIRS[:2]), "step": None}, "without a step"),
        ({**a_round(2, ALL_PAIRS[:2]), "what": PADS}, "not what the plan releases"),
        ({**a_round(2, ALL_PAIRS[:2]), "do": "cross_products"}, "not what the plan releases"),
        ({"do": "cross_products", "step": None, "what": ACROSS, "words": {"release": 0}}, "without a step"),
        ({"do": "cross_products", "step": 1, "what": ACROSS, "words": {"release": 0}}, "not what the plan releases"),
        ({"do": "cross_products", "step": None, "what": ROUND, "words": {"release": 0}}, "without a step"),
        ({"do": "cross_products", "step": 2, "what": PADS, "words": {}}, "not what the plan releases"),
        ({"do": "publish", "step": 1, "what": OWN, "words": {}}, "not what the plan releases"),
        ({"do": "publish", "step": 2, "what": OWN, "words": {}}, "not what the plan releases"),
        ({"do": "publish", "step": None, "what": OWN, "words": {}}, "without a step"),
        ({"do": "publish", "step": 0, "what": OWN, "words": {"more": 1}}, "not what the plan releases"),
        ({"do": "iterate", "step": 2, "count": 1}, "no steps to iterate"),
        ({"do": "show", "step": 2}, "does not know how to 'show'"),
    ],
    ids=str,
)
def test_what_the_plan_does_not_release_there_is_refused(two, tmp_path, adaptive, words, match):
    process = at_the_first_round(two, tmp_path, adaptive)
    process.refuses(match, **words)


def test_tables_need_the_products_that_they_are_taken_from(two, tmp_path, adaptive):
    process = Process(two, tmp_path, adaptive, adaptive_plan(two, adaptive))
    process.ask(do="publish", step=0, what=OWN, words={})
    process.refuses("before the products", **first_look())


def test_products_at_once_are_one_step(two, tmp_path):
    method = VertiMRF(max_cells=4, iterations=10)
    process = Process(two, tmp_path, method, method.plan(two.dataset, epsilon=3.0))
    products = {"do": "cross_products", "step": 1, "what": ACROSS, "words": {"release": 0}}
    process.refuses("in their order", **products)
    process.ask(do="publish", step=0, what=OWN, words={})
    process.refuses("without a step", **{**products, "step": None})
    process.refuses("without a step", **{**products, "step": None, "what": PADS, "words": {}})
    process.refuses("not what the plan releases", **{**products, "words": {"release": 1}})
    process.refuses("not what the plan releases", **{**products, "words": {}})
    _, first = process.ask(**products)
    _, again = process.ask(**products)
    np.testing.assert_array_equal(first["values"], again["values"])
    assert len(process.end.sent) == 1
    assert json.loads(next(process.folder.glob("*/privacy.json")).read_text())["status"] == "finished"


def test_the_functional_mechanism_releases_two_parts_once(two, tmp_path):
    method = VerticalLinearRegression()
    plan = method.plan(two.schema, "debt", num_records=two.dataset.num_records, epsilon=5.0, delta=1e-5)
    process = Process(two, tmp_path, method, plan)
    own = {"do": "publish", "step": 0, "what": linear_steps.OWN, "words": {}}
    across = {"do": "cross_products", "step": 1, "what": linear_steps.ACROSS, "words": {}}
    process.refuses("in their order", **across)
    process.refuses("without a step", **{**across, "step": None})
    process.refuses("not what the plan releases", **{**own, "step": 0, "what": linear_steps.ACROSS})
    process.ask(**own)
    process.refuses("not what the plan releases", **{**own, "step": 1})
    process.refuses("not what the plan releases", **{**across, "words": {"release": 0}})
    process.refuses("not what the plan releases", **{**across, "do": "sum"})
    _, first = process.ask(**across)
    second = Process(two, tmp_path, method, plan, resume=True)
    words, _ = second.replies[-1]
    assert words["steps_spent"] == 2
    _, again = second.ask(**across)
    np.testing.assert_array_equal(first["values"], again["values"])
    assert second.end.sent == []
    second.stop()
    with pytest.raises(PlanSpentError, match=f"plan {plan.plan_id} on record: it was begun before"):
        Process(two, tmp_path, method, plan)


def test_two_live_processes_of_one_party_do_not_work_on_one_plan(two, tmp_path, monkeypatch):
    from vertinumpyro.privacy import LedgerRegistry, ledger

    method = VerticalLinearRegression()
    plan = method.plan(two.schema, "debt", num_records=two.dataset.num_records, epsilon=5.0, delta=1e-5)
    process = Process(two, tmp_path, method, plan)
    process.ask(do="publish", step=0, what=linear_steps.OWN, words={})
    monkeypatch.setattr(ledger, "_OF_THIS_PROCESS", LedgerRegistry())  # another process knows no plans
    with pytest.raises(PlanSpentError, match="in use by another process"):
        Process(two, tmp_path, method, plan, resume=True)
    process.stop()


def test_parties_that_were_asked_for_different_things_do_nothing(two, tmp_path):
    method = VerticalLinearRegression()
    plan = method.plan(two.schema, "debt", num_records=two.dataset.num_records, epsilon=5.0, delta=1e-5)
    process = Process(two, tmp_path, method, plan)
    process.ask(do="publish", step=0, what=linear_steps.OWN, words={})
    process.seat.differs = True
    across = {"do": "cross_products", "step": 1, "what": linear_steps.ACROSS, "words": {}}
    process.refuses("asked for different things", BackendError, **across)
    process.refuses("given different plans", BackendError, do="begin", plan=plan.to_dict(), resume=True)
    process.stop()


def test_steps_of_an_iterative_method_go_forward_alone(two, tmp_path, monkeypatch):
    monkeypatch.setattr(party, "toss_coins", lambda *_: SharedRandomSource(bytes(32)))  # which an echo cannot
    method = DPVI(num_components=2)
    sampling = DisjointBatches(batch_size=20, num_epochs=4)  # three steps an epoch
    plan = method.plan(two.dataset, noise_multiplier=8.0, sampling=sampling)
    process = Process(two, tmp_path, method, plan)
    for step, count in [(0, 0), (0, 13), (11, 2), (-1, 1), (True, 1), (0.0, 1), ("0", 1), (0, 1.0), (None, 1)]:
        process.refuses("the plan iterates steps 0 to 11", do="iterate", step=step, count=count)
    process.refuses("inside an epoch", do="iterate", step=1, count=1)
    for do in ("publish", "sum", "cross_products"):
        process.refuses("not what the plan releases", do=do, step=0, what="steps", words={})
        process.refuses("without a step", do=do, step=None, what="steps", words={})
    process.ask(do="iterate", step=0, count=2)
    assert (process.steps, len(process.end.sent)) == (2, 2)
    for step in (0, 1, 3):
        process.refuses("2 steps on record", do="iterate", step=step, count=1)
    process.ask(do="iterate", step=2, count=1)
    process.stop()
    second = Process(two, tmp_path, method, plan, resume=True)
    assert second.replies[-1][0]["steps_spent"] == 3
    second.refuses("3 steps on record", do="iterate", step=0, count=1)
    second.ask(do="iterate", step=6, count=1)  # as far as another party's record goes
    assert second.steps == 7
    assert all(mask.sum() <= 20 and mask.dtype == bool for mask in second.end.masks)
    second.stop()


def test_steps_that_start_from_tables_come_after_them(two, tmp_path, monkeypatch):
    monkeypatch.setattr(party, "toss_coins", lambda *_: SharedRandomSource(bytes(32)))
    method = DPVI(num_components=2, warm_start=False)
    start = VertiMRF().plan(two.dataset, epsilon=1.0)
    plan = changed(method.plan(two.dataset, epsilon=1.0, num_steps=4), start=start)
    process = Process(two, tmp_path, method, plan)
    for step, count in [(0, 1), (1, 1), (0, 6), (2, 5), (5, 2)]:
        process.refuses("the plan iterates steps 2 to 5", do="iterate", step=step, count=count)
    process.refuses("in their order", do="cross_products", step=1, what=ACROSS, words={"release": 0})
    process.ask(do="publish", step=0, what=OWN, words={})
    _, tables = process.ask(do="cross_products", step=1, what=ACROSS, words={"release": 0})
    process.refuses("not what the plan releases", do="cross_products", step=2, what=ACROSS, words={"release": 0})
    process.ask(do="iterate", step=2, count=3)
    assert (process.steps, len(process.end.masks)) == (5, 3)
    process.stop()
    second = Process(two, tmp_path, method, plan, resume=True)
    _, again = second.ask(do="cross_products", step=1, what=ACROSS, words={"release": 0})
    np.testing.assert_array_equal(again["values"], tables["values"])  # as they were sent
    assert not second.end.sent
    second.ask(do="iterate", step=5, count=1)
    assert second.steps == plan.num_steps
    second.stop()


def changed(plan, **fields):
    return dataclasses.replace(plan, **fields)


def test_a_plan_that_does_not_fit_the_table_is_refused_before_anything(two, tmp_path):
    linear, steps = VerticalLinearRegression(), DPVI(num_components=2)
    moments = linear.plan(two.schema, "debt", num_records=two.dataset.num_records, epsilon=5.0, delta=1e-5)
    gradients = steps.plan(two.dataset, noise_multiplier=8.0, num_steps=4, batch_size=20)
    scaled = [changed(group, shape="scalar", size=1) for group in moments.layout.groups]
    cases = [
        (linear, changed(moments, num_records=6000), "6000 records"),
        (linear, changed(moments, layout=changed(moments.layout, groups=tuple(scaled))), "another schema"),
        (linear, changed(moments, plan_id="../elsewhere"), "plan_id"),
        (linear, gradients, "FunctionalMechanismPlan"),
        (steps, moments, "PrivacyPlan"),
        (steps, changed(gradients, num_records=6000), "6000 records"),
        (steps, changed(gradients, parties=("clinic", "nobody")), "parties"),
        (steps, changed(gradients, batch_indices="hidden"), "batch_indices"),
        (steps, changed(gradients, noise=NoiseSource(kind="trusted", num_parties=2)), 'noise="trusted"'),
        (steps, changed(gradients, grid_bits=gradients.grid_bits - 1), "another backend"),
    ]
    for method, plan, match in cases:
        with pytest.raises(ArgumentError, match=match):
            Process(two, tmp_path, method, plan)
    with pytest.raises(PlanSpentError, match=f"agreed to plan {moments.fingerprint()}, and was asked for"):
        Process(two, tmp_path, steps, gradients, approved=moments.fingerprint())
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_counts_fewer_tables_than_there_are_is_refused(two, tmp_path):
    """Its sensitivity would be too small for what the products show."""
    method = VertiMRF(max_cells=4, iterations=10)
    plan = method.plan(two.dataset, epsilon=3.0)
    for fields in ({"num_columns": (1, 1)}, {"num_binned": (0, 0)}, {"num_records": 6000}):
        with pytest.raises(ArgumentError, match=next(iter(fields))):
            Process(two, tmp_path, method, changed(plan, **fields))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_released_before_a_plan_is_begun(two, tmp_path):
    settings = two.tasks(None, tmp_path)[0]
    own = VerticalDataset(two.schema.restrict("clinic"), {"clinic": two.dataset.arrays("clinic")})
    process = party.Party(
        Seat(), End(), settings, TableFacts(two.schema, own.num_records), own, VerticalLinearRegression()
    )
    for request in (Publish(0, OWN), Sum(0, OWN), Multiply(0, OWN), Iterate(0, 1)):
        with pytest.raises(PlanSpentError, match="no plan was begun"):
            process.do(request, {})


@pytest.mark.parametrize("plan_id", ["../another", "/elsewhere", "", "a" * 65])
def test_a_plan_whose_id_is_no_name_of_a_folder_reads_no_folder(two, tmp_path, plan_id):
    task = two.tasks(None, tmp_path)[0]
    for look in (task.folder_of, task.has_begun):
        with pytest.raises(ArgumentError, match="plan_id must be up to 64 letters"):
            look(plan_id)
