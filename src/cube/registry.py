"""Installed benchmarks: packages that declare an entry point in the group `cube.benchmarks`.

The value of an entry point is `package.module:BenchmarkConfigSubclass`; commands refer to it by its name.
"""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points
from typing import Final

logger = logging.getLogger(__name__)

GROUP: Final = "cube.benchmarks"


def installed() -> dict[str, EntryPoint]:
    """All installed benchmarks, sorted by name; none of them is imported."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def import_benchmarks_of(package: str) -> None:
    """Import the installed benchmarks of a top-level package, so that their classes are registered.

    One that cannot be imported is logged, so that tasks of the others still run.
    """
    for entry in installed().values():
        if entry.value.partition(":")[0].partition(".")[0] == package:
            try:
                entry.load()
            except Exception as error:  # noqa: BLE001  # whatever a benchmark's import raises
                logger.warning("Benchmark '%s' cannot be imported: %s: %s", entry.name, type(error).__name__, error)
