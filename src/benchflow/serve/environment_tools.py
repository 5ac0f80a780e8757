"""The tools of an environment's MCP servers, which run inside its sandbox and talk over their standard streams.

A server that listens on a port of the sandbox cannot be reached from here: such a package is refused.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

import anyio

from benchflow.agents.workspace import Workspace
from benchflow.errors import EnvironmentFailure, SandboxFailure, UnsupportedError
from benchflow.sandbox.protocol import SandboxProcess
from benchflow.sandbox.task_policy import mcp_servers
from benchflow.serve.episode import Block, CallResult, ToolSpec
from benchflow.task.runtime_view import TaskRuntimeView

START_SEC: Final = 60.0
CALL_SEC: Final = 600.0
MAX_LINE: Final = 16 << 20
_VERSION: Final = "2025-06-18"
_EMPTY: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


class EnvironmentTools:
    """The running MCP servers of a package, and which of their tools has which name."""

    def __init__(self) -> None:
        self._owners: Final[dict[str, tuple[_McpProcess, str]]] = {}
        self.specs: tuple[ToolSpec, ...] = ()

    @classmethod
    async def start(
        cls, view: TaskRuntimeView, workspace: Workspace, machine: Mapping[str, str], taken: Iterable[str]
    ) -> EnvironmentTools:
        """Start them as the agent's user; a tool whose name is taken gets that of its server before it."""
        found = cls()
        names, specs = set(taken), []
        for index, server in enumerate(mcp_servers(view, machine)):
            path = f"environment.mcp_servers[{index}].transport"
            if "command" not in server:
                message = f"{path}: served episodes use MCP servers over stdio, and '{server['name']}' is another kind."
                raise UnsupportedError(message, code="mcp-transport", path=path)
            process = await _McpProcess.start(workspace, server)
            for tool in await process.tools():
                own = str(tool.get("name"))
                name = own if own not in names else f"{server['name']}__{own}"
                names.add(name)
                found._owners[name] = process, own
                specs.append(ToolSpec(name, str(tool.get("description") or name), tool.get("inputSchema") or _EMPTY))
        found.specs = tuple(specs)
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._owners

    async def call(self, name: str, arguments: Mapping[str, Any], *, seconds: float | None) -> CallResult:
        process, own = self._owners[name]
        limit = CALL_SEC if seconds is None else min(CALL_SEC, max(seconds, 0.1))
        try:
            with anyio.fail_after(limit):
                answer = await process.request("tools/call", {"name": own, "arguments": dict(arguments)})
        except TimeoutError:
            message = f"The MCP server of {name} did not answer within {limit:g} s."
            raise EnvironmentFailure(message, code="timeout") from None
        if "error" in answer:
            said = str(dict(answer["error"]).get("message", "it failed"))
            return CallResult((Block(f"error: {said}"),), metadata={"error": "mcp"})
        result = dict(answer.get("result") or {})
        blocks = tuple(_block(dict(each)) for each in result.get("content") or ()) or (Block(""),)
        return CallResult(blocks, metadata={"is_error": True} if result.get("isError") else {})


def _block(content: Mapping[str, Any]) -> Block:
    if content.get("type") == "image":
        return Block(str(content.get("data", "")), str(content.get("mimeType", "image/png")))
    return Block(str(content["text"]) if "text" in content else json.dumps(content))


class _McpProcess:
    """One server: requests one at a time, since calls of an episode are."""

    def __init__(self, name: str, process: SandboxProcess) -> None:
        self._name: Final = name
        self._process: Final = process
        self._lines: Final = _lines(process.stdout())
        self._last = 0

    @classmethod
    async def start(cls, workspace: Workspace, server: Mapping[str, Any]) -> _McpProcess:
        env = {**(workspace.env or {}), **{each["name"]: each["value"] for each in server["env"]}}
        process = await workspace.sandbox.process(
            [server["command"], *server["args"]], user=workspace.user, env=env, cwd=workspace.workdir
        )
        found = cls(server["name"], process)
        try:
            with anyio.fail_after(START_SEC):
                client = {"name": "benchcube", "version": "1"}
                await found.request(
                    "initialize", {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": client}
                )
                await found._send({"method": "notifications/initialized"})
        except TimeoutError:
            message = f"The MCP server '{found._name}' did not start within {START_SEC:g} s."
            raise EnvironmentFailure(message, code="mcp-failed") from None
        return found

    async def tools(self) -> list[dict[str, Any]]:
        with anyio.fail_after(START_SEC):
            answer = await self.request("tools/list", {})
        listed = dict(answer.get("result") or {}).get("tools") or []
        return [tool for tool in listed if isinstance(tool, dict) and isinstance(tool.get("name"), str)]

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The answer; a server that is gone or does not keep to the protocol is an `EnvironmentFailure`."""
        self._last += 1
        try:
            await self._send({"id": self._last, "method": method, "params": params})
            async for line in self._lines:
                message = _parsed(line)
                if message is not None and message.get("id") == self._last and "method" not in message:
                    return message
        except SandboxFailure as error:
            if error.code in ("sandbox-gone", "helper-gone"):
                raise
        raise EnvironmentFailure(f"The MCP server '{self._name}' of the environment has ended.", code="mcp-failed")

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self._process.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None  # servers print banners
    return message if isinstance(message, dict) else None


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    pending = bytearray()
    async for chunk in chunks:
        pending += chunk
        *whole, rest = pending.split(b"\n")
        pending = bytearray(rest)
        for line in whole:
            yield bytes(line)
        if len(pending) > MAX_LINE:
            return
