"""The messages between a model and its tools, which can be shortened when they exceed the model's context.

Every tool call is answered exactly once, whatever happens; providers refuse conversations with open calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from benchflow.models import Reply

_SHORTENED: Final = "[removed to save space]"
_KEEP_WHOLE: Final = 400
"""Tool results up to this length are not worth removing."""


class Conversation:
    def __init__(self, system: str | None = None) -> None:
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self._open: list[str] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self._messages)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Ids of tool calls without a result."""
        return tuple(self._open)

    def tell(self, content: str | list[dict[str, Any]]) -> None:
        """A message of the user."""
        self.answer_rest()
        self._messages.append({"role": "user", "content": content})

    def hear(self, reply: Reply) -> None:
        """A reply of the model."""
        self._messages.append(reply.message())
        self._open = [call.id for call in reply.tool_calls]

    def answer(self, call_id: str, text: str) -> None:
        """The result of a tool call."""
        self._open.remove(call_id)
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def answer_rest(self, text: str = "(not run)") -> None:
        """Answer every open tool call with the same text."""
        for call_id in self.unanswered:
            self.answer(call_id, text)

    def shrink(self) -> bool:
        """Shorten it, oldest first: tool results, then whole exchanges. False if nothing can be removed."""
        long = [m for m in self._messages if m["role"] == "tool" and len(_text(m["content"])) > _KEEP_WHOLE]
        if long:
            for message in long[: max(len(long) // 2, 1)]:
                message["content"] = _SHORTENED
            return True
        return self._drop_exchange()

    def _drop_exchange(self) -> bool:
        """Drop the oldest reply of the model with the results of its tool calls; the task itself stays."""
        starts = [index for index, message in enumerate(self._messages) if message["role"] == "assistant"]
        if len(starts) < 2:
            return False
        first, end = starts[0], starts[0] + 1
        while self._messages[end]["role"] == "tool":
            end += 1
        del self._messages[first:end]
        return True


def _text(content: str | Iterable[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else str(content)
