"""Output of the commands: text, one JSON document, notes on stderr, colours on terminals.

Text from packages never reaches a terminal raw: control characters are shown as escapes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TextIO

Colour = Literal["red", "green", "yellow", "cyan", "dim", "bold"]

_SGR: Final[dict[Colour, str]] = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]*m")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal; false for pipes, files and closed streams."""
    return stream is not None and not stream.closed and stream.isatty()


def style(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """The text in colour if the stream (stdout by default) is a terminal that supports it."""
    target = sys.stdout if stream is None else stream
    if not is_terminal(target) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_SGR[colour]}m{text}\x1b[0m"


def printable(text: str) -> str:
    """The text on one line, with control and direction-changing characters shown as escapes."""
    return _CONTROL.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", text
    )


def printable_lines(text: str, longest: int = 400) -> Iterator[str]:
    """A text of several lines, each made printable; colours are removed, and long lines are cut."""
    for line in _COLOURS.sub("", text).replace("\r\n", "\n").split("\n"):
        yield shortened(printable(line.rstrip()), longest)


def shortened(text: str, longest: int) -> str:
    """As much of a text as fits."""
    return text if len(text) <= longest else text[: max(longest - 2, 0)].rstrip() + " …"


def columns() -> int | None:
    """The width of the terminal that stdout is; None if it is not one."""
    return max(shutil.get_terminal_size().columns, 40) if is_terminal(sys.stdout) else None


def page(lines: Iterable[str]) -> None:
    """Show lines in the user's pager (`PAGER`, else `less`) on a terminal, and print them otherwise.

    Lines are taken as the pager asks for them, so that leaving it early ends the work too.
    """
    command = _pager() if is_terminal(sys.stdout) and is_terminal(sys.stdin) else None
    if command is None:
        for line in lines:
            emit(line)
        return
    import subprocess

    environ = {**os.environ, "LESS": os.environ.get("LESS", "FRX"), "LV": os.environ.get("LV", "-c")}
    encoding = sys.stdout.encoding or "utf-8"
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environ)
    assert process.stdin is not None  # noqa: S101 - it was asked for
    with suppress(BrokenPipeError, KeyboardInterrupt):  # the reader has seen enough
        for line in lines:
            process.stdin.write((line + "\n").encode(encoding, "backslashreplace"))
    with suppress(BrokenPipeError):
        process.stdin.close()
    while True:
        try:
            process.wait()
        except KeyboardInterrupt:  # it belongs to the pager
            continue
        break


def _pager() -> list[str] | None:
    """The pager of the user; None if there is none, or none is wanted."""
    if os.environ.get("TERM") == "dumb":
        return None
    import shlex

    try:
        words = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:
        return None
    found = shutil.which(words[0]) if words else None
    return None if found is None or words[0] == "cat" else [found, *words[1:]]


class LiveBlock:
    """Some lines at the bottom of a terminal that are replaced by the next ones; other lines scroll above them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: Final = stream
        self._height = 0
        self._lines: list[str] = []

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the block; it never exceeds the screen."""
        size = _size(self._stream)
        room = max(size.lines - 2, 1)
        shown = list(lines[:room])
        if len(lines) > room:
            shown[-1] = f"  … and {len(lines) - room + 1} more"
        self._lines = [shortened(line, max(size.columns - 1, 10)) for line in shown]
        self._write("")

    def above(self, line: str) -> None:
        """Print a line above the block."""
        self._write(line + "\n")

    def _write(self, before: str) -> None:
        up = f"\x1b[{self._height}A" if self._height else ""
        block = "".join(f"{line}\n" for line in self._lines)
        self._height = len(self._lines)
        _write(self._stream, f"\r{up}\x1b[J{before}{block}")
        self._stream.flush()


def _size(stream: TextIO) -> os.terminal_size:
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return shutil.get_terminal_size()
    return found if found.columns and found.lines else shutil.get_terminal_size()


def wrapped(text: str, indent: int) -> str:
    """The text, indented; on a terminal also broken at its width, with further lines two columns deeper."""
    if not is_terminal(sys.stdout):
        return " " * indent + text
    width = max(shutil.get_terminal_size().columns, 40)
    return textwrap.fill(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def emit(text: str) -> None:
    """Write lines to stdout; characters that its encoding lacks are shown as escapes."""
    _write(sys.stdout, text + "\n")


def note(text: str) -> None:
    """Write lines to stderr; a closed or full stderr is ignored."""
    try:
        _write(sys.stderr, text + "\n")
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        return


def warn(sentences: Iterable[str]) -> None:
    """Write warnings to stderr, one line each."""
    for sentence in sentences:
        note(printable(f"warning: {sentence}"))


def emit_json(document: Any) -> None:
    """Print one JSON document, always as UTF-8, regardless of the locale."""
    emit_json_text(json.dumps(document, indent=2, ensure_ascii=False))


def emit_json_text(text: str) -> None:
    """Print a document that is already JSON."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = json.dumps(json.loads(text), indent=2).encode("ascii")
    if sys.stdout is None:
        return
    sys.stdout.flush()
    raw = getattr(sys.stdout, "buffer", None)
    if raw is None:
        sys.stdout.write(data.decode() + "\n")
    else:
        raw.write(data + b"\n")


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
