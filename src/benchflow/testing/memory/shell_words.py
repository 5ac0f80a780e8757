"""Words of the in-memory shell to arguments: quotes, parameters, command substitution, arithmetic, fields, patterns."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow.testing.memory.shell_syntax import ShellSyntaxError, closing

_PARAMETER: Final = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_BRACED: Final = re.compile(r"(#?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:(:?[-=+?]|##?|%%?)(.*))?", re.DOTALL)
_MAGIC: Final = frozenset("*?[")
_OPERATIONS: Final[Mapping[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word after expansion."""

    text: str
    quoted: bool = False
    splits: bool = False
    """Whether white space in it separates fields, as in an unquoted `$x`."""
    ends_field: bool = False
    """Whether a new field begins after it, as between the parameters of `"$@"`."""


@dataclass(frozen=True, slots=True)
class Expander:
    """What words are expanded with."""

    lookup: Callable[[str], str | None]
    assign: Callable[[str, str], None]
    parameters: Callable[[], list[str]]
    substitute: Callable[[str], Awaitable[str]]
    matches: Callable[[str], list[str]]
    """The paths of a pattern, sorted; none when nothing matches."""

    async def fields(self, word: str) -> list[str]:
        """The arguments of a word: none, one or several."""
        found = []
        for field in _split([piece async for piece in self._pieces(word)]):
            pattern = "".join(re.sub(r"([*?[])", r"[\1]", one.text) if one.quoted else one.text for one in field)
            magic = any(not one.quoted and _MAGIC & set(one.text) for one in field)
            found += (magic and self.matches(pattern)) or ["".join(one.text for one in field)]
        return found

    async def text(self, word: str, *, in_quotes: bool = False) -> str:
        """A word as one string: of an assignment, a redirection, a here-document (`in_quotes`)."""
        pieces = [piece async for piece in self._pieces(word, in_quotes=in_quotes)]
        return "".join(piece.text + " " * piece.ends_field for piece in pieces)

    async def pattern(self, word: str) -> Callable[[str], bool]:
        """What a word matches, as in `case`."""
        pieces = [piece async for piece in self._pieces(word)]
        glob = "".join(re.sub(r"([*?[])", r"[\1]", one.text) if one.quoted else one.text for one in pieces)
        return re.compile(fnmatch.translate(glob)).match  # type: ignore[return-value]

    async def _pieces(self, word: str, *, in_quotes: bool = False) -> Any:
        index = 0
        while index < len(word):
            mark = word[index]
            end = closing(word, index) if mark in "\\`$" or (mark in "'\"" and not in_quotes) else index + 1
            part = word[index:end]
            if mark == "\\":
                kept = in_quotes and part[1:] not in ("$", "`", '"', "\\", "\n")
                yield Piece(part if kept else part[1:].replace("\n", ""), quoted=True)
            elif mark == "'" and not in_quotes:
                yield Piece(part[1:-1], quoted=True)
            elif mark == '"' and not in_quotes:
                yield Piece("", quoted=True)
                async for piece in self._pieces(part[1:-1], in_quotes=True):
                    yield piece
            elif mark == "`":
                yield self._expanded(await self.substitute(part[1:-1].replace("\\`", "`")), in_quotes)
            elif mark == "$":
                if match := _PARAMETER.match(word, index):
                    end, part = match.end(), match[0]
                async for piece in self._dollar(part, in_quotes):
                    yield piece
            else:
                end = index + len(re.match(r"[^\\`$'\"]+|.", word[index:], re.DOTALL)[0])  # type: ignore[index]
                yield Piece(_home(word[index:end], self.lookup) if index == 0 else word[index:end], quoted=in_quotes)
            index = end

    def _expanded(self, text: str, in_quotes: bool) -> Piece:
        return Piece(text, quoted=in_quotes, splits=not in_quotes)

    async def _dollar(self, part: str, in_quotes: bool) -> Any:
        if part.startswith("$(("):
            yield self._expanded(str(arithmetic(await self.text(part[3:-2], in_quotes=True), self.lookup)), in_quotes)
        elif part.startswith("$("):
            yield self._expanded(await self.substitute(part[2:-1]), in_quotes)
        elif part in ("$@", "${@}") or (part == "$*" and not in_quotes):
            parameters = self.parameters()
            for position, value in enumerate(parameters):
                last = position == len(parameters) - 1
                yield Piece(value, quoted=in_quotes, splits=not in_quotes, ends_field=not last)
        elif part == "$":
            yield Piece("$", quoted=True)
        else:
            name = part[2:-1] if part.startswith("${") else part[1:]
            yield self._expanded(await self._parameter(name), in_quotes)

    async def _parameter(self, text: str) -> str:
        match = _BRACED.fullmatch(text)
        if match is None:
            raise ShellSyntaxError("Bad substitution")
        length, name, how, word = match.groups()
        value = " ".join(self.parameters()) if name in "@*" else self.lookup(name)
        if length:
            return str(len(value or ""))
        if how and how[-1] in "-=+?":
            empty = value is None or (how.startswith(":") and value == "")
            if how.endswith("+"):
                return "" if empty else await self.text(word)
            if not empty:
                return value or ""
            other = await self.text(word)
            if how.endswith("?"):
                raise ShellSyntaxError(f"{name}: {other or 'parameter not set'}")
            if how.endswith("="):
                self.assign(name, other)
            return other
        return _trim(value or "", how, await self.pattern(word)) if how else value or ""


def _home(text: str, lookup: Callable[[str], str | None]) -> str:
    return (lookup("HOME") or "") + text[1:] if text == "~" or text.startswith("~/") else text


def _trim(value: str, how: str, matches: Callable[[str], bool]) -> str:
    """`value` without the shortest (`#`, `%`) or longest (`##`, `%%`) part at its beginning or end that matches."""
    cuts = range(len(value) + 1)
    for cut in cuts if how in ("#", "%%") else reversed(cuts):
        part = value[:cut] if how[0] == "#" else value[cut:]
        if matches(part):
            return value[cut:] if how[0] == "#" else value[:cut]
    return value


def _split(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Pieces by field. A field that holds nothing but empty unquoted pieces is none."""
    field: list[Piece] = []
    for piece in pieces:
        if not piece.splits:
            field.append(piece)
        else:
            parts = re.split(r"[ \t\n]+", piece.text)
            for position, text in enumerate(parts):
                if position and field:
                    yield field
                    field = []
                if text:
                    field.append(Piece(text))
        if piece.ends_field:
            if field:
                yield field
            field = []
    if any(piece.text or piece.quoted for piece in field):
        yield field


def arithmetic(text: str, lookup: Callable[[str], str | None]) -> int:
    """The value of an expression of whole numbers; names stand for variables."""

    def value(node: ast.AST) -> int:
        match node:
            case ast.Expression(body):
                return value(body)
            case ast.Constant(int() as number):
                return int(number)
            case ast.Name(name):
                return int(lookup(name) or 0)
            case ast.UnaryOp(kind, operand) if type(kind) in _OPERATIONS:
                return int(_OPERATIONS[type(kind)](value(operand)))
            case ast.BinOp(left, kind, right) if type(kind) in _OPERATIONS:
                return int(_OPERATIONS[type(kind)](value(left), value(right)))
            case ast.Compare(left, [kind], [right]) if type(kind) in _OPERATIONS:
                return int(_OPERATIONS[type(kind)](value(left), value(right)))
        raise ShellSyntaxError(f"Arithmetic is not understood: {text}")

    try:
        return value(ast.parse(text.strip().replace("/", "//") or "0", mode="eval"))
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        raise ShellSyntaxError(f"Arithmetic is not understood: {text}") from error
