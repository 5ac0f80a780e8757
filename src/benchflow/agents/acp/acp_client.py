"""The client side of a session: requests of the agent, served inside the sandbox.

Files and terminals have the permissions of the agent's user. An invalid request gets an error response;
nothing an agent sends raises an exception here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from acp import RequestError, schema
from pydantic import BaseModel, ValidationError

from benchflow.agents.acp.updates import Turn
from benchflow.agents.permission_requests import decide
from benchflow.agents.protocol import AgentContext, PermissionOption, PermissionRequest
from benchflow.agents.workspace import Workspace, WorkspaceError
from benchflow.errors import BenchflowError, SandboxFailure
from benchflow.sandbox.inside.beneath import is_plain
from benchflow.sandbox.protocol import SandboxProcess

_MAX_AT_ONCE: Final = 256
_METHOD_TOOLS: Final[Mapping[str, frozenset[str]]] = {
    "fs/read_text_file": frozenset({"read", "read_text_file"}),
    "fs/write_text_file": frozenset({"edit", "write", "write_text_file"}),
    "terminal/create": frozenset({"execute", "bash", "shell", "terminal"}),
}
Handler = Callable[[Mapping[str, Any]], Awaitable[BaseModel | dict[str, Any] | None]]


class Client:
    """Answers the requests of one agent; the SDK's connection calls it for every message."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._forbidden = frozenset(name.lower() for name in context.forbidden_tools)
        self._workspace = Workspace(context.sandbox, context.workdir, context.user, context.env)
        self.terminals = Terminals(context)
        self.turn = Turn(context.events)
        self.cancelled = False
        self.in_flight = 0
        self.last_sign = time.monotonic()
        self._handlers: Final[Mapping[str, Handler]] = {
            "session/request_permission": self._permission,
            "fs/read_text_file": self._read,
            "fs/write_text_file": self._write,
            "terminal/create": self._terminal_create,
            "terminal/output": self._terminal_output,
            "terminal/wait_for_exit": self._terminal_wait,
            "terminal/kill": self._terminal_kill,
            "terminal/release": self._terminal_release,
        }

    def begin_turn(self) -> Turn:
        self.turn = Turn(self._context.events)
        self.cancelled = False
        self.last_sign = time.monotonic()
        return self.turn

    @property
    def busy(self) -> bool:
        """Whether the agent is waiting for a request that is in progress."""
        return bool(self.turn.pending) or self.in_flight > 0

    async def __call__(self, method: str, params: Any, is_notification: bool) -> BaseModel | dict[str, Any] | None:
        self.last_sign = time.monotonic()
        given = params if isinstance(params, Mapping) else {}
        if is_notification:
            update = given.get("update")
            if method == "session/update" and isinstance(update, Mapping):
                self._update(update)
            return None
        handler = self._handlers.get(method)
        if handler is None:
            raise RequestError.method_not_found(method)
        if self.in_flight >= _MAX_AT_ONCE:
            raise RequestError.internal_error({"details": f"More than {_MAX_AT_ONCE} requests at once."})
        self.in_flight += 1
        try:
            self._require_allowed(method)
            return await handler(given)
        except (ValidationError, ValueError) as error:
            raise RequestError.invalid_params({"details": str(error)}) from error
        except WorkspaceError as error:
            raise RequestError.invalid_params({"details": str(error)}) from error
        except BenchflowError as error:
            raise RequestError.internal_error({"details": str(error)}) from error
        finally:
            self.in_flight -= 1
            self.last_sign = time.monotonic()

    def _update(self, update: Mapping[str, Any]) -> None:
        self.turn.update(update)
        if update.get("sessionUpdate") == "tool_call" and self._is_forbidden(update):
            self.turn.release(str(update.get("toolCallId") or ""))
            self._context.events(
                "error", code="forbidden-tool", message=f"The tool '{update.get('title')}' is forbidden."
            )

    def _require_allowed(self, method: str) -> None:
        if _METHOD_TOOLS.get(method, frozenset()) & self._forbidden:
            raise WorkspaceError(f"{method} is forbidden here.")

    def _is_forbidden(self, tool_call: Mapping[str, Any]) -> bool:
        title = str(tool_call.get("title") or "").lower()
        names = {title, title.partition(" ")[0].rstrip(":"), str(tool_call.get("kind") or "").lower()}
        return bool(names & self._forbidden)

    async def _permission(self, params: Mapping[str, Any]) -> dict[str, Any]:
        request = _parse_permission(params)
        self._asked_for(request.tool_call)
        forbidden = self._is_forbidden(request.tool_call)
        decision = await decide(request, self._context.ask, forbidden=forbidden)
        option_id = None if self.cancelled else decision.option_id
        self._context.events(
            "permission",
            title=request.title,
            tool_call_id=request.tool_call.get("toolCallId"),
            options=[{"id": option.id, "kind": option.kind, "name": option.name} for option in request.options],
            chosen=option_id,
            granted=decision.granted and not self.cancelled,
            reason="the turn was cancelled" if self.cancelled else decision.reason,
        )
        if option_id is None:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": option_id}}

    def _asked_for(self, tool_call: Mapping[str, Any]) -> None:
        """Record the tool call of a permission request before the decision, with the details of the request."""
        call = str(tool_call.get("toolCallId") or "")
        if self.turn.is_held(call):
            self.turn.update({**tool_call, "sessionUpdate": "tool_call_update", "status": "pending"})
            self.turn.release(call)

    async def _read(self, params: Mapping[str, Any]) -> schema.ReadTextFileResponse:
        asked = schema.ReadTextFileRequest.model_validate(params)
        _require_absolute(asked.path)
        text = await self._workspace.read_text(asked.path, line=asked.line, limit=asked.limit)
        return schema.ReadTextFileResponse(content=text)

    async def _write(self, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = schema.WriteTextFileRequest.model_validate(params)
        _require_absolute(asked.path)
        await self._workspace.write_text(asked.path, asked.content)
        return {}

    async def _terminal_create(self, params: Mapping[str, Any]) -> schema.CreateTerminalResponse:
        asked = schema.CreateTerminalRequest.model_validate(params)
        env = {variable.name: variable.value for variable in asked.env or ()}
        name = await self.terminals.create(asked.command, asked.args or (), env, asked.cwd, asked.output_byte_limit)
        return schema.CreateTerminalResponse(terminal_id=name)

    async def _terminal_output(self, params: Mapping[str, Any]) -> dict[str, Any]:
        terminal = self.terminals.get(schema.TerminalOutputRequest.model_validate(params).terminal_id)
        answer: dict[str, Any] = {"output": terminal.output, "truncated": terminal.truncated}
        if terminal.exit_code is not None:
            answer["exitStatus"] = {"exitCode": terminal.exit_code}
        return answer

    async def _terminal_wait(self, params: Mapping[str, Any]) -> dict[str, Any]:
        terminal = self.terminals.get(schema.WaitForTerminalExitRequest.model_validate(params).terminal_id)
        return {"exitCode": await terminal.wait()}

    async def _terminal_kill(self, params: Mapping[str, Any]) -> dict[str, Any]:
        await self.terminals.get(schema.KillTerminalRequest.model_validate(params).terminal_id).kill()
        return {}

    async def _terminal_release(self, params: Mapping[str, Any]) -> dict[str, Any]:
        await self.terminals.release(schema.ReleaseTerminalRequest.model_validate(params).terminal_id)
        return {}


def _require_absolute(path: str) -> None:
    if not path.startswith("/") or not is_plain(path):
        raise WorkspaceError(f"'{path}' is refused: a path must be absolute and must not contain '..'.")


def _parse_permission(params: Mapping[str, Any]) -> PermissionRequest:
    """Parse a request; `ValueError` if it is not one."""
    tool_call = params.get("toolCall")
    options = params.get("options")
    if not isinstance(tool_call, Mapping) or not isinstance(options, Sequence) or isinstance(options, str):
        raise ValueError("a permission request needs toolCall and options")
    return PermissionRequest(
        title=str(tool_call.get("title") or tool_call.get("toolCallId") or ""),
        options=tuple(_option(option) for option in options),
        tool_call=tool_call,
    )


def _option(option: Any) -> PermissionOption:
    if not isinstance(option, Mapping) or not isinstance(option.get("optionId"), str):
        raise ValueError("every option needs an optionId")
    return PermissionOption(option["optionId"], str(option.get("kind") or ""), str(option.get("name") or ""))


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
