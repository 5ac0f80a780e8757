"""Where problems are collected while a package is read.

An `IssueLog` belongs to one file: parsers hand it a code, a dotted path and a sentence, it adds the file
and the line. Lines are looked up only when there is something to report, so a good package never pays for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from benchflow.errors import Issue, Severity

MAX_ISSUES: Final = 200
"""Of one file."""
MAX_SHOWN: Final = 500
Locate = Callable[[str], int | None]


class IssueLog:
    """Collects the issues of one file. `foreign` marks a lenient import: unknown keys are warnings there."""

    __slots__ = ("_locate", "file", "foreign", "issues", "renames")

    def __init__(self, file: str | None = None, locate: Locate | None = None, *, foreign: bool = False) -> None:
        self.file = file
        self.foreign = foreign
        self.issues: list[Issue] = []
        self.renames: dict[str, str] = {}
        """Canonical paths to the author's shorthand that they came from."""
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
            message = f"there are more than {MAX_ISSUES - 1} problems; the others are not listed"
        self.issues.append(Issue(code, severity, shorten(path), shorten(message), self.file, line))


def shorten(text: str) -> str:
    """A text that fits a report, whatever an author wrote."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"
