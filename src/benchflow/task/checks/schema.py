"""Level `schema`: the definition reads without error and asks for something.

Only `task.md` with its prompts, or `task.toml` with `instruction.md`, are judged; the rest of the folder
may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchflow.errors import Issue
from benchflow.task.checks.markers import marker_issues
from benchflow.task.layout import SOURCE_FILES
from benchflow.task.package import INSTRUCTION, TaskPackage

_DEFINITION: Final = frozenset(SOURCE_FILES)


def check_schema(package: TaskPackage) -> Iterator[Issue]:
    """Problems of the definition."""
    yield from package.document_issues
    yield from (issue for issue in package.layout_issues if is_about_definition(issue))
    files = [name for name in package.files.files if name in _DEFINITION or name.startswith("prompts/")]
    yield from marker_issues(package.files, files)
    if package.config is not None:
        yield from _check_prompt(package)


def is_about_definition(issue: Issue) -> bool:
    """Whether a problem of the folder is about a file that defines the task: a link or pipe in its place."""
    return issue.file in _DEFINITION or (issue.file is None and issue.path in _DEFINITION)


def _check_prompt(package: TaskPackage) -> Iterator[Issue]:
    if package.entrypoint == "task.md":
        plan = package.prompt_plan
        if not any(turn.prompt.strip() for turn in plan.turns) and not _has_step_prompts(package):
            yield Issue(
                "empty-prompt",
                "error",
                "prompt",
                "task.md asks the agent for nothing: its body is empty",
                "task.md",
            )
    elif package.instruction is None:
        if not _has_step_prompts(package) and INSTRUCTION not in package.files:
            yield Issue(
                "missing-file",
                "error",
                "",
                "instruction.md is missing: nothing is asked of the agent",
                INSTRUCTION,
            )
    elif not package.instruction.strip():
        yield Issue(
            "empty-prompt", "error", "", "instruction.md is empty: nothing is asked of the agent", INSTRUCTION
        )


def _has_step_prompts(package: TaskPackage) -> bool:
    """Multi-step packages keep instructions with their steps; whether each has one is asked later."""
    return package.config is not None and bool(package.config.steps)
