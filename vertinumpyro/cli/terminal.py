"""The two consoles, and the shapes of line that every command prints.

Whatever is printed passes `_Door`: what others wrote can neither command the terminal nor hide in it.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment
from rich.text import Text

from vertinumpyro.core.visible import visible

__all__ = ["checklist_item", "console", "error_console", "error_panel", "for_programs", "heading", "warnings_as_lines"]


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


def error_panel(title: str, message: str) -> Panel:
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
def for_programs() -> Iterator[dict[str, Any]]:
    """Send what people read to stderr, and at the end the dictionary to stdout as one JSON object.

    It says whether all went well, and the text that was printed where nothing else was put in.
    """
    answer: dict[str, Any] = {}
    console.record, went_well = True, False
    with redirected(console, sys.stderr):
        try:
            yield answer
            went_well = True
        finally:
            text = console.export_text().strip()
            console.record = False
            found = answer or {"text": text.splitlines()}
            sys.stdout.write(json.dumps({"ok": went_well, **found}, indent=2, default=str) + "\n")


@contextmanager
def redirected(one: Console, file: Any) -> Iterator[None]:
    """Print on another stream for a while."""
    before, one.file = one._file, file
    try:
        yield
    finally:
        one._file = before


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Show the library's own warnings as one line each, no line twice, and other libraries' as they are."""
    with warnings.catch_warnings():
        shown_before, told = warnings.showwarning, set[str]()

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
