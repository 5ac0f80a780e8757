"""What conformance checks find. Each mistake is reported once, with the tasks that show it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVarTuple

LISTED: Final = 3
"""How many tasks a finding names."""

Arguments = TypeVarTuple("Arguments")


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated rule."""

    check: str
    message: str
    task_id: str | None = None
    """The first task that shows it; None: it is the benchmark's."""
    also: tuple[str, ...] = ()
    """More tasks that show it."""

    def __str__(self) -> str:
        return f"{self.check}{f' [{self._tasks}]' if self.task_id else ''}: {self.message}"

    @property
    def _tasks(self) -> str:
        ids = [str(self.task_id), *self.also]
        rest = len(ids) - LISTED
        return ", ".join(ids[:LISTED]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True, slots=True)
class Played:
    """An episode of a debug agent."""

    task_id: str
    reward: float
    steps: int


class Broken(Exception):  # a violated rule, not an error of this program
    """Raised inside a check to report a violated rule: a sentence, and what differs from task to task."""

    def __init__(self, sentence: str, detail: str = "") -> None:
        super().__init__(f"{sentence}: {detail}" if detail else sentence)
        self.sentence: Final = sentence


def require(holds: object, sentence: str, detail: str = "") -> None:
    if not holds:
        raise Broken(sentence, detail)


class Findings(list[Finding]):
    """The findings, the rules that were checked, and the episodes that were played."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: set[str] = set()
        self.played: list[Played] = []
        self.tasks = 0
        """How many tasks the benchmark has, played or not."""
        self._known: dict[object, int] = {}

    @contextmanager
    def rule(self, check: str, task_id: str | None = None) -> Iterator[None]:
        """Turns any failure inside it into a finding."""
        self.checked.add(check)
        try:
            yield
        except Exception as error:  # noqa: BLE001  # anything an author's code raises is a finding
            self._note(check, task_id, error)

    def holds(
        self, check: str, task_id: str | None, function: Callable[[*Arguments], Any], *arguments: *Arguments
    ) -> bool:
        """Whether the rule is kept; a failure is a finding."""
        self.checked.add(check)
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001  # as above
            self._note(check, task_id, error)
            return False
        return True

    def _note(self, check: str, task_id: str | None, error: Exception) -> None:
        if isinstance(error, Broken):
            self._add((check, error.sentence), Finding(check, str(error), task_id))
            return
        # The same exception from the same line is the same mistake, whichever rule runs into it.
        place = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[-1:]]
        self._add((type(error), tuple(place)), Finding(check, f"{type(error).__name__}: {error}", task_id))

    def _add(self, key: object, finding: Finding) -> None:
        if key not in self._known:
            self._known[key] = len(self)
            self.append(finding)
            return
        known = self[self._known[key]]
        new = [task_id for task_id in (finding.task_id, *finding.also) if task_id]
        fresh = tuple(task_id for task_id in dict.fromkeys(new) if task_id not in (known.task_id, *known.also))
        self[self._known[key]] = replace(known, also=(*known.also, *fresh))
