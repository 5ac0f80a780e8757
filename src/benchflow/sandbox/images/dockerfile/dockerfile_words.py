"""Words of a Dockerfile: splitting, quotes and variables.

`expand` treats one word as the Dockerfile language does: quotes vanish, `$name` and `${name…}` with the
operators of the shell (`:-`, `:+`, `:?`, `#`, `%`, `/` and their doubles) are replaced. `key_values` reads
the arguments of ENV and LABEL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":[-+?]|##|%%|//|[-+?#%/]")


class WordError(ValueError):
    """A word that cannot be expanded; the text says why."""


def split_words(text: str, escape: str = "\\", *, limit: int = 0) -> list[str]:
    """Words between blanks, raw: quotes and escapes keep blanks inside a word and stay in it.

    With `limit` no more than that many words are returned.
    """
    words: list[str] = []
    word, quote, position = "", "", 0
    while position < len(text):
        char = text[position]
        if char == escape and quote != "'" and position + 1 < len(text):
            word += text[position : position + 2]
            position += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char.isspace():
            if word:
                words.append(word)
                if len(words) == limit:
                    return words
                word = ""
            position += 1
            continue
        word += char
        position += 1
    return [*words, word] if word else words


def expand(text: str, variables: Mapping[str, str], escape: str = "\\", *, keep_quotes: bool = False) -> str:
    """`text` with variables replaced and, unless `keep_quotes`, quotes and escapes taken away."""
    scanner = _Scanner(text, variables, escape, keep_quotes)
    return scanner.until("")


def key_values(value: str, variables: Mapping[str, str], escape: str = "\\") -> dict[str, str]:
    """`a=b c="d e"`, or the old form `a the rest of the line`.

    Every value sees `variables` as they were before the instruction.
    """
    words = split_words(value, escape)
    if "=" not in words[0]:
        name, rest = words[0], value[len(words[0]) :].strip()
        if not rest:
            raise WordError(f"{name} has no value; write {name}=value")
        return {expand(name, variables, escape): expand(rest, variables, escape)}
    pairs = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise WordError(f"{word} has no value; write {word}=value")
        key = expand(name, variables, escape)
        if not key:
            raise WordError(f"{word} has no name")
        pairs[key] = expand(text, variables, escape)
    return pairs


@dataclass(slots=True)
class _Scanner:
    """Reads one word from left to right."""

    text: str
    variables: Mapping[str, str]
    escape: str
    keep_quotes: bool
    position: int = 0

    def until(self, stop: str) -> str:
        """Expanded text up to the character `stop`, which is consumed; all of it when `stop` is empty."""
        out = ""
        while self.position < len(self.text):
            char = self.text[self.position]
            if stop and char == stop:
                self.position += 1
                return out
            if char == "'" and not self.keep_quotes:
                out += self._single_quoted()
            elif char == '"' and not self.keep_quotes:
                out += self._double_quoted()
            elif char == "$":
                out += self._variable()
            elif char == self.escape:
                out += self._escaped()
            else:
                out += char
                self.position += 1
        if stop:
            raise WordError(f"missing {stop} in {self.text}")
        return out

    def _escaped(self) -> str:
        following = self.text[self.position + 1 : self.position + 2]
        self.position += 2
        if not following:
            return self.escape
        if self.keep_quotes and following not in ("$", self.escape):
            return self.escape + following
        return following

    def _single_quoted(self) -> str:
        end = self.text.find("'", self.position + 1)
        if end < 0:
            raise WordError(f"missing ' in {self.text}")
        inner = self.text[self.position + 1 : end]
        self.position = end + 1
        return inner

    def _double_quoted(self) -> str:
        self.position += 1
        out = ""
        while self.position < len(self.text):
            char = self.text[self.position]
            if char == '"':
                self.position += 1
                return out
            if char == "$":
                out += self._variable()
            elif char == self.escape:
                following = self.text[self.position + 1 : self.position + 2]
                out += following if following in ('"', "$", self.escape) else self.escape + following
                self.position += 2
            else:
                out += char
                self.position += 1
        raise WordError(f'missing " in {self.text}')

    def _variable(self) -> str:
        self.position += 1
        if self.text[self.position : self.position + 1] == "{":
            self.position += 1
            return self._braced()
        match = _NAME.match(self.text, self.position)
        if match:
            self.position = match.end()
            return self.variables.get(match[0], "")
        special = self.text[self.position : self.position + 1]
        if special and (special.isdigit() or special in "@*#?-$!"):
            self.position += 1
            return ""
        return "$"

    def _braced(self) -> str:
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise WordError(f"a variable has no name in {self.text}")
        name = match[0]
        self.position = match.end()
        if self.text[self.position : self.position + 1] == "}":
            self.position += 1
            return self.variables.get(name, "")
        operator = _OPERATOR.match(self.text, self.position)
        if operator is None:
            raise WordError(f"${{{name}… uses an operator that is not known, in {self.text}")
        self.position = operator.end()
        return self._operate(name, operator[0])

    def _operate(self, name: str, operator: str) -> str:
        value = self.variables.get(name)
        if operator in ("/", "//"):
            pattern, replacement = self.until("/"), self.until("}")
            regex = re.compile(_glob(pattern), re.DOTALL)
            return regex.sub(lambda _: replacement, value or "", count=0 if operator == "//" else 1)
        word = self.until("}")
        present = bool(value) if operator.startswith(":") else value is not None
        match operator[-1]:
            case "-":
                return (value or "") if present else word
            case "+":
                return word if present else ""
            case "?":
                if not present:
                    raise WordError(f"{name}: {word or 'is not set'}")
                return value or ""
        return _trim(value or "", word, operator)


def _trim(value: str, pattern: str, operator: str) -> str:
    """`value` without the shortest (`#`, `%`) or longest (`##`, `%%`) match at its start or end."""
    regex = re.compile(_glob(pattern) + r"\Z", re.DOTALL)
    ends = range(len(value) + 1)
    if operator[0] == "#":
        for end in ends if operator == "#" else reversed(ends):
            if regex.match(value[:end]):
                return value[end:]
    else:
        for start in reversed(ends) if operator == "%" else ends:
            if regex.match(value[start:]):
                return value[:start]
    return value


def _glob(pattern: str) -> str:
    return "".join(".*" if char == "*" else "." if char == "?" else re.escape(char) for char in pattern)
