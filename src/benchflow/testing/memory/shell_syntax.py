"""The grammar of the in-memory shell: text to a tree of frozen nodes. A subset of POSIX sh.

Words stay as they were written, quotes included; `shell_words` expands them when they are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

_OPERATORS: Final = ("&&", "||", ";;", "<<-", "<<", ">>", ">&", "<&", ">|", "&", "|", ";", "<", ">", "(", ")", "\n")
_ENDS: Final = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}"})
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=", re.DOTALL)


class ShellSyntaxError(Exception):
    """Text that is not a program of this shell."""


@dataclass(frozen=True, slots=True)
class Redirect:
    fd: int
    kind: Literal["<", ">", ">>", "&", "<<"]
    target: str
    """A word; of `<<` the text itself."""
    literal: bool = False
    """Whether the text of `<<` is taken as it is."""


@dataclass(frozen=True, slots=True)
class Simple:
    assignments: tuple[tuple[str, str], ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Redirected:
    command: Command
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[Command, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AndOr:
    first: Pipeline
    rest: tuple[tuple[str, Pipeline], ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    items: tuple[tuple[AndOr, bool], ...]
    """Lists, each with whether it runs in the background."""


@dataclass(frozen=True, slots=True)
class If:
    branches: tuple[tuple[Script, Script], ...]
    otherwise: Script | None


@dataclass(frozen=True, slots=True)
class For:
    name: str
    words: tuple[str, ...] | None
    body: Script


@dataclass(frozen=True, slots=True)
class While:
    condition: Script
    body: Script
    until: bool


@dataclass(frozen=True, slots=True)
class Case:
    word: str
    branches: tuple[tuple[tuple[str, ...], Script], ...]


@dataclass(frozen=True, slots=True)
class Group:
    body: Script
    subshell: bool


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    body: Command


Command = Simple | Redirected | If | For | While | Case | Group | Function


def parse(text: str) -> Script:
    """The program of a text; `ShellSyntaxError` names what is wrong."""
    parser = _Parser(list(_tokens(text)))
    script = parser.script()
    if parser.kind != "end":
        parser.fail()
    return script


@dataclass(slots=True)
class _Token:
    kind: Literal["word", "number", "operator", "end"]
    """A `number` is directly before `<` or `>`."""
    text: str
    here: tuple[str, bool] | None = None
    """After `<<`: its text, and whether that is literal."""


def closing(text: str, start: int) -> int:
    """The index after the construct that begins at `start`: quotes, `$(…)`, `${…}`, a backquoted command, `\\x`."""
    if text[start] == "\\":
        return min(start + 2, len(text))
    if text[start] in "'`":
        end = text.find(text[start], start + 1)
        return end + 1 if end >= 0 else _unterminated(text[start])
    if text[start] == '"':
        index = start + 1
        while index < len(text) and text[index] != '"':
            index = closing(text, index) if text[index] in "\\`$" else index + 1
        return index + 1 if index < len(text) else _unterminated('"')
    if text.startswith(("$(", "${"), start):
        index, close = start + 2, ")" if text[start + 1] == "(" else "}"
        depth = 1
        while index < len(text):
            if text[index] in "\\'\"`" or text.startswith(("$(", "${"), index):
                index = closing(text, index)
                continue
            depth += (text[index] == "(" and close == ")") - (text[index] == close)
            index += 1
            if depth == 0:
                return index
        _unterminated(text[start : start + 2])
    return start + 1


def _unterminated(what: str) -> NoReturn:
    raise ShellSyntaxError(f"Unterminated {what}")


def _tokens(text: str) -> Iterator[_Token]:
    index, waiting = 0, list[tuple[_Token, bool]]()
    while index < len(text):
        if text[index] in " \t" or text.startswith("\\\n", index):
            index += 1 if text[index] in " \t" else 2
        elif text[index] == "#":
            end = text.find("\n", index)
            index = len(text) if end < 0 else end
        elif operator := next((one for one in _OPERATORS if text.startswith(one, index)), None):
            index += len(operator)
            yield _Token("operator", operator)
            if operator == "\n":
                for token, strip in waiting:
                    index = _here_document(text, index, token, strip=strip)
                waiting.clear()
            elif operator in ("<<", "<<-"):
                while text[index : index + 1] in (" ", "\t"):
                    index += 1
                end = _word_end(text, index)
                word = _Token("word", text[index:end])
                waiting.append((word, operator == "<<-"))
                index = end
                if "\n" not in text[index:]:
                    _unterminated("here-document")
                word.here = ("", False)
                yield word
        else:
            end = _word_end(text, index)
            number = text[index:end].isdecimal() and text[end : end + 1] in ("<", ">")
            yield _Token("number" if number else "word", text[index:end])
            index = end
    yield _Token("end", "")


def _word_end(text: str, index: int) -> int:
    while index < len(text) and text[index] not in " \t\n;&|<>()":
        index = closing(text, index)
    return index


def _here_document(text: str, index: int, token: _Token, *, strip: bool) -> int:
    """Read the lines of a here-document into its token; returns where the text continues."""
    literal = any(mark in token.text for mark in "'\"\\")
    ending = re.sub(r"['\"\\]", "", token.text)
    lines = []
    while index < len(text):
        end = text.find("\n", index)
        line = text[index : end if end >= 0 else len(text)]
        index = end + 1 if end >= 0 else len(text)
        line = line.lstrip("\t") if strip else line
        if line == ending:
            break
        lines.append(line + "\n")
    token.here = ("".join(lines), literal)
    return index


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._index = 0

    @property
    def _now(self) -> _Token:
        return self._tokens[self._index]

    @property
    def kind(self) -> str:
        return self._now.kind

    def fail(self) -> NoReturn:
        raise ShellSyntaxError(f"Unexpected {self._now.text.strip() or 'end'}")

    def _take(self) -> _Token:
        token = self._now
        self._index += token.kind != "end"
        return token

    def _is(self, *texts: str, kind: str = "operator") -> bool:
        return self._now.kind == kind and self._now.text in texts

    def _skip(self, *texts: str, kind: str = "operator") -> bool:
        found = self._is(*texts, kind=kind)
        self._index += found
        return found

    def _expect(self, text: str, kind: str = "word") -> None:
        if not self._skip(text, kind=kind):
            self.fail()

    def _lines(self) -> None:
        while self._skip("\n"):
            pass

    def script(self) -> Script:
        """Lists up to what ends the enclosing construct."""
        items = []
        self._lines()
        while self.kind != "end" and not self._is(")", ";;") and not self._is(*_ENDS, kind="word"):
            item = self._and_or()
            background = self._is("&")
            items.append((item, background))
            if not self._skip("&", ";", "\n"):
                break
            self._lines()
        return Script(tuple(items))

    def _and_or(self) -> AndOr:
        first, rest = self._pipeline(), []
        while self._is("&&", "||"):
            operator = self._take().text
            self._lines()
            rest.append((operator, self._pipeline()))
        return AndOr(first, tuple(rest))

    def _pipeline(self) -> Pipeline:
        negated = self._skip("!", kind="word")
        commands = [self._command()]
        while self._skip("|"):
            self._lines()
            commands.append(self._command())
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        made = self._compound()
        if made is None:
            return self._simple()
        redirects = []
        while (redirect := self._redirect()) is not None:
            redirects.append(redirect)
        return Redirected(made, tuple(redirects)) if redirects else made

    def _compound(self) -> Command | None:
        if self._skip("("):
            body = self.script()
            self._expect(")", "operator")
            return Group(body, subshell=True)
        if self._skip("{", kind="word"):
            body = self.script()
            self._expect("}")
            return Group(body, subshell=False)
        if self._skip("if", kind="word"):
            return self._if()
        if self._skip("for", kind="word"):
            return self._for()
        if self._skip("case", kind="word"):
            return self._case()
        if self._is("while", "until", kind="word"):
            until = self._take().text == "until"
            condition = self.script()
            return While(condition, self._loop(), until)
        return None

    def _if(self) -> If:
        branches, otherwise = [], None
        while True:
            condition = self.script()
            self._expect("then")
            branches.append((condition, self.script()))
            if self._skip("elif", kind="word"):
                continue
            if self._skip("else", kind="word"):
                otherwise = self.script()
            self._expect("fi")
            return If(tuple(branches), otherwise)

    def _for(self) -> For:
        name = self._take().text
        words: list[str] | None = None
        self._lines()
        if self._skip("in", kind="word"):
            words = []
            while self.kind == "word":
                words.append(self._take().text)
        self._skip(";")
        return For(name, None if words is None else tuple(words), self._loop())

    def _loop(self) -> Script:
        self._lines()
        self._expect("do")
        body = self.script()
        self._expect("done")
        return body

    def _case(self) -> Case:
        word, branches = self._take().text, []
        self._lines()
        self._expect("in")
        self._lines()
        while not self._skip("esac", kind="word"):
            self._skip("(")
            patterns = [self._take().text]
            while self._skip("|"):
                patterns.append(self._take().text)
            self._expect(")", "operator")
            branches.append((tuple(patterns), self.script()))
            self._skip(";;")
            self._lines()
        return Case(word, tuple(branches))

    def _simple(self) -> Command:
        assignments: list[tuple[str, str]] = []
        words: list[str] = []
        redirects: list[Redirect] = []
        while True:
            redirect = self._redirect()
            if redirect is not None:
                redirects.append(redirect)
            elif self.kind != "word":
                break
            elif not words and (match := _ASSIGNMENT.match(self._now.text)):
                assignments.append((match[1], self._take().text[match.end() :]))
            else:
                words.append(self._take().text)
                if len(words) == 1 and _NAME.fullmatch(words[0]) and self._is("(") and not redirects:
                    self._take()
                    self._expect(")", "operator")
                    self._lines()
                    return Function(words[0], self._command())
        if not assignments and not words and not redirects:
            self.fail()
        made = Simple(tuple(assignments), tuple(words))
        return Redirected(made, tuple(redirects)) if redirects else made

    def _redirect(self) -> Redirect | None:
        number = int(self._take().text) if self.kind == "number" else None
        if not self._is("<", ">", ">>", ">|", ">&", "<&", "<<", "<<-"):
            return None
        operator, word = self._take().text, self._take()
        if word.kind != "word":
            self.fail()
        if word.here is not None:
            return Redirect(number or 0, "<<", *word.here)
        fd = number if number is not None else int(operator.startswith(">"))
        if operator in (">&", "<&"):
            return Redirect(fd, "&", word.text)
        return Redirect(fd, ">>" if operator == ">>" else "<" if operator == "<" else ">", word.text)
