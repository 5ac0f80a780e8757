"""The messages of OpenEnv as pure functions: text of a client in, typed requests out, and the frames that answer them.

Actions have the form that OpenEnv's own clients give to tools: `{"type": "call_tool", "tool_name", "arguments"}`, and
`{"type": "list_tools"}`. A reward that there is none of is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from benchflow.serve.episode import Block, CallResult, ToolSpec

ErrorCode = Literal[
    "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"
]
MAX_SEED: Final = 2**63 - 1
MAX_EPISODE_ID: Final = 255
_RESET_KEYS: Final[Mapping[str, type]] = {
    "seed": int, "episode_id": str, "task": str, "task_id": str, "environment": str, "split": str, "index": int,
}  # fmt: skip
"""`task_id` is another word for `task`."""
_ACTION_KEYS: Final = frozenset({"type", "tool_name", "arguments", "metadata"})


class FrameError(Exception):
    """A message that cannot be answered as it is; the connection stays open."""

    def __init__(self, code: ErrorCode, sentence: str, more: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.code: Final[ErrorCode] = code
        self.more: Final = dict(more or {})


@dataclass(frozen=True, slots=True)
class Reset:
    """Begin an episode: of a task by name, by split and index, or as the seed says."""

    seed: int | None = None
    episode_id: str | None = None
    task: str | None = None
    environment: str | None = None
    split: str | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class CallTool:
    """A step."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListTools:
    """A step that does nothing but list the tools."""


@dataclass(frozen=True, slots=True)
class AskState:
    """Where is the episode?"""


@dataclass(frozen=True, slots=True)
class Close:
    """The client is done."""


@dataclass(frozen=True, slots=True)
class Rpc:
    """A request in JSON-RPC, in its own envelope."""

    data: Mapping[str, Any]


Message = Reset | CallTool | ListTools | AskState | Close | Rpc


def parse(text: str) -> Message:
    """The message in a frame; `FrameError` if it is none."""
    message = json_object(text)
    kind, data = message.get("type"), message.get("data", {})
    unknown = sorted(set(message) - {"type", "data"})
    if unknown:
        raise FrameError("VALIDATION_ERROR", f"A message has no key '{unknown[0][:100]}'.")
    if not isinstance(data, dict):
        raise FrameError("VALIDATION_ERROR", "'data' must be an object.")
    match kind:
        case "reset":
            return parse_reset(data)
        case "step":
            return parse_action(data)
        case "state":
            return AskState()
        case "close":
            return Close()
        case "mcp":
            return Rpc(data)
        case _:
            raise FrameError("UNKNOWN_TYPE", f"Unknown message type: {str(kind)[:100]}")


def json_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object, without numbers that JSON does not have."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError("INVALID_JSON", f"Invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise FrameError("VALIDATION_ERROR", "A message must be a JSON object.")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def parse_reset(data: Mapping[str, Any]) -> Reset:
    """The keywords of a reset. One that is not known is refused: it could not have the effect that is meant."""
    for key, value in data.items():
        if key not in _RESET_KEYS:
            known = ", ".join(_RESET_KEYS)
            raise FrameError("VALIDATION_ERROR", f"A reset takes no '{key[:100]}'; it takes: {known}.")
        if value is not None and (not isinstance(value, _RESET_KEYS[key]) or isinstance(value, bool)):
            word = "an integer" if _RESET_KEYS[key] is int else "a string"
            raise FrameError("VALIDATION_ERROR", f"'{key}' must be {word}.")
    given = {key: value for key, value in data.items() if value is not None}
    if given.setdefault("task", given.get("task_id")) != given.pop("task_id", given["task"]):
        raise FrameError("VALIDATION_ERROR", "'task' and 'task_id' name different tasks.")
    found = Reset(**given)
    if found.seed is not None and not 0 <= found.seed <= MAX_SEED:
        raise FrameError("VALIDATION_ERROR", "'seed' must be 0 or more.")
    if found.episode_id is not None and len(found.episode_id) > MAX_EPISODE_ID:
        raise FrameError("VALIDATION_ERROR", f"'episode_id' must have at most {MAX_EPISODE_ID} characters.")
    if found.task is not None and found.index is not None:
        raise FrameError("VALIDATION_ERROR", "A reset takes 'task' or 'index', not both.")
    return found


def parse_action(data: Mapping[str, Any]) -> CallTool | ListTools:
    """The action of a step; without a type it calls a tool."""
    unknown = sorted(str(key) for key in set(data) - _ACTION_KEYS)
    if unknown:
        keys = "'type', 'tool_name' and 'arguments'"
        raise FrameError("VALIDATION_ERROR", f"An action has {keys}, and no '{unknown[0][:100]}'.")
    kind, tool, arguments = data.get("type", "call_tool"), data.get("tool_name"), data.get("arguments", {})
    if kind == "list_tools":
        return ListTools()
    if kind != "call_tool":
        raise FrameError("VALIDATION_ERROR", "The 'type' of an action is 'call_tool' or 'list_tools'.")
    if not isinstance(tool, str) or not isinstance(arguments, dict):
        raise FrameError("VALIDATION_ERROR", "'tool_name' must be a string and 'arguments' an object.")
    return CallTool(tool, arguments)


def observation(
    seen: Mapping[str, Any],
    *,
    reward: float | None = None,
    done: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The answer to a reset or a step."""
    about = dict(metadata or {})
    return {"observation": {**seen, "metadata": about}, "reward": reward, "done": done, "metadata": about}


def prompt_seen(prompt: Sequence[Block]) -> dict[str, Any]:
    """The first observation of an episode."""
    return {"prompt": texts(prompt), **_images(prompt)}


def call_seen(tool: str, result: CallResult) -> dict[str, Any]:
    """What a tool gave."""
    return {"tool_name": tool, "result": result.text, "error": None, **_images(result.blocks)}


def tools_seen(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    return {"tools": [listed(tool) for tool in tools]}


def listed(tool: ToolSpec, schema: Literal["input_schema", "inputSchema"] = "input_schema") -> dict[str, Any]:
    """A tool; an action and MCP write the key of its schema in different ways."""
    return {"name": tool.name, "description": tool.description, schema: dict(tool.input_schema)}


def texts(blocks: Sequence[Block]) -> str:
    return "\n".join(block.data for block in blocks if block.media_type is None)


def _images(blocks: Sequence[Block]) -> dict[str, Any]:
    images = [{"media_type": each.media_type, "data": each.data} for each in blocks if each.media_type is not None]
    return {"images": images} if images else {}


def frame(kind: Literal["observation", "state", "mcp"], data: Mapping[str, Any]) -> str:
    return encoded({"type": kind, "data": data})


def error_frame(code: ErrorCode, sentence: str, **more: Any) -> str:
    return encoded({"type": "error", "data": {"message": sentence, "code": code, **more}})


def encoded(value: Any) -> str:
    """JSON in ASCII, so that text which is not valid UTF-8 survives."""
    return json.dumps(value, allow_nan=False, default=str)
