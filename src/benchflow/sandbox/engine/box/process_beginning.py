"""`beginning`: waits for the greeting of a process that was started in a container, and keeps what comes before it."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
from anyio.abc import ByteReceiveStream, Process

from benchflow.sandbox.engine.box.anchor import Greeting
from benchflow.sandbox.host_process import chunks


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the command wrote up to the moment in which its greeting was read."""

    stdout: bytes
    stderr: bytes


async def beginning(process: Process, greeting: Greeting) -> Beginning:
    """Read up to the greeting on stderr; it has no pid if there was none, and then all output was read.

    An engine's client does not keep the order of the two streams. One that has output to write before the greeting
    would wait for a reader, so stdout is read too.
    """
    early = bytearray()
    rest = b""
    async with anyio.create_task_group() as tasks:
        if process.stdout is not None:
            tasks.start_soon(_keep, process.stdout, early)
        if process.stderr is not None:
            async for data in chunks(process.stderr):
                rest = greeting.feed(data)
                if greeting.pid is not None:
                    tasks.cancel_scope.cancel()
                    break
    return Beginning(bytes(early), rest)


async def _keep(stream: ByteReceiveStream, kept: bytearray) -> None:
    async for data in chunks(stream):
        kept.extend(data)
