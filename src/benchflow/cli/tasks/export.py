"""`bench tasks export`: writes a package in the split layout and reports what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchflow.cli.arguments import PATH, json_option, package_path
from benchflow.cli.failures import FAILED, GOOD
from benchflow.cli.progress import Progress
from benchflow.cli.tasks.bulk import BulkReport, Finding, issue_findings
from benchflow.cli.tasks.rendering import counted, emit_issues, failed, failure_issues
from benchflow.cli.terminal import emit, note, printable, style
from benchflow.errors import UsageError
from benchflow.task.discovery import FoundPackage, find_packages

_STATUSES = ("lossless", "degraded", "target-refuses", "failed")
REGISTRY = "registry.json"
_TARGETS = ("harbor", "native", "scenario")
_WORDS = {"target-refuses": "the target refuses it"}


@click.command()
@package_path
@click.argument("out", metavar="[OUT]", required=False, type=PATH)
@click.option(
    "--target",
    type=click.Choice(_TARGETS),
    default="harbor",
    show_default=True,
    help="harbor: the split layout; native: an exact copy; scenario: an arena for AgentBeats.",
)
@click.option(
    "--dataset", metavar="NAME@VERSION", help="Also write OUT/registry.json, a Harbor registry of this dataset."
)
@click.option("--git-url", metavar="URL", help="Commit OUT to Git; the registry refers to the commit at this URL.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--report-only", is_flag=True, help="Write nothing; report what would be lost.")
@json_option
def export(
    path: Path,
    out: Path | None,
    target: str,
    dataset: str | None,
    git_url: str | None,
    overwrite: bool,
    report_only: bool,
    as_json: bool,
) -> int:
    """Export the package PATH to the folder OUT, in another layout or unchanged.

    PATH may be a folder above packages, or a file with packages: each is then written to the same relative path
    below OUT. With --target native, packages are copied byte for byte, which also unpacks a bundle.
    With --dataset, OUT is a Harbor dataset with its registry file; push the commit that --git-url creates.
    Anything that the target cannot express is reported as a loss and recorded in compatibility/export-report.json.
    A package that the target cannot load or run is reported as refused, and the command exits with 1.
    """
    if out is None and not report_only:
        raise UsageError("name an output folder, or use --report-only", code="output-missing")
    if dataset is not None or git_url is not None:
        _require_dataset(dataset, report_only=report_only)
    found = find_packages([path])
    _require_room(path, found, out, overwrite=overwrite or report_only)
    report = BulkReport("reports", _STATUSES, len(found), as_json=as_json, show=_print, findings=_findings)
    collisions = False
    for package in Progress("Exporting packages:", len(found)).over(found):
        place = None if report_only or out is None else _place(out, path, package, below=dataset is not None)
        entry = _export(
            package, place, target, above=None if package.named and dataset is None else out, overwrite=overwrite
        )
        collisions = collisions or bool(entry.get("alias_collisions"))
        report.add(entry)
    good = report.finish(bad=("target-refuses", "failed"))
    if dataset is not None and out is not None:
        if good:
            _write_registry(out, dataset, git_url, [_place(out, path, package, below=True) for package in found])
        else:
            note(f"{REGISTRY} was not written: a dataset may contain only tasks that the target can run")
    return GOOD if good and not collisions else FAILED


def _require_dataset(dataset: str | None, *, report_only: bool) -> None:
    name, at, version = (dataset or "").partition("@")
    if not name or not at or not version:
        raise UsageError("--dataset takes NAME@VERSION, and --git-url needs it", code="bad-name")
    if report_only:
        raise UsageError("--dataset writes a registry file, which --report-only forbids", code="usage")


def _write_registry(out: Path, dataset: str, git_url: str | None, places: list[Path]) -> None:
    from benchflow.files import write_atomic
    from benchflow.task.bundles.git_commits import commit_folder
    from benchflow.task.bundles.harbor_registry import render_registry

    commit = None if git_url is None else commit_folder(out, leave_out=(REGISTRY,))
    name, _, version = dataset.partition("@")
    paths = [place.relative_to(out).as_posix() for place in places]
    write_atomic(out / REGISTRY, render_registry(name, version, paths, address=git_url, commit=commit))
    note(f"Wrote {printable(str(out / REGISTRY))}: {printable(dataset)}, {counted(len(paths), 'task')}")
    if git_url is not None:
        note(f"Publish it with: git -C {printable(str(out))} push {printable(git_url)} main")


def _require_room(path: Path, found: list[FoundPackage], out: Path | None, *, overwrite: bool) -> None:
    """Refuse an unusable output before the first of many packages is written."""
    if out is None or found[0].named:
        return
    source, target = path.resolve(), out.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise UsageError(f"{out} overlaps the packages to be exported", code="output-overlaps")
    if not overwrite and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} already exists and is not empty", code="output-exists")


def _place(out: Path, path: Path, package: FoundPackage, *, below: bool) -> Path:
    if package.named:
        return out / package.folder_name if below else out
    return out / (package.path.relative_to(path) if package.inside is None else package.inside[1])


def _export(
    found: FoundPackage, place: Path | None, target: str, *, above: Path | None, overwrite: bool
) -> dict[str, Any]:
    from benchflow.task.interop.native_export import export_native, native_export_report
    from benchflow.task.interop.scenarios.scenario_export import export_scenario, scenario_export_report
    from benchflow.task.interop.split_export import build_compatibility_export_report, export_task_to_split_layout
    from benchflow.task.package import load_package

    output = None if place is None else str(place)
    if found.problem is not None:
        return {**failed(found.shown, found.problem), "output": output}
    try:
        if target == "native":
            package = load_package(found.path)
            report = (
                native_export_report(package)
                if place is None
                else export_native(package, place, above=above, overwrite=overwrite)
            )
        elif target == "scenario":
            package = load_package(found.path)
            report = (
                scenario_export_report(package)
                if place is None
                else export_scenario(package, place, overwrite=overwrite)
            )
        elif place is None:
            report = build_compatibility_export_report(found.path, target=target)
        else:
            report = export_task_to_split_layout(found.path, place, target=target, overwrite=overwrite)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - one bad package must not stop the others
        return {**failed(found.shown, *failure_issues(error)), "output": output}
    return {"path": found.shown, "output": output, **report.to_dict()}


def _findings(report: dict[str, Any]) -> Iterator[Finding]:
    for loss in report.get("losses", ()):
        yield Finding(loss["severity"], loss["path"], loss["reason"], report["path"])
    yield from issue_findings(report)


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
