"""`party init` and `study draft|show|diff|approve`: what organisations agree on before anything runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.text import Text

from vertinumpyro.cli.config import Config, config_of, load_config
from vertinumpyro.cli.config_sections import DataSettings, backend_of
from vertinumpyro.cli.fit_run import cost_lines, costs_of, time_lines, time_of
from vertinumpyro.cli.job import Job
from vertinumpyro.cli.methods.base import CommandMethod, method_of
from vertinumpyro.cli.model_loading import Sources
from vertinumpyro.cli.party_file import PartyFile, make_party
from vertinumpyro.cli.plan_table import account_view, facts_grid, plan_view, schema_table
from vertinumpyro.cli.terminal import LOG, console, heading, last_events
from vertinumpyro.core.errors import ArgumentError, VertinumpyroError
from vertinumpyro.data import DatasetInfo, Linkage
from vertinumpyro.data.alignment import ID_RULE
from vertinumpyro.privacy import Plan
from vertinumpyro.reports.plain_language import count
from vertinumpyro.secure import Backend, BetweenProcesses
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.session.cost_estimate import require_allowed
from vertinumpyro.study import LINKAGE, Agreement, Approval, Member
from vertinumpyro.transport import Address, Certificate

_TO_RUN = ("seed", "num_synthetic")
_LAST = 10  # lines of a log


def init(name: str, *, folder: Path, table: str | None, listen: str | None, days: int) -> None:
    """Make a key, a certificate and `party.toml`, and say what the others need."""
    made = make_party(folder, name, table=table, listen=listen, days=days)
    facts = {
        "certificate.pem": "for the others; who drafts the study needs it",
        "key.pem": "for nobody else",
        made.path.name: "where table and records are, what is approved at most",
    }
    console.print(heading(f"Written to {folder}/"), facts_grid(facts))
    console.print("\nRead this fingerprint to the others by another way than the one that brings the certificate:")
    console.print(f"[bold]{made.identity.certificate.fingerprint}[/]", soft_wrap=True)


def draft(
    path: Path,
    *,
    method: str | None,
    members: Sequence[str],
    helpers: Sequence[str],
    name: str,
    out: Path,
    linkage: Path | None,
    allow_long: bool = False,
) -> None:
    """Write the agreement of a configuration's run, with a plan of its own; no table is opened.

    :param allow_long: draft what takes more than ten minutes. Asked here, and of nobody afterwards
        (`session.cost_estimate.announce`).
    """
    config = load_config(path)
    sources = Sources.of(config)
    if sources is not None:
        sources.guard()
    job = Job.of(config, method)
    job.refuse_unread()
    if config.quality.part is not None or job.method.name == "quality":
        raise ArgumentError(
            "[quality]: organisations approve one plan at a time, and compare no table yet; leave it out, and release "
            "tables by a study of their own, with which `vertinumpyro.mrf.twin_quality` compares any twin"
        )
    _between_processes(job.method.method.backend)
    if config.data.num_records is None:
        raise ArgumentError("[data] num_records: state how many records the parties share; no table is read here")
    job.method.checked()
    facts = job.facts()
    plan = job.method.plan(facts)
    _ask_for_time(job, plan, facts, allow_long=allow_long or config.run.allow_long)
    linked = None if linkage is None else Agreement.load(linkage)
    if linked is not None and linked.method != LINKAGE:
        raise ArgumentError(f"--linkage {linkage}: that agreement links no records; draft one with study draft-linkage")
    _draft(
        config,
        members,
        helpers,
        name,
        out,
        _between_processes(job.method.method.backend),
        method=job.method.name,
        settings=_settings(config),
        model_digest=None if sources is None else sources.digest,
        linkage=None if linked is None else linked.digest,
        plan=plan,
    )


def _ask_for_time(job: Job, plan: Plan, facts: DatasetInfo, *, allow_long: bool) -> None:
    """How long the run takes, before it is anybody's plan; on the network, which `doctor` measures, it takes longer.

    :raises ArgumentError: more than ten minutes, and nobody allowed it.
    """
    backend = job.method.method.backend
    costs = () if backend.missing() else costs_of(backend, job.method.computations(facts, plan))
    time = time_of(job, plan, costs)
    for line in (*cost_lines(costs), *time_lines(time)):
        console.print(line)
    if time is not None:
        require_allowed(time, allow_long=allow_long)


def draft_linkage(
    path: Path, *, members: Sequence[str], helpers: Sequence[str], name: str, out: Path, pad_to: int | None
) -> None:
    """Write an agreement to find the common records of a schema's parties; no table is opened."""
    pad = {} if pad_to is None else {"pad_to": pad_to}
    settings = {LINKAGE: {"ids": ID_RULE, **pad}}
    if (config := load_config(path)).data.holders:
        raise ArgumentError("[data] holders hold other people each: there are no common records to find")
    _draft(config, members, helpers, name, out, None, method=LINKAGE, settings=settings)


