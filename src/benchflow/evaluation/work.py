"""What a job consists of: one item per task and attempt, each with a key that says what it is by content.

Two items with one key are the same work: the same task digest, agent, model, settings and attempt. Folders and job
names do not count, so that a job can be moved and resumed.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchflow.rollout.record import Result


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task of a job: a package folder, or a task of a cube benchmark."""

    name: str
    path: str
    digest: str | None
    environment: str | None = None
    """What has to be built before it can run, by digest; None when there is nothing to build."""
    payload: Any = field(default=None, compare=False, repr=False)
    """Whatever the runner made of it when the job was planned."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One attempt at one task."""

    task: TaskRef
    attempt: int
    key: str

    def folder_name(self) -> str:
        """A new name for a try at this item: `<task>__<attempt>__<8 hex>`."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", self.task.name).strip("-.") or "task"
        return f"{safe[:80]}__{self.attempt}__{secrets.token_hex(4)}"


class Runner(Protocol):
    """Who carries out the work of a job."""

    async def prepare(self, task: TaskRef) -> None:
        """Build what the task needs; called once per environment, others wait. Trouble is left for `run` to report."""

    async def run(self, item: WorkItem, folder: Path) -> Result:
        """One try, its record written into `folder`. Raises only when it is cancelled."""

    def can_score_again(self, item: WorkItem, folder: Path, result: Result) -> bool:
        """Whether the agent's work of a rollout was kept."""

    async def score_again(self, item: WorkItem, folder: Path, result: Result) -> Result | None:
        """A new result for the kept work of a rollout, without its agent; None when there cannot be one."""


def plan_items(tasks: Sequence[TaskRef], attempts: int, settings: Mapping[str, Any]) -> Iterator[WorkItem]:
    """All items of a job: the first attempt at every task, then the second, so that early results cover all tasks."""
    common = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
    for attempt in range(1, attempts + 1):
        for task in tasks:
            yield WorkItem(task, attempt, work_key(task, common, attempt))


def work_key(task: TaskRef, settings_digest: str, attempt: int) -> str:
    """What the work is, by content; a task without a digest counts by its name."""
    identity = task.digest or f"name:{task.name}"
    return hashlib.sha256(f"{identity}\n{task.name}\n{settings_digest}\n{attempt}".encode()).hexdigest()[:32]
