"""Dockerfile text -> instructions.

Knows the grammar: parser directives, continuations with comments inside, flags, JSON forms and
here-documents. What an instruction means is the builder's business. Every instruction knows its line; what
cannot be parsed is an error with file and line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.dockerfile.dockerfile_words import split_words

INSTRUCTIONS: Final = frozenset(
    {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL"}
    | {"MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)
_TAKE_HEREDOCS: Final = frozenset({"RUN", "COPY", "ADD"})
_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*$")
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)$")
_SPACE = re.compile(r"[\t\v\f\r ]+")


class DockerfileError(EnvironmentFailure):
    """A Dockerfile that cannot be parsed."""

    default_code = "dockerfile-invalid"


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A here-document of an instruction."""

    name: str
    text: str
    """Its lines; leading tabs are already gone for `<<-`."""
    expand: bool
    """Whether its delimiter was unquoted, so that COPY and ADD expand variables in it."""
    raw: str = ""
    """Its lines as written, for a shell that reads the here-document itself."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, continuations joined and flags taken off."""

    keyword: str
    """Upper case."""
    value: str
    line: int
    """Where it starts, from 1."""
    flags: tuple[tuple[str, str], ...] = ()
    """Name and value as written, without the dashes; a flag without value has the value `true`."""
    heredocs: tuple[Heredoc, ...] = ()
    words: tuple[str, ...] | None = None
    """The strings of the JSON form, None for the shell form."""

    def __str__(self) -> str:
        flags = "".join(f"--{name}={value} " for name, value in self.flags)
        return f"{self.keyword} {flags}{self.value}"


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A parsed Dockerfile."""

    file: str
    instructions: tuple[Instruction, ...]
    escape: str = "\\"


def parse_dockerfile(text: str, file: str = "Dockerfile") -> Dockerfile:
    """The instructions of `text`; a `DockerfileError` names `file` and line of what cannot be parsed."""
    lines = text.removeprefix("\N{BYTE ORDER MARK}").split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    escape = _escape_directive(lines, file)
    reader = _Reader(lines, escape, file)
    instructions = []
    while (found := reader.next_logical_line()) is not None:
        line, number = found
        instructions.append(_instruction(line, number, reader))
    if not instructions:
        raise DockerfileError(f"{file} contains no instruction.", file=file)
    return Dockerfile(file, tuple(instructions), escape)


def _escape_directive(lines: list[str], file: str) -> str:
    """The escape character; directives come before anything else and each appears once."""
    seen: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.match(line)
        if match is None:
            break
        name = match[1].lower()
        if name not in ("escape", "syntax", "check"):
            break
        if name in seen:
            raise DockerfileError(f"The directive {name} appears twice.", file=file, line=number)
        if name == "escape" and match[2] not in ("\\", "`"):
            raise DockerfileError(f"The escape character is \\ or `, not {match[2]}.", file=file, line=number)
        seen[name] = match[2]
    return seen.get("escape", "\\")


class _Reader:
    """Hands out logical lines and the bodies of here-documents, in order."""

    def __init__(self, lines: list[str], escape: str, file: str) -> None:
        self.lines = lines
        self.escape = escape
        self.file = file
        self.position = 0
        e = re.escape(escape)
        self._continuation = re.compile(rf"(?:(?<=[^{e}])|^){e}[ \t]*$")

    def next_logical_line(self) -> tuple[str, int] | None:
        """The next line that is neither blank nor a comment, with its continuations, and its number."""
        while self.position < len(self.lines) and _is_blank_or_comment(self.lines[self.position]):
            self.position += 1
        if self.position >= len(self.lines):
            return None
        start = self.position + 1
        text, goes_on = self._piece(self.lines[self.position].lstrip())
        self.position += 1
        while goes_on and self.position < len(self.lines):
            line = self.lines[self.position]
            self.position += 1
            if _is_blank_or_comment(line):
                continue
            piece, goes_on = self._piece(line)
            text += piece
        return text.strip(), start

    def _piece(self, line: str) -> tuple[str, bool]:
        match = self._continuation.search(line)
        return (line[: match.start()], True) if match else (line, False)

    def heredoc_lines(self, name: str, strip_tabs: bool, line: int) -> list[str]:
        start = self.position
        for position in range(start, len(self.lines)):
            text = self.lines[position]
            if (text.lstrip("\t") if strip_tabs else text) == name:
                self.position = position + 1
                return self.lines[start:position]
        raise DockerfileError(f"The here-document {name} has no end.", file=self.file, line=line)


def _is_blank_or_comment(line: str) -> bool:
    text = line.strip()
    return not text or text.startswith("#")


def _instruction(text: str, line: int, reader: _Reader) -> Instruction:
    keyword, _, rest = _partition_space(text)
    keyword = keyword.upper()
    if keyword not in INSTRUCTIONS:
        raise DockerfileError(f"Unknown instruction {keyword}.", file=reader.file, line=line)
    flags, rest = _take_flags(rest, reader, line)
    heredocs = tuple(_heredocs(rest, line, reader)) if keyword in _TAKE_HEREDOCS else ()
    if not rest:
        raise DockerfileError(f"{keyword} needs an argument.", file=reader.file, line=line)
    words = json_words(rest, file=reader.file, line=line)
    return Instruction(keyword, rest, line, flags, heredocs, words)


def _partition_space(text: str) -> tuple[str, str, str]:
    match = _SPACE.search(text)
    return (text[: match.start()], " ", text[match.end() :]) if match else (text, "", "")


def _take_flags(rest: str, reader: _Reader, line: int) -> tuple[tuple[tuple[str, str], ...], str]:
    flags: list[tuple[str, str]] = []
    while rest.startswith("--"):
        word = split_words(rest, reader.escape, limit=1)[0]
        rest = rest[len(word) :].lstrip()
        if word == "--":
            break
        name, equals, value = word[2:].partition("=")
        if not name:
            raise DockerfileError(f"A flag has no name: {word}.", file=reader.file, line=line)
        flags.append((name.lower(), _unquoted(value, reader.escape) if equals else "true"))
    return tuple(flags), rest


def _unquoted(value: str, escape: str) -> str:
    """A flag's value without the quotes that held it together; variables stay."""
    out, quote, position = "", "", 0
    while position < len(value):
        char = value[position]
        if char == escape and position + 1 < len(value) and value[position + 1] != "$":
            position += 1
            out += value[position]
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            out += char
        position += 1
    return out


def _heredocs(rest: str, line: int, reader: _Reader) -> list[Heredoc]:
    found = []
    for word in split_words(rest, reader.escape):
        match = _HEREDOC.match(word)
        if match is None:
            continue
        name = re.sub(r"['\"]", "", match[2])
        if not name:
            continue
        strip_tabs = bool(match[1])
        body = reader.heredoc_lines(name, strip_tabs, line)
        raw = "".join(f"{text}\n" for text in body)
        text = "".join(f"{text.lstrip(chr(9))}\n" for text in body) if strip_tabs else raw
        found.append(Heredoc(name, text, expand=name == match[2], raw=raw))
    return found


def json_words(value: str, *, file: str, line: int) -> tuple[str, ...] | None:
    """The strings of a JSON array; None if `value` is not a JSON array, which means the shell form."""
    if not value.startswith("["):
        return None
    try:
        parsed = json.loads(value)
    except ValueError:
        return None
    if not all(isinstance(item, str) for item in parsed):
        raise DockerfileError("The JSON form takes strings only.", file=file, line=line)
    return tuple(parsed)