def _draft(
    config: Config,
    members: Sequence[str],
    helpers: Sequence[str],
    name: str,
    out: Path,
    backend: BetweenProcesses | None,
    **content: Any,
) -> None:
    if out.exists():
        raise ArgumentError(f"{out} is there already; choose another name: it may be approved")
    agreement = Agreement(
        name=name,
        schema=config.schema,
        members=_in_order(_members(members, "--member"), config),
        helpers=_members(helpers, "--helper"),
        **content,
    )
    wanted = ["the helper"] if backend is None else [m.name for m in backend.helpers(len(agreement.members))]
    if len(agreement.helpers) != len(wanted):
        raise ArgumentError(
            f"--helper: {len(wanted) or 'none'} wanted ({', '.join(wanted) or 'all computing is the parties'}), who "
            f"hold no table; given are {len(agreement.helpers)}: --helper name=certificate.pem@host:port"
        )
    agreement.save(out)
    console.print(
        f"[green]✓[/] {escape(str(out))}: the same file for everybody. Digest [bold]{agreement.digest}[/]",
        soft_wrap=True,
    )
    console.print("Every party now looks at it and approves it: `vertinumpyro study approve`. Nothing was spent.")


def show(path: Path) -> None:
    """Print what an agreement says."""
    _show(Agreement.load(path), path)


def difference(path: Path, other: Path) -> None:
    """Print where two files of an agreement differ.

    :raises ArgumentError: they do; lists the places.
    """
    lines = Agreement.load(path).differences(Agreement.load(other))
    if lines:
        raise ArgumentError(f"{path.name} (here) and {other.name} (there) differ:\n" + "\n".join(lines))
    console.print(f"[green]✓[/] {escape(path.name)} and {escape(other.name)} are one agreement.")


def status(path: Path, party: Path) -> None:
    """Print how far this organisation is: what it approved, linked and spent, and the last lines of its log."""
    agreement, own = Agreement.load(path), PartyFile.load(party)
    agreement.member(own.name)
    facts = {"study": f"{agreement.name}, {agreement.digest[:16]}"}
    if own.name in agreement.members:
        given = own.approval(agreement)
        facts["approval"] = "not given" if given is None else "given"
        linkage = agreement.digest if agreement.plan is None else agreement.linkage
        if linkage is not None:
            found = own.linkage_path(linkage)
            facts["records"] = f"{Linkage.load(found).num_common:,} linked" if found.exists() else "not linked yet"
        if agreement.plan is not None:
            facts["plan"] = _spent_of(agreement.plan, own)
    console.print(facts_grid(facts))
    for event in last_events(own.folder / "run" / LOG, _LAST):
        when, what = event.pop("time", ""), event.pop("event", "")
        said = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in event.items())
        console.print(f"[dim]{escape(str(when))}[/] [bold]{escape(str(what))}[/] {escape(said)}", soft_wrap=True)


def _spent_of(plan: Plan, own: PartyFile) -> str:
    entries = {entry.plan.plan_id: entry for entry in own.account.entries()}
    if plan.plan_id not in entries:
        return f"not begun, {count(plan.num_steps, 'step')}"
    entry = entries[plan.plan_id]
    done = f", closed: {entry.failed}" if entry.failed else ", finished" * entry.finished
    return f"{entry.steps_spent} of {count(plan.num_steps, 'step')} on account{done}"


