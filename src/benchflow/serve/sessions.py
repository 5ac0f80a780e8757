"""`Sessions`: the episodes of the clients of a server, from the first request to the last.

A session is placed (it holds nothing), then begun, which starts its episode in the background. Its calls run in the
background too: a client that loses its connection finds the result of a call for a while. A session that nobody uses is
reaped.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from benchflow.rewards import Attributed, Verdict
from benchflow.serve.episode import Block, CallRefused, CallResult, Episode, limits_metadata
from benchflow.serve.served_tasks import ServedTask
from benchflow.serve.server_log import Log, silent
from benchflow.serve.server_metrics import ServerMetrics

DEFAULT_REAP_SEC: Final = 900.0
DEFAULT_MOST: Final = 256
KEPT_SEC: Final = 60.0
"""How long the result of a call can be fetched again."""
KEPT_RESULTS: Final = 64
"""How many results of one session are kept."""
PLACED_FACTOR: Final = 16
"""How many placed sessions there may be for each that has an episode."""


class UnknownSession(LookupError):
    """There is no such session, or not any more; `str()` is a sentence for the client."""


class NoRoom(Exception):
    """There are as many sessions as the server may have; `str()` is a sentence for the client."""


class SessionExists(Exception):
    """The session has begun already; `str()` is a sentence for the client."""


@dataclass(eq=False, slots=True)
class Pending:
    """A call, and its outcome once there is one: exactly one of `result`, `refused` and `failed`."""

    id: str
    done: anyio.Event = field(default_factory=anyio.Event)
    result: CallResult | None = None
    refused: CallRefused | None = None
    failed: Attributed | None = None
    ended: float | None = None


@dataclass(eq=False, slots=True)
class Session:
    """One client's place in the server."""

    id: str
    used: float
    """When it was last used, on the monotonic clock."""
    task: ServedTask | None = None
    episode: Episode | None = None
    opened: float = 0.0
    ready: anyio.Event = field(default_factory=anyio.Event)
    prompt: tuple[Block, ...] = ()
    failure: Attributed | None = None
    """Why the episode could not begin."""
    pending: dict[str, Pending] = field(default_factory=dict)
    waiting: int = 0
    """Requests that wait for it now: it is in use as long as there are any."""
    counted: bool = False
    scopes: set[anyio.CancelScope] = field(default_factory=set)
    """Around everything that runs for it; cancelled when it ends."""
    idle: anyio.Event = field(default_factory=anyio.Event)

    @property
    def begun(self) -> Episode:
        """Its episode; `UnknownSession` if it was only placed."""
        if self.episode is None:
            raise UnknownSession(f"The session '{self.id[:64]}' has no task: create it first.")
        return self.episode

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While a request waits for it, it is not reaped."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            self.used = time.monotonic()

    async def wait_ready(self) -> tuple[Block, ...]:
        """The prompt, once the episode has begun; raises `Attributed` if it could not."""
        with self.in_use():
            await self.ready.wait()
        if self.failure is not None:
            raise self.failure
        return self.prompt


