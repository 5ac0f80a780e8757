"""A rollout's folder as an ATIF 1.x trajectory, rewards included.

Prompts become user steps; what the agent thought, said and called between two prompts becomes agent steps, each tool
call with its result in the same step; rewards become system steps that carry the event in `extra`. A call of a model
counts for the agent step that it led to; the calls themselves are in `extra` of the document, as they were recorded.

Of an arena, the steps of each role are its own (`extra.role`), and what peers sent each other ends a step; the game,
its messages and its tool calls are in `extra` of the document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from benchflow.errors import UsageError
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.models.gateway.wire_answers import read_tokens
from benchflow.record import (
    ArenaPart,
    CallParts,
    Event,
    ModelCall,
    Result,
    RewardLine,
    RolloutFolder,
    read_messages,
    read_model_calls,
    read_rewards,
    read_tool_calls,
    read_trajectory,
)
from benchflow.record.codec import plain
from benchflow.record.trajectory import tool_name

VERSION: Final = "ATIF-v1.8"
_CONTEXT: Final = ("scene", "role", "round", "step", "branch")
_KNOWN_USAGE: Final = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "cached_tokens": "cached_tokens",
    "cost_usd": "cost_usd",
}


def export_atif(folder: Path) -> dict[str, Any]:
    """The ATIF document of a rollout's folder with its newest verdict; a folder without a result is a `UsageError`."""
    places = RolloutFolder(folder)
    newest = places.newest()
    try:
        result = Result.from_dict(parse_json(newest.result.read_bytes()))
    except StrictJSONError as error:
        raise UsageError(f"{newest.result} {error}.", code="not-a-rollout") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} has no result of a rollout: {error}", code="not-a-rollout") from error
    document = to_atif(
        result,
        read_trajectory(places.trajectory),
        read_rewards(newest.rewards),
        name=folder.name,
        calls=read_model_calls(places.model_calls),
        parts=CallParts(places),
    )
    if "model_calls" in document["extra"]:
        files = sorted(places.model_call_parts.glob("[0-9a-f]*"))
        document["extra"]["model_call_parts"] = {
            f"sha256:{file.name}": file.read_text(encoding="utf-8", errors="replace") for file in files
        }
    if result.arena is not None:
        document["extra"] |= _exchange(places, result.arena)
    return document


def _exchange(places: RolloutFolder, arena: ArenaPart) -> dict[str, Any]:
    """What an arena leaves, with the large parts of its messages by digest."""
    return {
        "arena": plain(arena),
        "a2a_messages": [plain(message) for message in read_messages(places.a2a_messages)],
        **_given(
            a2a_tool_calls=[plain(call) for call in read_tool_calls(places.a2a_tool_calls)],
            a2a_message_parts=dict(_message_parts(places)),
        ),
    }


def _message_parts(places: RolloutFolder) -> Iterator[tuple[str, Any]]:
    """The large parts of messages; damaged ones are left out."""
    for file in sorted(places.a2a_parts.glob("[0-9a-f]*")):
        with suppress(OSError, ValueError, RecursionError):
            yield f"sha256:{file.name}", json.loads(file.read_bytes())


def to_atif(
    result: Result,
    events: Iterable[Event],
    rewards: Iterable[RewardLine] = (),
    *,
    name: str | None = None,
    calls: Iterable[ModelCall] = (),
    parts: CallParts | None = None,
) -> dict[str, Any]:
    """The ATIF document of a result, its events, its reward events and its calls of models."""
    agent = result.agent
    made = list(calls)
    acted = list(_agent_steps(events, agent.model, result.arena))
    _count_calls([step for step in acted if step["source"] == "agent"], made, parts)
    steps = [*acted, *(_reward_step(reward) for reward in rewards)]
    if not steps:
        steps = [{"source": "system", "message": "Nothing happened."}]
    document: dict[str, Any] = {
        "schema_version": VERSION,
        "session_id": name or result.key,
        "agent": {"name": agent.name, "version": "unknown", **_given(model_name=agent.model)},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": _final_metrics(result.usage, len(steps)),
        "extra": {
            "task": plain(result.task),
            **plain(result.outcome),
            **({"model_calls": [plain(call) for call in made]} if made else {}),
        },
    }
    return document


def _count_calls(steps: list[dict[str, Any]], calls: Iterable[ModelCall], parts: CallParts | None) -> None:
    """Give every answered call of the agent to the first step after its answer, or to the last one."""
    if not steps:
        return
    by_step: dict[int, list[ModelCall]] = {}
    for call in calls:
        if call.outcome != "answered" or call.place.source != "agent" or not call.usage:
            continue
        ended = _moment(call.time) + call.timing.get("total", 0.0)
        own = [at for at, step in enumerate(steps) if step.get("extra", {}).get("role") in (None, call.place.role)]
        places = own or list(range(len(steps)))
        at = next((at for at in places if _moment(steps[at].get("timestamp")) >= ended), places[-1])
        by_step.setdefault(at, []).append(call)
    for at, given in by_step.items():
        step = steps[at]
        totals = {
            _KNOWN_USAGE[name]: sum(call.usage.get(name, 0) for call in given)
            for name in _KNOWN_USAGE
            if any(name in call.usage for call in given)
        }
        tokens = _tokens(given[0], parts) if len(given) == 1 else {}
        step["metrics"] = {**step.get("metrics", {}), **totals, **tokens}
        step["llm_call_count"] = len(given)
        step["extra"] = {**step.get("extra", {}), "model_calls": [call.seq for call in given]}


def _tokens(call: ModelCall, parts: CallParts | None) -> dict[str, Any]:
    try:
        body = parts.answer(call) if parts is not None else b""
    except ValueError:
        return {}
    found = read_tokens(call.dialect, body, stream=call.stream)
    return _given(
        prompt_token_ids=list(found.prompt_ids), completion_token_ids=list(found.ids), logprobs=list(found.logprobs)
    )


def _moment(text: str | None) -> float:
    """Seconds of a time stamp; 0 for none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


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
        metrics = {_KNOWN_USAGE[name]: value for name, value in self.usage.items() if name in _KNOWN_USAGE}
        return {
            "source": "agent",
            "message": "\n".join(self.said),
            **_given(
                timestamp=self.time,
                model_name=self.model,
                reasoning_content="\n".join(self.thought),
                tool_calls=list(self.calls.values()),
                observation={"results": self.results} if self.results else None,
                metrics=metrics,
                extra=self.context,
            ),
        }


def _agent_steps(events: Iterable[Event], model: str | None, arena: ArenaPart | None) -> Iterator[dict[str, Any]]:
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
            steps.append((number, {"source": "system", "message": _text(event), **_given(timestamp=event.get("time"))}))
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
    return _given(timestamp=event.get("time"), extra=context)


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
                if name in _KNOWN_USAGE and isinstance(value, int | float):
                    step.usage[name] = step.usage.get(name, 0) + value


def _reward_step(reward: RewardLine) -> dict[str, Any]:
    return {
        "source": "system",
        "message": f"Reward {reward.tag or reward.source}: {reward.value}",
        **_given(timestamp=reward.ts),
        "extra": {"reward": plain(reward)},
    }


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


def _final_metrics(usage: Mapping[str, float], steps: int) -> dict[str, Any]:
    totals = {
        "total_prompt_tokens": usage.get("input_tokens"),
        "total_completion_tokens": usage.get("output_tokens"),
        "total_cached_tokens": usage.get("cached_tokens"),
        "total_cost_usd": usage.get("cost_usd"),
    }
    return {**_given(**totals), "total_steps": steps}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}
