"""Installed benchmarks: packages that declare an entry point in the group `cube.benchmarks`.

The value of an entry point is `package.module:BenchmarkConfigSubclass`; commands refer to it by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "cube.benchmarks"


def installed() -> dict[str, EntryPoint]:
    """All installed benchmarks, sorted by name; none of them is imported."""
    from importlib.metadata import entry_points  # reads mail and archive formats: as costly as all models of a task

    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def import_benchmarks_of(package: str) -> None:
    """Import the installed benchmarks of a top-level package, so that their classes are registered.

    One that cannot be imported is logged, so that tasks of the others still run.
    """
    import logging

    for entry in installed().values():
        if entry.value.partition(":")[0].partition(".")[0] == package:
            try:
                entry.load()
            except Exception as error:  # noqa: BLE001  # whatever a benchmark's import raises
                logging.getLogger(__name__).warning(
                    "Benchmark '%s' cannot be imported: %s: %s", entry.name, type(error).__name__, error
                )
