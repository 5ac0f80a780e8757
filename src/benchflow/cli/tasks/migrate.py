"""`bench tasks migrate`: converts split packages and Terminal-Bench folders to native packages, in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.tasks.bulk import BulkReport, issue_findings
from benchflow.cli.tasks.rendering import emit_issues, failed, failure_issues
from benchflow.cli.terminal import emit, printable, style
from benchflow.errors import Issue
from benchflow.task.discovery import PACKAGE_MARKERS, TERMINAL_BENCH_MARKER, FoundPackage, find_packages

_STATUSES = ("migrated", "skipped", "failed")


@click.command()
@package_paths
@click.option(
    "--remove-legacy", is_flag=True, help="Remove the split files and rename the folders to their native names."
)
@json_option
def migrate(paths: tuple[Path, ...], remove_legacy: bool, as_json: bool) -> int:
    """Convert split packages (task.toml, instruction.md) to task.md packages.

    Terminal-Bench folders (task.yaml) are converted too. Native packages below PATH are skipped; a native
    package named as PATH is an error. A package that cannot be migrated is left unchanged.
    """
    found = find_packages(paths, markers=(*PACKAGE_MARKERS, TERMINAL_BENCH_MARKER), to_change=True)
    report = BulkReport("tasks", _STATUSES, len(found), as_json=as_json, show=_print, findings=issue_findings)
    for package in Progress("Migrating packages:", len(found)).over(found):
        report.add(_migrate(package, remove_legacy=remove_legacy))
    return GOOD if report.finish(bad=("failed",)) else FAILED


def _migrate(found: FoundPackage, *, remove_legacy: bool) -> dict[str, Any]:
    from benchflow.task.interop.migration import migrate_task_to_task_md

    if found.problem is not None:
        return failed(found.shown, found.problem)
    if (found.path / "task.md").exists():
        if not found.named:
            return {"path": found.shown, "status": "skipped", "issues": []}
        message = "the package already has a task.md; there is nothing to migrate"
        return failed(found.shown, Issue("already-native", "error", "", message, "task.md"))
    try:
        done = migrate_task_to_task_md(found.path, remove_legacy=remove_legacy)
    except Exception as error:  # noqa: BLE001 - one bad package must not stop the others
        return failed(found.shown, *failure_issues(error))
    return {**done.to_dict(), "status": "migrated"}


def _print(result: dict[str, Any]) -> None:
    words = {
        "migrated": style("migrated", "green"),
        "skipped": style("skipped ", "dim"),
        "failed": style("FAILED  ", "red"),
    }
    emit(f"{words[result['status']]} {printable(result['path'])}")
    emit_issues(result)
