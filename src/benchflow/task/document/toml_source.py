"""TOML text -> its mapping and the line of each key.

`tomllib` does not report positions; `key_lines` finds them by scanning the text, which is known to be valid by then.
Paths are written as in issues: `steps[0].verifier.env`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from benchflow.errors import PackageError

MAX_TOML_BYTES = 1_000_000
MAX_DEPTH = 64
MAX_VALUES = 50_000
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""|\'{3}.*?\'{3}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|\#[^\n]*''', re.DOTALL
)
_PART = re.compile(r"[^\s.,=\[\]{}]+|[.,=\[\]{}]")
_ERROR_LINE = re.compile(r"\(at line (\d+), column \d+\)$")
_KEY_PART = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|"((?:[^"\\]|\\.)*)"|'([^']*)')[ \t]*""")
_STOP = re.compile(r"""["'\n#\[\]{}]""")
_QUOTES = ('"""', "'''", '"', "'")


def parse_toml(text: str, *, file: str = "task.toml") -> dict[str, Any]:
    """The mapping in `text`, or a `PackageError` that names the line; never another exception."""
    if len(text) > MAX_TOML_BYTES:
        raise PackageError(f"{file} is larger than {MAX_TOML_BYTES:,} bytes", code="too-large", file=file)
    try:
        _refuse_long_keys(text)
        data = tomllib.loads(text.removeprefix("\ufeff"))
        _refuse_size(data)
        return data
    except tomllib.TOMLDecodeError as error:
        found = _ERROR_LINE.search(str(error))
        message = _ERROR_LINE.sub("", str(error)).strip()
        raise PackageError(
            f"{file} is not valid TOML: {message}",
            code="invalid-toml",
            file=file,
            line=int(found[1]) if found else None,
        ) from None
    except RecursionError:
        message = f"{file} has more than {MAX_VALUES:,} values or {MAX_DEPTH} levels"
        raise PackageError(message, code="too-complex", file=file) from None
    except ValueError as error:  # a date that does not exist, an integer beyond what Python converts
        raise PackageError(f"{file} is not valid TOML: {error}", code="invalid-toml", file=file) from None


def _refuse_long_keys(text: str) -> None:
    """Very long dotted keys make `tomllib` slow; they count as nesting."""
    for line in _STRING_OR_COMMENT.sub('""', text).split("\n"):
        if line.count(".") <= MAX_DEPTH:
            continue
        run, after_dot = 0, False
        for part in _PART.findall(line):
            if part == ".":
                after_dot = True
                continue
            run, after_dot = (run + 1 if after_dot else 0), False
            if run > MAX_DEPTH:
                raise RecursionError


def _refuse_size(data: dict[str, Any]) -> None:
    level: list[Any] = [data]
    seen = 0
    for _ in range(MAX_DEPTH):
        values = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
        level = [item for item in values if isinstance(item, dict | list)]
        seen += len(values)
        if seen > MAX_VALUES:
            break
        if not level:
            return
    raise RecursionError


def toml_locator(text: str) -> Callable[[str], int | None]:
    """A function that finds the line of a path in a valid text, which is scanned on the first call."""
    lines: dict[str, int] = {}

    def locate(path: str) -> int | None:
        if not lines:
            lines.update(key_lines(text))
        return line_of(path, lines)

    return locate


def line_of(path: str, lines: Mapping[str, int]) -> int | None:
    """The line of `path`, or of the nearest key above it."""
    while path:
        if path in lines:
            return lines[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return None


def key_lines(text: str) -> dict[str, int]:
    """The line of each table and key of valid TOML, counted from 1."""
    scanner = _Scanner(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    scanner.run()
    return scanner.lines


class _Scanner:
    """One pass over the text, by logical lines: a header, or a key with a value that may span many lines."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.line = 1
        self.table = ""
        self.lines: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def run(self) -> None:
        while self.position < len(self.text):
            start, line = self.position, self.line
            self._skip_logical_line()
            self._record(self.text[start : self.position].lstrip(" \t\n"), line)

    def _record(self, statement: str, line: int) -> None:
        if statement.startswith("[["):
            self.table = self._next_row(_key_parts(statement[2:]))
            self.lines[self.table] = line
        elif statement.startswith("["):
            self.table = self._resolve(_key_parts(statement[1:]))
            self.lines.setdefault(self.table, line)
        elif statement and statement[0] != "#":
            path = self.table
            for part in _key_parts(statement):
                path = f"{path}.{part}" if path else part
                self.lines.setdefault(path, line)

    def _resolve(self, parts: list[str]) -> str:
        """A header's path, with the current row of each array of tables."""
        path = ""
        for part in parts:
            path = f"{path}.{part}" if path else part
            if path in self._rows:
                path = f"{path}[{self._rows[path]}]"
        return path

    def _next_row(self, parts: list[str]) -> str:
        parent = self._resolve(parts[:-1])
        array = f"{parent}.{parts[-1]}" if parent else parts[-1]
        self._rows[array] = self._rows.get(array, -1) + 1
        return f"{array}[{self._rows[array]}]"

    def _skip_logical_line(self) -> None:
        """Move past the next line ending that is not inside a string or bracket of a value."""
        depth = 0
        header = self._at_header()
        while found := _STOP.search(self.text, self.position):
            self.position = found.start()
            char = found[0]
            if char in "\"'":
                self._skip_string()
                continue
            self.position += 1
            if char == "\n":
                self.line += 1
                if depth == 0:
                    return
            elif char == "#":
                end = self.text.find("\n", self.position)
                self.position = len(self.text) if end < 0 else end
            elif not header:
                depth += (char in "[{") - (char in "]}")
        self.position = len(self.text)

    def _at_header(self) -> bool:
        rest = self.position
        while rest < len(self.text) and self.text[rest] in " \t":
            rest += 1
        return self.text.startswith("[", rest)

    def _skip_string(self) -> None:
        quote = next(q for q in _QUOTES if self.text.startswith(q, self.position))
        escapes = quote[0] == '"'
        at = self.position + len(quote)
        while at < len(self.text) and not self.text.startswith(quote, at):
            at += 2 if escapes and self.text[at] == "\\" else 1
        at += len(quote)
        while len(quote) == 3 and self.text.startswith(quote[0], at):  # up to two quotes may precede the end
            at += 1
        self.line += self.text.count("\n", self.position, at)
        self.position = at


def _key_parts(statement: str) -> list[str]:
    parts: list[str] = []
    at = 0
    while found := _KEY_PART.match(statement, at):
        bare, basic, literal = found.groups()
        parts.append(bare if bare is not None else _unescape(basic) if basic is not None else literal)
        at = found.end()
        if not statement.startswith(".", at):
            break
        at += 1
    return parts


def _unescape(basic: str) -> str:
    return str(tomllib.loads(f'k = "{basic}"')["k"]) if "\\" in basic else basic