def approve(path: Path, party: Path, *, yes: bool) -> None:
    """Show what is released and who gets which ε, hold it against the party's policy, and sign."""
    agreement, own = Agreement.load(path), PartyFile.load(party)
    agreement.check_version()
    if own.name not in agreement.members:
        raise ArgumentError(f"{own.name!r} is no party of this study; helpers hold no data and approve nothing")
    _show(agreement, path)
    others = ", ".join(name for name in agreement.members if name != own.name)
    helpers = ", ".join(agreement.helpers)
    check_policy(agreement, path, own)
    if agreement.plan is None:
        lengths = "" if "pad_to" in agreement.settings[LINKAGE] else f", and {own.name} how long theirs are"
        told = (
            f"Approving lets {others} learn which of their own records are at {own.name} and all others too{lengths}, "
            f"and {own.name} the same of them. The helper {helpers} learns how many there are, and no id. This is "
            "not DP."
        )
    else:
        sources = check_model(agreement, config_at(agreement, path, own))
        if sources is not None:
            console.print(heading("Files of the model, whose code will run here"), *map(Text, sources.names))
        console.print(heading(f"Budget of {own.account.data_set}"), account_view(own.account, agreement.plan))
        own.account.check(agreement.plan)
        told = f"Approving lets {own.name} release, together with {others}, what this plan releases, once." + (
            f" The helper {helpers} sees no data." if helpers else ""
        )
    console.print(f"\n{escape(told)}")
    if not yes and console.input("Approve? \\[y/N] ").strip().lower() not in ("y", "yes"):
        raise ArgumentError("not approved; nothing was signed")
    target = own.approval_path(agreement)
    target.parent.mkdir(parents=True, exist_ok=True)
    Approval.sign(agreement, own.name, own.identity).save(target)
    following = "link" if agreement.plan is None else "join"
    console.print(f"[green]✓[/] approved: {escape(str(target))}. Next: `vertinumpyro {following} {escape(path.name)}`")


def _show(agreement: Agreement, path: Path) -> None:
    """Runs none of the model's code, which nobody has approved yet."""
    about = {"study": agreement.name, "method": agreement.method, "version": agreement.version}
    console.print(facts_grid(about), heading("Schema (public)"), schema_table(agreement.schema))
    console.print(heading("Who takes part"))
    for name in agreement.names:
        member = agreement.member(name)
        role = "party" if name in agreement.members else "helper, without a table"
        where = f"at {member.address}" if member.address else "dials the others"
        console.print(f"[bold]{escape(name)}[/]  {role}, {escape(where)}, until {member.certificate.expires:%Y-%m-%d}")
        console.print(f"  [dim]{member.certificate.fingerprint}[/]", soft_wrap=True)
    if agreement.plan is None:
        console.print(heading("Linkage"), f"Records are one person's where their ids agree: {ID_RULE}.")
        pad = agreement.settings[LINKAGE].get("pad_to")
        console.print("Lists are not padded." if pad is None else f"Every list is padded to {pad:,} ids.")
    else:
        console.print(heading("Settings"), facts_grid(_shown_settings(agreement)))
        console.print(heading("Privacy plan"), *plan_view(agreement.plan, _plan_facts(agreement, path)))
        _show_forecast(agreement, agreement.plan, path)
    if agreement.linkage is not None:
        console.print(f"\nOf the records that were linked under {agreement.linkage[:16]}")
    if agreement.model_digest is not None:
        function = agreement.settings.get("model", {}).get("function")
        console.print(f"\nModel [bold]{escape(str(function))}[/], Python code that runs at every party; its source:")
        console.print(f"  [dim]{agreement.model_digest}[/]", soft_wrap=True)
    console.print(f"\nDigest of the agreement: [bold]{agreement.digest}[/]", soft_wrap=True)


def _show_forecast(agreement: Agreement, plan: Plan, path: Path) -> None:
    """What the plan's result will tell, and how long the run takes here, where that runs none of a model's code."""
    if "function" in agreement.settings.get("model", {}):
        console.print(
            "\nWhat it will tell and how long it takes is not said here: nobody has approved its code yet, which that "
            "would run. Whoever drafted it has seen both; `vertinumpyro doctor` says how long, once it is approved."
        )
        return
    try:
        job = Job.of(_config_of(agreement, path, {}), agreement.method)
        job.method.method.check(job.facts(), plan)
        with console.status("[dim]what it will tell, and how long it takes …"):
            told, time = job.method.forecast(plan).get("words"), job.method.time(plan)
    except VertinumpyroError as error:
        console.print(f"\n[yellow]! It would not run here as it stands: {escape(str(error))}[/]")
        return
    if told:
        console.print(f"\n{escape(told)}")
    if time is not None:
        unknown = "; ".join(filter(None, (time.unknown, "what the parties compute together, and the network")))
        console.print(f"\nA run takes {escape(str(dataclasses.replace(time, unknown=unknown)))}.")


