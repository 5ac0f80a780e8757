"""The `bench` command: one module per command group, loaded on demand."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `bench` and return its exit code; never raises and never prints a traceback."""
    from benchflow.cli.failures import guarded
    from benchflow.cli.root import bench

    return guarded(bench, arguments)
