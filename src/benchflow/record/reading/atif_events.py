"""Trajectories in ATIF (`trajectory.json` of Harbor) as events: the way back from an export, for display only.

A document is one JSON value, so it is read whole; a larger one than the limit is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.record.trajectory import Event

MAX_BYTES: Final = 64 << 20
_SCHEMA: Final = "ATIF-v1."
_USAGE: Final = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "cached_tokens": "cached_tokens",
    "cost_usd": "cost_usd",
}
_CONTEXT: Final = ("scene", "role", "round", "step", "branch")


@dataclass(frozen=True, slots=True)
class AtifDocument:
    """A trajectory of another tool."""

    agent: str
    model: str | None
    session: str
    usage: Mapping[str, float]
    events: tuple[Event, ...]
    extra: Mapping[str, Any]
    """What the tool that wrote it added: of our own exports the task and the outcome."""


def read_atif(path: Path) -> AtifDocument:
    """The document of a file. Raises `ValueError` with a sentence, and `OSError`."""
    try:
        document = parse_json(read_regular(path, max_bytes=MAX_BYTES))
    except RefusedFileError as error:
        raise ValueError(f"{path} {error}.") from error
    except StrictJSONError as error:
        raise ValueError(f"{path} {error}.") from error
    if not isinstance(document, dict) or not str(document.get("schema_version", "")).startswith(_SCHEMA):
        raise ValueError(f"{path} is not a trajectory: its schema_version does not begin with {_SCHEMA}.")
    agent = _mapping(document.get("agent"))
    metrics = _mapping(document.get("final_metrics"))
    totals = {ours: metrics.get(f"total_{theirs}") for theirs, ours in _USAGE.items()}
    return AtifDocument(
        str(agent.get("name", "unknown")),
        str(agent["model_name"]) if agent.get("model_name") else None,
        str(document.get("session_id") or path.stem),
        {name: value for name, value in totals.items() if isinstance(value, int | float)},
        tuple(_events(document.get("steps"))),
        _mapping(document.get("extra")),
    )


def _events(steps: Any) -> Iterator[Event]:
    number = 0
    for step in steps if isinstance(steps, list) else []:
        for event in _step_events(_mapping(step)):
            number += 1
            yield cast("Event", {"seq": number, **event})


def _step_events(step: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    extra = _mapping(step.get("extra"))
    common = {"time": str(step.get("timestamp") or ""), **{key: extra[key] for key in _CONTEXT if key in extra}}
    source = step.get("source")
    message = _text(step.get("message"))
    if source == "agent":
        if step.get("reasoning_content"):
            yield {**common, "type": "agent_thought", "text": _text(step["reasoning_content"])}
        if message:
            yield {**common, "type": "agent_message", "text": message}
    elif message:
        yield {**common, "type": "user_message" if source == "user" else "system_message", "text": message}
    for call in _mappings(step.get("tool_calls")):
        yield {
            **common,
            "type": "tool_call",
            "tool": str(call.get("function_name", "unknown")),
            "tool_call_id": str(call.get("tool_call_id", "")),
            "arguments": call.get("arguments"),
        }
    for result in _mappings(_mapping(step.get("observation")).get("results")):
        call_id = {"tool_call_id": str(result["source_call_id"])} if result.get("source_call_id") else {}
        yield {**common, "type": "tool_result", **call_id, "output": _text(result.get("content"))}
    metrics = _mapping(step.get("metrics"))
    usage = {ours: metrics[theirs] for theirs, ours in _USAGE.items() if isinstance(metrics.get(theirs), int | float)}
    if usage:
        yield {**common, "type": "usage", "usage": usage}


def _text(value: Any) -> str:
    """A text, or the texts of its parts; a part that is not text is named."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in value]
        return "\n".join(part if isinstance(part, str) else "[not text]" for part in parts)
    return json.dumps(value, ensure_ascii=False)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
