"""Tools of the environment for the peers of an arena, as an MCP server per participant with a token per role.

    participant's box                     driver                              the environment's own box
    client ── lo:PORT/mcp, token ═══════> RoleTools(role) ──> ToolWorld ═════> MCP server of the package (stdio)
                                          writes who called what

The server runs once, where no participant is, so what one role changes the others see. Each call carries the role in
`_meta`, as the driver knows it: a participant can neither use another role's tools nor hide a call. A role has one call
under way, so one that floods its tools waits for itself.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio

from benchflow.agents.protocol import RemoteTool, RemoteTools
from benchflow.agents.running import end_for_sure
from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record import MessageFile
from benchflow.record.trajectory import timestamp
from benchflow.sandbox.protocol import Sandbox, SandboxProcess

ROLE_META: Final = "benchflow/role"
"""The key of `_meta` with the role that called."""
VERSION: Final = "2025-06-18"
CALL_SEC: Final = 300.0
START_SEC: Final = 60.0
MAX_BODY: Final = 1 << 20
MAX_LINE: Final = 8 << 20
MAX_CALLS: Final = 10_000
"""Calls of one role in one game."""
MAX_ARGUMENTS: Final = 32 << 20
"""Bytes of the arguments of all calls of one role, which the record keeps."""
_ENDED: Final = "it has ended"
_KEPT: Final = 8_000
"""Characters of an output that are written down."""


class StdioServer:
    """One MCP server of the package, that talks over its standard streams."""

    def __init__(self, name: str, process: SandboxProcess) -> None:
        self.name: Final = name
        self.tools: tuple[RemoteTool, ...] = ()
        self._process: Final = process
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._next = 0
        self._ended = False
        self._outgoing: Final[asyncio.Queue[bytes]] = asyncio.Queue()
        self._tasks: Final = (asyncio.create_task(self._read()), asyncio.create_task(self._write()))

    async def begin(self) -> None:
        """Introduce ourselves and learn the tools; a server that cannot is an `EnvironmentFailure`."""
        client = {"name": "benchflow", "version": "1"}
        try:
            with anyio.fail_after(START_SEC):
                await self.ask("initialize", {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client})
                self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
                listed = await self.ask("tools/list", {})
        except (TimeoutError, ConnectionError) as error:
            message = f"The MCP server '{self.name}' of the package does not answer: {str(error) or 'it is silent'}."
            raise EnvironmentFailure(message, code="mcp-failed", path="environment.mcp_servers") from error
        found = listed.get("tools")
        self.tools = tuple(
            RemoteTool(str(tool["name"]), str(tool.get("description") or ""), tool.get("inputSchema") or {})
            for tool in (found if isinstance(found, list) else [])
            if isinstance(tool, dict) and tool.get("name")
        )

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of a request; an error of the server, and its end, is a `ConnectionError`."""
        if self._ended:
            raise ConnectionError(_ENDED)
        self._next += 1
        number = self._next
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)})
            return await answer
        finally:
            self._waiting.pop(number, None)

    def _send(self, message: Mapping[str, Any]) -> None:
        self._outgoing.put_nowait(json.dumps(message).encode() + b"\n")

    async def _write(self) -> None:
        """One line after the other, whole ones: a caller that is gone leaves no half of a line to the next."""
        try:
            while True:
                await self._process.send(await self._outgoing.get())
        except (SandboxFailure, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._end()

    async def _read(self) -> None:
        """Take every line; what is longer than a line may be is left out, and the server is still used."""
        pending, size, skipping = list[bytes](), 0, False
        try:
            async for chunk in self._process.stdout():
                if not skipping:
                    pending.append(chunk)
                    size += len(chunk)
                if b"\n" in chunk:
                    *lines, rest = (chunk if skipping else b"".join(pending)).split(b"\n")
                    for line in lines[skipping:]:
                        self._take(line)
                    pending, size, skipping = [rest], len(rest), False
                elif size > MAX_LINE:
                    self._too_long()
                    pending, size, skipping = [], 0, True
        finally:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._fail(ConnectionError(_ENDED))

    def _too_long(self) -> None:
        """An answer without a limit: its call is known only if no other one is under way; others reach their limit."""
        if len(self._waiting) == 1:
            self._fail(ConnectionError(f"the answer has more than {MAX_LINE} bytes"))

    def _fail(self, error: ConnectionError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _take(self, line: bytes) -> None:
        if len(line) > MAX_LINE:
            return self._too_long()
        try:
            message = json.loads(line)
            waiting = self._waiting.get(message.get("id"))
        except (ValueError, AttributeError, TypeError, RecursionError):
            return None  # a server may print what it likes
        if waiting is None or waiting.done():
            return None
        if isinstance(message.get("result"), dict):
            waiting.set_result(message["result"])
        else:
            error = message.get("error")
            said = error.get("message") if isinstance(error, dict) else error
            waiting.set_exception(ConnectionError(str(said)[:300]))
        return None

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await end_for_sure(self._process)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


class ToolWorld:
    """The tools of the package, shared by all roles; every call is written down with its role."""

    def __init__(self, servers: Sequence[StdioServer], file: MessageFile) -> None:
        self._by_tool: Final = {tool.name: server for server in servers for tool in server.tools}
        self.specs: Final = tuple(tool for server in servers for tool in server.tools)
        self.by_role: Final[Counter[str]] = Counter()
        self.calls: Final[list[dict[str, Any]]] = []
        """What was called, for the assessor."""
        self._file: Final = file
        self._bytes: Final[Counter[str]] = Counter()
        """Of the arguments, by role."""
        self._turns: Final[defaultdict[str, anyio.Lock]] = defaultdict(anyio.Lock)

    async def call(self, role: str, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """What a call shows, and whether it was carried out; the next call of the role waits for it."""
        async with self._turns[role]:
            return await self._call(role, name, arguments)

    async def _call(self, role: str, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        began = time.monotonic()
        self.by_role[role] += 1
        self._bytes[role] += len(json.dumps(arguments)) + len(name)
        server = self._by_tool.get(name)
        if self.by_role[role] > MAX_CALLS:
            return f"error: more than {MAX_CALLS} calls.", False
        if self._bytes[role] > MAX_ARGUMENTS:
            return f"error: the arguments of all calls have more than {MAX_ARGUMENTS} bytes.", False
        if server is None:
            text, ok = f"error: unknown tool {name[:100]!r}.", False
        else:
            text, ok = await self._asked(server, role, name, arguments)
        seconds = round(time.monotonic() - began, 6)
        call = self._file.append_call(
            time=timestamp(),
            role=role,
            tool=name[:200],
            arguments=dict(arguments),
            ok=ok,
            output=text[:_KEPT],
            seconds=seconds,
        )
        self.calls.append(
            {"seq": call.seq, "role": role, "tool": name, "arguments": dict(arguments), "ok": ok, "output": call.output}
        )
        return text, ok

    async def _asked(self, server: StdioServer, role: str, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        params = {"name": name, "arguments": dict(arguments), "_meta": {ROLE_META: role}}
        try:
            with anyio.fail_after(CALL_SEC):
                result = await server.ask("tools/call", params)
        except (TimeoutError, ConnectionError) as error:
            return f"error: {str(error) or 'the tool did not answer'}", False
        content = result.get("content")
        parts = [item for item in (content if isinstance(content, list) else []) if isinstance(item, dict)]
        text = "\n".join(str(item.get("text", f"[{item.get('type')}]")) for item in parts)
        return text, result.get("isError") is not True


class RoleTools(RemoteTools):
    """The tools as one role has them."""

    finished = False

    def __init__(self, world: ToolWorld, role: str) -> None:
        self.specs = world.specs
        self._world: Final = world
        self._role: Final = role

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        return await self._world.call(self._role, name, arguments)


class ToolEndpoint:
    """Tools as an ASGI application: MCP over HTTP, one answer per request, for callers with the token."""

    def __init__(self, tools: RemoteTools) -> None:
        self.tools: Final = tools
        self.token: Final = secrets.token_urlsafe(24)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {bytes(name).lower(): bytes(value) for name, value in scope["headers"]}
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if not hmac.compare_digest(given, self.token.encode()):
            await _answer(send, 401, {"error": "this needs the token of the role"})
        elif scope["method"] != "POST":
            await _answer(send, 405, {"error": "only POST is answered"})
        else:
            body = await _body(receive)
            if body is None:
                await _answer(send, 413, {"error": f"a request has at most {MAX_BODY} bytes"})
                return
            answer = await self._rpc(body)
            await _answer(send, 202 if answer is None else 200, answer)

    async def _rpc(self, body: bytes) -> dict[str, Any] | None:
        try:
            asked = parse_json(body)
        except StrictJSONError as error:
            return _error(None, -32700, f"the request {error}")
        if not isinstance(asked, dict) or not isinstance(asked.get("params") or {}, dict):
            return _error(None, -32600, "not a request of JSON-RPC")
        method, number, params = asked.get("method"), asked.get("id"), asked.get("params") or {}
        if number is None:
            return None
        result: dict[str, Any]
        match method:
            case "initialize":
                info = {"name": "environment", "version": "1"}
                version = params.get("protocolVersion", VERSION)
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                result = {"tools": [_shown(spec) for spec in self.tools.specs]}
            case "tools/call":
                arguments = params.get("arguments")
                text, ok = await self.tools.call(
                    str(params.get("name")), arguments if isinstance(arguments, dict) else {}
                )
                result = {"content": [{"type": "text", "text": text}], "isError": not ok}
            case "ping":
                result = {}
            case _:
                return _error(number, -32601, f"no method {str(method)[:60]}")
        return {"jsonrpc": "2.0", "id": number, "result": result}


def _error(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def _shown(spec: RemoteTool) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "inputSchema": dict(spec.input_schema)}


async def _body(receive: Any) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return bytes(body)


async def _answer(send: Any, status: int, value: Any) -> None:
    data = b"" if value is None else json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of a role, and where they are in its box."""

    endpoint: ToolEndpoint
    url: str

    @property
    def tools(self) -> RemoteTools:
        return self.endpoint.tools

    def variables(self) -> dict[str, str]:
        """For scripts and programs."""
        return {"BENCHFLOW_MCP_URL": self.url, "BENCHFLOW_MCP_TOKEN": self.endpoint.token}

    def server(self) -> dict[str, Any]:
        """For agents that take MCP servers."""
        headers = [{"name": "Authorization", "value": f"Bearer {self.endpoint.token}"}]
        return {"type": "http", "name": "environment", "url": self.url, "headers": headers}


class ToolCallsApp:
    """What was called so far, as JSON lines, for the assessor."""

    def __init__(self, world: ToolWorld) -> None:
        self._world: Final = world

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        del receive
        if scope["type"] == "http":
            await _answer(send, 200, {"calls": self._world.calls})


@asynccontextmanager
async def tool_world(
    sandbox: Sandbox, declared: Sequence[Mapping[str, Any]], file: MessageFile, user: str | None
) -> AsyncIterator[ToolWorld]:
    """The declared servers (`command`, `args`, `env`), started; they end with the block."""
    servers: list[StdioServer] = []
    try:
        for server in declared:
            env = {item["name"]: item["value"] for item in server.get("env") or ()}
            argv = ["sh", "-c", 'exec "$@"', "sh", server["command"], *server["args"]]
            process = await sandbox.process(argv, user=user, env=env, cwd=sandbox.spec.workdir)
            made = StdioServer(server["name"], process)
            servers.append(made)
            await made.begin()
        names = [tool.name for server in servers for tool in server.tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            message = f"Two MCP servers of the package have a tool '{twice}'."
            raise EnvironmentFailure(message, code="mcp-failed", path="environment.mcp_servers")
        yield ToolWorld(servers, file)
    finally:
        for made in servers:
            await made.close()
