"""Targets of makefiles that stand for an action: a file of the agent of that name must not make `make` skip it.

`actions(text)` finds them in the makefiles of the verifier and of the environment as built, `phony(names)` is the
makefile that declares them, which `MAKEFILES` names. A target that its recipe makes stays a file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

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


@functools.cache
def actions_of(folders: Sequence[Path]) -> frozenset[str]:
    """The same for all files in folders, whatever their names: a script can contain a makefile."""
    texts = (_text(file) for folder in folders for file in folder.rglob("*") if file.is_file())
    return frozenset(name for text in texts if "\t" in text for name in actions(text))


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.stat().st_size <= _LARGEST else ""


def phony(names: Iterable[str]) -> bytes:
    """A makefile that declares these targets; the default goal of others stays theirs."""
    return f".PHONY: {' '.join(sorted(names))}\n".encode()
