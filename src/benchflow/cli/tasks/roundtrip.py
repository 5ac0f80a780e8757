"""`bench tasks roundtrip`: tests that split packages survive conversion to `task.md` and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import json_option, package_paths
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.tasks.bulk import BulkReport, Finding, issue_findings
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
    report = BulkReport("reports", _STATUSES, len(found), as_json=as_json, show=_print, findings=_findings)
    for entry in Progress("Converting packages:", len(found)).over(ordered_map(_convert, found)):
        report.add(entry)
    return GOOD if report.finish(bad=("drift", "failed")) else FAILED


def _convert(found: FoundPackage) -> dict[str, Any]:
    from benchflow.task.interop.roundtrip_report import build_harbor_roundtrip_conformance_report

    if found.problem is not None:
        return failed(found.shown, found.problem)
    if (found.path / "task.md").exists():
        if not found.named:
            return {"path": found.shown, "status": "skipped"}
        message = "the package has a task.md; only split packages can be tested"
        return failed(found.shown, Issue("already-native", "error", "", message, "task.md"))
    try:
        report = build_harbor_roundtrip_conformance_report(found.path)
    except Exception as error:  # noqa: BLE001 - one bad package must not stop the others
        return failed(found.shown, *failure_issues(error))
    return {"path": found.shown, **report.to_dict()}


def _findings(report: dict[str, Any]) -> Iterator[Finding]:
    for mismatch in report.get("mismatches", ()):
        place = f"{report['path']}/{mismatch['file']}" + (f":{mismatch['line']}" if mismatch["line"] else "")
        yield Finding("drift", mismatch["code"], f"{mismatch['path']}: {mismatch['reason']}", place, mismatch["path"])
    yield from issue_findings(report)


def _print(report: dict[str, Any]) -> None:
    colour = {"lossless": "green", "skipped": "dim"}.get(report["status"], "red")
    emit(f"{style(report['status'].ljust(8), colour)} {printable(report['path'])}")  # type: ignore[arg-type]  # names of colours
    for mismatch in report.get("mismatches", ()):
        place = "" if mismatch["line"] is None else f"{mismatch['file']}:{mismatch['line']}: "
        emit(f"     {place}{printable(mismatch['path'])}: {mismatch['reason']} [{mismatch['code']}]")
    emit_issues(report)
