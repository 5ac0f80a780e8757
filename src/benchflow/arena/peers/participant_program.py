"""`a2a:COMMAND`: a program that is an A2A server itself, started in a box; and peers that others run, at a URL.

The command gets `--host H --port P --card-url U` appended, and the same in `HOST`, `PORT` and `CARD_URL`. It is reached
through the driver: nothing of it is on a network. In a rollout that is not an arena each prompt is one message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import anyio

from benchflow.agents.protocol import Agent, AgentContext, AgentInfo, AgentKind, AgentRequest, TurnResult
from benchflow.agents.running import OutputLog, end_for_sure
from benchflow.arena.a2a_types import (
    INTERRUPTED,
    ArtifactEvent,
    Message,
    MessageEvent,
    Part,
    PeerFailure,
    Reply,
    State,
    parts_of,
    text_of,
)
from benchflow.arena.needed_libraries import require_arena
from benchflow.arena.peers.participant import Crashed
from benchflow.errors import AgentFailure, SandboxFailure, UsageError
from benchflow.sandbox.protocol import Sandbox, SandboxProcess

if TYPE_CHECKING:
    from benchflow.arena.a2a_client import A2APeer
    from benchflow.arena.a2a_tasks import Updates

HOST: Final = "127.0.0.1"
_POLL_SEC: Final = 0.05
_SHOWN: Final = 80
_NO_LIMIT: Final = 24 * 3600.0
_START: Final = 'exec {command} "$@"'


def shortened_command(command: str) -> str:
    """A command for messages: one line, shortened."""
    line = " ".join(command.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


class Program:
    """A running A2A server in a box."""

    def __init__(self, name: str, sandbox: Sandbox, process: SandboxProcess, port: int, log: OutputLog) -> None:
        self.port: Final = port
        self.exit_code: int | None = None
        self._name: Final = shortened_command(name)
        self._sandbox: Final = sandbox
        self._process: Final = process
        self._log: Final = log
        # A task of its own: a program may be started and ended by different tasks.
        self._watch: Final = asyncio.create_task(self._run())

    @classmethod
    async def start(
        cls,
        name: str,
        command: str,
        sandbox: Sandbox,
        log: OutputLog,
        *,
        user: str | None,
        env: Mapping[str, str],
        cwd: str,
    ) -> Program:
        """Start the command; `answers` says when it is ready."""
        from benchflow.arena.peers.arena_network import free_port

        port = await free_port(sandbox)
        url = f"http://{HOST}:{port}/"
        words = ["--host", HOST, "--port", str(port), "--card-url", url]
        variables = {**env, "HOST": HOST, "PORT": str(port), "CARD_URL": url}
        argv = ["sh", "-c", _START.format(command=command), "sh", *words]
        process = await sandbox.process(argv, user=user, env=variables, cwd=cwd)
        return cls(name, sandbox, process, port, log)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def _run(self) -> None:
        """Keep its output and notice its end."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._drain, self._process.stdout())
            group.start_soon(self._drain, self._process.stderr())
            try:
                self.exit_code = await self._process.wait()
            except SandboxFailure:
                self.exit_code = -1

    async def wait(self, timeout: float) -> int | None:
        """Its exit code, if it has ended or ends within the time."""
        await asyncio.wait({self._watch}, timeout=timeout)
        return self.exit_code

    async def _drain(self, chunks: Any) -> None:
        async for chunk in chunks:
            self._log.write(chunk)

    async def peer(self, timeout: float, start_sec: float) -> A2APeer:
        """The program as a peer, entered, as soon as its card answers; a program that ends first has failed."""
        from benchflow.arena.a2a_client import A2APeer
        from benchflow.arena.peers.arena_network import BoxTransport

        until = anyio.current_time() + start_sec
        while True:
            peer = A2APeer(self.url, timeout=timeout, transport=BoxTransport(self._sandbox, self.port))
            try:
                return await peer.__aenter__()
            except PeerFailure as error:
                if self.exit_code is not None:
                    said = f": {self._log.last_line}" if self._log.last_line else ""
                    message = f"The program '{self._name}' exited with code {self.exit_code} at its start{said}."
                    raise PeerFailure("unreachable", message) from error
                if error.problem != "unreachable" or anyio.current_time() >= until:
                    raise
            await anyio.sleep(_POLL_SEC)

    async def close(self) -> None:
        """End it with everything that it started; idempotent."""
        with anyio.CancelScope(shield=True):
            await end_for_sure(self._process)
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._log.close()


