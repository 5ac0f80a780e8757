"""Installed benchmarks: packages that declare an entry point in the group `cube.benchmarks`.

The value of an entry point is `package.module:BenchmarkConfigSubclass`; its name is what commands take.
"""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points
from typing import Final

logger = logging.getLogger(__name__)

GROUP: Final = "cube.benchmarks"


def installed() -> dict[str, EntryPoint]:
    """All installed benchmarks by name, in order of their names; nothing of them is imported."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def import_benchmarks_of(package: str) -> None:
    """Import the installed benchmarks of a top-level package, so that their classes know each other.

    One that cannot be imported is logged: a task of another must not fail for it.
    """
    for entry in installed().values():
        if entry.value.partition(":")[0].partition(".")[0] == package:
            try:
                entry.load()
            except Exception as error:  # noqa: BLE001  # whatever a benchmark's import raises
                logger.warning("Benchmark '%s' cannot be imported: %s: %s", entry.name, type(error).__name__, error)