def _plan_facts(agreement: Agreement, path: Path) -> dict[str, str]:
    """What the plan fixes, from plan, schema and settings: no model is imported, no method built.

    :raises ArgumentError: the plan is another method's, or a setting is none.
    """
    return _method_of(agreement, path).facts_of(agreement.plan, _backend_of(agreement, path))


def check_policy(agreement: Agreement, path: Path, own: PartyFile) -> None:
    """Holds an agreement against the party's policy for one plan, or a linkage.

    :raises PrivacyError: names every limit that it passes.
    """
    plan = agreement.plan
    unverified = "" if plan is None else _method_of(agreement, path).unverified(plan, _backend_of(agreement, path))
    own.limits.check(agreement, unverified=unverified)


def _method_of(agreement: Agreement, path: Path) -> type[CommandMethod]:
    method = method_of(agreement.method)
    if not isinstance(agreement.plan, method.plan_class):
        raise ArgumentError(f"{path.name}: its plan is of another method than {agreement.method}; do not approve it")
    return method


def _backend_of(agreement: Agreement, path: Path) -> Backend:
    config = config_of(path, agreement.schema.to_dict(), agreement.settings)
    return SecureAggregation() if agreement.holders else backend_of(config.fit)


def _shown_settings(agreement: Agreement) -> dict[str, str]:
    """Everything that a run follows; what [privacy] asked for is in the plan, as it came out."""
    return {
        f"[{section}] {key}": json.dumps(value, ensure_ascii=False)
        for section, values in agreement.settings.items()
        for key, value in values.items()
        if section != "privacy"
    }


def config_at(agreement: Agreement, path: Path, own: PartyFile) -> Config:
    """The run's configuration as this party has it: the agreement's settings, and its own file alone."""
    return _config_of(agreement, path, {own.name: str(own.table_path())})


def _config_of(agreement: Agreement, path: Path, files: dict[str, str]) -> Config:
    made = config_of(path.resolve(), agreement.schema.to_dict(), agreement.settings)
    holders, num_records = list(agreement.holders) or None, agreement.spent.num_records
    return dataclasses.replace(made, data=DataSettings(holders=holders, files=files, num_records=num_records))


def _settings(config: Config) -> dict[str, dict[str, Any]]:
    """What is given of the settings that a run follows."""
    given = {**config.of_the_method(), "run": {key: getattr(config.run, key) for key in _TO_RUN}}
    found = {name: {k: v for k, v in values.items() if v is not None and v != {}} for name, values in given.items()}
    return {name: values for name, values in found.items() if values}


def check_model(agreement: Agreement, config: Config) -> Sources | None:
    """Refuses other code than the one that was agreed on, before it is imported; from now on no other is.

    :returns: the files; None where the library's own model is used.
    :raises ArgumentError: one of them differs.
    """
    sources = Sources.of(config)
    found = None if sources is None else sources.digest
    if found != agreement.model_digest:
        files = "" if sources is None else f" ({', '.join(sources.names)})"
        raise ArgumentError(
            f"the model's source here{files} has the digest {str(found)[:16]}, and the agreement is for "
            f"{str(agreement.model_digest)[:16]}; take the file that was agreed on, and those that it imports"
        )
    if sources is not None:
        sources.guard()
    return sources


def _members(given: Sequence[str], option: str) -> dict[str, Member]:
    found: dict[str, Member] = {}
    for text in given:
        name, equals, rest = text.partition("=")
        file, _, where = rest.partition("@")
        if not (name and equals and file):
            raise ArgumentError(f"{option} {text}: write name=certificate.pem@host:port, without @ for one that dials")
        if name in found:
            raise ArgumentError(f"{option} {name} is given twice")
        found[name] = Member(certificate=Certificate.read(file), address=Address.parsed(where) if where else None)
    return found


def _in_order(members: Mapping[str, Member], config: Config) -> dict[str, Member]:
    parties = list(config.parties)
    if set(members) != set(parties):
        raise ArgumentError(
            f"--member: give one for each of {', '.join(parties)}; given are {', '.join(members) or 'none'}"
        )
    return {party: members[party] for party in parties}


def _between_processes(backend: Any) -> BetweenProcesses:
    if not isinstance(backend, BetweenProcesses):
        raise ArgumentError(
            f'[fit] backend: {backend.info().name} runs in one process; set backend = "crypten", or "spu"'
        )
    return backend
