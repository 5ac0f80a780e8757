"""The tools of a model in a sandbox: their names, arguments and results.

A problem with a call is reported to the model as its result, so that it can correct the call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow.agents.protocol import RemoteTools
from benchflow.agents.workspace import Workspace, WorkspaceError
from benchflow.models import ToolCall
from benchflow.sandbox.protocol import ExecResult

DEFAULT_TIMEOUT: Final = 120.0
LONGEST_TIMEOUT: Final = 1800.0
_MAX_SHOWN: Final = 30_000
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {"string": str, "number": (int, float), "integer": int}


class MalformedCall(ValueError):
    """A tool call that cannot be run; `str()` is the message to the model."""


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
        "Run a command in a new shell in the working folder; returns its output and exit code.",
        {
            "command": _text("The command to run."),
            "timeout_sec": {"type": "number", "description": f"Time limit in seconds; default {DEFAULT_TIMEOUT:g}."},
        },
        ("command",),
    ),
    ToolSpec(
        "read_file",
        "Read a text file, or some lines of it.",
        {
            "path": _text("The file; absolute, or relative to the working folder."),
            "line": {"type": "integer", "description": "The first line to read, counted from 1."},
            "limit": {"type": "integer", "description": "The number of lines to read."},
        },
        ("path",),
    ),
    ToolSpec(
        "write_file",
        "Write a text to a file; missing folders are created.",
        {"path": _text("The file."), "content": _text("The complete text.")},
        ("path", "content"),
    ),
    ToolSpec(
        "edit_file",
        "Replace a text that occurs exactly once in a file.",
        {"path": _text("The file."), "old": _text("The text to replace."), "new": _text("The replacement.")},
        ("path", "old", "new"),
    ),
)


def offered(forbidden: frozenset[str]) -> tuple[ToolSpec, ...]:
    """The tools that are not forbidden."""
    names = {name.lower() for name in forbidden}
    return tuple(spec for spec in SPECS if spec.name not in names)


def parse_call(call: ToolCall, specs: tuple[ToolSpec, ...]) -> dict[str, Any]:
    """The checked arguments of a call; `MalformedCall` says what is wrong and what is expected."""
    spec = next((spec for spec in specs if spec.name == call.name), None)
    if spec is None:
        names = ", ".join(spec.name for spec in specs)
        raise MalformedCall(f"Unknown tool '{call.name}'. Available tools: {names}.")
    arguments = parse_arguments(call)
    for name in spec.required:
        if name not in arguments:
            raise MalformedCall(f"The argument '{name}' of {call.name} is missing.")
    for name, value in arguments.items():
        if name not in spec.properties:
            raise MalformedCall(
                f"{call.name} has no argument '{name}'. Its arguments are: {', '.join(spec.properties)}."
            )
        wanted = spec.properties[name]["type"]
        if not isinstance(value, _TYPES[wanted]) or isinstance(value, bool):
            raise MalformedCall(f"The argument '{name}' of {call.name} must be of type {wanted}.")
    return arguments


def parse_arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments as a mapping; `MalformedCall` if they are not one."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise MalformedCall(f"The arguments of {call.name} are not valid JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise MalformedCall(f"The arguments of {call.name} must be a JSON object.")
    return arguments


def remote_tools(tools: RemoteTools | None) -> list[dict[str, Any]]:
    """The tools of an environment outside the sandbox, in the OpenAI tool format."""
    return [
        {
            "type": "function",
            "function": {
                "name": spec.name,
                "description": spec.description,
                "parameters": dict(spec.input_schema) or {"type": "object", "properties": {}},
            },
        }
        for spec in (tools.specs if tools is not None else ())
    ]


def parse_remote_call(call: ToolCall, tools: RemoteTools) -> dict[str, Any]:
    """The arguments of a call, which the environment itself checks; `MalformedCall` for an unknown tool."""
    names = [spec.name for spec in tools.specs]
    if call.name not in names:
        raise MalformedCall(f"Unknown tool '{call.name}'. Available tools: {', '.join(names)}.")
    return parse_arguments(call)


async def run_tool(workspace: Workspace, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """Run a checked call; return its result and whether it succeeded."""
    try:
        match name:
            case "bash":
                timeout = min(max(float(arguments.get("timeout_sec", DEFAULT_TIMEOUT)), 0.1), LONGEST_TIMEOUT)
                done = await workspace.bash(arguments["command"], timeout=timeout)
                return shown_result(done, timeout), done.ok
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


def shown_result(done: ExecResult, timeout: float) -> str:
    """The output of a command and how it ended, as text of limited length."""
    parts = [stream.decode(errors="replace").rstrip("\n") for stream in (done.stdout, done.stderr)]
    text = shortened("\n".join(part for part in parts if part))
    if done.dropped_bytes:
        text += f"\n[{done.dropped_bytes} bytes in the middle of the output were omitted]"
    ending = f"[stopped at the time limit of {timeout:g} s]" if done.timed_out else f"[exit code {done.exit_code}]"
    return f"{text}\n{ending}" if text else ending


def shortened(text: str) -> str:
    """A text of limited length: of a long one, its beginning and its end."""
    if len(text) <= _MAX_SHOWN:
        return text
    half = _MAX_SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters omitted]\n{text[-half:]}"
