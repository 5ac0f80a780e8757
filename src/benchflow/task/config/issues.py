"""Collects problems while a package is read.

An `IssueLog` belongs to one file: parsers report a code, a dotted path and a sentence; the log adds the file and the
line. Lines are looked up only when there is something to report, so a valid package does not pay for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from benchflow.errors import Issue, Severity

MAX_ISSUES: Final = 200
"""Per file."""
MAX_SHOWN: Final = 500
Locate = Callable[[str], int | None]


class IssueLog:
    """Collects the issues of one file. `foreign` marks a lenient import, where unknown keys are only warnings."""

    __slots__ = ("_locate", "file", "foreign", "issues", "renames")

    def __init__(self, file: str | None = None, locate: Locate | None = None, *, foreign: bool = False) -> None:
        self.file = file
        self.foreign = foreign
        self.issues: list[Issue] = []
        self.renames: dict[str, str] = {}
        """Canonical path -> the shorthand the author wrote."""
        self._locate = locate

    def error(self, code: str, path: str, message: str, *, line: int | None = None) -> None:
        self._add(code, "error", path, message, line)

    def warning(self, code: str, path: str, message: str, *, line: int | None = None) -> None:
        self._add(code, "warning", path, message, line)

    def extend(self, issues: Iterable[Issue]) -> None:
        self.issues.extend(issues)

    def _add(self, code: str, severity: Severity, path: str, message: str, line: int | None) -> None:
        if len(self.issues) >= MAX_ISSUES:
            return
        path = self.renames.get(path, path)
        if line is None and self._locate is not None:
            line = self._locate(path)
        if len(self.issues) == MAX_ISSUES - 1:
            code, severity, path = "too-many-issues", "error", ""
            message = f"more than {MAX_ISSUES - 1} problems; the rest are not listed"
        self.issues.append(Issue(code, severity, shorten(path), shorten(message), self.file, line))


def shorten(text: str) -> str:
    """The text, cut to a length that fits a report."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"