class PeerExecutor:
    """An executor that passes messages on to a peer, conversation by conversation."""

    def __init__(self, role: str, peer: A2APeer) -> None:
        self._role: Final = role
        self._peer: Final = peer
        self._contexts: dict[str, str] = {}
        """Their id of a conversation, by ours."""
        self._tasks: dict[str, str] = {}
        """Their task that is under way or waits for the next message of a conversation."""

    async def answer(self, message: Message, context_id: str, updates: Updates) -> Reply:
        waiting = self._tasks.pop(context_id, None)
        sent = Message(
            message.parts,
            message_id=message.message_id,
            context_id=self._contexts.get(context_id),
            task_id=waiting,
            metadata=message.metadata,
        )
        state: State = "completed"
        last: tuple[Part, ...] = ()
        made: dict[str, list[Part]] = {}
        async with aclosing(self._peer.exchange(sent, _NO_LIMIT)) as events:
            async for event in events:
                if event.context_id:
                    self._contexts[context_id] = event.context_id
                if isinstance(event, MessageEvent):
                    return Reply(event.message.parts)
                self._tasks[context_id] = event.task_id
                if isinstance(event, ArtifactEvent):
                    made[event.artifact_id] = [*(made.get(event.artifact_id, ()) if event.append else ()), *event.parts]
                    continue
                state, last = event.state, () if event.message is None else event.message.parts
                if state in ("submitted", "working"):
                    if last:
                        await updates.status(text_of(last) or None)
                    last = ()
        if state not in INTERRUPTED:
            self._tasks.pop(context_id, None)
        if state in ("failed", "rejected"):
            said = text_of(last)[:300] or "without a reason"
            raise PeerFailure("refused", f"The participant '{self._role}' ended its task as {state}: {said}")
        return Reply((*(part for parts in made.values() for part in parts), *last), state)

    async def cancel(self, context_id: str) -> None:
        task = self._tasks.pop(context_id, None)
        if task is not None:
            await self._peer.cancel(task)

    async def close(self) -> None:
        """End the tasks under way, and the connection; idempotent."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SEC):
            for task in tuple(self._tasks.values()):
                try:
                    await self._peer.cancel(task)
                except PeerFailure:
                    continue  # it is gone, or will not
        with anyio.CancelScope(shield=True):
            await self._peer.__aexit__(None, None, None)


_CLOSE_SEC: Final = 3.0
_EXIT_SEC: Final = 1.0


class ProgramExecutor(PeerExecutor):
    """A program of ours in a box: one that ended has crashed, and is not merely out of reach."""

    def __init__(self, role: str, agent: ProgramAgent) -> None:
        if agent.peer is None:
            raise ValueError("the program was not started")
        super().__init__(role, agent.peer)
        self._agent: Final = agent

    async def answer(self, message: Message, context_id: str, updates: Updates) -> Reply:
        try:
            return await super().answer(message, context_id, updates)
        except PeerFailure as error:
            if error.problem != "unreachable":
                raise
            code = await self._agent.wait(_EXIT_SEC)
            if code is None:
                raise
            raise Crashed(self._role, f"exited with code {code}") from error


class ProgramAgent(Agent):
    """The program as an agent of any rollout; an arena takes its `executor` instead of prompting it."""

    asks_inside = True

    def __init__(self, request: AgentRequest) -> None:
        if not request.argument:
            raise UsageError("The agent 'a2a' needs a command: a2a:COMMAND.", code="agent-argument")
        self.name = request.name
        self._command: Final = request.argument
        self._program: Program | None = None
        self._context: AgentContext | None = None
        self.peer: A2APeer | None = None

    def check(self, env: Mapping[str, str]) -> None:
        del env
        require_arena(f"The agent '{self.name}' needs")

    async def start(self, context: AgentContext) -> None:
        models = context.models.variables() if context.models is not None else {}
        log = OutputLog(context.log_folder / "a2a.txt", context.redactor)
        self._context = context
        self._program = program = await Program.start(
            self.name,
            self._command,
            context.sandbox,
            log,
            user=context.user,
            env={**models, **context.env},
            cwd=context.workdir,
        )
        self.peer = await program.peer(_NO_LIMIT, context.limits.start_timeout_sec)
        context.events("agent_started", agent=self.name)

    async def wait(self, timeout: float) -> int | None:
        """Its exit code, if it has ended or ends within the time."""
        return await self._program.wait(timeout) if self._program is not None else None

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        if self.peer is None or self._context is None:
            raise AgentFailure(f"The agent '{self.name}' is not running.", code="not-started")
        executor = PeerExecutor(self.name, self.peer)
        with anyio.move_on_after(timeout):
            reply = await executor.answer(Message(parts_of(text)), "prompt", _Unheard())
            said = text_of(reply.parts)
            self._context.events("agent_message", text=said)
            return TurnResult("end_turn", said)
        self._context.events("agent_timeout", reason="the time limit was reached", timeout_sec=timeout)
        return TurnResult("timeout", timed_out=True)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            if self.peer is not None:
                await self.peer.__aexit__(None, None, None)
            if self._program is not None:
                await self._program.close()
        self.peer = self._program = None


class _Unheard:
    """Updates that nobody waits for."""

    async def status(
        self, text: str | None = None, data: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        del text, data, metadata

    async def artifact(self, parts: tuple[Part, ...], name: str | None = None) -> None:
        del parts, name


KIND: Final = AgentKind(
    AgentInfo(
        "a2a",
        "Any program that is an A2A server, as in arenas.",
        "process",
        argument="COMMAND",
        needs=("the extra arena",),
        models="variables",
    ),
    agent=ProgramAgent,
)
