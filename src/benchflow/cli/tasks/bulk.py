"""The report of a command over many packages: one by one if they are few, grouped by kind of finding if they are many.

Nothing is kept but counts and a few examples, and JSON is written as the results come, so that memory does not grow
with the number of packages.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from benchflow.cli.tasks.rendering import counted, location
from benchflow.cli.terminal import emit, emit_json_text, printable, style
from benchflow.errors import Issue

MANY: Final = 30
"""With more packages than this, findings are grouped."""
_FEW_ERRORS: Final = 10
_FEW: Final = 3
"""A group of at most this many findings is listed in full, a larger one by its first."""
_KEYS: Final = 5
_INDEX: Final = re.compile(r"\[\d+\]")
Entry = dict[str, Any]


class Finding(NamedTuple):
    """Something to report about a package."""

    severity: str
    kind: str
    """What findings are grouped by: the code of an issue, the key of a loss."""
    text: str
    place: str
    key: str = ""


def finding_of(issue: Issue, folder: str) -> Finding:
    return Finding(issue.severity, issue.code, issue.message, location(issue, folder), _INDEX.sub("[]", issue.path))


@dataclass
class _Group:
    findings: int = 0
    packages: int = 0
    examples: list[Finding] = field(default_factory=list)
    keys: Counter[str] = field(default_factory=Counter)


class Groups:
    """Takes the findings of one package after the other, and prints them by severity and kind."""

    def __init__(self, more: str) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}
        self._more = more

    def add(self, findings: Iterable[Finding]) -> None:
        """Count the findings of the next package."""
        seen: set[tuple[str, str]] = set()
        for finding in findings:
            name = finding.severity, finding.kind
            group = self._groups.setdefault(name, _Group())
            group.findings += 1
            group.packages += name not in seen
            group.keys[finding.key] += 1
            if len(group.examples) < _few(finding.severity):
                group.examples.append(finding)
            seen.add(name)

    def emit(self) -> None:
        """Print the groups: warnings last, otherwise the largest first; then how to list what was left out."""
        order = sorted(self._groups.items(), key=lambda item: (item[0][0] == "warning", -item[1].findings))
        for (severity, kind), group in order:
            emit("\n".join(_lines(severity, kind, group)))
        if any(group.findings > _few(severity) for (severity, _kind), group in order):
            emit(style(self._more, "dim"))


def _few(severity: str) -> int:
    return _FEW_ERRORS if severity == "error" else _FEW


def _lines(severity: str, kind: str, group: _Group) -> Iterator[str]:
    number = counted(group.packages, "package")
    if group.findings != group.packages:
        number = f"{group.findings:,} in {number}"
    yield f"{style(severity, 'yellow' if severity == 'warning' else 'red')} {style(printable(kind), 'bold')}: {number}"
    whole = group.findings <= _few(severity)
    for finding in group.examples if whole else group.examples[:1]:
        yield f"     {printable(finding.place)}: {printable(finding.text)}"
    if not whole:
        yield f"     … and {group.findings - 1:,} more"
        if len(group.keys) > 1:
            yield f"     keys: {_most_common(group.keys)}"


def _most_common(keys: Counter[str]) -> str:
    """`environment.cpuz (12), environment.gpu (3), 2 other keys`."""
    listed = [f"{printable(key) or 'none'} ({number:,})" for key, number in keys.most_common(_KEYS)]
    if len(keys) > _KEYS:
        listed.append(counted(len(keys) - _KEYS, "other key"))
    return ", ".join(listed)


class BulkReport:
    """Takes the JSON entries of packages, each with `path` and `status`, as they are finished."""

    def __init__(
        self,
        key: str,
        statuses: Sequence[str],
        total: int,
        *,
        as_json: bool,
        show: Callable[[Entry], None],
        findings: Callable[[Entry], Iterable[Finding]],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._key = key
        self._statuses = statuses
        self._total = total
        self._as_json = as_json
        self._show = show
        self._findings = findings
        self._groups = Groups("Use --json for the full list.")

    def add(self, entry: Entry) -> None:
        """Count an entry, and print or group it."""
        first = not self.counts.total()
        self.counts[entry["status"]] += 1
        if self._as_json:
            emit_json_text(f'{{"{self._key}": [{json.dumps(entry)}' if first else f",{json.dumps(entry)}")
        elif self._total <= MANY:
            self._show(entry)
        else:
            self._groups.add(self._findings(entry))

    def finish(self, bad: Sequence[str]) -> bool:
        """Print groups and summary; whether no package ended with a bad status."""
        summary = {"total": self.counts.total(), **{status: self.counts[status] for status in self._statuses}}
        good = not any(self.counts[status] for status in bad)
        if self._as_json:
            emit_json_text(f'], "summary": {json.dumps(summary)}}}')
            return good
        self._groups.emit()
        told = ", ".join(f"{summary[status]:,} {status}" for status in self._statuses)
        emit(style(f"{counted(self.counts.total(), 'package')}: {told}", "green" if good else "red"))
        return good


def issue_findings(entry: Entry) -> Iterator[Finding]:
    """The issues of an entry."""
    for issue in entry.get("issues", ()):
        yield finding_of(Issue(**issue), entry["path"])
