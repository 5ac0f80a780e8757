"""The report of a command over many packages: one by one if they are few, grouped by what is said if they are many.

Nothing is kept but counts and groups, and JSON is written as the results come, so that memory does not grow with the
number of packages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from benchflow.cli.tasks.rendering import counted
from benchflow.cli.terminal import emit, emit_json_text, printable, style

MANY: Final = 30
"""With more packages than this, what is said of them is grouped."""
Entry = dict[str, Any]
Said = tuple[str, str]
"""Severity and text of something that is said of a package."""


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
        said: Callable[[Entry], Iterable[Said]],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._key = key
        self._statuses = statuses
        self._total = total
        self._as_json = as_json
        self._show = show
        self._said = said
        self._groups: dict[Said, tuple[int, str]] = {}

    def add(self, entry: Entry) -> None:
        """Count an entry, and print or group it."""
        first = not self.counts.total()
        self.counts[entry["status"]] += 1
        if self._as_json:
            emit_json_text(f'{{"{self._key}": [{json.dumps(entry)}' if first else f",{json.dumps(entry)}")
        elif self._total <= MANY:
            self._show(entry)
        else:
            for said in dict.fromkeys(self._said(entry)):
                count, example = self._groups.get(said, (0, entry["path"]))
                self._groups[said] = (count + 1, example)

    def finish(self, bad: Sequence[str]) -> bool:
        """Print groups and summary; whether no package ended with a bad status."""
        summary = {"total": self.counts.total(), **{status: self.counts[status] for status in self._statuses}}
        good = not any(self.counts[status] for status in bad)
        if self._as_json:
            emit_json_text(f'], "summary": {json.dumps(summary)}}}')
            return good
        for (severity, text), (count, example) in sorted(self._groups.items(), key=lambda group: -group[1][0]):
            emit(f"{style(severity, 'yellow' if severity == 'warning' else 'red')}: {printable(text)}")
            emit(f"     {counted(count, 'package')}, for example {printable(example)}")
        told = ", ".join(f"{summary[status]:,} {status}" for status in self._statuses)
        emit(style(f"{counted(self.counts.total(), 'package')}: {told}", "green" if good else "red"))
        return good


def issues_said(entry: Entry) -> Iterable[Said]:
    """What the issues of an entry say, without the name of the package: equal issues of many packages are one group."""
    for issue in entry.get("issues", ()):
        place = f"{issue['file']}: " if issue.get("file") else ""
        yield issue["severity"], f"{place}{issue['message']} [{issue['code']}]"
