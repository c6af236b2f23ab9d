"""Agreements: one digest for one content, signatures that hold for it alone, policies, and who meets whom."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import socket

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.organisations.programs import free_port
from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, Schema, TableFacts
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.study import LINKAGE, Agreement, Approval, Member, Policy, check_approvals, connect_members
from vertinumpyro.transport import Address, Certificate, PeerError, make_identity

SCHEMA = Schema(
    {
        "clinic": PartySchema({"ill": BinaryColumn(), "ward": CategoricalColumn(categories=("a", "b"))}),
        "insurer": PartySchema({"claim": BinaryColumn()}),
    }
)
PLAN = VertiMRF().plan(TableFacts(SCHEMA, 1000), epsilon=1.0)
NAMES = ("clinic", "insurer", "dealer")


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identities")
    return {name: make_identity(folder / name, name) for name in (*NAMES, "other")}


@pytest.fixture
def study(identities):
    """An agreement whose dealer cannot be reached."""
    addresses = [Address("127.0.0.1", free_port()) for _ in range(2)]
    members = {
        n: Member(certificate=identities[n].certificate, address=a) for n, a in zip(NAMES, addresses, strict=False)
    }
    return Agreement(
        name="a study",
        schema=SCHEMA,
        members=members,
        helpers={"dealer": Member(certificate=identities["dealer"].certificate)},
        method="vertimrf",
        settings={"mrf": {"max_cells": 8}, "fit": {"backend": "crypten"}},
        plan=PLAN,
    )


def approvals(study, identities):
    return {name: Approval.sign(study, name, identities[name]) for name in study.members}


def changed(study, **changes):
    return dataclasses.replace(study, **changes)


def test_an_agreement_survives_its_file_with_its_digest(study, tmp_path):
    study.save(tmp_path / "study.toml")
    again = Agreement.load(tmp_path / "study.toml")
    assert again.digest == study.digest
    assert again.differences(study) == []
    assert again.plan == PLAN
    text = (tmp_path / "study.toml").read_text()
    (tmp_path / "study.toml").write_text(
        "# a remark\n" + text.replace("-----END CERTIFICATE-----\\n", "-----END CERTIFICATE-----")
    )
    assert Agreement.load(tmp_path / "study.toml").digest == study.digest  # layout is no content


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"plan": dataclasses.replace(PLAN, noise_multiplier=PLAN.noise_multiplier / 2)}, "plan.noise_multiplier"),
        ({"plan": dataclasses.replace(PLAN, plan_id="another")}, "plan.plan_id"),
        ({"settings": {"mrf": {"max_cells": 9}, "fit": {"backend": "crypten"}}}, "settings.mrf.max_cells: 8 here, 9"),
        ({"model_digest": "ab" * 32}, "model_digest: nothing here"),
        ({"version": "0.0.1"}, "version"),
        ({"name": "b"}, "name"),
    ],
)
def test_whatever_differs_is_another_agreement_and_says_where(study, identities, changes, where):
    other = changed(study, **changes)
    assert other.digest != study.digest
    (line,) = study.differences(other)
    assert line.startswith(where)
    for approval in approvals(study, identities).values():
        with pytest.raises(PrivacyError, match="changed after the approval"):
            approval.check(other)


SOME = {
    "epsilon": [1, 1.0, 1.0000000000000002, 0.0, -0.0, True, "1", float("1e0")],
    "name": ["x", "caf\u00e9", "cafe\u0301", "X"],
}


@st.composite
def settings_of_a_run(draw):
    values = st.sampled_from([*SOME["epsilon"], *SOME["name"], [1, 2], [1.0, 2], [2, 1], [], {}])
    return draw(
        st.dictionaries(st.sampled_from(["fit", "mrf"]), st.dictionaries(st.sampled_from(SOME["name"]), values))
    )


@st.composite
def schemas_in_some_order(draw):
    parties = {}
    for party, names in {"clinic": ["ill", "ward"], "insurer": ["claim", "caf\u00e9", "cafe\u0301"]}.items():
        kinds = st.sampled_from([BinaryColumn(), CategoricalColumn(categories=(1, 2)), BinaryColumn(categories=(1, 2))])
        parties[party] = PartySchema({name: draw(kinds) for name in draw(st.permutations(names))})
    return Schema(parties)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_digest_for_one_meaning_and_every_difference_is_named(study, identities, tmp_path, data):
    keepers = [("dealer", identities["dealer"]), ("second", identities["other"])]

    def drawn():
        helpers = {
            n: Member(certificate=i.certificate, address=Address("h", 1)) for n, i in draw(st.permutations(keepers))
        }
        return changed(
            study, schema=draw(schemas_in_some_order()), settings=draw(settings_of_a_run()),
            name=draw(st.sampled_from(SOME["name"])), helpers=helpers,
        )  # fmt: skip

    draw = data.draw
    one, other = drawn(), drawn()
    same = [a.schema.to_toml() + repr(a.settings) + a.name + repr(list(a.helpers)) for a in (one, other)]
    assert (one.digest == other.digest) == (same[0] == same[1])
    assert bool(one.differences(other)) == (one.digest != other.digest)
    for agreement in (one, other):
        agreement.save(tmp_path / "study.toml")
        again = Agreement.load(tmp_path / "study.toml")
        assert (again.digest, again.settings, again.differences(agreement)) == (
            agreement.digest,
            agreement.settings,
            [],
        )


def test_the_order_of_columns_and_of_helpers_is_agreed_on_and_that_of_settings_means_nothing(study, identities):
    turned = Schema({p: PartySchema(dict(reversed(part.columns.items()))) for p, part in SCHEMA.parties.items()})
    (line,) = study.differences(changed(study, schema=turned))
    assert line == 'schema.parties.clinic.columns, in this order: ["ill", "ward"] here, ["ward", "ill"] there'
    helper = Member(certificate=identities["other"].certificate, address=Address("h", 1))
    two = changed(study, helpers={**study.helpers, "second": helper})
    (line,) = two.differences(changed(two, helpers=dict(reversed(two.helpers.items()))))
    assert line.startswith("helpers, in this order: ")
    kwargs = {"model": {"kwargs": {"a": 1, "b": {"c": 1, "d": 2}}}}
    turned = {"model": {"kwargs": {"b": {"d": 2, "c": 1}, "a": 1}}}
    assert changed(study, settings=kwargs).digest == changed(study, settings=turned).digest
    assert list(changed(study, settings=turned).settings["model"]["kwargs"]) == ["a", "b"]  # as which it runs


def test_an_approval_of_another_form_of_the_digest_says_so(study, identities):
    given = Approval.sign(study, "clinic", identities["clinic"]).to_dict()
    old = {name: value for name, value in given.items() if name != "form"}
    for record in (old, {**given, "form": 1}, {**given, "form": 3}):
        with pytest.raises(ArgumentError, match=r"did not say in which order columns stand.* approve it anew"):
            Approval.from_dict(record)
    assert Approval.from_dict(given).to_dict() == given


HOSTILE = "dealer\x1b[35A\u202e"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        (lambda s: {"name": HOSTILE}, "name"),
        (lambda s: {"version": HOSTILE}, "version"),
        (lambda s: {"helpers": {HOSTILE: s.helpers["dealer"]}}, "helpers"),
        (lambda s: {"model_digest": HOSTILE}, "model_digest"),
        (lambda s: {"linkage": HOSTILE}, "linkage"),
        (lambda s: {"settings": {"fit": {HOSTILE: 1}}}, "settings.fit"),
        (lambda s: {"settings": {"fit": {"backend": [HOSTILE]}}}, "settings.fit.backend"),
        (lambda s: {"members": {**s.members, "clinic": moved(s.members["clinic"])}}, "members.clinic.address"),
        (lambda s: {"plan": dataclasses.replace(PLAN, plan_id=HOSTILE)}, "plan.plan_id"),
    ],
)
def test_no_text_of_an_agreement_hides_anything(study, changes, where):
    with pytest.raises(ArgumentError, match="that is not seen, or moves what stands beside it") as caught:
        changed(study, **changes(study))
    assert str(caught.value).startswith(f"{where}: ")
    assert r": \x1b;" in str(caught.value)
    assert str(caught.value).isprintable()


def moved(member):
    return dataclasses.replace(member, address=Address(HOSTILE, 1))


@pytest.mark.parametrize("name", ["", " a", "a ", "a  b", "a" * 101, "a\u00a0b"])
def test_a_name_that_could_be_taken_for_several_is_none(study, name):
    with pytest.raises(ArgumentError, match="is no name for a study, a party or a helper"):
        changed(study, helpers={name: study.helpers["dealer"]})


def test_a_certificates_names_hide_nothing():
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOSTILE)]), datetime.datetime(2020, 1, 1)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now.replace(year=2090))
    with pytest.raises(ArgumentError, match=r"a name in the certificate holds .* not seen, \\x1b"):
        Certificate(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode())


def test_another_certificate_is_another_agreement(study, identities):
    member = dataclasses.replace(study.members["insurer"], certificate=identities["other"].certificate)
    other = changed(study, members={**study.members, "insurer": member})
    assert study.differences(other)[0].startswith("members.insurer.certificate")


def test_everybody_approves_or_nothing_runs(study, identities, tmp_path):
    given = approvals(study, identities)
    check_approvals(study, list(given.values()))
    with pytest.raises(PrivacyError, match="not approved by insurer; nothing runs"):
        check_approvals(study, [given["clinic"]])
    given["clinic"].save(tmp_path / "clinic.json")
    assert Approval.load(tmp_path / "clinic.json") == given["clinic"]


def test_an_approval_is_a_signature_of_that_member(study, identities):
    given = approvals(study, identities)
    forged = [
        dataclasses.replace(given["clinic"], member="insurer"),
        dataclasses.replace(given["clinic"], signature=given["insurer"].signature),
        dataclasses.replace(given["clinic"], signature="00" * 70),
        dataclasses.replace(given["clinic"], signature="no number"),
    ]
    for approval in forged:
        with pytest.raises(PrivacyError, match="does not bear its signature"):
            approval.check(study)
    with pytest.raises(ArgumentError, match=r"the agreement knows 'clinic' by the certificate .* draft the study with"):
        Approval.sign(study, "clinic", identities["other"])
    with pytest.raises(ArgumentError, match="takes no part"):
        Approval.sign(study, "clinc", identities["clinic"])


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"largest_epsilon": 0.5}, "ε against outside analyst is .* and the policy allows 0.5"),
        ({"largest_epsilon_against": {"clinic": 0.1}}, "ε against clinic is .*, and the policy allows 0.1"),
        ({"largest_epsilon_against": {"clnic": 0.9}}, "limits ε against 'clnic'"),
        ({"largest_delta": 1e-6}, "δ is 1e-05, and the policy allows 1e-06"),
    ],
)
def test_a_policy_names_every_limit_that_is_passed(study, policy, why):
    Policy(largest_epsilon=1.0, largest_delta=1e-5, models=["ab"]).check(study)
    with pytest.raises(PrivacyError, match=why):
        Policy(**policy).check(study)


def test_a_policy_says_with_whom_records_may_be_linked(study):
    settings = {LINKAGE: {"ids": "rule"}}
    linkage = changed(study, method=LINKAGE, plan=None, settings=settings)
    Policy(party="clinic").check(linkage)
    Policy(party="clinic", link_with=["insurer"], largest_epsilon=0.1).check(linkage)
    with pytest.raises(PrivacyError, match="links no records with insurer"):
        Policy(party="clinic", link_with=["bank"]).check(linkage)
    with pytest.raises(PrivacyError, match="--pad-to"):
        Policy(party="clinic", padded_linkages=True).check(linkage)
    padded = changed(linkage, settings={LINKAGE: {"ids": "rule", "pad_to": 64}})
    Policy(party="clinic", padded_linkages=True).check(padded)


def test_a_policy_allows_models_by_their_source(study):
    with pytest.raises(PrivacyError, match=r"the model cdcd.* is not among those"):
        Policy(models=["ab" * 32]).check(changed(study, model_digest="cd" * 32))
    with pytest.raises(ArgumentError, match="largest_epsilon = 0"):
        Policy(largest_epsilon=0.0)


def unreachable(member):
    return dataclasses.replace(member, address=None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (lambda s: {"members": dict(reversed(s.members.items()))}, "the schema's parties are"),
        (lambda s: {"helpers": {"clinic": s.helpers["dealer"]}}, "a party and a helper"),
        (lambda s: {"helpers": {"dealer": s.members["clinic"]}}, "show the same certificate"),
        (lambda s: {"members": {**s.members, "insurer": unreachable(s.members["insurer"])}}, "can be reached"),
        (lambda s: {"plan": dataclasses.replace(PLAN, parties=("clinic", "bank"))}, "plan was made for other parties"),
    ],
    ids=["order", "name", "certificate", "address", "plan"],
)
def test_what_does_not_fit_is_no_agreement(study, changes, why):
    with pytest.raises(ArgumentError, match=why):
        changed(study, **changes(study))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('name = "a study"', 'nam = "a study"', "unknown key 'nam'"),
        ('method = "vertimrf"', "", "has no method"),
        ('\\"plan_id\\"', '\\"plan_d\\"', "plan cannot be read"),
        ("127.0.0.1:", "127.0.0.1/", "member 'clinic': .* is no address"),
        ("BEGIN CERTIFICATE", "BEGIN", "member 'clinic': this is no certificate"),
        ('method = "vertimrf"', "method = vertimrf", "is not TOML"),
        ("[settings.fit]", "[settings]\nother = 1\n[settings.fit]", "settings: 'other' is no table"),
        ("[settings.fit]", "[members.other.fit]", "unknown key 'fit'"),
        ("[helpers.dealer]", "[helpers]\ndealer = 1\n[settings.run]", "member 'dealer' is no table"),
    ],
)
def test_a_file_that_was_edited_says_what_is_wrong(study, tmp_path, old, new, why):
    study.save(tmp_path / "study.toml")
    text = (tmp_path / "study.toml").read_text()
    assert old in text
    (tmp_path / "study.toml").write_text(text.replace(old, new))
    with pytest.raises(ArgumentError, match=why):
        Agreement.load(tmp_path / "study.toml")


# -- meeting --------------------------------------------------------------------------------------


def all_meet(study, identities, given, **settings):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(
                connect_members, study[n], n, identities[n], given.get(n), **{"wait_s": 10, "timeout_s": 5, **settings}
            )
            for n in NAMES
        ]
        return [future.exception() or future.result() for future in futures]


def test_they_meet_with_everybodys_approval_and_who_cannot_be_reached_dials(study, identities):
    seats = all_meet(dict.fromkeys(NAMES, study), identities, approvals(study, identities))
    assert [seat.rank for seat in seats] == [0, 1, 2]
    assert [sorted(seat.links) for seat in seats] == [[1, 2], [0, 2], [0, 1]]
    seats[2].links[1].send(b"dealt")
    assert seats[1].links[2].receive(size=5) == b"dealt"


def test_an_approval_of_something_else_stops_everybody(study, identities):
    given = approvals(study, identities)
    found = all_meet(dict.fromkeys(NAMES, study), identities, {**given, "insurer": given["clinic"]}, wait_s=2)
    assert "the approval is of 'clinic', and this is 'insurer'" in str(found[1])
    assert isinstance(found[0], PeerError)
    without = all_meet(dict.fromkeys(NAMES, study), identities, {"clinic": given["clinic"]}, wait_s=2)
    assert "'insurer' has not approved" in str(without[1])


def test_who_has_another_agreement_does_not_get_in(study, identities):
    plan = dataclasses.replace(PLAN, noise_multiplier=PLAN.noise_multiplier / 2)
    other = changed(study, plan=plan)
    given = {"clinic": Approval.sign(study, "clinic", identities["clinic"]),
             "insurer": Approval.sign(other, "insurer", identities["insurer"])}  # fmt: skip
    found = all_meet({"clinic": study, "insurer": other, "dealer": study}, identities, given, wait_s=2)
    assert "insurer did not join in time: insurer: it came for another agreement" in str(found[0])
    assert isinstance(found[1], PeerError)


def test_another_version_takes_no_part(study, identities):
    old = changed(study, version="0.0.1")
    with pytest.raises(ArgumentError, match=r"drafted with vertinumpyro 0.0.1, and this is"):
        connect_members(old, "clinic", identities["clinic"], Approval.sign(old, "clinic", identities["clinic"]))


def test_a_port_that_is_taken_says_so(study, identities):
    with socket.create_server(("127.0.0.1", study.members["clinic"].address.port)):
        with pytest.raises(ArgumentError, match=r"cannot listen at .* is the port taken"):
            connect_members(study, "clinic", identities["clinic"], approvals(study, identities)["clinic"], wait_s=1)
