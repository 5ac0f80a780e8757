"""Scaffold markers that an author has not filled in yet, each with its file and line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from benchflow.errors import Issue
from benchflow.task.filemap import FileMap
from benchflow.task.package_scaffold import MARKER

_MARKER: Final = MARKER.encode()
_SHOWN: Final = 100


def marker_issues(files: FileMap, names: Iterable[str]) -> Iterator[Issue]:
    """One error per marker in the named files; files too large to be kept were not written by hand."""
    for name in names:
        data = files.files[name].data
        if data is None or _MARKER not in data:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
            start = line.find(MARKER)
            if start >= 0:
                shown = line[start:].rstrip()
                shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1].rstrip()}…"
                yield Issue("marker-left", "error", "", f"there is still a marker to fill in: {shown}", name, number)
