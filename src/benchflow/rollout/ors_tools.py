"""The tools of an ORS environment in a rollout: its session, its rewards as lines, and a way for agents in a sandbox.

A model gets the tools as functions (`AgentContext.tools`). An agent that runs inside the sandbox gets them as an MCP
server: the command that it starts passes bytes through two named pipes, at whose other end this process answers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import anyio

from benchflow.agents.protocol import RemoteTool, RemoteTools
from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.ors.ors_client import OrsClient, OrsSession, OrsTool, spec_digest
from benchflow.rewards import attributed
from benchflow.sandbox.protocol import Sandbox, SandboxProcess
from benchflow.task.config.namespace import OrsEnvironment

REWARDS: Final = "trajectory/ors-rewards.jsonl"
"""Where the rewards of an episode are written, below the folder of a rollout."""
_PIPES: Final = 'mkdir -m 755 "$1" && mkfifo -m 666 "$1/in" "$1/out"'
_SERVER: Final = 'exec 3<&0; cat <&3 >"{folder}/in" & exec cat "{folder}/out"'
_READ: Final = 'while :; do cat "$1/in"; done'
_WRITE: Final = 'cat >"$1/out"'
OVER: Final = "The episode is over: no further calls are accepted."


class OrsTools(RemoteTools):
    """One episode of an ORS environment, for the agents of a rollout."""

    def __init__(self, session: OrsSession, tools: list[OrsTool], lines: Path) -> None:
        self.specs = tuple(RemoteTool(tool.name, tool.description, tool.input_schema) for tool in tools)
        self.finished = False
        self.failure: EnvironmentFailure | None = None
        self.mcp_servers: tuple[Mapping[str, Any], ...] = ()
        """For agents inside the sandbox."""
        self._session: Final = session
        self._lines: Final = lines
        self._step = 0
        self._turn: Final = anyio.Lock()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """What a call shows, and whether it was carried out; a server that fails is an `EnvironmentFailure`."""
        async with self._turn:
            if self.failure is not None:
                raise self.failure
            if self.finished:
                return OVER, False
            try:
                output = await self._session.call(name, arguments)
                if not output.ok:
                    return f"error: {output.text}", False
                if output.finished and output.reward is None and output.metadata.get("status") == "unscored":
                    error = output.metadata.get("error") or {}
                    raise EnvironmentFailure(f"The ORS environment gave no score: {error}"[:1000], code="ors-unscored")
            except EnvironmentFailure as error:
                self.failure = error
                raise
            self._step += 1
            self.finished = output.finished
            self._note(name, output.reward, finished=output.finished)
            return output.text, True

    def _note(self, tool: str, reward: float | None, *, finished: bool) -> None:
        record = {
            "tool": tool,
            "reward": reward,
            "finished": finished,
            "granularity": "terminal" if finished else "step",
            "step": self._step,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        self._lines.parent.mkdir(parents=True, exist_ok=True)
        with self._lines.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")

    def require_intact(self) -> None:
        """Raise the failure of the environment, if there was one that an agent did not pass on."""
        if self.failure is not None:
            raise self.failure


@asynccontextmanager
async def ors_tools(
    declared: OrsEnvironment, machine: Mapping[str, str], folder: Path, sandbox: Sandbox
) -> AsyncIterator[OrsTools]:
    """The session of the declared environment; it is closed at the end of the block."""
    token = None
    if declared.token_env is not None:
        token = machine.get(declared.token_env)
        if not token:
            path = "benchflow.ors.token_env"
            message = f"{path} needs the variable {declared.token_env}, which is not set on this machine."
            raise EnvironmentFailure(message, code="variable-missing", path=path)
    with attributed("environment", "environment"):
        async with OrsClient(declared.url, token) as client:
            spec = await client.task(declared.environment, declared.split, declared.index)
            if spec_digest(spec) != declared.spec_digest:
                message = "benchflow.ors.spec_digest: the server returns another specification; import the task again."
                raise EnvironmentFailure(message, code="ors-changed", path="benchflow.ors.spec_digest")
            async with client.session(declared.environment, spec) as session:
                await session.prompt()
                found = OrsTools(session, await session.tools(), folder / REWARDS)
                async with _relayed(sandbox, found):
                    yield found


@asynccontextmanager
async def _relayed(sandbox: Sandbox, tools: OrsTools) -> AsyncIterator[None]:
    """The tools as an MCP server for agents inside the sandbox."""
    folder = f"/tmp/.ors-{token_hex(8)}"  # noqa: S108 - inside the sandbox
    made = await sandbox.exec(["sh", "-c", _PIPES, "sh", folder], user="root", cwd="/", timeout=60)
    if not made.ok:
        raise EnvironmentFailure("The pipes of the ORS tools could not be made in the sandbox.", code="setup-failed")
    tools.mcp_servers = (
        {"name": "ors", "transport": "stdio", "command": "sh", "args": ["-c", _SERVER.format(folder=folder)]},
    )
    async with anyio.create_task_group() as group:
        group.start_soon(_serve, sandbox, folder, tools)
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def _serve(sandbox: Sandbox, folder: str, tools: OrsTools) -> None:
    """Answer MCP requests until the sandbox ends; an agent that starts its server again is answered too."""
    try:
        reader = await sandbox.process(["sh", "-c", _READ, "sh", folder], user="root", cwd="/")
        writer = await sandbox.process(["sh", "-c", _WRITE, "sh", folder], user="root", cwd="/")
        try:
            async for line in _lines(reader):
                answer = await _answer(line, tools)
                if answer is not None:
                    await writer.send(json.dumps(answer).encode() + b"\n")
        finally:
            with anyio.CancelScope(shield=True):
                await reader.kill()
                await writer.kill()
    except SandboxFailure:
        return  # the rollout notices by itself


async def _lines(process: SandboxProcess) -> AsyncIterator[bytes]:
    pending = bytearray()
    async for chunk in process.stdout():
        pending += chunk
        *whole, rest = pending.split(b"\n")
        pending = bytearray(rest)
        for line in whole:
            yield bytes(line)


async def _answer(line: bytes, tools: OrsTools) -> dict[str, Any] | None:
    try:
        asked = json.loads(line)
        method, number = asked.get("method"), asked.get("id")
    except (ValueError, AttributeError, RecursionError):
        return None
    if number is None:
        return None
    params = asked.get("params") or {}
    match method:
        case "initialize":
            version = params.get("protocolVersion", "2025-06-18")
            info = {"name": "ors", "version": "1"}
            result: dict[str, Any] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {
                "tools": [
                    {"name": spec.name, "description": spec.description, "inputSchema": dict(spec.input_schema)}
                    for spec in tools.specs
                ]
            }
        case "tools/call":
            result = await _called(tools, params)
        case "ping":
            result = {}
        case _:
            return {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": f"no method {method}"}}
    return {"jsonrpc": "2.0", "id": number, "result": result}


async def _called(tools: OrsTools, params: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text, ok = await tools.call(str(params.get("name")), params.get("arguments") or {})
    except EnvironmentFailure:  # kept by the tools, and raised when the agent has ended
        text, ok = "error: the environment failed.", False
    return {"content": [{"type": "text", "text": text}], "isError": not ok}
