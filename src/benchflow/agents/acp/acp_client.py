"""The client side of a session: requests of the agent, served inside the sandbox.

Files and terminals have the permissions of the agent's user. An invalid request gets an error response;
nothing an agent sends raises an exception here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from acp import RequestError, schema
from pydantic import BaseModel, ValidationError

from benchflow.agents.acp.terminals import Terminals
from benchflow.agents.acp.updates import Turn
from benchflow.agents.permission_requests import decide
from benchflow.agents.protocol import AgentContext, PermissionOption, PermissionRequest
from benchflow.agents.workspace import Workspace, WorkspaceError
from benchflow.errors import BenchflowError

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
    if not path.startswith("/") or ".." in path.split("/"):
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
