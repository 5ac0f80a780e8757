"""What a simulated user does itself: its declared tools, run in the environment under its own account.

The model that plays the user calls them before it answers; every call is remembered for the record of the round. The
agent is given neither the tools nor what they showed: it learns what the user says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from benchflow.agents.model.model_conversation import Conversation
from benchflow.agents.model.tools import SPECS, MalformedCall, ToolSpec, parse_call, run_tool, shown_result
from benchflow.agents.workspace import Workspace
from benchflow.errors import EnvironmentFailure, PackageError, SandboxFailure
from benchflow.sandbox.protocol import Sandbox
from benchflow.task.config.interaction import User, UserTool

if TYPE_CHECKING:
    from benchflow.models import ChatModel, ToolCall

MAX_CALLS: Final = 8
"""Of one round; after them the user has to answer."""
MAX_SHOWN: Final = 6_000
_TIMEOUT_SEC: Final = 60.0
_NO_USER: Final = frozenset({"user", "unknown-user"})
ABILITY: Final = (
    "You have tools of your own to look at things or to act before you answer; the assistant cannot see them."
)
_ENOUGH: Final = "You have used your tools often enough. Answer now."


class UserTools:
    """The tools of one user in one environment."""

    def __init__(self, user: User, sandbox: Sandbox) -> None:
        self._declared: Final[Mapping[str, UserTool]] = {tool.name: tool for tool in user.tools}
        self._account: Final = user.account or ""
        self._sandbox: Final = sandbox
        self._workspace: Final = Workspace(sandbox, sandbox.spec.workdir, self._account, {})
        self._calls: list[dict[str, Any]] = []
        self.specs: Final = tuple(_spec(tool) for tool in user.tools)

    async def check(self, agent: str | None) -> None:
        """Raise if the account does not exist in the environment, or is the agent's."""
        try:
            own = await self._sandbox.exec(["id", "-u"], user=self._account, cwd="/", timeout=_TIMEOUT_SEC)
        except SandboxFailure as error:
            if error.code not in _NO_USER:
                raise
            message = f"user.account: the environment has no account '{self._account}'."
            raise EnvironmentFailure(message, code="user-account-missing", path="user.account") from error
        other = await self._sandbox.exec(["id", "-u"], user=agent, cwd="/", timeout=_TIMEOUT_SEC)
        if not own.ok or own.stdout == other.stdout:
            message = f"user.account: '{self._account}' is the account of the agent; a user needs its own."
            raise PackageError(message, code="user-account", path="user.account")
        await self._check_arguments()

    async def _check_arguments(self) -> None:
        """An argument is what the agent may have told the user: it must not become a variable that the shell uses."""
        if not any(tool.arguments for tool in self._declared.values()):
            return
        said = await self._sandbox.exec(["/bin/sh", "-c", "set"], user=self._account, cwd="/", timeout=_TIMEOUT_SEC)
        taken = {line.partition("=")[0] for line in said.stdout.decode(errors="replace").splitlines()}
        for tool in self._declared.values():
            for name in tool.arguments:
                if name.upper() in taken:
                    message = (
                        f"user.tools: the argument '{name}' of '{tool.name}' would replace the variable {name.upper()},"
                        " which the environment has; give it another name."
                    )
                    raise PackageError(message, code="user-tool-argument", path="user.tools")

    def used(self) -> list[dict[str, Any]] | None:
        """The calls since the last question, for the record; None without any."""
        calls, self._calls = self._calls, []
        return calls or None

    async def ask(self, chat: ChatModel, prompt: str, *, max_output_tokens: int) -> str:
        """The answer of the model, which may call tools first."""
        talk = Conversation()
        talk.tell(f"{prompt}\n\n{ABILITY}")
        offered = [spec.as_dict() for spec in self.specs]
        for _ in range(MAX_CALLS + 1):
            reply = await chat.complete(talk.messages, tools=offered, max_output_tokens=max_output_tokens)
            if not reply.tool_calls or not offered:
                return reply.text
            talk.hear(reply)
            for call in reply.tool_calls:
                talk.answer(call.id, await self._call(call))
            if len(self._calls) >= MAX_CALLS:
                offered = []
                talk.tell(_ENOUGH)
        return ""

    async def _call(self, call: ToolCall) -> str:
        """Run one call, valid or not; what it showed."""
        arguments: Any = call.arguments
        if len(self._calls) >= MAX_CALLS:
            return "(not run)"
        try:
            arguments = parse_call(call, self.specs)
            shown, ok = await self._run(call.name, arguments)
        except MalformedCall as problem:
            shown, ok = f"error: {problem}", False
        shown = (
            shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}\n[{len(shown) - MAX_SHOWN} characters omitted]"
        )
        self._calls.append({"tool": call.name, "arguments": arguments, "output": shown, "ok": ok})
        return shown

    async def _run(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        tool = self._declared[name]
        if tool.command is None:
            return await run_tool(self._workspace, name, arguments)
        values = {key.upper(): value for key, value in arguments.items()}
        if any("\0" in value for value in values.values()):
            return "error: an argument contains a NUL character.", False
        # Not in the working folder: there the agent decides what a program finds beside it.
        done = await self._sandbox.exec(
            ["/bin/sh", "-c", tool.command], user=self._account, env=values, cwd="/", timeout=tool.timeout_sec
        )
        return shown_result(done, tool.timeout_sec), done.ok


def _spec(tool: UserTool) -> ToolSpec:
    known = next((spec for spec in SPECS if spec.name == tool.name), None)
    if known is not None and tool.command is None:
        return known
    arguments = {name: {"type": "string", "description": said} for name, said in tool.arguments.items()}
    return ToolSpec(tool.name, tool.description or tool.name, arguments, tuple(arguments))
