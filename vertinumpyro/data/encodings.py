"""What a file of text is encoded as, guessed from its first bytes, so that an error can name it."""

import codecs
from pathlib import Path

from vertinumpyro.core.errors import ArgumentError

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_HEAD = 2**16
GZIP = "compressed by gzip: let its name end in .csv.gz"
_NO_TEXT = {
    b"PK\x03\x04": "an Excel workbook, or a zip archive: save the sheet as CSV, or unpack it",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save the sheet as CSV",
    b"\x1f\x8b": GZIP,
    b"PAR1": "a Parquet file: let its name end in .parquet",
    b"ARROW1": "an Arrow file: convert it to Parquet",
    b"SQLite format 3": "a database: export the table as CSV",
    b"%PDF": "a PDF: export the table as CSV",
}
_OTHER_TEXT = {b"<": "a web page or XML", b"[": "JSON", b"{": "JSON"}


def suspected(content: bytes) -> str:
    """Return Python's name of the encoding that bytes look like: UTF-8, UTF-16 or, where neither, Windows-1252.

    Args:
        content: the file's first bytes, or all of them.
    """
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            return name
    head = content[:_HEAD]
    if b"\0" in head:  # half of the bytes, where the text is Western
        return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)  # a character cut off at the end is no error
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def other_format(content: bytes) -> str:
    """Return what a file is that is no table of text, and what to do with it; empty where it may be one."""
    if not content.strip():
        return "empty"
    known = [text for mark, text in _NO_TEXT.items() if content.startswith(mark)]
    text = content[:_HEAD].removeprefix(codecs.BOM_UTF8).lstrip()
    known += [f"{what}: export the table as CSV" for mark, what in _OTHER_TEXT.items() if text.startswith(mark)]
    return known[0] if known else ""


def read_utf8(path: Path) -> str:
    """Return a settings file's text, without a byte order mark.

    Raises:
        ArgumentError: it cannot be read, or is in another encoding; the message names the file and the encoding.
    """
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise ArgumentError(f"{str(path)!r} is a folder; give the file in it") from None
    except OSError as error:
        raise ArgumentError(f"cannot read {str(path)!r}: {error.strerror}") from None
    if (encoding := suspected(content)) != "utf-8":
        raise ArgumentError(f"{path.name} looks like {encoding} text; save it as UTF-8")
    return content.decode("utf-8-sig", errors="replace")


def is_known(encoding: str) -> bool:
    """Whether Python knows an encoding of text by this name."""
    try:
        "".encode(encoding)
    except (LookupError, ValueError):
        return False
    return True


def same(one: str, other: str) -> bool:
    """Whether two known names are of one encoding."""
    return codecs.lookup(one).name == codecs.lookup(other).name


def contradicts(content: bytes, encoding: str) -> bool:
    """Whether bytes cannot be text of an encoding, or are of the other width."""
    guess = suspected(content)
    if same(guess, encoding):
        return False
    if ("16" in guess) != ("16" in encoding):
        return True
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return True
    return False
