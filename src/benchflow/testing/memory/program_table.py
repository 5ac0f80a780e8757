"""The programs of the in-memory shell by name, and how they read their options and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchflow.testing.memory.memory_jobs import Program
from benchflow.testing.memory.shell import Call

PROGRAMS: Final[dict[str, Program]] = {}
_SUFFIXES: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def program(*names: str) -> Callable[[Program], Program]:
    def known_as(one: Program) -> Program:
        PROGRAMS.update(dict.fromkeys(names, one))
        return one

    return known_as


class UnknownOptionError(OSError):
    """An option that a program does not know."""


def options(call: Call, flags: str = "", valued: str = "") -> tuple[dict[str, str], list[str]]:
    """The options of a call, those of `valued` with their values, and its other words."""
    found: dict[str, str] = {}
    words = call.args.copy()
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        letters = list(word[1:])
        while letters:
            letter = letters.pop(0)
            if letter in valued:
                found[letter] = "".join(letters) or (words.pop(0) if words else "")
                break
            if letter not in flags:
                raise UnknownOptionError(f"unknown option: {word}")
            found[letter] = ""
    return found, words


def size_of(text: str) -> int:
    number = text.lstrip("+")
    return int(number[:-1]) * _SUFFIXES[number[-1]] if number[-1:] in _SUFFIXES else int(number)


async def inputs_of(call: Call, paths: list[str]) -> list[tuple[str, bytes]]:
    """The contents of files by name, or of standard input."""
    if not paths or paths == ["-"]:
        return [("", await call.stdin.rest())]
    return [(path, call.tree.read(call.path(path), call.uid)) for path in paths]
