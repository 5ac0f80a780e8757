"""The tools of a package's sandbox: a shell and text files, with the permissions of the agent's user.

A command that fails is an ordinary result with its exit code; only a request that makes no sense is an error text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchflow.agents.model.tools import DEFAULT_TIMEOUT, LONGEST_TIMEOUT, shortened, shown_result
from benchflow.agents.workspace import Workspace, WorkspaceError
from benchflow.serve.episode import SUBMIT, CallResult, ToolSpec, text_blocks


def _schema(required: tuple[str, ...], **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: dict(each) for name, each in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_PATH: Final = _text("The file; absolute, or relative to the working folder.")
TOOLS: Final = (
    ToolSpec(
        "bash",
        "Run a command in a new shell in the working folder; returns its output and exit code.",
        _schema(
            ("command",),
            command=_text("The command to run."),
            timeout={"type": "number", "description": f"Time limit in seconds; default {DEFAULT_TIMEOUT:g}."},
        ),
    ),
    ToolSpec("read_file", "Read a text file.", _schema(("path",), path=_PATH)),
    ToolSpec(
        "write_file",
        "Write a text to a file, replacing what was there; missing folders are created.",
        _schema(("path", "text"), path=_PATH, text=_text("The complete text.")),
    ),
    ToolSpec(
        "edit_file",
        "Replace a text that occurs exactly once in a file.",
        _schema(("path", "old", "new"), path=_PATH, old=_text("The text to replace."), new=_text("The replacement.")),
    ),
)
_SUBMIT_SCHEMA: Final = _schema((), message=_text("What you want to say about your work."))


def submit_tool(*, goes_on: bool) -> ToolSpec:
    """`submit`; `goes_on` where another instruction may follow."""
    more = " Another instruction may follow as its result." if goes_on else ""
    return ToolSpec(SUBMIT, f"Say that you are done: your work is then scored.{more}", _SUBMIT_SCHEMA)


async def run_workspace_tool(
    workspace: Workspace, name: str, arguments: Mapping[str, Any], *, seconds: float | None
) -> CallResult:
    """The result of a checked call; `seconds` bounds a command besides its own limit."""
    try:
        if name == "bash":
            asked = min(max(float(arguments.get("timeout", DEFAULT_TIMEOUT)), 0.1), LONGEST_TIMEOUT)
            timeout = asked if seconds is None else min(asked, max(seconds, 0.1))
            done = await workspace.bash(arguments["command"], timeout=timeout)
            metadata = {"exit_code": done.exit_code, **({"timed_out": True} if done.timed_out else {})}
            return CallResult(text_blocks(shown_result(done, timeout)), metadata=metadata)
        return CallResult(text_blocks(await _file_tool(workspace, name, arguments)))
    except WorkspaceError as error:
        return CallResult(text_blocks(f"error: {error}"), metadata={"error": error.code})


async def _file_tool(workspace: Workspace, name: str, arguments: Mapping[str, Any]) -> str:
    path: str = arguments["path"]
    match name:
        case "read_file":
            return shortened(await workspace.read_text(path)) or "(empty)"
        case "write_file":
            await workspace.write_text(path, arguments["text"])
            return f"Wrote {path}."
        case _:
            await workspace.edit_text(path, arguments["old"], arguments["new"])
            return f"Edited {path}."
