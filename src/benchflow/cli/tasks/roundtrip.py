"""`bench tasks roundtrip`: tests that split packages survive conversion to `task.md` and back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.tasks.bulk import BulkReport, Said, issues_said
from benchflow.cli.tasks.rendering import emit_issues, failed, failure_issues
from benchflow.cli.terminal import emit, printable, style
from benchflow.errors import Issue
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
    report = BulkReport("reports", _STATUSES, len(found), as_json=as_json, show=_print, said=_said)
    for entry in Progress("Converting packages:", len(found)).over(ordered_map(_convert, found)):
        report.add(entry)
    return GOOD if report.finish(bad=("drift", "failed")) else FAILED


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
    except Exception as error:  # noqa: BLE001 - one bad package must not stop the others
        return failed(found.path, *failure_issues(error))
    return {"path": str(found.path), **report.to_dict()}


def _said(report: dict[str, Any]) -> Iterable[Said]:
    for mismatch in report.get("mismatches", ()):
        yield "drift", f"{mismatch['path']}: {mismatch['reason']}"
    yield from issues_said(report)


def _print(report: dict[str, Any]) -> None:
    colour = {"lossless": "green", "skipped": "dim"}.get(report["status"], "red")
    emit(f"{style(report['status'].ljust(8), colour)} {printable(report['path'])}")  # type: ignore[arg-type]  # names of colours
    for mismatch in report.get("mismatches", ()):
        emit(f"     {printable(mismatch['path'])}: {printable(mismatch['reason'])}")
    emit_issues(report)
