"""`doctor`: everything that a run between organisations needs, tried before it begins; each failure with its remedy."""

from __future__ import annotations

import datetime
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from rich.markup import escape

from vertinumpyro.cli.job import Job
from vertinumpyro.cli.organisation_run import ids_to_link, loaded_backend, task_of
from vertinumpyro.cli.party_file import PartyFile
from vertinumpyro.cli.study_commands import check_model, check_policy, config_at
from vertinumpyro.cli.terminal import console, heading
from vertinumpyro.core.errors import ArgumentError, PrivacyError, VertinumpyroError
from vertinumpyro.data import read_table
from vertinumpyro.reports.plain_language import duration
from vertinumpyro.session import Session, estimate_cost
from vertinumpyro.study import Agreement, bind_address, gather
from vertinumpyro.study.network import FACTS, Measured, check_network, own_facts, slowest_line
from vertinumpyro.transport import Communicator

_SOON = datetime.timedelta(days=30)
_ROOM = 2**30
_CLOCK_S = 60.0
_FAR_S, _HELD = 0.005, 1.5  # a round trip for which TCP's window, and not the machine, holds long messages back
_SLOW_S, _NARROW = 0.3, 10.0  # a round trip and Mbit/s that make a run take hours


class Findings:
    """Lines for people; how many of them are failures."""

    def __init__(self) -> None:
        self.failures = 0

    def check(self, name: str, look: Callable[[], str]) -> bool:
        """Looks, and says what was found; an error of the library is a failure, with its own remedy."""
        try:
            found = look()
        except (VertinumpyroError, OSError) as error:
            self.failures += 1
            console.print(f"[red]✗[/] [bold]{name:<12}[/] {escape(str(error))}", soft_wrap=True)
            return False
        console.print(f"[green]✓[/] [bold]{name:<12}[/] {escape(found)}", soft_wrap=True)
        return True

    @staticmethod
    def warn(name: str, text: str) -> None:
        """Something that a run survives."""
        console.print(f"[yellow]![/] [bold]{name:<12}[/] {escape(text)}", soft_wrap=True)


def doctor(path: Path, party: Path, *, wait_s: float, alone: bool) -> None:
    """Try everything here, then everything between the members, who all run this at the same time.

    :raises ArgumentError: something failed; counts it.
    """
    agreement, own = Agreement.load(path), PartyFile.load(party)
    findings = Findings()
    console.print(heading(f"{own.name}, alone"))
    ready = findings.check("version", lambda: _version(agreement))
    ready &= findings.check("certificate", lambda: _certificate(agreement, own, findings))
    ready &= findings.check("port", lambda: _port(agreement, own))
    findings.check("names", lambda: _names(agreement, own))
    findings.check("disk", lambda: _disk(own))
    if own.name in agreement.members:
        findings.check("table", lambda: _table(agreement, own, path))
        findings.check("policy", lambda: _policy(agreement, path, own))
        findings.check("approval", lambda: _approval(agreement, own, path))
        if agreement.plan is not None:
            findings.check("ledger", lambda: _ledger(own))
            ready &= findings.check("model", lambda: _model(agreement, path, own))  # its code runs in the rehearsal
    if not alone and ready:
        _together(agreement, own, path, findings, wait_s)
    if findings.failures:
        raise ArgumentError(f"{findings.failures} of these would keep the run from its end; see the lines with ✗")
    console.print("\n[green]Nothing here stands in the way.[/]")


def _together(agreement: Agreement, own: PartyFile, path: Path, findings: Findings, wait_s: float) -> None:
    console.print(heading("Together with the others, who run the same command now"))
    seats: list[Communicator] = []
    measured: dict[int, Measured] = {}

    def meet() -> str:
        communicator = gather(
            agreement,
            own.name,
            own.identity,
            topic=f"doctor {agreement.digest}",
            listen=own.address,
            wait_s=wait_s,
            timeout_s=60.0,
        )
        seats.append(communicator)
        return (
            f"TLS 1.3 both ways with {', '.join(n for n in agreement.names if n != own.name)}, certificates as agreed"
        )

    def network() -> str:
        measured.update(check_network(seats[0], own_facts()))
        return f"measured to {len(measured)} others"

    if not findings.check("links", meet):
        return
    try:
        if not findings.check("network", network):
            return
    finally:
        for link in seats[0].links.values():
            link.close()
    for rank, found in measured.items():
        _tell(agreement.names[rank], found, findings)
    _estimate(agreement, own, path, list(measured.values()))


def _tell(name: str, found: Measured, findings: Findings) -> None:
    mbit = [8 * speed.sustained / 1e6 for speed in (found.sent, found.received)]
    line = slowest_line([found])
    text = f"round trip {1000 * found.round_trip_s:.1f} ms, {mbit[0]:.0f} Mbit/s there, {mbit[1]:.0f} Mbit/s back"
    console.print(f"[green]✓[/] [bold]{escape(name):<12}[/] {text}", soft_wrap=True)
    if abs(found.clock_s) > max(_CLOCK_S, found.round_trip_s):
        direction = "ahead" if found.clock_s > 0 else "behind"
        findings.warn(
            name,
            f"its clock is {duration(abs(found.clock_s))} {direction} of this one; certificates begin and end by "
            "clocks: set both by NTP",
        )
    if found.round_trip_s > _FAR_S and line.bits_per_second > _HELD * 1e6 * min(mbit):
        findings.warn(
            name,
            f"TCP has {line.held_bytes / 1e6:.1f} MB under way at most, so that long messages travel at "
            f"{min(mbit):.0f} of {line.bits_per_second / 1e6:.0f} Mbit/s: larger net.ipv4.tcp_wmem and tcp_rmem on "
            "both machines let them travel faster",
        )
    if found.round_trip_s > _SLOW_S or min(mbit) < _NARROW:
        findings.warn(name, "a slow link: see the estimate; a method of few rounds (marginals, vertimrf) suits it")
    own = own_facts()
    for package in FACTS:
        theirs = found.facts.get(package)
        if theirs != own[package]:
            findings.warn(name, f"{package} is {theirs} there and {own[package]} here; install one version everywhere")
    if found.facts.get("processor") != own["processor"]:
        findings.warn(name, "another kind of processor: floats may differ in their last digit; the first party's hold")


