"""Level `schema`: the definition is valid and has a prompt.

Only `task.md` with its prompts, or `task.toml` with `instruction.md`, is checked; all other files may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from benchflow.errors import Issue
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.filemap import FileMap
from benchflow.task.package import TaskPackage
from benchflow.task.package_layout import INSTRUCTION, TASK_TOML
from benchflow.task.package_scaffold import MARKER

_DEFINITION: Final = frozenset({TASK_MD, TASK_TOML, INSTRUCTION})


def check_schema(package: TaskPackage) -> Iterator[Issue]:
    """Problems of the definition."""
    yield from package.document_issues
    yield from (issue for issue in package.layout_issues if is_about_definition(issue))
    files = [name for name in package.files.files if name in _DEFINITION or name.startswith("prompts/")]
    yield from marker_issues(package.files, files)
    if package.config is not None:
        yield from _check_prompt(package)


def is_about_definition(issue: Issue) -> bool:
    """Whether a problem of the folder concerns a file that defines the task, such as a link in its place."""
    return issue.file in _DEFINITION or (issue.file is None and issue.path in _DEFINITION)


def _check_prompt(package: TaskPackage) -> Iterator[Issue]:
    if (package.instruction or "").strip() or _has_step_prompts(package):
        return
    if package.entrypoint == "task.md":
        turns = package.prompt_plan.turns
        silent = next((turn for turn in turns if not turn.prompt.strip()), None)
        if silent is not None:
            who = f"the turn of {silent.role} in {silent.scene}" if silent.scene else "the agent"
            yield Issue("empty-prompt", "error", "prompt", f"task.md has no prompt for {who}", "task.md")
    elif package.instruction is not None:
        yield Issue("empty-prompt", "error", "", "instruction.md is empty, so the agent has no prompt", INSTRUCTION)
    elif INSTRUCTION not in package.files:
        yield Issue("missing-file", "error", "", "instruction.md is missing, so the agent has no prompt", INSTRUCTION)


def _has_step_prompts(package: TaskPackage) -> bool:
    """Multi-step packages keep instructions with their steps; the level `structural` checks each of them."""
    return package.config is not None and bool(package.config.steps)


_MARKER: Final = MARKER.encode()
_SHOWN: Final = 100


def marker_issues(files: FileMap, names: Iterable[str]) -> Iterator[Issue]:
    """One error per placeholder in the named files; files too large to be kept in memory are skipped."""
    for name in names:
        data = files.files[name].data
        if data is None or _MARKER not in data:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
            start = line.find(MARKER)
            if start >= 0:
                shown = line[start:].rstrip()
                shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1].rstrip()}…"
                yield Issue("marker-left", "error", "", f"placeholder not filled in: {shown}", name, number)
