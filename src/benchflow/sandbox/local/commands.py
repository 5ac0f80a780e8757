"""Commands in a running sandbox, from the driver's side: to their end, or as a process to talk to.

Streams are pipes to the command; memory is limited by `max_output`. A command has finished when its own
process has ended: what it left running keeps no one waiting.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.abc import TaskGroup

from benchflow.errors import SandboxFailure
from benchflow.sandbox.bounded_output import BoundedOutput, Stream
from benchflow.sandbox.local.cgroups import Shortage
from benchflow.sandbox.local.link import Link, expect, next_message
from benchflow.sandbox.protocol import ExecResult, OutputSink, SandboxProcess

_CHUNK: Final = 1 << 16
_LEFT_IN_PIPE: Final = 1 << 20
_KILLED: Final = 137
_FROM_OUTSIDE: Final = (
    "A process of the sandbox was killed from outside the sandbox: by another process of this machine, or because the "
    "machine ran out of memory."
)
_STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")


def as_argv(command: str | Sequence[str]) -> list[str]:
    """A string is for the environment's shell."""
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    if not argv:
        raise ValueError("A command needs at least one word.")
    return argv


class _Command:
    """A started command: its streams, and the socket that reports its end."""

    def __init__(self, link: Link, reply: socket.socket, tag: int, streams: dict[str, int], shortage: Shortage) -> None:
        """`shortage` is that of memory before it started."""
        self.link = link
        self.reply = reply
        self.tag = tag
        self.streams = streams
        self._shortage = shortage

    @classmethod
    async def start(
        cls,
        link: Link,
        command: str | Sequence[str],
        user: str | None,
        env: Mapping[str, str] | None,
        cwd: str | None,
        stdin: int | None,
    ) -> _Command:
        """`stdin` is a descriptor to read from; None opens a pipe, whose other end is `streams["stdin"]`."""
        message = {"op": "exec", "argv": as_argv(command), "user": user, "env": dict(env or {}), "cwd": cwd}
        ours: dict[str, int] = {}
        theirs: list[int] = []
        reply: socket.socket | None = None
        shortage = link.groups.shortage()
        try:
            if stdin is None:
                reader, ours["stdin"] = os.pipe2(os.O_CLOEXEC)
                theirs.append(reader)
            else:
                theirs.append(stdin)
            for name in ("stdout", "stderr"):
                ours[name], writer = os.pipe2(os.O_CLOEXEC)
                theirs.append(writer)
            for fd in ours.values():
                os.set_blocking(fd, False)
            reply = link.request(message, theirs)
            answer, _ = await next_message(reply)
            tag = expect(answer, "The sandbox ended before the command started.")["tag"]
            return cls(link, reply, tag, ours, shortage)
        except BaseException:
            for fd in ours.values():
                os.close(fd)
            if reply is not None:
                reply.close()
            raise
        finally:
            for fd in theirs:
                if fd != stdin:
                    os.close(fd)

    async def exit_code(self) -> int:
        answer, _ = await next_message(self.reply)
        end = expect(answer, "The sandbox ended while a command was running.")
        code: int = end["exit"]
        if self._killed_from_outside(unasked=end["unasked"]):
            raise SandboxFailure(_FROM_OUTSIDE, code="killed-from-outside")
        return 128 - code if code < 0 else code

    def _killed_from_outside(self, *, unasked: bool) -> bool:
        """Whether the machine killed the command, or a process of it for lack of memory; `unasked` when the command
        ended by SIGKILL which nobody inside sent.

        What its own memory limit kills is the command's result. The limit is counted whenever it is hit, so a kill
        without that count was the machine's.
        """
        before, now = self._shortage, self.link.groups.shortage()
        starved, at_limit = now.killed > before.killed, now.at_limit > before.at_limit
        return (unasked or starved) and not (starved and at_limit)

    async def kill(self) -> None:
        """End it with everything it started."""
        await self.link.call({"op": "kill", "tag": self.tag})

    def close(self) -> None:
        self.reply.close()
        for name in list(self.streams):
            self.close_stream(name)

    def close_stream(self, name: str) -> None:
        fd = self.streams.pop(name, -1)
        if fd >= 0:
            # A task that still waits for the descriptor would wait for the next file that gets its number.
            anyio.notify_closing(fd)
            os.close(fd)


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group for jobs that fail together; raises only the first error."""
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__


async def run_command(
    link: Link,
    command: str | Sequence[str],
    *,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout: float | None = None,
    stdin: bytes | None = None,
    on_output: OutputSink | None = None,
    max_output: int = 8 << 20,
) -> ExecResult:
    """Run a command to its end; when time is up or the caller is cancelled, its whole process tree ends with it."""
    began = time.monotonic()
    source = _stdin_file(stdin)
    try:
        started = await _Command.start(link, command, user, env, cwd, source)
    finally:
        os.close(source)
    output = BoundedOutput(max_output)
    timed_out = False
    code = _KILLED
    try:
        async with task_group() as group:
            for name in _STREAMS:
                group.start_soon(_pump, started, name, output, on_output)
            with anyio.move_on_after(timeout) as scope:
                code = await started.exit_code()
            if scope.cancelled_caught:
                timed_out = True
                await started.kill()
            group.cancel_scope.cancel()
        for name in _STREAMS:
            _drain(started, name, output, on_output)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _kill_quietly(started)
        raise
    finally:
        started.close()
    return ExecResult(
        exit_code=code,
        stdout=output.kept("stdout"),
        stderr=output.kept("stderr"),
        duration_sec=time.monotonic() - began,
        timed_out=timed_out,
        dropped_bytes=output.dropped,
    )


def _stdin_file(data: bytes | None) -> int:
    """Nothing, or the bytes as a file that can only be read."""
    if data is None:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    written = os.memfd_create("stdin", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(written, view) :]
        return os.open(f"/proc/self/fd/{written}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(written)


async def _pump(started: _Command, name: Stream, output: BoundedOutput, sink: OutputSink | None) -> None:
    fd = started.streams[name]
    while True:
        await anyio.wait_readable(fd)
        if not _take(fd, name, output, sink):
            return


def _take(fd: int, name: Stream, output: BoundedOutput, sink: OutputSink | None) -> int:
    chunk = os.read(fd, _CHUNK)
    if chunk:
        output.add(name, chunk)
        if sink is not None:
            sink(name, chunk)
    return len(chunk)


def _drain(started: _Command, name: Stream, output: BoundedOutput, sink: OutputSink | None) -> None:
    """What is already in the pipe; it does not wait for a process that keeps running and writing."""
    taken = 0
    try:
        while taken < _LEFT_IN_PIPE and (size := _take(started.streams[name], name, output, sink)):
            taken += size
    except BlockingIOError:
        pass


async def _kill_quietly(started: _Command) -> None:
    with contextlib.suppress(SandboxFailure):  # it is gone with its sandbox
        await started.kill()


class LocalProcess(SandboxProcess):
    """A command that runs while the caller talks to it."""

    def __init__(self, started: _Command) -> None:
        self._started = started
        self._code: int | None = None
        self._trouble: SandboxFailure | None = None
        self._waiting = anyio.Lock()

    @classmethod
    async def start(
        cls,
        link: Link,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> LocalProcess:
        return cls(await _Command.start(link, command, user, env, cwd, None))

    async def send(self, data: bytes) -> None:
        fd = self._started.streams.get("stdin")
        if fd is None:
            raise SandboxFailure("The standard input of the process is closed.", code="stdin-closed")
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                await self._wait_writable(fd)
            except BrokenPipeError as error:
                raise SandboxFailure("The process has closed its standard input.", code="stdin-closed") from error

    @staticmethod
    async def _wait_writable(fd: int) -> None:
        try:
            await anyio.wait_writable(fd)
        except anyio.ClosedResourceError as error:
            raise SandboxFailure("The standard input of the process was closed.", code="stdin-closed") from error

    async def close_stdin(self) -> None:
        self._started.close_stream("stdin")

    def stdout(self) -> AsyncIterator[bytes]:
        return self._chunks("stdout")

    def stderr(self) -> AsyncIterator[bytes]:
        return self._chunks("stderr")

    async def _chunks(self, name: str) -> AsyncIterator[bytes]:
        while (fd := self._started.streams.get(name)) is not None:
            try:
                chunk = os.read(fd, _CHUNK)
            except BlockingIOError:
                try:
                    await anyio.wait_readable(fd)
                except anyio.ClosedResourceError:
                    return
                continue
            if not chunk:
                self._started.close_stream(name)
                return
            yield chunk

    async def wait(self) -> int:
        async with self._waiting:
            if self._trouble is not None:
                raise self._trouble
            if self._code is None:
                try:
                    self._code = await self._started.exit_code()
                except SandboxFailure as error:
                    self._trouble = error
                    self._started.reply.close()
                    raise
                self._started.reply.close()  # not when the wait was cancelled: ending the process waits again
            return self._code

    def take_output(self) -> list[int]:
        """Descriptors that block, for a reader of its own; `stdout` and `stderr` give nothing afterwards."""
        taken = [os.dup(self._started.streams[name]) for name in _STREAMS]
        for name, fd in zip(_STREAMS, taken, strict=True):
            self._started.close_stream(name)
            os.set_blocking(fd, True)
        return taken

    @property
    def spent(self) -> bool:
        """Whether it has ended and all its output was read."""
        return self._code is not None and not self._started.streams

    async def kill(self) -> None:
        await _kill_quietly(self._started)

    def close(self) -> None:
        """Close its streams; its sandbox is gone."""
        self._started.close()
