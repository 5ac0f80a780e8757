"""The text of an `instruction.md` around its prompt: blank lines, a byte-order mark, line endings.

A document keeps the prompt itself, stripped and with LF line endings. `source_instruction` describes the rest, and
`as_in_source` gives the text back.
"""

from __future__ import annotations

import re
from typing import Final

from benchflow.task.config.namespace import SourceInstruction

_BREAK: Final = re.compile("\r\n|\r|\n")
_LETTERS: Final = {"\n": "l", "\r\n": "c", "\r": "r"}
_BREAKS: Final = {letter: text for text, letter in _LETTERS.items()}
_USUAL: Final = {"before": "", "after": "\n", "breaks": "l"}


def source_instruction(text: str) -> SourceInstruction:
    """What surrounds the prompt in the text of a file, and how its lines end."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    rest = text.removeprefix(mark)
    prompt = rest.strip()
    start = len(rest) - len(rest.lstrip()) if prompt else len(rest)
    letters = "".join(_LETTERS[found] for found in _BREAK.findall(prompt))
    breaks = letters[:1] or "l" if len(set(letters)) <= 1 else letters
    found = {"before": mark + rest[:start], "after": rest[start + len(prompt) :], "breaks": breaks}
    return SourceInstruction(**{key: value for key, value in found.items() if value != _USUAL[key]})


def as_in_source(prompt: str, form: SourceInstruction) -> str:
    """The text of a file with this prompt. Line endings that differ are used only while there are as many lines."""
    count = prompt.count("\n")
    letters = form.breaks * count if len(form.breaks) == 1 else form.breaks
    if len(letters) == count and set(letters) != {"l"}:
        ends = iter(letters)
        prompt = "".join(part if part != "\n" else _BREAKS[next(ends)] for part in re.split("(\n)", prompt))
    return f"{form.before}{prompt}{_USUAL['after'] if form.after is None else form.after}"
