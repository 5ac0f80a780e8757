"""The tools of a model in a sandbox: what they are called, what they take, and what they answer.

Whatever is wrong with a call is said to the model in its answer, so that it can do better.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow.agents.workspace import Workspace, WorkspaceError
from benchflow.models import ToolCall
from benchflow.sandbox.protocol import ExecResult

DEFAULT_TIMEOUT: Final = 120.0
LONGEST_TIMEOUT: Final = 1800.0
_MAX_SHOWN: Final = 30_000
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {"string": str, "number": (int, float), "integer": int}


class MalformedCall(ValueError):
    """A tool call that cannot be run as it stands; `str()` is what the model is told."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    name: str
    description: str
    properties: Mapping[str, Mapping[str, str]]
    required: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The OpenAI tool format."""
        parameters = {
            "type": "object",
            "properties": {name: dict(schema) for name, schema in self.properties.items()},
            "required": list(self.required),
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


SPECS: Final = (
    ToolSpec(
        "bash",
        "Run a command in a new shell in the working folder; its output and exit code come back.",
        {
            "command": _text("What to run."),
            "timeout_sec": {"type": "number", "description": f"When to end it; {DEFAULT_TIMEOUT:g} unless given."},
        },
        ("command",),
    ),
    ToolSpec(
        "read_file",
        "Read a text file, or some lines of it.",
        {
            "path": _text("The file, from the working folder or absolute."),
            "line": {"type": "integer", "description": "The first line to read, counted from 1."},
            "limit": {"type": "integer", "description": "How many lines to read."},
        },
        ("path",),
    ),
    ToolSpec(
        "write_file",
        "Make a file hold a text; folders that are missing are made.",
        {"path": _text("The file."), "content": _text("All that it is to hold.")},
        ("path", "content"),
    ),
    ToolSpec(
        "edit_file",
        "Replace a text that occurs exactly once in a file.",
        {"path": _text("The file."), "old": _text("The text to replace."), "new": _text("The text in its place.")},
        ("path", "old", "new"),
    ),
)


def offered(forbidden: frozenset[str]) -> tuple[ToolSpec, ...]:
    """The tools that are not forbidden."""
    names = {name.lower() for name in forbidden}
    return tuple(spec for spec in SPECS if spec.name not in names)


def parse_call(call: ToolCall, specs: tuple[ToolSpec, ...]) -> dict[str, Any]:
    """The arguments of a call, checked; `MalformedCall` says what is wrong and what would be right."""
    spec = next((spec for spec in specs if spec.name == call.name), None)
    if spec is None:
        names = ", ".join(spec.name for spec in specs)
        raise MalformedCall(f"There is no tool '{call.name}'. The tools are: {names}.")
    arguments = parse_arguments(call)
    for name in spec.required:
        if name not in arguments:
            raise MalformedCall(f"The argument '{name}' of {call.name} is missing.")
    for name, value in arguments.items():
        if name not in spec.properties:
            raise MalformedCall(f"{call.name} has no argument '{name}'. It takes: {', '.join(spec.properties)}.")
        wanted = spec.properties[name]["type"]
        if not isinstance(value, _TYPES[wanted]) or isinstance(value, bool):
            raise MalformedCall(f"The argument '{name}' of {call.name} must be of type {wanted}.")
    return arguments


def parse_arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments as a mapping; `MalformedCall` when they are none."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise MalformedCall(f"The arguments of {call.name} are not valid JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise MalformedCall(f"The arguments of {call.name} must be a JSON object.")
    return arguments


async def run_tool(workspace: Workspace, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """Run a checked call; its answer, and whether it went well."""
    try:
        match name:
            case "bash":
                timeout = min(max(float(arguments.get("timeout_sec", DEFAULT_TIMEOUT)), 0.1), LONGEST_TIMEOUT)
                done = await workspace.bash(arguments["command"], timeout=timeout)
                return _shown_result(done, timeout), done.ok
            case "read_file":
                text = await workspace.read_text(
                    arguments["path"], line=arguments.get("line"), limit=arguments.get("limit")
                )
                return shortened(text) or "(empty)", True
            case "write_file":
                await workspace.write_text(arguments["path"], arguments["content"])
                return f"Wrote {arguments['path']}.", True
            case _:
                await workspace.edit_text(arguments["path"], arguments["old"], arguments["new"])
                return f"Edited {arguments['path']}.", True
    except WorkspaceError as error:
        return f"error: {error}", False


def _shown_result(done: ExecResult, timeout: float) -> str:
    parts = [stream.decode(errors="replace").rstrip("\n") for stream in (done.stdout, done.stderr)]
    text = shortened("\n".join(part for part in parts if part))
    if done.dropped_bytes:
        text += f"\n[{done.dropped_bytes} bytes of output were left out of the middle]"
    ending = f"[ended after {timeout:g} s, its time was over]" if done.timed_out else f"[exit code {done.exit_code}]"
    return f"{text}\n{ending}" if text else ending


def shortened(text: str) -> str:
    """A text that a model can take in: of a long one, its beginning and its end."""
    if len(text) <= _MAX_SHOWN:
        return text
    half = _MAX_SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
