"""`bench tasks roundtrip`: tests that split packages survive conversion to `task.md` and back."""

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
from benchflow.task.discovery import FoundPackage, find_packages
from benchflow.task.workers import ordered_map

_STATUSES = ("lossless", "drift", "skipped", "failed")


@click.command()
@package_paths
@json_option
def roundtrip(paths: tuple[Path, ...], as_json: bool) -> int:
    """Test that split packages survive conversion to task.md and back.

    Nothing is changed. Native packages below PATH are skipped; a native package named as PATH is an error.
    """
    found = find_packages(paths)
    reports = []
    for report in Progress("Converting packages:", len(found)).over(ordered_map(_convert, found)):
        reports.append(report)
        if not as_json:
            _print(report)
    counts = Counter(report["status"] for report in reports)
    summary = {"total": len(reports), **{status: counts[status] for status in _STATUSES}}
    bad = counts["drift"] + counts["failed"]
    if as_json:
        emit_json({"summary": summary, "reports": reports})
    else:
        told = ", ".join(f"{summary[status]} {status}" for status in _STATUSES)
        emit(style(f"{counted(len(reports), 'package')}: {told}", "red" if bad else "green"))
    return FAILED if bad else GOOD


def _convert(found: FoundPackage) -> dict[str, Any]:
    from benchflow.task.interop.roundtrip_report import build_harbor_roundtrip_conformance_report

    if found.problem is not None:
        return failed(found.path, found.problem)
    if (found.path / "task.md").exists():
        if not found.named:
            return {"path": str(found.path), "status": "skipped"}
        message = "the package has a task.md; only split packages can be tested"
        return failed(found.path, Issue("already-native", "error", "", message, "task.md"))
    try:
        report = build_harbor_roundtrip_conformance_report(found.path)
    except (PackageError, UsageError, OSError) as error:
        return failed(found.path, *failure_issues(error))
    return {"path": str(found.path), **report.to_dict()}


def _print(report: dict[str, Any]) -> None:
    colour = {"lossless": "green", "skipped": "dim"}.get(report["status"], "red")
    emit(f"{style(report['status'].ljust(8), colour)} {printable(report['path'])}")  # type: ignore[arg-type]  # names of colours
    for mismatch in report.get("mismatches", ()):
        emit(f"     {printable(mismatch['path'])}: {printable(mismatch['reason'])}")
    emit_issues(report)
