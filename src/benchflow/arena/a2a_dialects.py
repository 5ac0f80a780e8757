"""The JSON of A2A 1.0 and 0.3, to and from our own types; pure. What is malformed is a `Malformed` with a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchflow.arena.a2a_types import (
    ArtifactEvent,
    Event,
    Message,
    MessageEvent,
    Part,
    State,
    StatusEvent,
    Version,
    new_id,
)

STATES: Final[tuple[State, ...]] = (
    "submitted",
    "working",
    "input-required",
    "auth-required",
    "completed",
    "failed",
    "canceled",
    "rejected",
)
_TO_V1: Final[Mapping[State, str]] = {state: f"TASK_STATE_{state.upper().replace('-', '_')}" for state in STATES} | {
    "unknown": "TASK_STATE_UNSPECIFIED"
}
_FROM: Final[Mapping[str, State]] = {
    **{name: state for state, name in _TO_V1.items()},
    **{state: state for state in STATES},
    "unknown": "unknown",
}
_FILE_KEYS: Final = ("url", "raw", "file")
MAX_PARTS: Final = 1000


class Malformed(ValueError):
    """JSON that is not of the protocol; `str()` continues a sentence."""


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    return value


def _string(value: Mapping[str, Any], key: str, what: str) -> str:
    found = value.get(key)
    if not isinstance(found, str) or not found:
        raise Malformed(f"{what} has no {key}")
    return found


def _optional(value: Mapping[str, Any], key: str, what: str) -> str | None:
    found = value.get(key)
    if found is not None and not isinstance(found, str):
        raise Malformed(f"{key} of {what} is not a string")
    return found or None


def _metadata(value: Mapping[str, Any]) -> Mapping[str, Any]:
    found = value.get("metadata")
    return found if isinstance(found, dict) else {}


def read_parts(value: Any, what: str) -> tuple[Part, ...]:
    """The parts of a message or an artifact, of either version."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        raise Malformed(f"the parts of {what} are not a list of at most {MAX_PARTS}")
    return tuple(_read_part(part, what) for part in value)


def _read_part(value: Any, what: str) -> Part:
    part = _mapping(value, f"a part of {what}")
    if "text" in part:
        if not isinstance(part["text"], str):
            raise Malformed(f"the text of a part of {what} is not a string")
        return Part("text", part["text"])
    if "data" in part:
        return Part("data", part["data"])
    if any(key in part for key in _FILE_KEYS):
        return Part("file", part)
    raise Malformed(f"a part of {what} is neither text nor data nor a file")


def read_message(value: Any, what: str = "the message") -> Message:
    """A message of either version."""
    message = _mapping(value, what)
    speaker = message.get("role")
    if speaker not in ("user", "agent", "ROLE_USER", "ROLE_AGENT"):
        raise Malformed(f"the role of {what} is neither user nor agent")
    return Message(
        parts=read_parts(message.get("parts"), what),
        role="user" if speaker in ("user", "ROLE_USER") else "agent",
        message_id=_optional(message, "messageId", what) or new_id(),
        context_id=_optional(message, "contextId", what),
        task_id=_optional(message, "taskId", what),
        metadata=_metadata(message),
    )


def render_part(part: Part, version: Version) -> dict[str, Any]:
    if part.kind == "file":
        return dict(part.value)
    return {part.kind: part.value} if version == "1.0" else {"kind": part.kind, part.kind: part.value}


def render_message(message: Message, version: Version) -> dict[str, Any]:
    speaker = message.role if version == "0.3" else f"ROLE_{message.role.upper()}"
    shown: dict[str, Any] = {
        "messageId": message.message_id,
        "role": speaker,
        "parts": [render_part(part, version) for part in message.parts],
    }
    if version == "0.3":
        shown["kind"] = "message"
    more = {"contextId": message.context_id, "taskId": message.task_id, "metadata": message.metadata}
    return shown | {key: value for key, value in more.items() if value}


def render_status(event: StatusEvent, version: Version) -> dict[str, Any]:
    """The status of a task."""
    shown: dict[str, Any] = {"state": _TO_V1[event.state] if version == "1.0" else event.state}
    if event.message is not None:
        shown["message"] = render_message(event.message, version)
    if event.time is not None:
        shown["timestamp"] = event.time
    return shown


