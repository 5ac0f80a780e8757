"""`model:MODEL` in a sandbox: call it and run its tool calls until it makes none or reaches a limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import anyio

from benchflow.agents.model.asking import AtLimit, Budget, OutOfRoom, as_failure, check_model, model_name, next_reply
from benchflow.agents.model.model_conversation import Conversation
from benchflow.agents.model.model_policy import ModelPolicy
from benchflow.agents.model.tools import MalformedCall, offered, parse_call, run_tool
from benchflow.agents.permission_requests import decide
from benchflow.agents.protocol import (
    Agent,
    AgentContext,
    AgentInfo,
    AgentKind,
    AgentRequest,
    PermissionOption,
    PermissionRequest,
    StopReason,
    TurnResult,
)
from benchflow.agents.workspace import Workspace
from benchflow.errors import AgentFailure
from benchflow.models import ChatModel, ModelFailure, ToolCall

SYSTEM: Final = """\
You work on a task in a Linux sandbox, through tools. Your working folder is {workdir}. Each command runs in a new
shell. Nobody can answer questions while you work: decide for yourself, check your work, and when the task is done say
so without calling a tool.\
"""
SKILLS: Final = "\nThe folder {skills_dir} contains notes that may help; read those that are relevant to the task."
MALFORMED_IN_A_ROW: Final = 10
_SECRETS: Final = ("_API_KEY", "_AUTH_TOKEN", "_SECRET_ACCESS_KEY")
"""Suffixes of the names of provider keys."""
CUT_OFF: Final = "Your answer was cut off because it was too long. Continue in smaller pieces."
_OPTIONS: Final = (
    PermissionOption("allow", "allow_once", "Allow"),
    PermissionOption("reject", "reject_once", "Reject"),
)


class ModelAgent(Agent):
    """The conversation lasts from `start` to `close`; each prompt is one turn of it."""

    def __init__(self, request: AgentRequest) -> None:
        self.name = request.name
        self.model = model_name(request)
        self._environ = request.environ
        self._turns: _Turns | None = None

    def variables(self) -> tuple[str, ...]:
        return tuple(name for name in self._environ if name.endswith(_SECRETS))

    def check(self, env: Mapping[str, str]) -> None:
        check_model(self.model, {**self._environ, **env})

    async def start(self, context: AgentContext) -> None:
        if context.mcp_servers:
            raise AgentFailure(f"The agent '{self.name}' cannot use tool servers.", code="mcp-unsupported")
        chat = ChatModel(self.model, {**self._environ, **context.env}, access=context.models)
        try:
            await chat.check()
        except ModelFailure as failure:
            raise as_failure(failure) from failure
        self._turns = _Turns(chat, context)
        context.events("agent_started", agent=self.name, model=self.model)

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        if self._turns is None:
            raise AgentFailure(f"The agent '{self.name}' is not running.", code="not-started")
        return await self._turns.take(text, timeout)

    async def close(self) -> None:
        self._turns = None


class _Turns:
    """The loop of one turn."""

    def __init__(self, chat: ChatModel, context: AgentContext) -> None:
        self._chat = chat
        self._context = context
        self._specs = offered(context.forbidden_tools)
        self._tools = [spec.as_dict() for spec in self._specs]
        self._workspace = Workspace(context.sandbox, context.workdir, context.user, context.env)
        system = SYSTEM.format(workdir=context.workdir)
        if context.skills_dir:
            system += SKILLS.format(skills_dir=context.skills_dir)
        self._conversation = Conversation(system)
        self._budget = Budget(chat.name, context.limits)
        self._malformed = 0
        self._said = ""

    async def take(self, text: str, timeout: float | None) -> TurnResult:
        before = self._budget.totals
        self._conversation.tell(text)
        self._said = ""
        stop: StopReason = "timeout"
        with anyio.move_on_after(timeout) as scope:
            stop = await self._until_done()
        if scope.cancelled_caught:
            stop = "timeout"
            self._conversation.answer_rest("(stopped at the time limit)")
            self._context.events("agent_timeout", reason="the time limit was reached", timeout_sec=timeout)
        used = {name: value - before.get(name, 0) for name, value in self._budget.totals.items()}
        return TurnResult(stop, self._said, timed_out=stop == "timeout", usage=used)

    async def _until_done(self) -> StopReason:
        while (reached := self._budget.reached()) is None:
            try:
                reply = await next_reply(
                    self._chat, self._conversation, self._budget, self._tools, self._context.reasoning_effort
                )
            except AtLimit as ended:
                return ended.limit
            except OutOfRoom as problem:
                self._context.events("error", code="context-overflow", message=str(problem))
                return "max_tokens"
            if reply.reasoning:
                self._context.events("agent_thought", text=reply.reasoning)
            if reply.text:
                self._said = reply.text
                self._context.events("agent_message", text=reply.text)
            self._context.events("usage", **reply.usage)
            for call in reply.tool_calls:
                await self._call(call)
            if self._malformed >= MALFORMED_IN_A_ROW:
                self._context.events("error", code="malformed-calls", message="The model makes no valid tool call.")
                return "refusal"
            if not reply.tool_calls and reply.finish_reason == "length":
                self._conversation.tell(CUT_OFF)
            elif not reply.tool_calls:
                return "refusal" if reply.finish_reason == "content_filter" else "end_turn"
        return reached

    async def _call(self, call: ToolCall) -> None:
        """Run one tool call and send its result, valid or not."""
        self._budget.count("tool_calls")
        try:
            arguments = parse_call(call, self._specs)
        except MalformedCall as problem:
            self._malformed += 1
            self._context.events(
                "tool_call", tool_call_id=call.id, title=call.name, status="failed", input=call.arguments
            )
            self._answer(call, f"error: {problem}", ok=False)
            return
        self._malformed = 0
        title = str(arguments.get("command") or f"{call.name} {arguments.get('path', '')}")
        self._context.events(
            "tool_call", tool_call_id=call.id, title=title, kind=call.name, status="in_progress", input=arguments
        )
        if self._context.ask is not None and not await self._permitted(call, title):
            self._answer(call, "error: this was not permitted.", ok=False)
            return
        answer, ok = await run_tool(self._workspace, call.name, arguments)
        self._answer(call, answer, ok=ok)

    def _answer(self, call: ToolCall, text: str, *, ok: bool) -> None:
        self._conversation.answer(call.id, text)
        self._context.events("tool_result", tool_call_id=call.id, status="completed" if ok else "failed", output=text)

    async def _permitted(self, call: ToolCall, title: str) -> bool:
        tool_call = {"toolCallId": call.id, "title": title, "kind": call.name}
        decision = await decide(PermissionRequest(title, _OPTIONS, tool_call), self._context.ask, forbidden=False)
        self._context.events(
            "permission",
            title=title,
            tool_call_id=call.id,
            options=[{"id": option.id, "kind": option.kind, "name": option.name} for option in _OPTIONS],
            chosen=decision.option_id,
            granted=decision.granted,
            reason=decision.reason,
        )
        return decision.granted


KIND: Final = AgentKind(
    AgentInfo(
        "model",
        "A language model with a shell and file tools; also runs on gym tasks.",
        "both",
        argument="MODEL",
        needs=(
            "the extra models",
            "the key of the model's provider, such as OPENAI_API_KEY",
        ),
        models="machine",
    ),
    agent=ModelAgent,
    policy=ModelPolicy,
)
