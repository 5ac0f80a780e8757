"""Installed benchmarks: packages that declare an entry point in the group `cube.benchmarks`.

The value of an entry point is `package.module:BenchmarkConfigSubclass`; its name is what commands take.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

GROUP: Final = "cube.benchmarks"


def installed() -> dict[str, EntryPoint]:
    """All installed benchmarks by name, in order of their names; nothing of them is imported."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def import_benchmarks_of(package: str) -> None:
    """Import the installed benchmarks of a top-level package, so that their classes know each other."""
    for entry in installed().values():
        if entry.module.partition(".")[0] == package:
            entry.load()
