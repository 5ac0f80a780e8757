"""`bench tasks migrate`: converts split packages and Terminal-Bench folders to native packages, in place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.tasks.rendering import counted, emit_issues, failed, failure_issues
from benchflow.cli.terminal import emit, emit_json, printable, style
from benchflow.errors import Issue, PackageError, UsageError
from benchflow.task.discovery import PACKAGE_MARKERS, TERMINAL_BENCH_MARKER, FoundPackage, find_packages


@click.command()
@package_paths
@click.option("--remove-legacy", is_flag=True, help="Remove the split files and give the folders their native names.")
@json_option
def migrate(paths: tuple[Path, ...], remove_legacy: bool, as_json: bool) -> int:
    """Convert split packages (task.toml, instruction.md) to task.md packages.

    Terminal-Bench folders (task.yaml) are converted too. Native packages below PATH are skipped; a native
    package named as PATH is an error. A package that cannot be migrated is left unchanged.
    """
    found = find_packages(paths, markers=(*PACKAGE_MARKERS, TERMINAL_BENCH_MARKER))
    results: list[dict[str, Any]] = []
    for package in Progress("Migrating packages:", len(found)).over(found):
        results.append(_migrate(package, remove_legacy=remove_legacy))
        if not as_json:
            _print(results[-1])
    counts = Counter(result["status"] for result in results)
    summary = {"total": len(results), **{status: counts[status] for status in ("migrated", "skipped", "failed")}}
    if as_json:
        emit_json({"summary": summary, "tasks": results})
    else:
        told = ", ".join(f"{summary[status]} {status}" for status in ("migrated", "skipped", "failed"))
        emit(style(f"{counted(len(results), 'package')}: {told}", "red" if counts["failed"] else "green"))
    return FAILED if counts["failed"] else GOOD


def _migrate(found: FoundPackage, *, remove_legacy: bool) -> dict[str, Any]:
    from benchflow.task.interop.migration import migrate_task_to_task_md

    if found.problem is not None:
        return failed(found.path, found.problem)
    if (found.path / "task.md").exists():
        if not found.named:
            return {"path": str(found.path), "status": "skipped", "issues": []}
        message = "the package already has a task.md; there is nothing to migrate"
        return failed(found.path, Issue("already-native", "error", "", message, "task.md"))
    try:
        done = migrate_task_to_task_md(found.path, remove_legacy=remove_legacy)
    except (PackageError, UsageError, OSError) as error:
        return failed(found.path, *failure_issues(error))
    return {**done.to_dict(), "status": "migrated"}


def _print(result: dict[str, Any]) -> None:
    words = {
        "migrated": style("migrated", "green"),
        "skipped": style("skipped ", "dim"),
        "failed": style("FAILED  ", "red"),
    }
    emit(f"{words[result['status']]} {printable(result['path'])}")
    emit_issues(result)
