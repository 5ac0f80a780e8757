"""`bench tasks migrate`: converts split packages and Terminal-Bench folders to native packages, in place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.tasks.rendering import counted, failure_issues, issue_lines
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
        result, issues = _migrate(package, remove_legacy=remove_legacy)
        results.append({**result, "issues": [issue.to_dict() for issue in issues]})
        if not as_json:
            _print(result, issues)
    counts = Counter(result["status"] for result in results)
    summary = {"total": len(results), **{status: counts[status] for status in ("migrated", "skipped", "failed")}}
    if as_json:
        emit_json({"summary": summary, "tasks": results})
    else:
        told = ", ".join(f"{summary[status]} {status}" for status in ("migrated", "skipped", "failed"))
        emit(style(f"{counted(len(results), 'package')}: {told}", "red" if counts["failed"] else "green"))
    return FAILED if counts["failed"] else GOOD


def _migrate(found: FoundPackage, *, remove_legacy: bool) -> tuple[dict[str, Any], tuple[Issue, ...]]:
    from benchflow.task.interop.migration import migrate_task_to_task_md

    base = {"path": str(found.path)}
    if found.problem is not None:
        return {**base, "status": "failed"}, (found.problem,)
    if (found.path / "task.md").exists():
        if not found.named:
            return {**base, "status": "skipped"}, ()
        message = "the package already has a task.md; there is nothing to migrate"
        return {**base, "status": "failed"}, (Issue("already-native", "error", "", message, "task.md"),)
    try:
        done = migrate_task_to_task_md(found.path, remove_legacy=remove_legacy)
    except (PackageError, UsageError, OSError) as error:
        return {**base, "status": "failed"}, failure_issues(error)
    return {**done.to_dict(), **base, "status": "migrated"}, done.issues


def _print(result: dict[str, Any], issues: tuple[Issue, ...]) -> None:
    words = {
        "migrated": style("migrated", "green"),
        "skipped": style("skipped ", "dim"),
        "failed": style("FAILED  ", "red"),
    }
    emit(f"{words[result['status']]} {printable(result['path'])}")
    for line in issue_lines(issues, result["path"]):
        emit(line)
