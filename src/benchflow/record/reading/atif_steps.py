"""The events of a trajectory as steps of an ATIF document.

Prompts become user steps; what the agent thought, said and called between two prompts becomes agent steps, each tool
call with its result in the same step. Of an arena, the steps of each role are its own (`extra.role`), and what peers
sent each other ends a step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from benchflow.record.arena_record import ArenaPart
from benchflow.record.trajectory import Event, tool_name

VERSION: Final = "ATIF-v1.8"
_CONTEXT: Final = ("scene", "role", "round", "step", "branch")
KNOWN_USAGE: Final = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "cached_tokens": "cached_tokens",
    "cost_usd": "cost_usd",
}


class _AgentStep:
    """What the agent does between two results, until it is written as one step."""

    def __init__(self, model: str | None) -> None:
        self.model = model
        self.said: list[str] = []
        self.thought: list[str] = []
        self.calls: dict[str, dict[str, Any]] = {}
        self.results: list[dict[str, Any]] = []
        self.usage: dict[str, float] = {}
        self.time: str | None = None
        self.context: dict[str, Any] = {}

    def touch(self, event: Mapping[str, Any]) -> None:
        if self.time is None:
            self.time = event.get("time")
            self.context = {key: event[key] for key in _CONTEXT if key in event}

    def answer(self, event: Mapping[str, Any]) -> None:
        """What a peer was sent at the end of a turn, unless the agent has said it."""
        self.touch(event)
        text = _text(event)
        if text.strip() and text.strip() not in (said.strip() for said in (*self.said, "".join(self.said))):
            self.said.append(text)

    @property
    def empty(self) -> bool:
        return not (self.said or self.thought or self.calls)

    def render(self) -> dict[str, Any]:
        metrics = {KNOWN_USAGE[name]: value for name, value in self.usage.items() if name in KNOWN_USAGE}
        return {
            "source": "agent",
            "message": "\n".join(self.said),
            **with_values(
                timestamp=self.time,
                model_name=self.model,
                reasoning_content="\n".join(self.thought),
                tool_calls=list(self.calls.values()),
                observation={"results": self.results} if self.results else None,
                metrics=metrics,
                extra=self.context,
            ),
        }


def atif_steps(
    events: Iterable[Event], model: str | None = None, arena: ArenaPart | None = None
) -> Iterator[dict[str, Any]]:
    """Steps in the order in which they began; roles may work at the same time, so each has its own."""
    steps: list[tuple[int, dict[str, Any]]] = []
    working: dict[str | None, tuple[int, _AgentStep]] = {}

    def end(role: str | None) -> None:
        if role in working and not working[role][1].empty:
            began, step = working.pop(role)
            steps.append((began, step.render()))

    for number, event in enumerate(events):
        kind, role = event["type"], event.get("role")
        known = working.get(role)
        opens = kind in ("agent_message", "agent_thought", "tool_call")
        if kind == "user_message" or (opens and known is not None and known[1].results):
            end(role)
        if kind == "user_message":
            steps.append((number, {"source": "user", "message": _text(event), **_stamped(event)}))
        elif opens or kind in ("tool_result", "usage"):
            _add(_current(working, role, number, _model_of(role, arena, model)), event)
        elif kind == "oracle":
            steps.append(
                (number, {"source": "system", "message": _text(event), **with_values(timestamp=event.get("time"))})
            )
        elif kind == "a2a_message" and arena is not None and event.get("kind") in ("message", "artifact"):
            if role in arena.roles:
                _current(working, role, number, _model_of(role, arena, model)).answer(event)
                end(role)
            elif _is_elsewhere(event, arena):  # of an agent of ours, its own prompt says it
                steps.append((number, {"source": "user", "message": _text(event), **_stamped(event)}))
    for role in tuple(working):
        end(role)
    yield from (step for _, step in sorted(steps, key=lambda item: item[0]))


def _current(
    working: dict[str | None, tuple[int, _AgentStep]], role: str | None, number: int, model: str | None
) -> _AgentStep:
    """The step that a role works on; one in which nothing was done yet begins now."""
    step = working[role][1] if role in working else _AgentStep(model)
    if role not in working or step.empty:
        working[role] = (number, step)
    return step


def _model_of(role: str | None, arena: ArenaPart | None, model: str | None) -> str | None:
    played = arena.roles.get(role) if arena is not None and role is not None else None
    return model if played is None else played.model


def _is_elsewhere(event: Mapping[str, Any], arena: ArenaPart) -> bool:
    """Whether a message goes to an agent that somebody else runs, of which only messages are known."""
    receiver = arena.roles.get(str(event.get("to")))
    return receiver is not None and receiver.url is not None


def _stamped(event: Mapping[str, Any]) -> dict[str, Any]:
    context = {key: event[key] for key in (*_CONTEXT, "to") if key in event}
    return with_values(timestamp=event.get("time"), extra=context)


def _add(step: _AgentStep, event: Mapping[str, Any]) -> None:
    match event["type"]:
        case "agent_message":
            step.touch(event)
            step.said.append(_text(event))
        case "agent_thought":
            step.touch(event)
            step.thought.append(_text(event))
        case "tool_call":
            step.touch(event)
            call_id = _call_id(event)
            step.calls[call_id] = {
                "tool_call_id": call_id,
                "function_name": tool_name(event),
                "arguments": _arguments(event),
            }
        case "tool_result":
            call_id = _call_id(event)
            known = {"source_call_id": call_id} if call_id in step.calls else {}
            step.results.append({**known, "content": _text(event)})
        case "usage":
            values = event.get("usage") if isinstance(event.get("usage"), dict) else event
            for name, value in (values or {}).items():
                if name in KNOWN_USAGE and isinstance(value, int | float):
                    step.usage[name] = step.usage.get(name, 0) + value


def _call_id(event: Mapping[str, Any]) -> str:
    for key in ("tool_call_id", "id", "call_id"):
        if event.get(key):
            return str(event[key])
    return f"call-{event.get('seq', 0)}"


def _arguments(event: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("arguments", "input", "raw_input"):
        value = event.get(key)
        if isinstance(value, dict):
            return value
        if value is not None:
            return {"input": value}
    return {}


def _text(event: Mapping[str, Any]) -> str:
    for key in ("text", "output", "content", "result", "stdout", "title", "command"):
        value = event.get(key)
        if isinstance(value, str):
            return value
        if value is not None:
            return json.dumps(value, ensure_ascii=False)
    return ""


def with_values(**fields: Any) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}
