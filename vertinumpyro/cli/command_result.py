"""How every command ends: what it answers to programs, one panel for an error, an exit code.

Short because it is imported before a command is chosen, and may import nothing heavy.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from vertinumpyro.cli.terminal import error_console, error_panel, for_programs, warnings_as_lines
from vertinumpyro.core.errors import VertinumpyroError

_ERROR = 2  # the user can repair it
_BUG = 70  # we must

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for programs.")]


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
        with for_programs() as answer:
            answer |= run(*args, debug=debug, told=answer, **kwargs) or {}

    def run(*args: Any, debug: bool, told: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        try:
            with warnings_as_lines():
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
            error_console.print(error_panel(title, message))
            if told is not None:
                told |= {"error": title, "message": message}
            raise typer.Exit(code) from None

    signature = inspect.signature(function, eval_str=True)
    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    wrapper.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()} | {"as_json": Json}
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
