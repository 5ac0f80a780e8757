"""What a job consists of: one item per task and attempt, each with a key derived from its content.

Folders and job names do not count, so that a job can be moved and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import anyio

from benchflow.record import Player, Result, RolloutFolder, Settings, TaskId, TaskPart, WorkKey, identify, work_key
from benchflow.record.layout import rollout_name


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task of a job: a package folder, or a task of a cube benchmark."""

    id: TaskId
    path: str
    digest: str | None
    environment: str | None = None
    """What has to be built before it can run, by digest; None when there is nothing to build."""
    roles: tuple[str, ...] = ()
    """The roles of an arena whose players the job chooses, the first is that of its agent; empty for other tasks."""
    payload: Any = field(default=None, compare=False, repr=False)
    """Data that the runner attached when the job was planned."""

    @property
    def name(self) -> str:
        return self.id.name

    def record(self) -> TaskPart:
        """The `task` part of a result."""
        return TaskPart(self.id.name, self.path, self.digest, self.id.content_digest, self.id.ordinal)


def numbered(tasks: Sequence[TaskRef]) -> list[TaskRef]:
    """The tasks of a job, in the order of their paths, each with its own identity."""
    identities = identify((task.id.name, task.id.content_digest) for task in tasks)
    return [replace(task, id=identity) for task, identity in zip(tasks, identities, strict=True)]


@dataclass(frozen=True, slots=True)
class LineUp:
    """Who takes part in an item, and the seed of the game, if it is one."""

    agent: Player
    """In the place of the agent of the job: in an arena, it has the first role."""
    others: Mapping[str, Player] = field(default_factory=dict, hash=False)
    """By role; the other roles are played as the document says."""
    seed: int | None = None

    def content(self) -> list[Any]:
        """What of it decides the outcome."""
        others = [[role, player.agent, player.model] for role, player in sorted(self.others.items())]
        return [self.agent.agent, self.agent.model, others, self.seed]

    def __str__(self) -> str:
        return " – ".join(map(str, (self.agent, *self.others.values())))


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One attempt at one task."""

    task: TaskRef
    attempt: int
    key: WorkKey
    line_up: LineUp | None = field(default=None, kw_only=True)
    """None: the agent of the job alone."""

    def folder_name(self) -> str:
        """A new name for a try at this item."""
        return rollout_name(self.task.name, self.attempt)


class Runner(Protocol):
    """Carries out the work of a job."""

    async def prepare(self, task: TaskRef) -> None:
        """Build what the task needs; called once per environment, others wait. `run` reports failures."""

    async def run(self, item: WorkItem, folder: Path) -> Result:
        """One try, its record written into `folder`. Raises only when it is cancelled, or the job cannot go on."""

    def can_score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> bool:
        """Whether the agent's work of a rollout was kept."""

    async def score_again(self, item: WorkItem, folder: RolloutFolder, result: Result) -> Result | None:
        """A new result for the kept work of a rollout, without its agent; None when there cannot be one."""


class OpenRunner(Runner, Protocol):
    """A runner with resources, which `async with` releases."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Builds:
    """Environments on one machine, each built once, so many at a time."""

    def __init__(self, at_once: int) -> None:
        self._at_once: Final = at_once
        self._limiter: anyio.CapacityLimiter | None = None
        self._done: Final[dict[str, anyio.Event]] = {}

    @property
    def finished(self) -> frozenset[str]:
        """By digest; a build that failed is among them, and fails again for who needs it."""
        return frozenset(environment for environment, done in self._done.items() if done.is_set())

    async def prepare(self, runner: Runner, task: TaskRef) -> None:
        """Build the environment of a task, or wait for a build that is already running."""
        if task.environment is None:
            return
        done = self._done.get(task.environment)
        if done is not None:
            await done.wait()
            return
        done = self._done[task.environment] = anyio.Event()
        self._limiter = self._limiter or anyio.CapacityLimiter(self._at_once)
        try:
            async with self._limiter:
                await runner.prepare(task)
        finally:
            done.set()


LineUps = Callable[[TaskRef, int], Sequence[LineUp]]
"""The line-ups of an attempt at a task; empty where the agent of the job is alone."""


def plan_items(
    tasks: Sequence[TaskRef], attempts: int, settings: Settings, line_ups: LineUps = lambda _task, _attempt: ()
) -> Iterator[WorkItem]:
    """All items of a job: the first attempt at every task, then the second, so that early results cover all tasks."""
    digest = settings.digest()
    for attempt in range(1, attempts + 1):
        for task in tasks:
            found = line_ups(task, attempt)
            if not found:
                yield WorkItem(task, attempt, work_key(task.id, digest, attempt))
            for one in found:
                yield WorkItem(task, attempt, work_key(task.id, digest, attempt, one.content()), line_up=one)
