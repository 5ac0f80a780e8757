""".dockerignore: which files of a build context a build may see.

Patterns are matched against paths relative to the context, `/`-separated. The last pattern that matches a
path or one of its parent folders decides; `!` takes a path back in.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchflow.errors import EnvironmentFailure


@dataclass(frozen=True, slots=True)
class _Rule:
    regex: re.Pattern[str]
    takes_back: bool


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Compiled patterns; no patterns ignore nothing."""

    rules: tuple[_Rule, ...] = ()

    def ignores(self, path: str) -> bool:
        """Whether the relative `path` is left out."""
        if not self.rules:
            return False
        ignored = False
        candidates = tuple(_self_and_parents(path))
        for rule in self.rules:
            if rule.takes_back == ignored and any(rule.regex.fullmatch(name) for name in candidates):
                ignored = not rule.takes_back
        return ignored

    @property
    def takes_back(self) -> bool:
        """Whether a path inside an ignored folder may still be seen."""
        return any(rule.takes_back for rule in self.rules)


def parse_dockerignore(text: str, file: str = ".dockerignore") -> IgnoreRules:
    """The rules of a `.dockerignore`; blank lines and lines that start with `#` say nothing."""
    rules = []
    for number, line in enumerate(text.removeprefix("\N{BYTE ORDER MARK}").splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        try:
            rules.append(_rule(line.strip()))
        except ValueError as error:
            message = f"{file} line {number}: {error}."
            raise EnvironmentFailure(message, code="dockerignore-invalid", file=file, line=number) from error
    return IgnoreRules(tuple(rules))


def context_rules(context: Path, dockerfile: str) -> IgnoreRules:
    """What the build of a Dockerfile does not see of its context."""
    for name in (f"{dockerfile}.dockerignore", ".dockerignore"):
        path = context / name
        if path.is_file():
            return parse_dockerignore(path.read_text(encoding="utf-8", errors="replace"), name)
    return IgnoreRules()


def ignore_rules(patterns: Iterable[str]) -> IgnoreRules:
    """Rules from patterns that are not in a file; a `ValueError` names a pattern that means nothing."""
    return IgnoreRules(tuple(_rule(pattern) for pattern in patterns))


def _self_and_parents(path: str) -> Iterator[str]:
    while path not in ("", ".", "/"):
        yield path
        path = posixpath.dirname(path)


def _rule(line: str) -> _Rule:
    takes_back = line.startswith("!")
    pattern = line[1:].strip() if takes_back else line
    if not pattern:
        raise ValueError("a lone ! has no pattern")
    pattern = posixpath.normpath(pattern).lstrip("/")
    return _Rule(re.compile(_regex(pattern), re.DOTALL), takes_back)


def _regex(pattern: str) -> str:
    out, position = "", 0
    while position < len(pattern):
        char = pattern[position]
        if pattern.startswith("**", position):
            position += 2
            if pattern.startswith("/", position):
                position += 1
                out += "(?:.*/)?"
            else:
                out += ".*"
            continue
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[":
            piece, position = _character_class(pattern, position)
            out += piece
            continue
        elif char == "\\":
            position += 1
            if position == len(pattern):
                raise ValueError(f"the pattern {pattern} ends in a backslash")
            out += re.escape(pattern[position])
        else:
            out += re.escape(char)
        position += 1
    return out


def _character_class(pattern: str, start: int) -> tuple[str, int]:
    """A class such as `[a-z]` or `[^0-9]` as a regular expression, and where the pattern continues."""
    position = start + 1
    negated = pattern[position : position + 1] == "^"
    position += negated
    body = ""
    while position < len(pattern) and (pattern[position] != "]" or not body):
        char = pattern[position]
        if char == "\\" and position + 1 < len(pattern):
            position += 1
            body += re.escape(pattern[position])
        else:
            body += char if char == "-" else re.escape(char)
        position += 1
    if position >= len(pattern):
        raise ValueError(f"the pattern {pattern} has [ without ]")
    regex = f"(?!/)[{'^' if negated else ''}{body}]"
    try:
        re.compile(regex)
    except re.error as error:
        raise ValueError(f"the pattern {pattern} has an invalid range") from error
    return regex, position + 1
