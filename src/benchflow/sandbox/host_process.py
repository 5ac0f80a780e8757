"""The one way this project runs a host process: asynchronous, with bounded output, and never left behind.

`run_process` waits for the end; a timeout or a cancelled caller kills the whole process group. Callers that want more
of a say open a process (`opened`, `open_process`) and `pump` its streams themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, Process

from benchflow.sandbox.bounded_output import BoundedOutput, Stream

DEFAULT_OUTPUT: Final = 8 << 20
_DRAIN_SEC: Final = 2.0


@dataclass(frozen=True, slots=True)
class Completed:
    """How a process ended; `exit_code` as a shell would say it."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_sec: float
    timed_out: bool = False
    dropped_bytes: int = 0


async def run_process(
    argv: Sequence[str],
    *,
    stdin: bytes | AsyncIterator[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    on_output: Callable[[Stream, bytes], None] | None = None,
    max_output: int = DEFAULT_OUTPUT,
    merge_stderr: bool = False,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run to the end. `stdin` None is an empty input; `on_output` sees every chunk, also what is not kept."""
    started = time.monotonic()
    output = BoundedOutput(max_output)

    def collect(stream: Stream, data: bytes) -> None:
        output.add(stream, data)
        if on_output is not None:
            on_output(stream, data)

    timed_out = False
    async with opened(argv, stdin=stdin is not None, env=env, merge_stderr=merge_stderr, pass_fds=pass_fds) as process:
        with anyio.move_on_after(timeout) as scope:
            await pump(process, stdin, collect)
        if scope.cancelled_caught:
            timed_out = True
            await end(process)
    code = shell_code(process.returncode if process.returncode is not None else -signal.SIGKILL)
    return Completed(
        code,
        output.kept("stdout"),
        output.kept("stderr"),
        time.monotonic() - started,
        timed_out,
        output.dropped,
    )


@contextlib.asynccontextmanager
async def opened(
    argv: Sequence[str],
    *,
    stdin: bool,
    env: Mapping[str, str] | None = None,
    merge_stderr: bool = False,
    pass_fds: Sequence[int] = (),
) -> AsyncIterator[Process]:
    """A process in its own process group for the time of the block; what still runs at its end is killed."""
    process = await open_process(argv, stdin=stdin, env=env, merge_stderr=merge_stderr, pass_fds=pass_fds)
    try:
        yield process
    finally:
        await end(process)


async def open_process(
    argv: Sequence[str],
    *,
    stdin: bool,
    env: Mapping[str, str] | None = None,
    merge_stderr: bool = False,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start a process in its own process group with piped output; the caller ends it with `end`."""
    return await anyio.open_process(
        list(argv),
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merge_stderr else subprocess.PIPE,
        env=env,
        start_new_session=True,
        pass_fds=pass_fds,
    )


async def pump(
    process: Process,
    stdin: bytes | AsyncIterator[bytes] | None,
    collect: Callable[[Stream, bytes], None],
) -> None:
    """Write the input, hand over all output chunk by chunk, and wait for the end."""
    async with anyio.create_task_group() as tasks:
        if stdin is not None:
            tasks.start_soon(_feed, process, stdin)
        if process.stderr is not None:
            tasks.start_soon(_collect, process.stderr, "stderr", collect)
        if process.stdout is not None:
            await _collect(process.stdout, "stdout", collect)
    await process.wait()


async def end(process: Process) -> None:
    """Kill the process group if it still runs, reap it, and close its pipes; safe in a cancelled scope."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.stdin is not None:
            await process.stdin.aclose()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                # A pipe is closed only at its end, so unread data must be read first.
                with anyio.move_on_after(_DRAIN_SEC):
                    async for _ in chunks(stream):
                        pass
                await stream.aclose()


def shell_code(returncode: int) -> int:
    """The exit code as a shell would say it: 128 + N for signal N."""
    return 128 - returncode if returncode < 0 else returncode


async def chunks(stream: ByteReceiveStream) -> AsyncIterator[bytes]:
    """What arrives, until the other side closes."""
    while True:
        try:
            yield await stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return


async def _collect(source: ByteReceiveStream, stream: Stream, collect: Callable[[Stream, bytes], None]) -> None:
    async for data in chunks(source):
        collect(stream, data)


async def _feed(process: Process, data: bytes | AsyncIterator[bytes]) -> None:
    """Write the input and close it; a process that stops reading early is not an error."""
    target = process.stdin
    if target is None:
        return
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        if isinstance(data, bytes):
            await target.send(data)
        else:
            async for part in data:
                await target.send(part)
    await target.aclose()
