"""A command that runs in a container while the caller talks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from anyio.abc import Process

from benchflow.errors import SandboxFailure
from benchflow.sandbox.engine.box.process_beginning import Beginning
from benchflow.sandbox.host_process import chunks, end, shell_code
from benchflow.sandbox.protocol import SandboxProcess

_KILLED = 137


class EngineProcess(SandboxProcess):
    """The client of the engine on this side, the anchor with the command below it on the other."""

    def __init__(self, client: Process, first: Beginning, end_inside: Callable[[], Awaitable[None]]) -> None:
        self._client = client
        self._first_stdout, self._first_stderr = first.stdout, first.stderr
        self._end_inside = end_inside
        self._killed = False

    async def send(self, data: bytes) -> None:
        if self._client.stdin is None:
            raise SandboxFailure("The process has no standard input.", code="process-ended")
        await self._client.stdin.send(data)

    async def close_stdin(self) -> None:
        if self._client.stdin is not None:
            await self._client.stdin.aclose()

    async def stdout(self) -> AsyncIterator[bytes]:
        if self._first_stdout:
            first, self._first_stdout = self._first_stdout, b""
            yield first
        if self._client.stdout is not None:
            async for data in chunks(self._client.stdout):
                yield data

    async def stderr(self) -> AsyncIterator[bytes]:
        if self._first_stderr:
            first, self._first_stderr = self._first_stderr, b""
            yield first
        if self._client.stderr is not None:
            async for data in chunks(self._client.stderr):
                yield data

    async def wait(self) -> int:
        code = await self._client.wait()
        return _KILLED if self._killed else shell_code(code)

    async def kill(self) -> None:
        if self._client.returncode is None:
            self._killed = True
            await self._end_inside()
        await self.close()

    async def close(self) -> None:
        """Let go of the client without asking what runs inside."""
        await end(self._client)
