"""The terminal: what is printed, in which colours and how wide; how far a run is, for people on stderr and for programs
in `log.jsonl`; and how every command ends, with an answer to programs, one panel for an error, an exit code.

Imported before a command is chosen, so it may import nothing heavy.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, final

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment
from rich.text import Text

from vertinumpyro.core.errors import LEAST_S, LongFitWarning, Sparing, VertinumpyroError, visible
from vertinumpyro.reports.plain_language import count, duration


@final
class _Door(Console):
    """A console that shows hidden characters of any text as escapes; styles and rich's own commands pass."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a text, each of which can be seen."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, keep="\n"))


console = _Door(highlight=False, emoji=False)
error_console = _Door(stderr=True, highlight=False, emoji=False)


def heading(text: str) -> RenderableType:
    """A section's title, with a blank line above."""
    return Padding(Text(text, style="bold cyan"), (1, 0, 0, 0))


def _error_panel(title: str, message: str) -> Panel:
    """One panel: the kind of error as its title, what to do as its text."""
    return Panel(
        Text(message),
        title=f"[bold red]{escape(title)}",
        title_align="left",
        border_style="red",
        padding=(0, 1),
    )


@contextmanager
def checklist_item(name: str) -> Iterator[list[str]]:
    """A line that ends as a tick and what was appended to the list, or as a cross, and the error goes on."""
    found: list[str] = []
    try:
        with console.status(f"[dim]{name} …"):
            yield found
    except BaseException:
        console.print(f"[red]✗[/] [bold]{name}[/]")
        raise
    console.print(f"[green]✓[/] [bold]{name:<8}[/] {escape('; '.join(found))}")


@contextmanager
def _for_programs() -> Iterator[dict[str, Any]]:
    """Send what people read to stderr, and at the end the dictionary to stdout as one JSON object.

    It says whether all went well, and the text that was printed where nothing else was put in.
    """
    answer: dict[str, Any] = {}
    console.record, went_well = True, False
    with _redirected(console, sys.stderr):
        try:
            yield answer
            went_well = True
        finally:
            text = console.export_text().strip()
            console.record = False
            found = answer or {"text": text.splitlines()}
            sys.stdout.write(json.dumps({"ok": went_well, **found}, indent=2, default=str) + "\n")


@contextmanager
def _redirected(one: Console, file: Any) -> Iterator[None]:
    """Print on another stream for a while."""
    before, one.file = one._file, file
    try:
        yield
    finally:
        one._file = before


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show the library's own warnings as one line each, no line twice, and other libraries' as they are."""
    with warnings.catch_warnings():
        shown_before, told = warnings.showwarning, set[str]()
        warnings.simplefilter("ignore", LongFitWarning)  # how long a fit takes has a line of its own

        def show(message: Any, category: type[Warning], *where: Any, **rest: Any) -> None:
            if category.__module__.startswith("vertinumpyro."):
                if str(message) in told:
                    return
                told.add(str(message))
                error_console.print(Text(f"! {message}", style="yellow"))
            else:
                shown_before(message, category, *where, **rest)

        warnings.showwarning = show
        yield


LOG = "log.jsonl"


class RunLog:
    """Appends events to a file; each is on disk for a reader when the call returns.

    :param path: made with its folder if need be; an earlier run's lines stay.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: int | None = None
        path.parent.mkdir(parents=True, exist_ok=True)

    def event(self, what: str, **facts: Any) -> None:
        """One line: the time, UTC, what happened, and public facts."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": stamp, "event": what, **facts}) + "\n")

    def steps(self, spent: int, total: int) -> None:
        """A line where more steps are on record than at the last call."""
        if spent != self._steps:
            self._steps = spent
            self.event("steps", on_record=spent, of=total)

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Says how it ended: our own errors in full, which quote no record; of others the kind alone."""
        started = time.perf_counter()
        try:
            yield
        except BaseException as error:
            said = {"message": str(error)} if isinstance(error, VertinumpyroError) else {}
            self.event("failed", error=type(error).__name__, seconds=_seconds(started), **said)
            raise
        self.event("finished", seconds=_seconds(started))


