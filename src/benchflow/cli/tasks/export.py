"""`bench tasks export`: writes a package in the split layout and reports what is lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import PATH, json_option, package_path
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.tasks.bulk import BulkReport, Said, issues_said
from benchflow.cli.tasks.rendering import counted, emit_issues, failed, failure_issues
from benchflow.cli.terminal import emit, printable, style
from benchflow.errors import UsageError
from benchflow.task.discovery import FoundPackage, find_packages

_STATUSES = ("lossless", "degraded", "target-refuses", "failed")
_WORDS = {"target-refuses": "the target refuses it"}


@click.command()
@package_path
@click.argument("out", metavar="[OUT]", required=False, type=PATH)
@click.option("--target", default="harbor", show_default=True, help="The format to write.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--report-only", is_flag=True, help="Write nothing; report what would be lost.")
@json_option
def export(path: Path, out: Path | None, target: str, overwrite: bool, report_only: bool, as_json: bool) -> int:
    """Write the package PATH in the split layout to the folder OUT.

    PATH may be a folder above packages: each is then written to the same relative path below OUT.
    What the target cannot express is reported as a loss and recorded in compatibility/export-report.json.
    A package that the target cannot load or run is reported as refused, and the command exits with 1.
    """
    if out is None and not report_only:
        raise UsageError("name an output folder, or use --report-only", code="output-missing")
    found = find_packages([path])
    _require_room(path, found, out, overwrite=overwrite or report_only)
    report = BulkReport("reports", _STATUSES, len(found), as_json=as_json, show=_print, said=_said)
    collisions = False
    for package in Progress("Exporting packages:", len(found)).over(found):
        place = None if report_only or out is None else _place(out, path, package)
        entry = _export(package, place, target, overwrite=overwrite)
        collisions = collisions or bool(entry.get("alias_collisions"))
        report.add(entry)
    good = report.finish(bad=("target-refuses", "failed"))
    return GOOD if good and not collisions else FAILED


def _require_room(path: Path, found: list[FoundPackage], out: Path | None, *, overwrite: bool) -> None:
    """Refuse an unusable output before the first of many packages is written."""
    if out is None or found[0].named:
        return
    source, target = path.resolve(), out.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise UsageError(f"{out} overlaps the packages to be exported", code="output-overlaps")
    if not overwrite and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} already exists and is not empty", code="output-exists")


def _place(out: Path, path: Path, package: FoundPackage) -> Path:
    return out if package.named else out / package.path.relative_to(path)


def _export(found: FoundPackage, place: Path | None, target: str, *, overwrite: bool) -> dict[str, Any]:
    from benchflow.task.interop.split_export import build_compatibility_export_report, export_task_to_split_layout

    output = None if place is None else str(place)
    if found.problem is not None:
        return {**failed(found.path, found.problem), "output": output}
    try:
        if place is None:
            report = build_compatibility_export_report(found.path, target=target)
        else:
            report = export_task_to_split_layout(found.path, place, target=target, overwrite=overwrite)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - one bad package must not stop the others
        return {**failed(found.path, *failure_issues(error)), "output": output}
    return {"path": str(found.path), "output": output, **report.to_dict()}


def _said(report: dict[str, Any]) -> Iterable[Said]:
    for loss in report.get("losses", ()):
        yield loss["severity"], f"{loss['path']}: {loss['reason']}"
    yield from issues_said(report)


def _print(report: dict[str, Any]) -> None:
    status, path = report["status"], printable(report["path"])
    if status == "failed":
        emit(f"{style('Not exported', 'red')}: {path}")
    elif report["output"] is None:
        emit(f"Export of {path}: {_WORDS.get(status, f'would be {status}')}")
    else:
        emit(f"Exported {path} to {printable(report['output'])}: {_WORDS.get(status, status)}")
    for loss in report.get("losses", ()):
        severity = style(loss["severity"], "yellow" if loss["severity"] == "warning" else "red")
        emit(f"     {severity}: {printable(loss['path'])}: {printable(loss['reason'])}")
    if report.get("restored_extension_paths"):
        emit(f"     {counted(len(report['restored_extension_paths']), 'foreign key')} restored")
    for collision in report.get("alias_collisions", ()):
        emit(f"     {style('error', 'red')}: {printable(collision)} differ; the export would be refused")
    emit_issues(report)
