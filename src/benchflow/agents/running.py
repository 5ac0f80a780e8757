"""One command of an agent inside its sandbox, run to its end. Its raw output is kept, redacted, up to a limit.

The command is finished when its own process has ended. Processes that it left running are ended too, unless the package
keeps them. An agent is installed once per environment: the first rollout installs it, the others start from its
snapshot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import anyio

from benchflow.agents.protocol import AgentContext, TurnResult
from benchflow.errors import InfrastructureFailure, SandboxFailure
from benchflow.files.redaction import Redactor
from benchflow.sandbox.machine_settings.allowance import phase_settings
from benchflow.sandbox.protocol import (
    Change,
    Limits,
    NetworkPolicy,
    Sandbox,
    SandboxBackend,
    SandboxProcess,
    SandboxSpec,
    Snapshot,
)

LOG_LIMIT: Final = 8 << 20
MAX_SAID: Final = 1 << 20
"""Bytes of the standard output of a command that count as what it said."""
NOT_REMOVED: Final = "removal-failed"
_TAIL: Final = 4096
_PUBLIC: Final = NetworkPolicy("public")


class OutputLog:
    """One file below `agent/`. Output beyond the limit is dropped; the last line says how much."""

    def __init__(self, path: Path, redactor: Redactor, *, limit: int = LOG_LIMIT) -> None:
        self._path = path
        self._stream = redactor.stream()
        self._room = limit
        self._dropped = 0
        self._tail = b""
        self._problem: OSError | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, chunk: bytes) -> None:
        """Keep a chunk. Never raises: `close` reports a full disk."""
        self._keep(self._stream.feed(chunk))

    @property
    def tail(self) -> str:
        """The end of the output, redacted, for use in messages."""
        return self._tail.decode(errors="replace")

    @property
    def last_line(self) -> str:
        """The last non-empty line, shortened; empty if there is none."""
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""

    def close(self) -> None:
        """Idempotent. Raises `InfrastructureFailure` if output could not be written."""
        if self._file.closed:
            return
        self._keep(self._stream.finish())
        if self._dropped:
            self._put(f"\n[{self._dropped} more bytes were dropped]\n".encode())
        self._file.close()
        if self._problem is not None:
            raise self._failure(self._problem) from self._problem

    def _keep(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL:]
        kept = data[: self._room]
        self._room -= len(kept)
        self._dropped += len(data) - len(kept)
        self._put(kept)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and self._problem is None:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._problem = error

    def _failure(self, error: OSError) -> InfrastructureFailure:
        return InfrastructureFailure(
            f"The output of the agent cannot be written to '{self._path}': {error.strerror or error}.",
            code="log-unwritable",
        )


_LAST_OUTPUT_SEC: Final = 1.0
"""How long to wait for output left in the pipes after the command has ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended; no exit code means that it reached its time limit."""

    exit_code: int | None
    said: str = ""
    """The beginning of its standard output."""

    @property
    def timed_out(self) -> bool:
        return self.exit_code is None

    def turn(self) -> TurnResult:
        if self.timed_out:
            return TurnResult("timeout", timed_out=True)
        return TurnResult("exited", self.said, exit_code=self.exit_code)


async def run_to_end(
    context: AgentContext,
    command: Sequence[str],
    log: OutputLog,
    *,
    user: str | None,
    env: Mapping[str, str],
    timeout: float | None,
    given: bytes = b"",
) -> Ended:
    """Run in the working folder with `given` as its input; a time limit or cancellation ends the whole process tree."""
    process = await context.sandbox.process(command, user=user, env=env, cwd=context.workdir)
    code: int | None = None
    said = bytearray()

    def take(chunk: bytes) -> None:
        log.write(chunk)
        said.extend(chunk[: MAX_SAID - len(said)])

    try:
        if not given:
            await process.close_stdin()
        async with anyio.create_task_group() as pumps:
            if given:
                pumps.start_soon(_feed, process, given)
            finished = [anyio.Event(), anyio.Event()]
            pumps.start_soon(pump, process.stdout(), take, finished[0])
            pumps.start_soon(pump, process.stderr(), log.write, finished[1])
            with anyio.move_on_after(timeout):
                code = await process.wait()
            if code is None or not context.keep_processes:
                await process.kill()
            with anyio.move_on_after(_LAST_OUTPUT_SEC):
                await process.wait()
                for event in finished:
                    await event.wait()
            pumps.cancel_scope.cancel()
    except BaseException:
        await end_for_sure(process)
        raise
    return Ended(code, said.decode(errors="replace"))


async def _feed(process: SandboxProcess, data: bytes) -> None:
    """Write the input of a process, which may end without reading it."""
    try:
        await process.send(data)
        await process.close_stdin()
    except (SandboxFailure, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


async def pump(chunks: AsyncIterator[bytes], take: Callable[[bytes], None], finished: anyio.Event) -> None:
    """Pass on every chunk of a stream, then signal its end."""
    async for chunk in chunks:
        take(chunk)
    finished.set()


async def end_for_sure(process: SandboxProcess) -> None:
    """End a process and what it started, also while the caller is being cancelled."""
    with anyio.CancelScope(shield=True):
        await process.kill()
        with anyio.move_on_after(_LAST_OUTPUT_SEC):
            await process.wait()


async def run_as_root(sandbox: Sandbox, command: Sequence[str], what: str) -> None:
    """Remove something by a command as root, also while the caller is being cancelled.

    In a sandbox that is gone there is nothing to remove; a command that fails is a `SandboxFailure` (`NOT_REMOVED`).
    """
    with anyio.CancelScope(shield=True):
        try:
            done = await sandbox.exec(command, user="root", cwd="/", timeout=60.0)
        except SandboxFailure as error:
            if error.code in ("sandbox-gone", "helper-gone"):
                return
            raise
    if not done.ok:
        reason = done.stderr.decode(errors="replace").strip()[-300:] or f"exit code {done.exit_code}."
        raise SandboxFailure(f"{what} could not be removed from the sandbox: {reason}", code=NOT_REMOVED)


class Installable(Protocol):
    """The part of an agent that an installation uses."""

    def install_key(self) -> str | None:
        """What the installation depends on; None if there is nothing to install."""

    async def install(self, sandbox: Sandbox) -> None:
        """Install the agent in the environment."""


class Installations:
    """The installations made through one backend; kept until `close`."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._made: dict[tuple[str, ...], Snapshot] = {}
        self._brought: dict[str, frozenset[Change]] = {}
        """The changes that an installation made, by the resulting state."""
        self._locks: dict[tuple[str, ...], anyio.Lock] = {}

    async def prepare(self, agent: Installable, spec: SandboxSpec) -> Snapshot | None:
        """A state to start the sandbox of `spec` from, with the agent in it; None if it needs nothing there.

        Concurrent callers wait for the same installation. The installation has network access regardless of the
        policy of the task; the sandbox that starts from it does not.
        """
        wanted = agent.install_key()
        if wanted is None:
            return None
        environment = spec.image.digest if spec.image else "host"
        key = (environment, spec.workdir, spec.user or "", wanted)
        async with self._locks.setdefault(key, anyio.Lock()):
            if key not in self._made:
                self._made[key] = await self._install(agent, spec)
            return self._made[key]

    async def prepare_all(self, agents: Iterable[Installable], spec: SandboxSpec) -> Snapshot | None:
        """The same for several agents together."""
        needed = {key: agent for agent in agents if (key := agent.install_key()) is not None}
        return await self.prepare(_Together(needed), spec) if needed else None

    async def _install(self, agent: Installable, spec: SandboxSpec) -> Snapshot:
        given = phase_settings("build", _PUBLIC.mode)
        bare = replace(spec, network=_PUBLIC, limits=Limits(), mounts=given.mounts, env=given.env, composition=None)
        async with self._backend.create(bare) as sandbox:
            await agent.install(sandbox)
            await sandbox.kill_processes()
            brought = frozenset(await sandbox.changes())
            snapshot = await sandbox.snapshot()
            self._brought[snapshot.reference] = brought
            return snapshot

    def brought(self, snapshot: Snapshot | None) -> frozenset[Change]:
        """The differences between a state and the environment that come from installing an agent."""
        return frozenset() if snapshot is None else self._brought.get(snapshot.reference, frozenset())

    async def close(self) -> None:
        """Discard every state."""
        while self._made:
            _, snapshot = self._made.popitem()
            await self._backend.discard(snapshot)


class _Together:
    """Several agents that are installed one after the other, so that their environment is made once for all."""

    def __init__(self, agents: Mapping[str, Installable]) -> None:
        self._agents: Final = dict(sorted(agents.items()))

    def install_key(self) -> str:
        return "\n".join(self._agents)

    async def install(self, sandbox: Sandbox) -> None:
        for agent in self._agents.values():
            await agent.install(sandbox)
