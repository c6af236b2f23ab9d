"""The commands' names, arguments and errors. Everything heavy is imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vertinumpyro import __version__
from vertinumpyro.cli.terminal import command, console

app = typer.Typer(
    name="vertinumpyro",
    help="Learn from tables whose columns sit at different organisations; publish private synthetic twins.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # they show local variables, which hold the parties' tables
)

# Of shell completion, which must not wait for the libraries; a test compares them with the tables.
METHOD_NAMES = ("vertimrf", "marginals", "dpvi", "logistic", "linear", "quality", "horizontal", "bayesian_linear")
BACKEND_NAMES = ("fixed_point", "plaintext", "crypten", "spu")

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The run's description.", show_default=False)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. It may quote the data.")]
Backend = Annotated[
    str | None,
    typer.Option(
        help="fixed_point, plaintext; crypten or spu: every party in a process of its own.",
        show_default="[fit] backend of the configuration",
        autocompletion=lambda: BACKEND_NAMES,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        help="vertimrf: a Markov random field of noisy tables. marginals: a NumPyro model learned from the same. dpvi: "
        "variational inference of any NumPyro model. logistic, linear: one regression across parties. Where holders "
        "have whole records: horizontal (DPVI), bayesian_linear.",
        show_default="[run] method, or the best that the model allows",
        autocompletion=lambda: METHOD_NAMES,
    ),
]
AllowLong = Annotated[
    bool, typer.Option("--allow-long", help="Go on where a fit will take more than ten minutes; [run] allow_long.")
]
Earlier = Annotated[
    Path | None,
    typer.Option(
        help="Folder of an earlier run of vertimrf on such records, as last month's: how many pairs of columns will "
        "show an association is forecast from its tables."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Model randomness only; noise and batches never come from a seed.")]


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        console.print(f"vertinumpyro {__version__}")
        raise typer.Exit


@app.command()
@command
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the outputs.")] = Path("vertinumpyro-demo"),
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of DPVI.", show_default="the library's")] = None,
    epsilon: Annotated[float, typer.Option(help="ε against everyone, at δ = 1e-5.")] = 1.0,
    backend: Annotated[str, typer.Option(help="fixed_point; crypten, spu: a process a party.")] = "fixed_point",
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Two parties publish a private twin of a real table, in a few minutes on a laptop."""
    from vertinumpyro.cli.demo import Demo, demo_inference, demo_tables

    dpvi = demo_inference(backend)
    tables = demo_tables(dpvi.backend)
    Demo(out=out, epsilon=epsilon, num_steps=steps, seed=seed, dpvi=dpvi, tables=tables).run()


@app.command()
@command
def plan(
    config: ConfigFile, backend: Backend = None, method: Method = None, earlier: Earlier = None, debug: Debug = False
) -> Any:
    """Show schema and privacy plan. Needs the number of records, and nothing else of the data."""
    from vertinumpyro.cli import commands

    return commands.show_plan(config, method=method, backend=backend, earlier=earlier)


