"""Issues and counts as text: one line each, with a location that editors can open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchflow.cli.terminal import emit, printable, style
from benchflow.errors import BenchflowError, Issue


def issue_lines(issues: Iterable[Issue], folder: str, *, indent: str = "     ") -> Iterator[str]:
    """`folder/file:line: severity: message [code]`, one per issue."""
    for issue in issues:
        severity = style(issue.severity, "red" if issue.severity == "error" else "yellow")
        where = printable(location(issue, folder))
        yield f"{indent}{where}: {severity}: {printable(issue.message)} {style(f'[{issue.code}]', 'dim')}"


def location(issue: Issue, folder: str) -> str:
    """`folder/file:line`, as far as they are known."""
    place = "/".join(part for part in (folder.rstrip("/"), issue.file) if part)
    return place if issue.line is None else f"{place}:{issue.line}"


def failed(path: str, *issues: Issue) -> dict[str, Any]:
    """The JSON entry of a package that a command could not process."""
    return {"path": path, "status": "failed", "issues": [issue.to_dict() for issue in issues]}


def emit_issues(entry: Mapping[str, Any]) -> None:
    """Print the issues of a JSON entry."""
    for line in issue_lines((Issue(**issue) for issue in entry.get("issues", ())), entry["path"]):
        emit(line)


def failure_issues(error: Exception) -> tuple[Issue, ...]:
    """The error that ended the work on one package, as issues."""
    if not isinstance(error, BenchflowError | OSError):
        return (Issue("internal-error", "error", "", f"unexpected {type(error).__name__}: {error}"),)
    if isinstance(error, BenchflowError):
        several = getattr(error, "issues", ())
        return tuple(several) or (error.issue(),)
    where = f"{error.filename}: " if error.filename else ""
    return (Issue("unreadable", "error", "", f"{where}{error.strerror or error}"),)


def counted(number: int, noun: str) -> str:
    """`1 package`, `2,000 packages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
