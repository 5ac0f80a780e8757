"""Targets of makefiles: a file of the agent must not make `make` skip the recipe of one.

`actions(text)` finds targets that stand for an action, in the makefiles of the verifier and of the environment as
built; `phony(names)` is the makefile that declares them, which `MAKEFILES` names. A target that its recipe makes stays
a file: `made_by(folders)` are those of the verifier's makefiles, of which the agent's files are withheld, and
`make_present` takes times in the future from the rest, so that what the verifier writes is newer.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchflow.errors import SandboxFailure
from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change, Sandbox

_LARGEST: Final = 1 << 18
_RULE: Final = re.compile(r"([^\s#=:$%.][^#=:$%]*?)\s*::?(?!=)([^=]*)")
"""The targets of a rule and what follows them, without those that are patterns, variables or settings of make."""
_MADE: Final = (
    r"\$@|\$[({{]@|(?:>|-[a-z]*o|\b(?:mkdir|touch|cp|mv|ln|install|venv|virtualenv|clone|zip|tee|tar|ar|ld)\b[^;&|\n]*)\s*"
    r"(?:\./)?{name}(?![\w.-])"
)
"""What a recipe has that makes its target."""
_FOLDERS: Final = frozenset({"build", "dist", "env", "node_modules", "out", "target", "vendor", "venv"})
"""Targets that are folders of tools and of what they build, by whatever command."""


def actions(text: str) -> frozenset[str]:
    """The targets of a makefile, or of one within another file, whose recipes do not make them."""
    return frozenset(name for names, recipe in _rules(text) for name in names if not _is_made(name, recipe))


def _rules(text: str) -> Iterator[tuple[list[str], str]]:
    """The targets of each rule with a recipe or prerequisites, and the recipe."""
    lines = text.replace("\\\n", " ").splitlines()
    for number, line in enumerate(lines):
        found = _RULE.fullmatch(line)
        if found is None:
            continue
        recipe = [found[2]]
        for following in lines[number + 1 :]:
            if following and not following.startswith(("\t", "#")):
                break
            recipe.append(following)
        yield found[1].split(), "\n".join(recipe)


def _is_made(name: str, recipe: str) -> bool:
    if name in _FOLDERS or re.search(r"[/.]", name):
        return True
    return re.search(_MADE.format(name=re.escape(name)), recipe) is not None


@functools.lru_cache(maxsize=128)
def actions_of(folders: Sequence[Path]) -> frozenset[str]:
    """The same for all files in folders, whatever their names: a script can contain a makefile."""
    texts = (_text(file) for folder in folders for file in folder.rglob("*") if file.is_file())
    return frozenset(name for text in texts if "\t" in text for name in actions(text))


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.stat().st_size <= _LARGEST else ""


def phony(names: Iterable[str]) -> bytes:
    """A makefile that declares these targets; the default goal of others stays theirs."""
    return f".PHONY: {' '.join(sorted(names))}\n".encode()


_NAME: Final = re.compile(r"(gnu)?makefile([.-].+)?|.+\.(mk|mak|make)", re.IGNORECASE)
_TARGETS: Final = re.compile(r"([^\s#=:$][^#=:$]*?)\s*&?::?(?!=)[^=]*")
_SPECIAL: Final = re.compile(r"\.[A-Z_]+|%|\*")
"""Targets that are settings of make, and patterns that fit every file."""


@functools.lru_cache(maxsize=128)
def made_by(folders: Sequence[Path]) -> re.Pattern[str] | None:
    """What the verifier's makefiles make, as a pattern for the ends of paths; None if they make nothing."""
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file() and _NAME.fullmatch(file.name))
    names = frozenset(name for file in files for name in _made(_text(file)))
    patterns = (re.escape(name.removeprefix("./")).replace("%", "[^/]+") for name in sorted(names))
    return re.compile(f"(?:{'|'.join(patterns)})") if names else None


def _made(text: str) -> Iterator[str]:
    lines = text.replace("\\\n", " ").splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        found = _TARGETS.fullmatch(line)
        if found is not None and (following.startswith("\t") or ";" in line):
            yield from (name for name in found[1].split() if not _SPECIAL.fullmatch(name))


def stand_for(changes: Iterable[Change], targets: re.Pattern[str] | None, expected: Iterable[str]) -> list[Change]:
    """The files that the agent added in the place of such targets, and that the task does not mention."""
    if targets is None:
        return []
    wanted = frozenset(expected)
    return [
        change
        for change in changes
        if change.kind == "added" and change.type != "directory" and _ends(change.path, targets, wanted)
    ]


def _ends(path: str, targets: re.Pattern[str], expected: frozenset[str]) -> bool:
    parts = path.split("/")[1:]
    if parts[-1] in expected:
        return False
    return any(targets.fullmatch("/".join(parts[start:])) for start in range(len(parts)))


_AT_ONCE: Final = 1 << 17
"""How many bytes of paths are passed to one command."""
_TIMEOUT_SEC: Final = 60.0
_TOUCH: Final = """
now=/run/verifier-ground.now
: > "$now"
for place do [ "$place" -ot "$now" ] || touch -c "$place" || exit 1; done
rm -f "$now"
"""
"""Some shells compare seconds only: what is not older gets the time of now."""


def of_the_future(changes: Iterable[Change], withheld: PathSet, now: float) -> list[str]:
    """Files and folders that are, or may be, from the future."""
    return [
        change.path
        for change in changes
        if change.kind != "deleted"
        and change.type in ("file", "directory")
        and (change.rights is None or change.rights.time >= now)
        and not withheld.covers(change.path)
    ]


async def make_present(forked: Sandbox, paths: Sequence[str]) -> None:
    """Take times in the future from files and folders of a copy; afterwards only what is written there is new."""
    for chunk in _chunks(paths):
        words = ["/bin/sh", "-c", _TOUCH, "sh", *chunk]
        if not (await forked.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC)).ok:
            raise SandboxFailure("Times of files could not be set.", code="times-failed")


def _chunks(paths: Sequence[str]) -> Iterator[list[str]]:
    """The paths in parts that fit into one command, however long they are."""
    chunk: list[str] = []
    size = 0
    for path in paths:
        length = len(path.encode("utf-8", "surrogateescape"))
        if chunk and size + length > _AT_ONCE:
            yield chunk
            chunk, size = [], 0
        chunk.append(path)
        size += length
    if chunk:
        yield chunk
