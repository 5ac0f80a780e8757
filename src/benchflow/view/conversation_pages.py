"""A page of a conversation: the steps from a place in a trajectory that pass the filters, and where the next begin.

Reading stops after as many bytes as one page may cost, however rare a match is; the page then says how far it came.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchflow.record.reading.trajectory_steps import PAGE, Part, Step, StepIndex, read_steps
from benchflow.view.page_addresses import Fields

SHOWABLE: Final = {"thoughts": "Thoughts", "tools": "Tools", "messages": "Messages"}
_FILTERED_BY: Final = {
    "thought": "thoughts",
    "call": "tools",
    "result": "tools",
    "message": "messages",
    "prompt": "messages",
}
BUDGET: Final = 64 << 20
"""Bytes that are read for one page."""
PAGE_TEXT: Final = 4 << 20
"""Characters of steps on one page."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which steps are wanted."""

    offset: int = 0
    number: int = 1
    hidden: frozenset[str] = frozenset()
    text: str = ""
    branch: str = ""
    """An id, `main`, or empty for all."""

    @classmethod
    def of(cls, fields: Fields) -> Asked:
        """From the address: `at=OFFSET-NUMBER`, `hide=KIND`, `find=TEXT`, `branch=ID`."""
        offset, number = place_of(fields.one("at"))
        hidden = frozenset(fields.all("hide")) & SHOWABLE.keys()
        return cls(offset, number, hidden, fields.one("find")[:200], fields.one("branch")[:200])

    def fields(self) -> dict[str, str | list[str]]:
        """The filters as fields of an address, without the place."""
        return {"hide": sorted(self.hidden), "find": self.text, "branch": self.branch}

    def toggled(self, kind: str) -> Asked:
        return replace(self, hidden=self.hidden ^ {kind}, offset=0, number=1)

    def shown(self, step: Step) -> ShownStep | None:
        """The step without its hidden parts; None if nothing is left, or it is not what is looked for."""
        if self.branch and str(step.context.get("branch", "main")) != self.branch:
            return None
        parts = tuple(pair for pair in enumerate(step.parts) if _FILTERED_BY.get(pair[1].kind) not in self.hidden)
        if not parts or (self.text and not any(_contains(part, self.text.lower()) for _, part in parts)):
            return None
        return ShownStep(step, parts)


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step, and those of its parts that are shown, each with its place in the step."""

    step: Step
    parts: tuple[tuple[int, Part], ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """A page of steps."""

    steps: tuple[ShownStep, ...]
    next: str
    """The place of the next page; empty at the end."""
    previous: str
    """The place of the page before, as far as it is known."""
    at_start: bool
    total: int | None
    """All steps of the trajectory; None while they are counted."""
    stopped_at: float | None = None
    """How much of the file was searched, if the page ended for that reason; between 0 and 1."""


def place_of(text: str) -> tuple[int, int]:
    """A place in a trajectory: an offset and the number of the step there."""
    offset, _, number = text.partition("-")
    if not (offset.isdecimal() and number.isdecimal() and text.isascii() and len(text) < 40):
        return 0, 1
    return int(offset), max(1, int(number))


def page_of_file(path: Path, asked: Asked, index: StepIndex | None) -> Shown:
    """The steps of a page of our own trajectory."""
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    if asked.offset > size:
        asked = replace(asked, offset=0, number=1)
    shown, following, stopped = _fill(read_steps(path, asked.offset, asked.number), asked)
    at = f"{following.offset}-{following.number}" if following is not None else ""
    return Shown(
        shown,
        at,
        _before(asked, index),
        asked.offset == 0,
        index.steps if index is not None and index.size == size else None,
        following.offset / size if stopped and following is not None and size else None,
    )


def page_of_steps(steps: Iterable[Step], asked: Asked) -> Shown:
    """The steps of a page of a trajectory that was read whole; places are numbers of steps."""
    everything = list(steps)
    shown, following, _ = _fill(everything[asked.number - 1 :], asked)
    before = asked.number - PAGE
    return Shown(
        shown,
        f"0-{following.number}" if following is not None else "",
        f"0-{max(1, before)}" if asked.number > 1 else "",
        asked.number == 1,
        len(everything),
    )


def _fill(steps: Iterable[Step], asked: Asked) -> tuple[tuple[ShownStep, ...], Step | None, bool]:
    """The steps of a page, the first one after it, and whether it ended because enough was read."""
    shown: list[ShownStep] = []
    room = PAGE_TEXT
    for step in steps:
        if len(shown) == PAGE or room <= 0:
            return tuple(shown), step, False
        if step.offset - asked.offset > BUDGET:
            return tuple(shown), step, True
        found = asked.shown(step)
        if found is not None:
            shown.append(found)
            room -= sum(min(len(part.text) + len(part.output or ""), 8_000) for _, part in found.parts)
    return tuple(shown), None, False


def _before(asked: Asked, index: StepIndex | None) -> str:
    if asked.offset == 0 or index is None:
        return ""
    offset, number = index.start(asked.number - 1)
    return f"{offset}-{number}"


def _contains(part: Part, text: str) -> bool:
    return (
        text in part.text.lower()
        or text in part.name.lower()
        or (part.output is not None and text in part.output.lower())
        or (part.arguments is not None and text in json.dumps(part.arguments, ensure_ascii=False).lower())
    )


def arguments_text(arguments: Any) -> str:
    """The arguments of a call as people read them: a single text as it is, several by their names."""
    if arguments is None or arguments == {}:
        return ""
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, dict):
        if len(arguments) == 1 and isinstance(only := next(iter(arguments.values())), str):
            return only
        if all(isinstance(value, str | int | float | bool) or value is None for value in arguments.values()):
            return "\n".join(f"{name}: {value}" for name, value in arguments.items())
    return json.dumps(arguments, ensure_ascii=False, indent=2)