class Sessions:
    """All sessions of a server. `running` must be entered before the first is opened, and closes all of them."""

    def __init__(
        self,
        open_episode: Callable[[ServedTask, Mapping[str, str] | None], Episode],
        *,
        most: int = DEFAULT_MOST,
        reap_sec: float = DEFAULT_REAP_SEC,
        log: Log = silent,
    ) -> None:
        self.metrics: Final = ServerMetrics()
        self.log: Final = log
        self._open_episode: Final = open_episode
        self._most: Final = most
        self._reap_sec: Final = reap_sec
        self._known: Final[dict[str, Session]] = {}
        self._live = 0
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reap what nobody uses; at the end, close everything."""
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._reap)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    async with anyio.create_task_group() as closing:
                        for session in list(self._known.values()):
                            closing.start_soon(self._end, session, "shutdown")
                self._group = None
                group.cancel_scope.cancel()

    def place(self, sid: str | None = None) -> Session:
        """A session that holds nothing yet; one of this id that was only placed is used again."""
        if sid is not None and sid in self._known:
            return self.get(sid)
        if len(self._known) >= self._most * PLACED_FACTOR:
            self.metrics.refused_sessions += 1
            raise NoRoom("There are too many sessions; try again later.")
        session = Session(sid or token_urlsafe(24), time.monotonic())
        self._known[session.id] = session
        return session

    def begin(self, task: ServedTask, sid: str | None = None, secrets: Mapping[str, str] | None = None) -> Session:
        """Start an episode of the task in the background, in a session of this id or in a new one.

        Raises `NoRoom`, or `SessionExists` if the session has an episode.
        """
        known = self._known.get(sid) if sid is not None else None
        if known is not None and known.episode is not None:
            raise SessionExists(f"The session '{known.id[:64]}' has already begun.")
        if self._live >= self._most:
            self.metrics.refused_sessions += 1
            raise NoRoom(f"There are {self._most} sessions, as many as this server may have; try again later.")
        session = self.place(sid)
        try:
            session.task, session.episode = task, self._open_episode(task, secrets)
        except NoRoom:  # no node of a cluster can play it now
            self.metrics.refused_sessions += 1
            if known is None:
                del self._known[session.id]
            raise
        session.opened = session.used = time.monotonic()
        self._live += 1
        self.metrics.sessions += 1
        self.metrics.open_sessions = self._live
        self.log("session_opened", session=session.id[:8], environment=task.environment, task=task.id)
        self._spawn(session, self._begin)
        return session

    async def _begin(self, session: Session) -> None:
        try:
            session.prompt = await session.begun.begin()
        except Attributed as error:
            session.failure = error
            self._count(session)
        finally:
            session.ready.set()

    def get(self, sid: str | None) -> Session:
        """The session of an id, which counts as use of it."""
        session = self._known.get(sid) if sid is not None else None
        if session is None:
            raise UnknownSession(
                "Unknown session: it was never created, was deleted, or was closed because it was idle."
            )
        session.used = time.monotonic()
        return session

    def knows(self, sid: str) -> bool:
        """Whether there is a session of this id; to ask is not to use it."""
        return sid in self._known

    def call(self, session: Session, name: str, arguments: Mapping[str, Any]) -> Pending:
        """Start a call; its outcome is there once `done` is set."""
        return self.run(session, lambda: session.begun.call(name, arguments))

    def run(self, session: Session, work: Callable[[], Awaitable[CallResult]]) -> Pending:
        """Start work on the episode of a session as a call; its outcome is there once `done` is set."""
        pending = Pending(token_urlsafe(12))
        while len(session.pending) >= KEPT_RESULTS:
            done = next((each for each in session.pending.values() if each.ended is not None), None)
            if done is None:
                raise NoRoom("There are too many calls of this session under way.")
            del session.pending[done.id]
        session.pending[pending.id] = pending

        async def carry_out(session: Session) -> None:
            try:
                await session.ready.wait()
                if session.failure is not None:
                    raise session.failure
                pending.result = await work()
                self.metrics.calls += 1
            except CallRefused as error:
                self.metrics.refused_calls += 1
                pending.refused = error
            except Attributed as error:
                pending.failed = error
            finally:
                pending.ended = session.used = time.monotonic()
                self._count(session)
                if pending.result is None and pending.refused is None and pending.failed is None:
                    pending.refused = CallRefused("episode_finished", "The session has ended.")
                pending.done.set()

        self._spawn(session, carry_out)
        return pending

    async def finish(self, session: Session) -> Verdict:
        """End the episode if it has not ended, and score what is there; the verdict for clients.

        Raises `Attributed` if it could not begin, and `UnknownSession` if the session ends before there is a verdict.
        """
        await session.wait_ready()
        found: list[Verdict] = []
        over = anyio.Event()

        async def run(session: Session) -> None:
            try:
                with suppress(CallRefused):  # it was closed: there is no verdict
                    found.append(await session.begun.finish())
            finally:
                session.used = time.monotonic()
                self._count(session)
                over.set()

        self._spawn(session, run)
        with session.in_use():
            await over.wait()
        if not found:
            raise UnknownSession("The session has ended.")
        return found[0]

    def _spawn(self, session: Session, work: Callable[[Session], Awaitable[None]]) -> None:
        if self._group is None:
            raise NoRoom("The server is ending.")
        scope = anyio.CancelScope()
        session.scopes.add(scope)

        async def run() -> None:
            try:
                with scope:
                    await work(session)
            finally:
                session.scopes.discard(scope)
                if not session.scopes:
                    session.idle.set()

        self._group.start_soon(run)

    def _count(self, session: Session, *, ended: bool = False) -> None:
        """Count the episode of a session once, when it or the session has ended."""
        episode = session.episode
        if episode is None or session.counted or not (episode.finished or ended):
            return
        session.counted = True
        verdict = episode.verdict
        self.metrics.count(verdict)
        told: dict[str, Any] = verdict.record() if verdict is not None else {"status": "abandoned"}
        told.pop("rewards", None)
        told |= limits_metadata(episode.progress)
        seconds = round(time.monotonic() - session.opened, 3)
        task = session.task.id if session.task is not None else None
        self.log(
            "episode_ended", session=session.id[:8], task=task, calls=episode.progress.calls, seconds=seconds, **told
        )

    async def end(self, sid: str | None) -> None:
        """End a session and all that runs in it."""
        await self._end(self.get(sid), "deleted")

    async def _end(self, session: Session, reason: str) -> None:
        if self._known.pop(session.id, None) is None:
            return
        episode = session.episode
        if episode is None:
            return
        with anyio.CancelScope(shield=True):
            for scope in session.scopes:
                scope.cancel()
            if session.scopes:
                session.idle = anyio.Event()
                await session.idle.wait()
            try:
                await episode.close()
            except Exception as error:  # noqa: BLE001 - what cannot be closed ends with the server's process
                self.log("close_failed", session=session.id[:8], error=f"{type(error).__name__}: {error}")
            finally:
                self._live -= 1
                self.metrics.open_sessions = self._live
                self._count(session, ended=True)
        self.log("session_closed", session=session.id[:8], reason=reason)

    async def _reap(self) -> None:
        """End sessions that are unused for a while, and forget results that were not fetched."""
        while True:
            await anyio.sleep(min(max(self._reap_sec / 4, 0.05), 15.0))
            now = time.monotonic()
            for session in list(self._known.values()):
                if not session.waiting and now - session.used > self._reap_sec:
                    self.metrics.reaped += session.episode is not None
                    if self._group is not None:
                        self._group.start_soon(self._end, session, "unused")
                old = [each.id for each in session.pending.values() if each.ended and now - each.ended > KEPT_SEC]
                for one in old:
                    del session.pending[one]
