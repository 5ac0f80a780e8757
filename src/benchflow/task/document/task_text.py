"""Frontmatter and prompt -> the text of a `task.md`, parsed again before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchflow.errors import PackageError
from benchflow.task.config.task_config import TaskConfig
from benchflow.task.document.markdown import escape_headings
from benchflow.task.document.task_document import TaskDocument, TaskDocumentParseError
from benchflow.task.document.yaml_text import dump_yaml


def document_text(frontmatter: Mapping[str, Any], body: str) -> str:
    """A document from its frontmatter and a body, which is written unchanged."""
    return f"---\n{dump_yaml(dict(frontmatter))}---\n" + (f"\n{body}\n" if body else "")


def render_task_md(frontmatter: Mapping[str, Any], instruction: str) -> str:
    """A document with a plain body: the prompt, with lines that would read as headings escaped."""
    return document_text(frontmatter, escape_headings(instruction.strip()))


def render_checked(frontmatter: Mapping[str, Any], instruction: str, config: TaskConfig | None) -> str:
    """Render and parse again; a difference or an invalid document is a `PackageError`."""
    try:
        text = render_task_md(frontmatter, instruction)
        document = TaskDocument.from_text(text)
    except TaskDocumentParseError as problem:
        raise PackageError(f"the task cannot be written as task.md: {problem}", code="not-migratable") from None
    changed = config is not None and document.config != config
    if changed or document.instruction != instruction.strip():
        raise PackageError("the task cannot be written as task.md without changing its meaning", code="not-migratable")
    return text
