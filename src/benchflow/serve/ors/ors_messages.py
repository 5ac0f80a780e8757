"""The messages of the Open Reward Standard, pure: what requests ask for, and what is answered."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final

from benchflow.serve.episode import SUBMIT, Block, Call, CallResult, ToolSpec, ended
from benchflow.serve.http_wire import HttpError, chunked_events, dumped, event
from benchflow.serve.served_tasks import ServedEnvironment, ServedTask
from benchflow.serve.sessions import Pending, Session

SCORES: Final = "scores"
"""The key of the scores of a group, on the wire and in the metadata of a result."""
_BLOCK_TYPES: Final = ("text", "image", "reasoning", "tool_call", "tool_result")


def last_events(session: Session, pending: Pending) -> bytes:
    """The last events of a call."""
    if pending.failed is not None:
        verdict = pending.failed.verdict
        if session.failure is None:
            return event("error", " ".join(f"{verdict.category}/{verdict.code}: {verdict.reason}".split()))
        return chunked_events(rendered_result(ended(verdict, f"The environment could not start: {verdict.reason}")))
    if pending.refused is not None:
        refused = pending.refused
        told: dict[str, Any] = {"ok": False, "error": str(refused), "reason": refused.reason}
        return chunked_events(dumped(told).decode())
    return chunked_events(rendered_result(pending.result) if pending.result is not None else "")


def rendered_result(result: CallResult) -> str:
    if SCORES in result.metadata:
        return dumped({SCORES: result.metadata[SCORES]}).decode()
    output = {
        "blocks": [rendered_block(block) for block in result.blocks],
        "metadata": dict(result.metadata) or None,
        "reward": result.reward,
        "finished": result.finished,
    }
    return dumped({"ok": True, "output": output}).decode()


def rendered_block(block: Block) -> dict[str, Any]:
    if block.media_type is None:
        return {"type": "text", "text": block.data, "detail": None}
    return {"type": "image", "data": block.data, "mimeType": block.media_type, "detail": None}


def tool_list(tools: tuple[ToolSpec, ...], *, group: bool) -> dict[str, Any]:
    submit = next((tool for tool in tools if tool.name == SUBMIT), None)
    takes = submit is not None and "message" in submit.input_schema.get("properties", {})
    arg = "message" if takes else None
    terminal = {"name": SUBMIT, "arg": arg, "description": submit.description} if submit is not None else None
    return {
        "tools": [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.input_schema)}
            for tool in tools
        ],
        "terminal_tool": terminal,
        "supports_score_group": group,
        "message_block_types": list(_BLOCK_TYPES),
    }


def spec_list(environment: ServedEnvironment, tasks: tuple[ServedTask, ...]) -> dict[str, Any]:
    return {"tasks": [task.spec() for task in tasks], "env_name": environment.name}


def split_of(body: Mapping[str, Any]) -> str:
    split = body.get("split")
    if not isinstance(split, str):
        raise HttpError(422, "split must be the name of a split.")
    return split


def index_of(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise HttpError(422, f"{name} must be a whole number.")
    return value


def asked_task(environment: ServedEnvironment, body: Mapping[str, Any]) -> ServedTask:
    """The task of a `create`: a spec, or a split and an index."""
    spec = body.get("task_spec")
    by_index = body.get("split") is not None or body.get("index") is not None
    if (spec is None) == (not by_index):
        raise HttpError(422, "Give either task_spec, or split and index.")
    if spec is None:
        return environment.task(split_of(body), index_of(body, "index"))
    if not isinstance(spec, dict):
        raise HttpError(422, "task_spec must be an object.")
    return environment.named(spec)


def objects_of(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = body.get(name)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise HttpError(422, f"{name} must be a list of objects.")
    return value


def calls_of(candidate: Mapping[str, Any]) -> list[Call]:
    """The calls that an assistant made in the messages of a candidate, in order."""
    spoken = [message for message in objects_of(candidate, "messages") if message.get("role") == "assistant"]
    calls = [block for message in spoken for block in objects_of(message, "blocks") if block.get("type") == "tool_call"]
    for call in calls:
        if not isinstance(call.get("name"), str) or not isinstance(call.get("input"), dict):
            raise HttpError(422, "A tool_call needs a name, and an input that is an object.")
    return [(call["name"], call["input"]) for call in calls]


def clients_secrets(encoded: str | None, given: Any) -> dict[str, str]:
    """A client's secrets, from the header (base64 of JSON) or the body: `{"NAME": {"value": …}}` or `{"NAME": …}`."""
    if encoded:
        try:
            given = json.loads(base64.b64decode(encoded, validate=True))
        except (ValueError, binascii.Error, RecursionError):
            raise HttpError(400, "X-Secrets must be base64 of a JSON object.") from None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise HttpError(422, "secrets must be an object.")
    values = {name: each.get("value") if isinstance(each, dict) else each for name, each in given.items()}
    return {name: value for name, value in values.items() if isinstance(value, str)}
