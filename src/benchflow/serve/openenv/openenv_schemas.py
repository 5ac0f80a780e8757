"""What an OpenEnv server says of itself: the schemas of its messages, and its paths as an OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

API_VERSION: Final = "1.0.0"
"""The version of OpenEnv's HTTP interface."""
_OBJECT: Final = {"type": "object"}
_REWARD: Final = {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}
_IMAGES: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"media_type": {"type": "string"}, "data": {"type": "string", "description": "base64"}},
        "required": ["media_type", "data"],
    },
}
_TASK: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "digest": {"type": "string"},
        "index": {"type": "integer"},
        "environment": {"type": "string"},
        "split": {"type": "string"},
    },
}
_ENDING: Final = {
    "reward": _REWARD,
    "done": {"type": "boolean", "default": False},
    "metadata": {"type": "object", "additionalProperties": True},
}

ACTION: Final[Mapping[str, Any]] = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {
        "type": {"enum": ["call_tool", "list_tools"], "default": "call_tool"},
        "tool_name": {"type": "string", "description": "one of the tools that list_tools gives"},
        "arguments": {"type": "object", "description": "as the tool's input schema says", "default": {}},
        "metadata": _OBJECT,
    },
    "additionalProperties": False,
}
OBSERVATION: Final[Mapping[str, Any]] = {
    "title": "CallToolObservation",
    "type": "object",
    "properties": {
        "tool_name": {"type": "string"},
        "result": {"type": "string", "description": "what the tool gave, as text"},
        "error": {"type": "null"},
        "images": _IMAGES,
        "tools": {"type": "array", "items": _OBJECT},
        **_ENDING,
    },
    "additionalProperties": False,
}
RESET_OBSERVATION: Final[Mapping[str, Any]] = {
    "title": "PromptObservation",
    "type": "object",
    "properties": {"prompt": {"type": "string"}, "images": _IMAGES, "task": _TASK, **_ENDING},
    "required": ["prompt"],
    "additionalProperties": False,
}
STATE: Final[Mapping[str, Any]] = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "step_count": {"type": "integer", "minimum": 0},
        "task": {"anyOf": [_TASK, {"type": "null"}]},
        "done": {"type": "boolean"},
        "reward": _REWARD,
        "metadata": _OBJECT,
    },
    "required": ["episode_id", "step_count"],
}


def schemas() -> dict[str, Any]:
    """The reply to `GET /schema`."""
    return {"action": ACTION, "observation": OBSERVATION, "reset_observation": RESET_OBSERVATION, "state": STATE}


def openapi(name: str, description: str) -> dict[str, Any]:
    """The reply to `GET /openapi.json`."""
    ok = {"200": {"description": "OK"}}
    posts = ("/reset", "/step", "/mcp", "/{environment}/tasks", "/{environment}/num_tasks", "/{environment}/task")
    gets = ("/health", "/metadata", "/schema", "/state", "/list_environments", "/{environment}/splits")
    paths = {
        **{path: {"get": {"summary": path, "responses": ok}} for path in gets},
        **{path: {"post": {"summary": path, "responses": ok}} for path in (*posts, "/{environment}/task_range")},
    }
    info = {"title": name, "description": description, "version": API_VERSION}
    return {"openapi": "3.1.0", "info": info, "paths": paths}