def render_artifact(event: ArtifactEvent, version: Version) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "artifactId": event.artifact_id,
        "parts": [render_part(part, version) for part in event.parts],
    }
    return shown if event.name is None else {**shown, "name": event.name}


def render_event(event: Event, version: Version) -> dict[str, Any]:
    """One event of a stream, as the `result` of JSON-RPC or the body of REST."""
    if isinstance(event, MessageEvent):
        shown = render_message(event.message, version)
        return {"message": shown} if version == "1.0" else shown
    place = {"taskId": event.task_id, "contextId": event.context_id}
    if isinstance(event, StatusEvent):
        shown = {**place, "status": render_status(event, version)}
        if event.metadata:
            shown["metadata"] = dict(event.metadata)
        if version == "1.0":
            return {"statusUpdate": shown}
        return {**shown, "kind": "status-update", "final": event.state not in ("submitted", "working")}
    shown = {
        **place,
        "artifact": render_artifact(event, version),
        "append": event.append,
        "lastChunk": event.last,
    }
    return {"artifactUpdate": shown} if version == "1.0" else {**shown, "kind": "artifact-update"}


def render_task(task: dict[str, Any], version: Version, *, wrapped: bool) -> dict[str, Any]:
    """A whole task; in 1.0 answers to sending wrap it."""
    if version == "0.3":
        return {**task, "kind": "task"}
    return {"task": task} if wrapped else task


def read_events(value: Any) -> tuple[Event, ...]:
    """What one result says, of either version. A whole task is its status, and each of its artifacts before that."""
    result = _mapping(value, "the result")
    for key, kind in (
        ("message", "message"),
        ("task", "task"),
        ("statusUpdate", "status-update"),
        ("artifactUpdate", "artifact-update"),
    ):
        if result.get("kind") == kind:
            return _read_kind(kind, result, result)
        if "kind" not in result and key in result and not ("status" in result or "parts" in result):
            return _read_kind(kind, _mapping(result[key], key), result)
    if "status" in result and "id" in result:
        return _read_kind("task", result, result)
    raise Malformed("the result is neither a message nor a task nor an update of one")


def _read_kind(kind: str, value: Mapping[str, Any], raw: Mapping[str, Any]) -> tuple[Event, ...]:
    if kind == "message":
        return (MessageEvent(read_message(value, "the answer"), raw),)
    if kind == "status-update":
        return (_read_status(value, _string(value, "taskId", "an update"), raw),)
    if kind == "artifact-update":
        task_id = _string(value, "taskId", "an update")
        return (_read_artifact(value.get("artifact"), task_id, value, raw),)
    task_id = _string(value, "id", "the task")
    artifacts = value.get("artifacts") or []
    if not isinstance(artifacts, list) or len(artifacts) > MAX_PARTS:
        raise Malformed(f"the artifacts of the task are not a list of at most {MAX_PARTS}")
    made = [_read_artifact(each, task_id, value, raw) for each in artifacts]
    return (*made, _read_status(value, task_id, raw))


def _read_status(value: Mapping[str, Any], task_id: str, raw: Mapping[str, Any]) -> StatusEvent:
    status = _mapping(value.get("status"), "the status")
    message = status.get("message")
    return StatusEvent(
        task_id=task_id,
        context_id=_optional(value, "contextId", "the status") or "",
        state=_FROM.get(str(status.get("state")), "unknown"),
        message=None if message is None else read_message(message, "the message of a status"),
        time=_optional(status, "timestamp", "the status"),
        metadata=_metadata(value),
        raw=raw,
    )


def _read_artifact(value: Any, task_id: str, around: Mapping[str, Any], raw: Mapping[str, Any]) -> ArtifactEvent:
    artifact = _mapping(value, "an artifact")
    return ArtifactEvent(
        task_id=task_id,
        context_id=_optional(around, "contextId", "an artifact") or "",
        artifact_id=_optional(artifact, "artifactId", "an artifact") or "",
        parts=read_parts(artifact.get("parts"), "an artifact"),
        name=_optional(artifact, "name", "an artifact"),
        append=around.get("append") is True,
        last=around.get("lastChunk") is not False,
        raw=raw,
    )
