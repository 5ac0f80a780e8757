"""What runs in an in-memory sandbox: jobs with their pids, the pipes between them, and the machine they share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio

from benchflow.sandbox.inside.accounts import Account, UnknownUser, find_account
from benchflow.sandbox.protocol import FailedRequest
from benchflow.testing.memory.node_tree import NodeTree

if TYPE_CHECKING:
    from benchflow.testing.memory.shell import Call

KILLED: Final = 137

Program = Callable[["Call"], Awaitable[int]]
"""A program of the in-memory sandbox: takes its call and returns its exit code."""


class Pipe:
    """Bytes from a writer to a reader, who waits for them."""

    def __init__(self, data: bytes | None = None) -> None:
        """With `data` it is closed."""
        self._chunks = deque([data] if data else [])
        self._closed = data is not None
        self._news = anyio.Event()

    def write(self, data: bytes) -> None:
        self._chunks.append(data)
        self._tell()

    def close(self) -> None:
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def chunk(self) -> bytes:
        """The next bytes; none at the end."""
        while not self._chunks and not self._closed:
            await self._news.wait()
        return self._chunks.popleft() if self._chunks else b""

    async def line(self) -> bytes:
        """The next line, with its end."""
        found = b""
        while not found.endswith(b"\n") and (chunk := await self.chunk()):
            head, newline, tail = chunk.partition(b"\n")
            found += head + newline
            if tail:
                self._chunks.appendleft(tail)
        return found

    async def rest(self) -> bytes:
        found = []
        while chunk := await self.chunk():
            found.append(chunk)
        return b"".join(found)


@dataclass(slots=True, eq=False)
class Job:
    """A running command of the caller, or a background command of a script."""

    pid: int
    leader: int
    """The pid of the caller's command that it belongs to."""
    uid: int
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    code: int | None = None
    task: asyncio.Task[None] | None = None
    """Keeps the task from being collected while it runs."""

    def kill(self, code: int = KILLED) -> None:
        if self.code is None:
            self.code = code
            self.scope.cancel()


@dataclass(slots=True)
class Machine:
    """What all shells of a sandbox share."""

    tree: NodeTree
    programs: Mapping[str, Program]
    hostname: str = "sandbox"
    jobs: dict[int, Job] = field(default_factory=dict)
    unreached: list[FailedRequest] = field(default_factory=list)
    """Requests that programs report as failed."""
    _pids: count[int] = field(default_factory=lambda: count(100))

    def job(self, uid: int, leader: int | None = None) -> Job:
        pid = next(self._pids)
        made = Job(pid, leader or pid, uid)
        self.jobs[pid] = made
        return made

    async def follow(self, job: Job, work: Awaitable[int]) -> int:
        """Run the work of a job to its end, or until it is killed; its exit code."""
        try:
            with job.scope:
                code = await work
                job.code = code if job.code is None else job.code
        finally:
            self.jobs.pop(job.pid, None)
            job.code = KILLED if job.code is None else job.code
            job.ended.set()
        return job.code

    def background(self, job: Job, work: Awaitable[int]) -> None:
        async def run() -> None:
            await self.follow(job, work)

        # Jobs end with the sandbox, not with the call that started them: no task group of a caller can hold them.
        job.task = asyncio.create_task(run())

    def kill(self, *, leader: int | None = None, uid: int | None = None) -> None:
        """End all jobs, or those of one command or of one user."""
        for job in list(self.jobs.values()):
            if leader in (None, job.leader) and uid in (None, job.uid):
                job.kill()

    def user_id(self, name: str) -> int | None:
        """The id of a user by name or number, as `/etc/passwd` has it."""
        try:
            return self._account(name).uid
        except UnknownUser:
            return None

    def account(self, uid: int) -> tuple[str, str]:
        """Name and home of a user."""
        found = self._account(str(uid))
        return found.name, found.home

    def _account(self, user: str) -> Account:
        node = self.tree.find("/etc/passwd")
        passwd = node.data.decode(errors="replace") if node is not None else ""
        return find_account(user, passwd, "", assumed=False)
