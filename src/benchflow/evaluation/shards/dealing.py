"""Which items of a plan belong to a shard. Pure, and decided by the plan alone: every machine deals the same way.

Items are put in an order by task, tasks in the order of a hash, and cut into parts of equal size (give or take one).
So attempts at a task and games of an arena stay together where the size allows it: their environment is built in one
shard, and the statistics of a shard cover whole tasks. But one task with many attempts is cut too, and tasks with
similar names, which often take equally long, are spread.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchflow.evaluation.work import TaskRef, WorkItem
from benchflow.record import Shard, WholePlan, WorkKey


def dealt(items: Sequence[WorkItem], shard: Shard) -> list[WorkItem]:
    """The items of a shard, in the order that they have in the plan."""
    lots = {task: _lot(task) for task in {item.task for item in items}}
    ordered = sorted(items, key=lambda item: (lots[item.task], item.attempt, _line_up(item)))
    first, end = ((number * len(ordered)) // shard.count for number in (shard.index - 1, shard.index))
    chosen = {item.key for item in ordered[first:end]}
    return [item for item in items if item.key in chosen]


def whole_plan(items: Sequence[WorkItem]) -> WholePlan:
    """What identifies a plan."""
    tasks = {item.task for item in items}
    named = Counter((task.name, task.id.ordinal) for task in tasks)

    def place(item: WorkItem) -> str:
        task = item.task
        twins = named[task.name, task.id.ordinal] > 1  # then only their content tells them apart
        return json.dumps([task.name, task.id.ordinal, task.id.content_digest if twins else "", item.attempt])

    order = sorted(f"{place(item)}{_line_up(item)}" for item in items)
    return WholePlan(len(items), plan_digest(item.key for item in items), _sha256(order))


def plan_digest(keys: Iterable[WorkKey]) -> str:
    """The digest of a plan with these keys."""
    return _sha256(sorted(keys))


def _lot(task: TaskRef) -> tuple[Any, ...]:
    """The place of a task. Its content decides only between tasks of one name, so that a changed package stays."""
    name, ordinal = task.name, task.id.ordinal
    return hashlib.sha256(f"{name}\0{ordinal}".encode()).hexdigest(), name, ordinal, task.id.content_digest or ""


def _line_up(item: WorkItem) -> str:
    return "" if item.line_up is None else json.dumps(item.line_up.content())


def _sha256(lines: Iterable[str]) -> str:
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()
