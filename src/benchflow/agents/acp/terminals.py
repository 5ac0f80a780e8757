"""`terminal/*`: commands that an agent runs through its client, inside the sandbox and as the agent's user."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from benchflow.agents.protocol import AgentContext
from benchflow.agents.workspace import WorkspaceError
from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import SandboxProcess

MAX_OPEN: Final = 64
OUTPUT_LIMIT: Final = 1 << 20
_LAST_OUTPUT_SEC: Final = 1.0


class Terminal:
    """A running or finished command with the end of its output."""

    def __init__(self, process: SandboxProcess, limit: int) -> None:
        self._process = process
        self._limit = limit
        self._output = bytearray()
        self.truncated = False
        self.exit_code: int | None = None
        self._over = asyncio.create_task(self._follow())

    @property
    def output(self) -> str:
        """The kept end of the output; a truncated character at its start is dropped."""
        data = bytes(self._output)
        if self.truncated:
            start = next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
            data = data[start:]
        return data.decode(errors="replace")

    async def wait(self) -> int | None:
        await asyncio.shield(self._over)
        return self.exit_code

    async def kill(self) -> None:
        """End the command with everything it started; its output is kept."""
        await self._process.kill()
        await self.wait()

    async def _follow(self) -> None:
        pumps = [asyncio.create_task(self._pump(stream)) for stream in (self._process.stdout(), self._process.stderr())]
        try:
            with contextlib.suppress(SandboxFailure):  # it is gone with its sandbox
                self.exit_code = await self._process.wait()
            await asyncio.wait(pumps, timeout=_LAST_OUTPUT_SEC)
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, chunks: AsyncIterator[bytes]) -> None:
        async for chunk in chunks:
            self._output += chunk
            surplus = len(self._output) - self._limit
            if surplus > 0:
                del self._output[:surplus]
                self.truncated = True


class Terminals:
    """The terminals of one session, by id."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._open: dict[str, Terminal] = {}
        self._next = 1

    async def create(
        self, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None, limit: int | None
    ) -> str:
        """Start a command. Without arguments it may be a whole line for the shell, as agents send it."""
        if len(self._open) >= MAX_OPEN:
            raise WorkspaceError(f"{MAX_OPEN} terminals are already open.")
        if cwd is not None and not cwd.startswith("/"):
            raise WorkspaceError(f"The folder of a terminal must be an absolute path, not '{cwd}'.")
        context = self._context
        process = await context.sandbox.process(
            [command, *args] if args else command,
            user=context.user,
            env={**context.env, **env},
            cwd=cwd or context.workdir,
        )
        await process.close_stdin()
        name = f"terminal-{self._next}"
        self._next += 1
        self._open[name] = Terminal(process, min(limit or OUTPUT_LIMIT, OUTPUT_LIMIT))
        return name

    def get(self, name: str) -> Terminal:
        if name not in self._open:
            raise WorkspaceError(f"Unknown terminal '{name}'.")
        return self._open[name]

    async def release(self, name: str) -> None:
        terminal = self.get(name)
        if terminal.exit_code is None:
            await terminal.kill()
        del self._open[name]

    async def close(self, *, keep_processes: bool) -> None:
        """End all commands, with the processes they started unless those are to be kept."""
        for name, terminal in list(self._open.items()):
            if terminal.exit_code is None or not keep_processes:
                await terminal.kill()
            self._open.pop(name, None)
