"""Which of the tasks that were found belong to a job: by name, the first ones, or a random sample.

A sample is decided by the seed and the task alone, so that a job continues with the same tasks after others were added
or the order has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from benchflow.errors import UsageError, did_you_mean
from benchflow.evaluation.work import TaskRef
from benchflow.record import TaskChoice


def chosen_tasks(tasks: Sequence[TaskRef], choice: TaskChoice) -> list[TaskRef]:
    """The tasks of a choice, in their order; a pattern of `include` that no task matches is a `UsageError`."""
    for pattern in choice.include:
        if not any(_matches(task, pattern) for task in tasks):
            near = did_you_mean(pattern, {name for task in tasks for name in (task.name, _last_part(task))})
            message = f"None of the {len(tasks)} tasks matches --include '{pattern}'.{near}"
            raise UsageError(message, code="no-tasks")
    found = [
        task
        for task in tasks
        if (not choice.include or any(_matches(task, pattern) for pattern in choice.include))
        and not any(_matches(task, pattern) for pattern in choice.exclude)
    ]
    if choice.sample is not None:
        drawn = set(sorted(found, key=lambda task: _lot(task, choice.seed))[: choice.sample])
        found = [task for task in found if task in drawn]
    return found if choice.limit is None else found[: choice.limit]


def _matches(task: TaskRef, pattern: str) -> bool:
    """Whether a pattern is that of the name of a task, of its last part, or of its path."""
    return any(fnmatchcase(text, pattern) for text in (task.name, _last_part(task), task.path))


def _last_part(task: TaskRef) -> str:
    return task.name.rpartition("/")[2]


def _lot(task: TaskRef, seed: int) -> str:
    return hashlib.sha256(f"{seed}\0{task.name}\0{task.id.ordinal}".encode()).hexdigest()
