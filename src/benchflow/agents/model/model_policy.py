"""`model:MODEL` on gym tasks: maps an observation and the available actions to the actions to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchflow.agents.model.asking import AtLimit, Budget, OutOfRoom, check_model, model_name, next_reply
from benchflow.agents.model.model_conversation import Conversation
from benchflow.agents.model.tools import MalformedCall, parse_arguments
from benchflow.agents.protocol import AgentRequest, Policy, StopReason
from benchflow.models import ChatModel, Reply
from cube.core import Action, ActionSchema, Content, Observation
from cube.task import STOP_ACTION

SYSTEM: Final = f"""\
You work on a task through tools. After each call you see its effect. When the task is done, call {STOP_ACTION.name}.\
"""
REMINDER: Final = f"Call a tool to continue, or {STOP_ACTION.name} when the task is done."
MALFORMED_IN_A_ROW: Final = 5


class ModelPolicy(Policy):
    """One conversation per episode; `STOP_ACTION` is always available."""

    def __init__(self, request: AgentRequest) -> None:
        self.name = request.name
        self.model = model_name(request)
        self._limits = request.limits
        self._environ = request.environ
        self._chat = ChatModel(self.model, request.environ, access=request.models)
        self._stop: StopReason | None = None
        self.reset()

    def check(self) -> None:
        check_model(self.model, self._environ)

    def reset(self) -> None:
        self._conversation = Conversation(SYSTEM)
        self._budget = Budget(self.model, self._limits)
        self._stop = None

    @property
    def usage(self) -> Mapping[str, float]:
        return self._budget.totals

    @property
    def stop_reason(self) -> StopReason | None:
        return self._stop

    async def act(self, observation: Observation, actions: Sequence[ActionSchema]) -> list[Action]:
        """The model's next actions. Invalid calls are answered and not passed on."""
        self._observe(observation)
        known = {action.name: action for action in (*actions, STOP_ACTION)}
        tools = [action.as_dict() for action in known.values()]
        reminded = False
        for _ in range(MALFORMED_IN_A_ROW):
            if (reached := self._budget.reached()) is not None:
                return self._end(reached)
            try:
                reply = await next_reply(self._chat, self._conversation, self._budget, tools)
            except OutOfRoom:
                return self._end("max_tokens")
            except AtLimit as ended:
                return self._end(ended.limit)
            if chosen := self._actions(reply, known):
                return chosen
            if reply.tool_calls:
                continue
            if reminded or reply.finish_reason == "content_filter":
                return self._end("refusal" if reply.finish_reason == "content_filter" else "end_turn")
            self._conversation.tell(REMINDER)
            reminded = True
        return self._end("refusal")

    def _end(self, reason: StopReason) -> list[Action]:
        self._stop = reason
        return []

    def _actions(self, reply: Reply, known: Mapping[str, ActionSchema]) -> list[Action]:
        """The valid calls; the others are answered at once."""
        chosen: list[Action] = []
        for call in reply.tool_calls:
            self._budget.count("tool_calls")
            try:
                if call.name not in known:
                    raise MalformedCall(f"Unknown tool '{call.name}'. Available tools: {', '.join(known)}.")
                chosen.append(Action(id=call.id, name=call.name, arguments=parse_arguments(call)))
            except MalformedCall as problem:
                self._conversation.answer(call.id, f"error: {problem}")
        return chosen

    def _observe(self, observation: Observation) -> None:
        """Send the results of the calls, then everything else in the observation.

        A content that names its call is the result of that call. Contents without a call belong to the first one if
        it is the only one. Images cannot be tool results, so they follow as user messages.
        """
        waiting = self._conversation.unanswered
        answers: dict[str, list[str]] = {call: [] for call in waiting}
        rest: list[dict[str, Any]] = []
        for content in observation.contents:
            text, parts = _rendered(content)
            call = content.tool_call_id if content.tool_call_id in answers else None
            if call is None and len(waiting) == 1 and content.tool_call_id is None:
                call = waiting[0]
            if call is not None and not parts:
                answers[call].append(text)
            elif call is not None:
                answers[call].append("(shown below)")
                rest.extend(parts)
            else:
                rest.extend(parts or [{"type": "text", "text": text}])
        for call in waiting:
            self._conversation.answer(call, "\n".join(answers[call]) or "(done)")
        if rest:
            only_text = all(part["type"] == "text" for part in rest)
            self._conversation.tell("\n\n".join(part["text"] for part in rest) if only_text else rest)


def _rendered(content: Content) -> tuple[str, list[dict[str, Any]]]:
    """A content as text, or as message parts if it is more than text."""
    shown = content.to_llm_message()["content"]
    return (shown, []) if isinstance(shown, str) else ("", shown)
