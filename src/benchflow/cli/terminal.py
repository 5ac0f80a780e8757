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
from collections.abc import Iterable
from typing import Any, Final, Literal, TextIO

Colour = Literal["red", "green", "yellow", "cyan", "dim", "bold"]

_SGR: Final[dict[Colour, str]] = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


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