def _estimate(agreement: Agreement, own: PartyFile, path: Path, measured: list[Measured]) -> None:
    """What the run takes on the slowest of these links, until all is released: rehearsed here on stand-ins."""
    plan = agreement.plan
    if plan is None or own.name not in agreement.members:
        return
    with console.status("[dim]rehearsing the run on stand-ins, on this machine alone …"):
        loaded_backend(agreement)  # as `join` does
        cost = estimate_cost(task_of(agreement, own, path), plan, partial(_fitted, agreement, own, path))
        time = Job.of(config_at(agreement, path, own), agreement.method).method.time(plan)
    after = "what follows is this machine's own work" if time is None else f"after it {time.words_after} here"
    console.print(
        "\nOn the slowest of these links the run would take about "
        f"[bold]{duration(cost.on(slowest_line(measured)))}[/] until all is released; {after}."
    )


def _fitted(agreement: Agreement, own: PartyFile, path: Path, session: Session, folder: Path) -> None:
    """The run, as `join` has it."""
    assert agreement.plan is not None
    Job.of(config_at(agreement, path, own), agreement.method).method.fit(
        session, agreement.plan, run_dir=folder, resume=False
    )


def _version(agreement: Agreement) -> str:
    agreement.check_version()
    return f"{agreement.version}, as agreed"


def _certificate(agreement: Agreement, own: PartyFile, findings: Findings) -> str:
    agreement.check_identity(own.name, own.identity)
    folder, certificate = own.folder, own.identity.certificate
    key = own.identity.private_key
    der = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*der) != certificate.public_key.public_bytes(*der):
        raise ArgumentError(f"the key in {str(folder)!r} is not its certificate's; put the right one back")
    now = datetime.datetime.now(datetime.timezone.utc)
    for name in agreement.names:
        shown = agreement.member(name).certificate
        if not shown.begins <= now < shown.expires:
            raise ArgumentError(
                f"{name}'s certificate holds from {shown.begins:%Y-%m-%d} to {shown.expires:%Y-%m-%d}, and this clock "
                f"says {now:%Y-%m-%d %H:%M} UTC; set the clock, or make a new one (party init) and draft again"
            )
        if shown.expires - now < _SOON:
            findings.warn("certificate", f"{name}'s ends on {shown.expires:%Y-%m-%d}")
    return f"until {certificate.expires:%Y-%m-%d}; its key is here"


def _port(agreement: Agreement, own: PartyFile) -> str:
    dialled_by = [name for name in agreement.names if name != own.name and agreement.dials(name, own.name)]
    if not dialled_by:
        return "none needed: this member dials the others"
    address = own.address or agreement.member(own.name).address
    bind_address(address).close()
    return f"{address} is free, for {', '.join(dialled_by)}"


def _names(agreement: Agreement, own: PartyFile) -> str:
    found = []
    for name in agreement.names:
        where = agreement.member(name).address
        if name == own.name or where is None or not agreement.dials(own.name, name):
            continue
        try:
            answers = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise ArgumentError(
                f"{name} is at {where}, and that name is not known here ({error.strerror}); ask for its address, or "
                "enter it in this machine's hosts file"
            ) from None
        found.append(f"{name} is {answers[0][4][0]}")
    return ", ".join(found) or "none needed: nobody is dialled from here"


def _disk(own: PartyFile) -> str:
    free = shutil.disk_usage(own.folder).free
    if free < _ROOM:
        raise ArgumentError(f"{free / 2**20:.0f} MiB are free at {str(own.folder)!r}; a run wants 1 GiB: make room")
    return f"{free / 2**30:.0f} GiB free"


def _table(agreement: Agreement, own: PartyFile, path: Path) -> str:
    schema = agreement.schema
    if agreement.plan is None:
        read_table(own.table_path(), schema, own.name, **own.read_options)
        return f"{len(ids_to_link(agreement, own)):,} records, to be linked"  # under the rule that `link` compares by
    task = task_of(agreement, own, path)
    dataset, _ = task.read_records(schema)
    if not agreement.holders and dataset.num_records != agreement.plan.num_records:
        raise ArgumentError(
            f"the plan is for {agreement.plan.num_records} records, and this table has {dataset.num_records}; link the "
            "records, or draft the study with the number in common"
        )
    return f"{dataset.num_records:,} records, all values in their public domains"


def _ledger(own: PartyFile) -> str:
    own.check_ledger()
    return f"{own.ledger} can be written to"


def _policy(agreement: Agreement, path: Path, own: PartyFile) -> str:
    check_policy(agreement, path, own)
    if agreement.plan is None:
        return "a linkage spends nothing, and is within it"
    own.account.check(agreement.plan)
    return "the plan, and the total with it, are within it"


def _approval(agreement: Agreement, own: PartyFile, path: Path) -> str:
    approval = own.approval(agreement)
    if approval is None:
        raise PrivacyError(own.not_approved(agreement, path))
    approval.check(agreement)
    return "given, under this agreement"


def _model(agreement: Agreement, path: Path, own: PartyFile) -> str:
    check_model(agreement, config_at(agreement, path, own))
    return "its source is the one agreed on" if agreement.model_digest else "the library's own"
