"""Whether hidden content reached a judge: compares its prompts and answers with the oracle and hidden files.

A match is a note, not a verdict: an agent may have written the same line independently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

_SHORTEST_LINE: Final = 24
"""Shorter lines appear everywhere."""
_MAX_FILE: Final = 1 << 20
_MAX_FILES: Final = 2_000
_MAX_LEAKS: Final = 50


@dataclass(frozen=True, slots=True)
class Leak:
    """Hidden text that appeared where it should not."""

    hidden: str
    found_in: str
    line: int
    """The first line of the hidden file that appears."""
    lines: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def audit(texts: Mapping[str, str], hidden: Mapping[str, Path]) -> list[Leak]:
    """Hidden files of which lines appear in the texts, each named by its key."""
    seen = {name: frozenset(line.strip() for line in text.splitlines()) for name, text in texts.items()}
    leaks: list[Leak] = []
    for label, path in hidden_files(hidden):
        lines = [(number, line.strip()) for number, line in enumerate(_lines(path), 1)]
        telling = [(number, line) for number, line in lines if len(line) >= _SHORTEST_LINE]
        for name, known in seen.items():
            matches = [number for number, line in telling if line in known or line in texts[name]]
            if matches and len(leaks) < _MAX_LEAKS:
                leaks.append(Leak(label, name, matches[0], len(matches)))
    return leaks


def hidden_files(roots: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """The regular files of hidden folders with display names."""
    count = 0
    for label, root in roots.items():
        for path in sorted(root.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_FILE:
                continue
            count += 1
            if count > _MAX_FILES:
                return
            yield f"{label}/{path.relative_to(root).as_posix()}", path


def _lines(path: Path) -> Iterable[str]:
    return path.read_bytes().decode("utf-8", "replace").splitlines()
