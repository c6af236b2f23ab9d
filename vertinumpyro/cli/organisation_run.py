"""`link` and `join`: an organisation takes part in what all have approved, from its own machine."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from rich.markup import escape
from rich.progress import Progress

from vertinumpyro.cli import commands
from vertinumpyro.cli.fit_run import party_method, spend
from vertinumpyro.cli.job import Job, plan_to_continue, refuse_started
from vertinumpyro.cli.party_file import PartyFile
from vertinumpyro.cli.study_commands import check_model, check_policy, config_at
from vertinumpyro.cli.terminal import LOG, RunLog, console, log_progress
from vertinumpyro.core.compat import freeze_gc
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Linkage, normalised_ids, read_ids
from vertinumpyro.reports.plain_language import duration
from vertinumpyro.secure import BACKENDS, BetweenProcesses
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.secure.private_set_intersection import check_ids, common_places, find_common
from vertinumpyro.session import PRIVACY_RECORD, OrganisationSession, PartyTask, check_alike, lock_folder
from vertinumpyro.study import LINKAGE, Agreement, connect_members
from vertinumpyro.transport import Communicator, PeerError


def join(path: Path, party: Path, *, out: Path | None, resume: bool, wait_s: float, timeout_s: float) -> None:
    """Meet the others and take part: as a party to the outputs, as a helper until the parties have done."""
    agreement, own = Agreement.load(path), PartyFile.load(party)
    plan = agreement.spent
    if own.name in agreement.helpers:
        _help(agreement, own, _met(agreement, own, path, party, wait_s, timeout_s))
        return
    agreement.member(own.name)
    task = task_of(agreement, own, path)
    task.has_begun(plan.plan_id)  # one that a failed check closed is refused before anybody is met
    config = config_at(agreement, path, own)
    check_model(agreement, config)
    check_policy(agreement, path, own)
    own.check_ledger()
    own.account.check(plan)  # before anybody waits for this party
    job = Job.of(config, agreement.method)
    known = job.method.time(plan)  # before anybody waits for this party, too
    after = "the result" if known is None else known.words_after
    run_dir = own.folder / "run" if out is None else out
    if resume:
        plan_to_continue(run_dir, job.method.name)
    else:
        refuse_started(run_dir)
    log = RunLog(run_dir / LOG)
    log.event("join", study=agreement.digest, party=own.name, method=agreement.method, resume=resume)
    with (
        log.until_the_end(),
        lock_folder(run_dir),
        OrganisationSession(_met(agreement, own, path, party, wait_s, timeout_s), task) as session,
    ):
        how = "together" if agreement.holders else "matched"
        _say(f"all are here; {session.num_records:,} records {how}")
        log.event("together", num_records=session.num_records)
        if session.num_records != plan.num_records:
            raise ArgumentError(
                f"the plan is for {plan.num_records} records, and the parties have {session.num_records}; "
                "draft the study with that number"
            )

        last: list[float] = []  # when the last step was on record

        def tell(spent: int) -> None:
            log.steps(spent, plan.num_steps)
            if spent >= plan.num_steps and not last:
                last.append(time.perf_counter())
                _say(f"the last step is on record; after it this machine computes {after}")

        with log_progress(run_dir / PRIVACY_RECORD, tell, tell):
            result = spend(job, session, plan, run_dir, resume)
        if last:
            _say(f"computed, {duration(time.perf_counter() - last[0])} after the last step; files and report follow")
        log.event(
            "released",
            rounds=session.traffic.rounds,
            bytes_sent=session.traffic.bytes_sent,
            bytes_received=session.traffic.bytes_received,
            bytes_from_the_helper=session.dealer_traffic.bytes_received,
        )
        commands.write(job, result, session, run_dir)


def link(path: Path, party: Path, *, wait_s: float, timeout_s: float) -> None:
    """Meet the others and find the records that all have; what is found stays here."""
    agreement, own = Agreement.load(path), PartyFile.load(party)
    if agreement.method != LINKAGE:
        raise ArgumentError(f"{path.name} runs {agreement.method}: `vertinumpyro join {path.name}`")
    if own.name in agreement.helpers:
        found = find_common(_met(agreement, own, path, party, wait_s, timeout_s))
        _say(f"over; the parties have {found:,} records in common")
        return
    agreement.member(own.name)
    target = own.linkage_path(agreement.digest)
    ids = ids_to_link(agreement, own)
    communicator = _met(agreement, own, path, party, wait_s, timeout_s)
    with Progress(console=console, transient=True) as bar:
        shown = bar.add_task("")

        def progress(what: str, done: int, total: int) -> None:
            bar.update(shown, description=what, completed=done, total=total)

        topic, pad_to = agreement.digest.encode(), agreement.settings[LINKAGE].get("pad_to")
        rows = common_places(communicator, ids, topic=topic, pad_to=pad_to, progress=progress)
    check_alike(communicator, sorted(ids[row] for row in rows), list(agreement.members))
    Linkage.made(agreement.digest, ids, rows).save(target)
    for link in communicator.links.values():
        link.close()
    _say(f"{len(rows):,} records are at all parties; which ones, {target} keeps")
    console.print(
        f"Draft the study with [bold]num_records = {len(rows)}[/] in \\[data], and `--linkage {escape(path.name)}`."
    )


def ids_to_link(agreement: Agreement, own: PartyFile) -> list[str]:
    """This party's ids as all parties write them.

    :raises ArgumentError: they are linked already, or more than was agreed on.
    :raises DataError: they cannot be read, or two of them are one by the rule that ids are compared by.
    """
    target = own.linkage_path(agreement.digest)
    if target.exists():
        raise ArgumentError(f"{target} is there: these records are linked already; draft a new linkage for others")
    table = read_ids(own.table_path(), agreement.schema, own.name, **own.read_options)
    ids = normalised_ids(table, agreement.schema, own.name)
    check_ids(ids, agreement.settings[LINKAGE].get("pad_to"))
    return ids


def _met(
    agreement: Agreement, own: PartyFile, path: Path, party: Path, wait_s: float, timeout_s: float
) -> Communicator:
    """The communicator of a party that has approved, or of a helper, once all are there."""
    approval = None if own.name in agreement.helpers else own.approval(agreement)
    if approval is None and own.name in agreement.members:
        raise ArgumentError(own.not_approved(agreement, path))
    backend = None if agreement.plan is None else loaded_backend(agreement)
    return connect_members(
        agreement,
        own.name,
        own.identity,
        approval,
        listen=own.address,
        wait_s=wait_s,
        timeout_s=timeout_s,
        waiting=_say,
        carriers=backend is not None and backend.own_links,
    )


def _backend(agreement: Agreement) -> BetweenProcesses:
    """What computes across the parties."""
    if agreement.holders:
        return SecureAggregation()
    backend = BACKENDS[agreement.settings["fit"]["backend"]]()
    assert isinstance(backend, BetweenProcesses)  # whoever drafted the agreement was told otherwise
    if missing := backend.missing():
        raise ArgumentError(missing)
    return backend


def loaded_backend(agreement: Agreement) -> BetweenProcesses:
    """The same with its libraries, before anybody waits for this process, which serves one run."""
    backend = _backend(agreement)
    backend.load()
    freeze_gc()
    return backend


def _help(agreement: Agreement, own: PartyFile, communicator: Communicator) -> None:
    helper = _backend(agreement).helpers(len(agreement.members))[list(agreement.helpers).index(own.name)]
    _say(f"all are here; this is {helper.name}")
    started = time.perf_counter()
    try:
        helper.run(communicator, *helper.arguments)
    except PeerError as error:
        _say(f"over, after {duration(time.perf_counter() - started)}: {error}")
    else:
        _say(f"over, after {duration(time.perf_counter() - started)}")


def _say(text: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {escape(text)}")


def task_of(agreement: Agreement, own: PartyFile, path: Path) -> PartyTask:
    """This party's part of a study's run.

    :raises ArgumentError: it has no table, or no result of the linkage that the study is about.
    """
    schema = agreement.schema.to_dict()
    linkage = None if agreement.linkage is None else own.linkage_path(agreement.linkage)
    if linkage is not None and not linkage.exists():
        raise ArgumentError(
            f"{path.name} is about records that were linked under {str(agreement.linkage)[:16]}, and {own.name} has "
            "no result of that: `vertinumpyro link` with that agreement first"
        )
    return PartyTask(
        party=own.name,
        schema=schema,
        table=own.table_path(),
        build=partial(party_method, agreement.method, schema, agreement.settings, str(path.resolve())),
        ledger=own.folder / own.ledger,
        approved=agreement.spent.fingerprint(),
        data_set=own.account.data_set,
        limit=own.limits.total,
        linkage=linkage,
        holders=agreement.holders,
        read_options=own.read_options,
        spool=own.spool_path,
        workers=own.workers,
    )