@app.command()
@command
def diff(
    first: Annotated[Path, typer.Argument(help="A run's folder, privacy.json, study.toml or config.toml.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    debug: Debug = False,
) -> Any:
    """Say what two privacy plans differ in, and what each adversary gets by either."""
    from vertinumpyro.cli import plan_table

    return plan_table.difference(first, second)


@app.command()
@command
def check(
    config: ConfigFile, backend: Backend = None, method: Method = None, earlier: Earlier = None, debug: Debug = False
) -> Any:
    """Check settings, tables, record matching, model, plan and range. Spends nothing."""
    from vertinumpyro.cli import commands

    return commands.check(config, method=method, backend=backend, earlier=earlier)


@app.command()
@command
def fit(
    config: ConfigFile,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the outputs.", show_default="[run] out of the configuration"),
    ] = None,
    backend: Backend = None,
    method: Method = None,
    allow_long: AllowLong = False,
    debug: Debug = False,
) -> Any:
    """Plan, fit, and write tables or coefficients, what they follow from, privacy record and report."""
    from vertinumpyro.cli import commands

    return commands.fit(config, method=method, resume=resume, out=out, backend=backend, allow_long=allow_long)


@app.command()
@command
def synthesize(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a fit.", show_default=False)],
    num_records: Annotated[int, typer.Option("--num-records", "-n", min=1, help="Records to draw.")] = 1000,
    out: Annotated[Path, typer.Option(help="A .csv or .parquet file.")] = Path("synthetic.csv"),
    seed: Annotated[int | None, typer.Option(min=0, help="Repeat a draw.", show_default="a new draw each time")] = None,
    config: Annotated[Path | None, typer.Option(help="Your configuration, whose model is used.")] = None,
    trust_model: Annotated[
        bool, typer.Option("--trust-model", help="Run the Python that the folder's own configuration names.")
    ] = False,
    debug: Debug = False,
) -> Any:
    """Draw a further synthetic table from a run's posterior or field. Costs no privacy."""
    from vertinumpyro.cli import commands

    return commands.synthesize(
        run_dir, num_records=num_records, out=out, seed=seed, config=config, trust_model=trust_model
    )


party_app = typer.Typer(help="An organisation's own key, certificate and settings.", no_args_is_help=True)
schema_app = typer.Typer(help="The public description of all columns.", no_args_is_help=True)
study_app = typer.Typer(help="What organisations agree on before anything runs.", no_args_is_help=True)
app.add_typer(party_app, name="party")
app.add_typer(schema_app, name="schema")
app.add_typer(study_app, name="study")

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The agreement.", show_default=False)]
PartyTOML = Annotated[Path, typer.Option("--party", help="This organisation's own party.toml.")]


@schema_app.command("draft")
@command
def schema_draft(
    file: Annotated[Path, typer.Argument(help="This party's table, CSV or Parquet.")],
    party: Annotated[str, typer.Option(help="Its name in the schema.")],
    id_column: Annotated[str, typer.Option("--id", help="By which the parties know their records.")] = "id",
    out: Annotated[Path, typer.Option(help="A new file, or one with other parties' columns.")] = Path("schema.toml"),
    separator: Annotated[str | None, typer.Option(help="Between fields.", show_default="comma; tab in .tsv")] = None,
    encoding: Annotated[str, typer.Option(help="Of the text.")] = "utf-8",
    decimal: Annotated[str, typer.Option(help="The decimal mark.")] = ".",
    epsilon: Annotated[float, typer.Option(help="To be spent: a smaller one asks for fewer bins.")] = 1.0,
    number_format: Annotated[
        list[str] | None,
        typer.Option(help='A column and how its texts write 1234, where that may be read in two ways: cost="1,234".'),
    ] = None,
    debug: Debug = False,
) -> None:
    """Propose types, bounds and categories from a file, for its own people to replace by public knowledge."""
    from vertinumpyro.cli import schema_commands

    schema_commands.draft(
        file,
        party=party,
        id_column=id_column,
        out=out,
        separator=separator,
        encoding=encoding,
        decimal=decimal,
        epsilon=epsilon,
        number_formats=number_format or (),
    )


@schema_app.command("json")
@command
def schema_json(
    out: Annotated[Path, typer.Option(help="The folder of schema.toml and config.toml.")] = Path("."),
    debug: Debug = False,
) -> None:
    """Write JSON schemas, by which editors complete the keys of schema.toml and config.toml."""
    from vertinumpyro.cli import schema_commands

    schema_commands.write_json_schemas(out)


@party_app.command("init")
@command
def party_init(
    name: Annotated[str, typer.Argument(help="As the study calls this organisation.", show_default=False)],
    folder: Annotated[Path, typer.Option(help="For key, certificate and party.toml.")] = Path("."),
    table: Annotated[str | None, typer.Option(help="A party's table, from that folder on.")] = None,
    listen: Annotated[str | None, typer.Option(help="host:port that this machine binds.")] = None,
    days: Annotated[int, typer.Option(min=1, help="That the certificate holds.")] = 730,
    debug: Debug = False,
) -> None:
    """Make a key and a certificate for this organisation."""
    from vertinumpyro.cli import study_commands

    study_commands.init(name, folder=folder, table=table, listen=listen, days=days)


@study_app.command("draft")
@command
def study_draft(
    config: ConfigFile,
    member: Annotated[list[str], typer.Option(help="name=certificate.pem@host:port, for each party.")],
    helper: Annotated[list[str] | None, typer.Option(help="The same for CrypTen's dealer, SPU's third node.")] = None,
    name: Annotated[str, typer.Option(help="For people.")] = "study",
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("study.toml"),
    linkage: Annotated[
        Path | None, typer.Option(help="The agreement that the records were linked under.", show_default="none")
    ] = None,
    method: Method = None,
    allow_long: AllowLong = False,
    debug: Debug = False,
) -> None:
    """Write an agreement: schema, members, method and a privacy plan. No table is opened."""
    from vertinumpyro.cli import study_commands

    study_commands.draft(
        config,
        method=method,
        members=member,
        helpers=helper or [],
        name=name,
        out=out,
        linkage=linkage,
        allow_long=allow_long,
    )


@study_app.command("draft-linkage")
@command
def study_draft_linkage(
    config: ConfigFile,
    member: Annotated[list[str], typer.Option(help="name=certificate.pem@host:port, for each party.")],
    helper: Annotated[list[str], typer.Option(help="The same for a helper, who holds no table.")],
    name: Annotated[str, typer.Option(help="For people.")] = "linkage",
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("linkage.toml"),
    pad_to: Annotated[
        int | None, typer.Option(min=1, help="Ids that every party sends, so that none learns how many are real.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write an agreement to find the records that all parties have. No table is opened."""
    from vertinumpyro.cli import study_commands

    study_commands.draft_linkage(config, members=member, helpers=helper, name=name, out=out, pad_to=pad_to)


@study_app.command("show")
@command
def study_show(study: StudyFile, debug: Debug = False) -> None:
    """Show what an agreement says, and its digest."""
    from vertinumpyro.cli import study_commands

    study_commands.show(study)


@study_app.command("status")
@command
def study_status(study: StudyFile, party: PartyTOML = Path("party.toml"), debug: Debug = False) -> None:
    """Show how far this organisation is with a study: approval, linkage, steps on account, log."""
    from vertinumpyro.cli import study_commands

    study_commands.status(study, party)


@study_app.command("diff")
@command
def study_diff(
    study: StudyFile,
    other: Annotated[Path, typer.Argument(help="Another party's file.", show_default=False)],
    debug: Debug = False,
) -> None:
    """Say where two files of an agreement differ."""
    from vertinumpyro.cli import study_commands

    study_commands.difference(study, other)


@study_app.command("approve")
@command
def study_approve(
    study: StudyFile,
    party: PartyTOML = Path("party.toml"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    debug: Debug = False,
) -> None:
    """Show an agreement, hold it against this party's policy, and sign it."""
    from vertinumpyro.cli import study_commands

    study_commands.approve(study, party, yes=yes)


@app.command()
@command
def doctor(
    study: StudyFile,
    party: PartyTOML = Path("party.toml"),
    alone: Annotated[bool, typer.Option("--alone", help="Call nobody.")] = False,
    wait: Annotated[float, typer.Option(min=1, help="Seconds to wait for the others to come.")] = 300.0,
    debug: Debug = False,
) -> None:
    """Try all that a run needs, here and between the members, who run this at the same time. Spends nothing."""
    from vertinumpyro.cli import doctor as clinic

    clinic.doctor(study, party, wait_s=wait, alone=alone)


@app.command()
@command
def budget(
    study: Annotated[
        Path | None, typer.Argument(metavar="STUDY.toml", help="What is planned.", show_default="nothing")
    ] = None,
    party: PartyTOML = Path("party.toml"),
    ledger: Annotated[
        Path | None, typer.Option(help="A party's folder of records, where it has no party.toml.", show_default="its")
    ] = None,
    debug: Debug = False,
) -> None:
    """Show all plans on this party's data, and what they cost together against each adversary."""
    from vertinumpyro.cli import plan_table as view

    view.budget(study, party=party, ledger=ledger)


@app.command()
@command
def link(
    linkage: Annotated[Path, typer.Argument(metavar="LINKAGE.toml", help="The agreement.", show_default=False)],
    party: PartyTOML = Path("party.toml"),
    wait: Annotated[float, typer.Option(min=1, help="Seconds to wait for the others to come.")] = 3600.0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that another party may compute.")] = 3600.0,
    debug: Debug = False,
) -> None:
    """Find the records that all parties have: everybody runs this, before a study is drafted."""
    from vertinumpyro.cli import organisation_run

    organisation_run.link(linkage, party, wait_s=wait, timeout_s=timeout)


@app.command()
@command
def join(
    study: StudyFile,
    party: PartyTOML = Path("party.toml"),
    out: Annotated[
        Path | None, typer.Option(help="Folder of the outputs.", show_default="run beside party.toml")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    wait: Annotated[float, typer.Option(min=1, help="Seconds to wait for the others to come.")] = 3600.0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a message may take.")] = 300.0,
    debug: Debug = False,
) -> None:
    """Take part in an approved study: everybody runs this, on their own machine."""
    from vertinumpyro.cli import organisation_run

    organisation_run.join(study, party, out=out, resume=resume, wait_s=wait, timeout_s=timeout)


def main() -> None:
    """The console script."""
    app(prog_name="vertinumpyro")
