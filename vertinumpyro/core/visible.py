"""Characters that nobody sees or that move what stands around them: refused in names, shown as escapes elsewhere.

A name or a message that somebody else wrote may hold a terminal's commands, marks that turn the direction of writing,
line breaks, or characters without width. Whoever reads it to approve something must see what is there.
"""

from __future__ import annotations

import unicodedata

__all__ = ["hidden_in", "visible"]

_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Unicode's categories: control, format, unassigned, private, surrogate, line and paragraph separators."""


def visible(text: str, *, keep: str = "") -> str:
    r"""A text that others wrote, every hidden character of it as an escape, `\x1b` or `\u202e`.

    :param keep: characters that stay as they are: a line break where lines are meant.
    """
    if text.translate(dict.fromkeys(map(ord, keep))).isprintable():
        return text
    return "".join(_escape(one) if _is_hidden(one) and one not in keep else one for one in text)


def hidden_in(text: str) -> str:
    """The first hidden character of a text as an escape; empty where there is none."""
    if text.isprintable():  # nothing hidden is
        return ""
    return next((_escape(one) for one in text if _is_hidden(one)), "")


def _is_hidden(one: str) -> bool:
    return unicodedata.category(one) in _HIDDEN


def _escape(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
