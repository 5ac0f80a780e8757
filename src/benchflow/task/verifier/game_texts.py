"""Texts of game protocols: what roles read, with `{names}` filled in, and the forms in which they write moves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow.task.verifier.game_expressions import Scalar, Scope, Type

_PLACE: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}|[{}]")
_DECORATION: Final = " \t\r*_`#>\"'"
MAX_WORDS: Final = 200
"""Maximum characters of a parameter that is any text."""


class TextError(ValueError):
    """A text that is not valid; the message continues a sentence that starts with its path."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with places for values."""

    text: str
    names: frozenset[str]

    def fill(self, scope: Mapping[str, Any]) -> str:
        def place(found: re.Match[str]) -> str:
            return shown(scope[found[1]]) if found[1] else found[0][0]

        return _PLACE.sub(place, self.text)


def parse_template(text: str, known: frozenset[str]) -> Template:
    """Check a text; a brace that belongs to the text is doubled. Raises `TextError`."""
    names = set()
    for found in _PLACE.finditer(text):
        if found[0] in "{}":
            raise TextError("has a single brace; write '{{' or '}}' for one that belongs to the text")
        if found[1]:
            names.add(found[1])
    unknown = sorted(names - known)
    if unknown:
        known_names = ", ".join(sorted(known)) or "no names"
        raise TextError(f"uses '{{{unknown[0][:60]}}}', which is not known here; available: {known_names}")
    return Template(text, frozenset(names))


def shown(value: Scalar) -> str:
    """A value as participants read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Parameter:
    """What stands in a place of a form."""

    type: Type
    low: float = 0
    high: float = 0
    whole: bool = False
    words: tuple[str, ...] = ()
    """The only texts that are allowed; empty: any text to the end of the line."""

    @property
    def pattern(self) -> str:
        if self.type == "number":
            return r"[+-]?[0-9]{1,15}" if self.whole else r"[+-]?[0-9]{1,15}(?:\.[0-9]{1,9})?"
        if self.words:
            return "|".join(re.escape(word) for word in sorted(self.words, key=len, reverse=True))
        return rf"\S.{{0,{MAX_WORDS - 1}}}"

    def read(self, text: str) -> Scalar | None:
        """The value that was written; None if it is not allowed."""
        if self.type == "text":
            return next((word for word in self.words if word.lower() == text.lower()), None) if self.words else text
        number = int(text) if self.whole else float(text)
        return number if self.low <= number <= self.high else None


@dataclass(frozen=True, slots=True)
class Form:
    """How a move is written: words, and places for parameters, on a line of its own."""

    text: str
    parameters: Mapping[str, Parameter]
    _line: re.Pattern[str] = field(repr=False, compare=False)

    def read(self, line: str) -> dict[str, Scalar] | str | None:
        """The parameters of a line; None if it is another line, a text if a parameter is not allowed, and why."""
        found = self._line.fullmatch(line)
        if found is None:
            return None
        values: dict[str, Scalar] = {}
        for name, parameter in self.parameters.items():
            value = parameter.read(found[name])
            if value is None:
                return f"{name} must be between {shown(parameter.low)} and {shown(parameter.high)}"
            values[name] = value
        return values

    def write(self, values: Scope) -> str:
        """The line of a move."""
        return _PLACE.sub(lambda found: shown(values[found[1]]) if found[1] else found[0][0], self.text)

    def __str__(self) -> str:
        """As participants read it."""

        def place(found: re.Match[str]) -> str:
            if not found[1]:
                return found[0][0]
            words = self.parameters[found[1]].words
            return "|".join(words) if words else f"<{found[1]}>"

        return _PLACE.sub(place, self.text)


def parse_form(text: str, parameters: Mapping[str, Parameter]) -> Form:
    """Check a form; every parameter has one place, and one that is any text the last. Raises `TextError`."""
    words = text.split()
    if not words or "\n" in text.strip():
        raise TextError("must be one line that is not empty")
    template = parse_template(text, frozenset(parameters))
    places = [found[1] for found in _PLACE.finditer(text) if found[1]]
    if len(places) != len(set(places)) or template.names != parameters.keys():
        missing = ", ".join(sorted(parameters.keys() - template.names)) or "one of its parameters twice"
        raise TextError(f"must have one place for every parameter, and has not for {missing}")
    free = [name for name, parameter in parameters.items() if parameter.type == "text" and not parameter.words]
    if free and not (free == places[-1:] and text.rstrip().endswith(f"{{{free[0]}}}")):
        raise TextError("may have a parameter that is any text only once and at its end")
    if re.search(r"\}\{", text):
        raise TextError("must have a word or a space between two parameters")
    pattern = r"[ \t]+".join(_pattern(word, parameters) for word in words)
    return Form(" ".join(words), parameters, re.compile(pattern, re.IGNORECASE))


def _pattern(word: str, parameters: Mapping[str, Parameter]) -> str:
    parts, start = [], 0
    for found in _PLACE.finditer(word):
        place = f"(?P<{found[1]}>{parameters[found[1]].pattern})" if found[1] else re.escape(found[0][0])
        parts += [re.escape(word[start : found.start()]), place]
        start = found.end()
    return "".join([*parts, re.escape(word[start:])])


def lines_of(message: str) -> list[str]:
    """The lines of a message in which moves are looked for, the last first; decoration around them does not count."""
    lines = [line.strip(_DECORATION).rstrip(".!;,").strip(_DECORATION) for line in message.splitlines()]
    return [line for line in reversed(lines) if line]
