"""The tasks of an A2A server of ours: each answer under way, its events in order, and what is kept of it afterwards.

An answer without updates is a bare message and leaves no task. The first update makes a task of it. Its events are kept
in a list, so that any number of readers, early or late, sees all of them in the same order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from benchflow.arena.a2a_dialects import render_artifact, render_message, render_status
from benchflow.arena.a2a_types import (
    ArtifactEvent,
    Event,
    Message,
    MessageEvent,
    Part,
    Reply,
    State,
    StatusEvent,
    Version,
    new_id,
    parts_of,
)

KEPT_TASKS: Final = 64
"""How many ended tasks can still be asked for."""
MOST_RUNNING: Final = 64
MAX_EVENTS: Final = 20_000
"""Of one task before its last one; further ones are dropped, and how it ended is always told."""


class Executor(Protocol):
    """Who answers messages."""

    async def answer(self, message: Message, context_id: str, updates: Updates) -> Reply:
        """Answer one message; every context is a conversation of its own. Cancelled when its client cancels the task.

        A failure of the executor is a state of the task or an error of the request, and its text stays here.
        """
        ...

    async def cancel(self, context_id: str) -> None:
        """The client ends what is under way in a context; called before `answer` is cancelled."""
        ...


class Updates(Protocol):
    """How an executor says something before its reply."""

    async def status(
        self, text: str | None = None, data: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """The task is working, with a message."""
        ...

    async def artifact(self, parts: tuple[Part, ...], name: str | None = None) -> None:
        """The task produced something."""
        ...


class NoRoom(Exception):
    """As many answers are under way as the server may have."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RunningTask:
    """One answer: under way, or ended."""

    def __init__(self, message: Message, context_id: str) -> None:
        self.id: Final = message.task_id or new_id()
        self.context_id: Final = context_id
        self.message: Final = message
        self.events: Final[list[Event]] = []
        self.is_task = False
        """Whether there were updates; until then it may end as a bare message."""
        self.ended = False
        self.failed: str | None = None
        """A bare answer that failed."""
        self.cancelled = False
        self.scope: Final = anyio.CancelScope()
        self._changed = anyio.Event()

    async def status(
        self, text: str | None = None, data: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self._state("working", parts_of(text, data), metadata or {})
        await anyio.lowlevel.checkpoint()

    async def artifact(self, parts: tuple[Part, ...], name: str | None = None) -> None:
        self._begin()
        self._add(ArtifactEvent(self.id, self.context_id, new_id(), parts, name))
        await anyio.lowlevel.checkpoint()

    def finish(self, reply: Reply) -> None:
        """The last event; later ones are dropped."""
        if self.ended:
            return
        if self.is_task or reply.state != "completed":
            self._begin()
            self._state(reply.state, reply.parts, reply.metadata, last=True)
        else:
            said = Message(reply.parts, "agent", context_id=self.context_id, metadata=reply.metadata)
            self._add(MessageEvent(said))
        self._end()

    def fail(self, sentence: str) -> None:
        if self.is_task:
            self.finish(Reply.text(sentence, "failed"))
        elif not self.ended:
            self.failed = sentence
            self._end()

    def show(self, version: Version) -> dict[str, Any]:
        """The task as it is now."""
        statuses = [event for event in self.events if isinstance(event, StatusEvent)]
        latest = statuses[-1] if statuses else StatusEvent(self.id, self.context_id, "submitted", time=_now())
        history = [self.message, *(each.message for each in statuses[:-1] if each.message is not None)]
        return {
            "id": self.id,
            "contextId": self.context_id,
            "status": render_status(latest, version),
            "artifacts": [render_artifact(each, version) for each in self.events if isinstance(each, ArtifactEvent)],
            "history": [render_message(each, version) for each in history[-100:]],
        }

    def begun(self, version: Version) -> dict[str, Any]:
        """The task as it was at first."""
        first = StatusEvent(self.id, self.context_id, "submitted", time=_now())
        said = [render_message(self.message, version)]
        return {"id": self.id, "contextId": self.context_id, "status": render_status(first, version), "history": said}

    async def changed(self) -> None:
        """Until there is another event, or the end."""
        await self._changed.wait()

    async def decided(self) -> None:
        """Until it is known whether this is a task or a bare message."""
        while not (self.is_task or self.ended):
            await self._changed.wait()

    async def wait(self) -> None:
        while not self.ended:
            await self._changed.wait()

    def _begin(self) -> None:
        if not self.is_task:
            self.is_task = True
            self._add(StatusEvent(self.id, self.context_id, "submitted", time=_now()))

    def _state(self, state: State, parts: tuple[Part, ...], metadata: Mapping[str, Any], *, last: bool = False) -> None:
        self._begin()
        said = Message(parts, "agent", context_id=self.context_id, task_id=self.id) if parts else None
        self._add(StatusEvent(self.id, self.context_id, state, said, _now(), metadata), last=last)

    def _add(self, event: Event, *, last: bool = False) -> None:
        if self.ended or (len(self.events) >= MAX_EVENTS and not last):
            return
        self.events.append(event)
        self._notify()

    def _end(self) -> None:
        self.ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class TaskTable:
    """All tasks of a server; they end with it."""

    def __init__(
        self,
        executor: Executor,
        *,
        most: int = MOST_RUNNING,
        time_limit: float | None = None,
        told: Callable[[Exception], None] | None = None,
    ) -> None:
        """`told` gets what an executor raises; its client reads a general sentence."""
        self._executor: Final = executor
        self._most: Final = most
        self._time_limit: Final = time_limit
        self._told: Final = told
        self._running: Final[dict[str, RunningTask]] = {}
        self._kept: Final[OrderedDict[str, RunningTask]] = OrderedDict()
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While this is open, messages are answered; at its end whatever is under way is cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                group.cancel_scope.cancel()

    def start(self, message: Message) -> RunningTask:
        """Begin to answer."""
        if self._group is None or len(self._running) >= self._most:
            raise NoRoom
        task = RunningTask(message, message.context_id or new_id())
        self._running[task.id] = task
        self._group.start_soon(self._answer, task)
        return task

    def find(self, task_id: str) -> RunningTask | None:
        """A task that is under way or kept; a bare message is none."""
        found = self._running.get(task_id) or self._kept.get(task_id)
        return found if found is not None and found.is_task else None

    def of_context(self, context_id: str) -> list[RunningTask]:
        every = (*self._kept.values(), *self._running.values())
        return [each for each in every if each.context_id == context_id and each.is_task]

    async def cancel(self, task: RunningTask) -> None:
        """End a task that is under way."""
        task.cancelled = True
        try:
            await self._executor.cancel(task.context_id)
        finally:
            task.scope.cancel()
        await task.wait()

    async def _answer(self, task: RunningTask) -> None:
        try:
            with task.scope, anyio.move_on_after(self._time_limit):
                task.finish(await self._executor.answer(task.message, task.context_id, task))
            if not (task.ended or task.cancelled):
                task.fail(f"The agent exceeded its limit of {self._time_limit:g} s.")
        except Exception as error:  # noqa: BLE001 - the boundary: a failed task, whose client is not told why
            if self._told is not None:
                self._told(error)
            task.fail("The agent failed.")
        finally:
            task.finish(Reply(state="canceled"))
            self._running.pop(task.id, None)
            if task.is_task:
                self._kept[task.id] = task
                if len(self._kept) > KEPT_TASKS:
                    self._kept.popitem(last=False)
