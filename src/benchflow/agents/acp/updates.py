"""`session/update` notifications as events of the trajectory, and the current activity of a turn.

Chunks of a message become one event. Unknown updates are ignored, because the protocol grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from benchflow.agents.protocol import EventSink

_FLUSH_AT: Final = 64 << 10
_MAX_FIELD: Final = 256 << 10
_OPEN: Final = frozenset({"pending", "in_progress"})
_CLOSED: Final = frozenset({"completed", "failed"})
Spoken = Literal["agent_message", "agent_thought"]
_SPOKEN: Final[Mapping[str, Spoken]] = {"agent_message_chunk": "agent_message", "agent_thought_chunk": "agent_thought"}


class Turn:
    """One prompt: the last message of the agent, its tool calls, its token usage."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._kind: Spoken = "agent_message"
        self._chunks: list[str] = []
        self._size = 0
        self._known: set[str] = set()
        self._held: dict[str, dict[str, Any]] = {}
        """Tool calls that were announced but have not begun: many agents send the input only then."""
        self.pending: set[str] = set()
        """Tool calls in progress."""
        self.tool_calls = 0
        self.text = ""
        self.cost_usd: float | None = None
        self.context_tokens: int | None = None

    def update(self, update: Mapping[str, Any]) -> None:
        """Process one update as received."""
        match update.get("sessionUpdate"):
            case "agent_message_chunk" | "agent_thought_chunk" as kind:
                self._speak(_SPOKEN[kind], _block_text(update.get("content")))
            case "tool_call":
                self.flush()
                self._begin(update)
            case "tool_call_update":
                self.flush()
                self._progress(update)
            case "plan":
                self.flush()
                self._events("plan", entries=_bounded(update.get("entries")))
            case "usage_update":
                self._use(update)
            case _:
                return

    def flush(self) -> None:
        """Record the message so far as one event."""
        if not self._chunks:
            return
        text = "".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._kind == "agent_message":
            self.text = text
        self._events(self._kind, text=text)

    def is_held(self, call: str) -> bool:
        """Whether a tool call was announced but not yet recorded."""
        return call in self._held

    def release(self, call: str) -> None:
        """Record a tool call that was announced, with the details known so far."""
        held = self._held.pop(call, None)
        if held is not None:
            self._events("tool_call", tool_call_id=call, **held)

    def end(self) -> None:
        """Record everything that is still pending."""
        self.flush()
        for call in list(self._held):
            self.release(call)

    def _speak(self, kind: Spoken, text: str) -> None:
        if kind != self._kind or self._size > _FLUSH_AT:
            self.flush()
        self._kind = kind
        if text:
            self._chunks.append(text)
            self._size += len(text)

    def _begin(self, update: Mapping[str, Any]) -> None:
        call = str(update.get("toolCallId") or "")
        status = str(update.get("status") or "pending")
        if call not in self._known:
            self.tool_calls += 1
        self._known.add(call)
        self._held[call] = {
            "title": str(update.get("title") or ""),
            "kind": str(update.get("kind") or "other"),
            "status": status,
            "input": _bounded(update.get("rawInput")),
        }
        if status != "pending":
            self.release(call)
        self._track(call, status, update)

    def _progress(self, update: Mapping[str, Any]) -> None:
        call, status = str(update.get("toolCallId") or ""), str(update.get("status") or "")
        if call not in self._known:  # some agents only ever send updates
            self._begin({**update, "status": "pending"})
        held = self._held.get(call)
        if held is not None:
            held["title"] = held["title"] or str(update.get("title") or "")
            held["kind"] = str(update.get("kind") or held["kind"]) if held["kind"] == "other" else held["kind"]
            held["status"] = status if status in _OPEN else held["status"]
            held["input"] = _bounded(update["rawInput"]) if update.get("rawInput") is not None else held["input"]
            if status not in ("", "pending"):
                self.release(call)
        self._track(call, status, update)

    def _track(self, call: str, status: str, update: Mapping[str, Any]) -> None:
        if status in _OPEN:
            self.pending.add(call)
        elif status in _CLOSED:
            self.pending.discard(call)
            output = update.get("rawOutput")
            self._events(
                "tool_result",
                tool_call_id=call,
                status=status,
                output=_bounded(output if output is not None else _content_text(update.get("content"))),
            )

    def _use(self, update: Mapping[str, Any]) -> None:
        used, cost = update.get("used"), update.get("cost")
        if isinstance(used, int):
            self.context_tokens = used
        if isinstance(cost, Mapping) and isinstance(cost.get("amount"), int | float) and cost.get("currency") == "USD":
            self.cost_usd = float(cost["amount"])
        self._events("usage", context_tokens=self.context_tokens, cost_usd=self.cost_usd)


def _block_text(block: Any) -> str:
    if not isinstance(block, Mapping):
        return ""
    if block.get("type") == "text":
        return str(block.get("text") or "")
    return f"[{block.get('type') or 'content'}]"


def _content_text(content: Any) -> str | None:
    """The content of a tool call as text."""
    if not isinstance(content, list):
        return None
    shown = []
    for item in content:
        if isinstance(item, Mapping) and item.get("type") == "content":
            shown.append(_block_text(item.get("content")))
        elif isinstance(item, Mapping) and item.get("type") == "diff":
            shown.append(f"[diff of {item.get('path')}]")
        elif isinstance(item, Mapping):
            shown.append(f"[{item.get('type') or 'content'}]")
    return "\n".join(shown)


def _bounded(value: Any) -> Any:
    """A value for an event: overlong text is truncated and marked."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_FIELD else f"{value[:_MAX_FIELD]}… [{len(value) - _MAX_FIELD} more]"
    text = repr(value)
    return value if len(text) <= _MAX_FIELD else f"{text[:_MAX_FIELD]}… [{len(text) - _MAX_FIELD} more]"