def last_events(path: Path, count: int) -> list[dict[str, Any]]:
    """The last lines of a log that can be read; none without a log."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines[-count:]:
        try:
            found.append(dict(json.loads(line)))
        except (ValueError, TypeError):  # cut off while it was written
            continue
    return found


def _seconds(started: float) -> float:
    return round(time.perf_counter() - started, 3)


_PART = 0.1  # of the total: so much more is worth a line
_PARTS_OF_TIME = 20  # lines that only say how long it has taken get rarer: one per twentieth of it
_POLL_S = 0.5


class ProgressLines:
    """A callback `(step, total)` that says a line when a tenth more is done or ten seconds or longer have passed, after
    the first at most one every ten seconds; one that would say the same is due after a pause that doubles each time.

    :param after: what follows the last step, and how long it takes; said at once when that is on record.
    """

    def __init__(
        self,
        noun: str,
        say: Callable[[str], object] = console.print,
        clock: Callable[[], float] = time.monotonic,
        after: str = "",
    ) -> None:
        self._noun, self._say, self._clock, self._after = noun, say, clock, after
        self._started, self._sparing = clock(), Sparing(clock)
        self._said_step: int | None = None
        self._is_first, self._complete_at = True, 0.0

    def __call__(self, step: int, total: int) -> None:
        """Say where the run stands, if that is worth a line."""
        if self._said_step is None:
            self._said_step = step  # a run that continues does not begin at 0
        passed, more = self._clock() - self._started, step - self._said_step
        is_more = more >= max(1, _PART * total)
        if step >= total and self._after and not self._complete_at:
            self._complete_at = self._clock()
            self.say(step, total)
        elif self._is_first:
            if is_more or passed >= LEAST_S:
                self.say(step, total)
        elif self._sparing.is_due(step, least=0.0 if is_more or not more else passed / _PARTS_OF_TIME):
            self._line(step, total)

    def say(self, step: int, total: int) -> None:
        """Say where the run stands."""
        self._sparing.said(step)
        self._line(step, total)

    def _line(self, step: int, total: int) -> None:
        self._said_step, self._is_first = step, False
        share = f"{step / max(total, 1):.0%}"
        passed = duration(self._clock() - self._started)
        now = f"; now {self._after}" if self._complete_at else ""
        self._say(f"{step:,} of {count(total, self._noun)} recorded as spent ({share}), {passed}{now}")

    def end(self, step: int, total: int) -> None:
        """Say how it ended."""
        if self._complete_at:
            self._say(f"computed, {duration(self._clock() - self._complete_at)} after the last {self._noun}")
        else:
            self.say(step, total)


@contextmanager
def progress_in_log(record: Path, total: int, after: str = "") -> Iterator[None]:
    """Lines about a fit while it runs, read from its privacy record; none on a terminal, which shows a bar.

    The record is public, counts steps before they are computed, and is kept by every way to fit: in this process and
    with a process for each party.

    :param record: the fit's `privacy.json`; need not exist yet.
    :param total: the plan's steps.
    :param after: what follows the last of them, and how long it takes.
    """
    if console.is_terminal:
        yield
        return
    lines = ProgressLines("step", after=after)
    with log_progress(record, lambda spent: lines(spent, total), lambda spent: lines.end(spent, total)):
        yield


@contextmanager
def log_progress(record: Path, tell: Callable[[int], object], last: Callable[[int], object]) -> Iterator[None]:
    """Calls `tell` with the steps on record, twice a second while the block runs, and `last` at its end."""
    done = threading.Event()

    def follow() -> None:
        while not done.wait(_POLL_S):
            tell(_steps_spent(record))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        last(_steps_spent(record))


def _steps_spent(record: Path) -> int:
    try:
        return int(json.loads(record.read_text(encoding="utf-8"))["steps_spent"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # not there yet; a record that is broken stops the fit itself


_ERROR = 2  # the user can repair it
_BUG = 70  # we must

_Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for programs.")]


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """Turn every error into one panel on stderr and an exit code; `--debug` shows the traceback first.

    Every command has `--json`: what people read goes to stderr, and one JSON object to stdout, with what the command
    returns, or the text that it printed; of an error its kind and message.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, debug: bool = False, as_json: bool = False, **kwargs: Any) -> None:
        if not as_json:
            run(*args, debug=debug, **kwargs)
            return
        with _for_programs() as answer:
            answer |= run(*args, debug=debug, told=answer, **kwargs) or {}

    def run(*args: Any, debug: bool, told: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        try:
            with _warnings_as_lines():
                return function(*args, debug=debug, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            error_console.print("[yellow]Stopped. What was released so far stays recorded as spent.[/]")
            raise typer.Exit(130) from None
        except Exception as error:
            if debug:
                error_console.print(Text(traceback.format_exc()), soft_wrap=True)
            title, message, code = _explained(error)
            error_console.print(_error_panel(title, message))
            if told is not None:
                told |= {"error": title, "message": message}
            raise typer.Exit(code) from None

    signature = inspect.signature(function, eval_str=True)
    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Json)
    wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    wrapper.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()} | {"as_json": _Json}
    return wrapper


def _explained(error: Exception) -> tuple[str, str, int]:
    """Title, message and exit code. Only our own errors, and the file system's, never quote a record."""
    if isinstance(error, VertinumpyroError):
        return type(error).__name__, str(error), _ERROR
    if isinstance(error, OSError) and error.filename is not None:
        return type(error).__name__, f"{error.strerror}: {error.filename}", _ERROR
    hidden = "Its text is not shown, since it could quote the data; --debug shows it."
    from vertinumpyro.model.user_code import line_in_model  # brings jax, which most commands end without

    if (line := line_in_model(error)) is not None:
        return f"{type(error).__name__} at {line}", f"Your own code raised it: {line.text}\n{hidden}", _ERROR
    return f"unexpected {type(error).__name__}", f"This is not your doing. {hidden}", _BUG
