"""A package copied as it is: every file, link, permission to execute and empty folder, and what lies beside it.

Nothing is converted, so nothing is lost: the copy has the digest of the original, and so `export --target native` is
also the way out of a bundle or a registry.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from benchflow.errors import PackageError, UsageError
from benchflow.files import copy_file, staged_folder
from benchflow.task.filemap import read_regular, scan
from benchflow.task.interop.export_report import CompatibilityExportReport
from benchflow.task.package import TaskPackage


def native_export_report(package: TaskPackage) -> CompatibilityExportReport:
    """What a copy keeps, which is everything; raises `PackageError` for files that cannot be copied."""
    if package.files.issues:
        issue = package.files.issues[0]
        raise PackageError(issue.message, code=issue.code, file=issue.file)
    return CompatibilityExportReport(
        target="native",
        source_task_dir=str(package.path.absolute()),
        selected_entrypoint=package.entrypoint or "",
        selected_prompt=None,
        selected_oracle_dir=package.oracle_dir,
        selected_verifier_dir=package.verifier_dir,
        input_hashes=package.source_hashes,
    )


def export_native(
    package: TaskPackage, output: Path, *, above: Path | None, overwrite: bool = False
) -> CompatibilityExportReport:
    """Copy a package to a new or empty folder; `overwrite` replaces an existing one.

    Files beside the package go beside the copy, if that is inside the folder `above`. Raises `UsageError` if not.
    """
    report = native_export_report(package)
    beside = {written: Path(os.path.normpath(output / written)) for written in package.shared}
    outside = next((name for name, place in beside.items() if above is None or above not in place.parents), None)
    if outside is not None:
        message = f"{package.path} needs {outside} beside it: export the folder that contains both"
        raise UsageError(message, code="output-overlaps")
    try:
        with staged_folder(output, overwrite=overwrite) as folder:
            for name in sorted(package.files.folders):
                (folder / name).mkdir(parents=True, exist_ok=True)
            for name in package.files.files:
                copy_file(package.path / name, folder / name)
            for name, target in package.files.links.items():
                (folder / name).symlink_to(target)
            copied = scan(folder)
    except FileExistsError as problem:
        raise UsageError(str(problem), code="output-exists") from None
    if copied.hashes() != package.files.hashes():
        raise PackageError(f"{package.path} has changed while it was copied", code="package-changed")
    for written, place in beside.items():
        _place_beside(Path(os.path.realpath(package.path / written)), place)
    hashes = copied.hashes()
    return replace(report, emitted_files=tuple(hashes), output_hashes=hashes)


def _place_beside(source: Path, place: Path) -> None:
    """Copy a file that several packages may share; one that differs is never replaced."""
    if not place.exists():
        copy_file(source, place)
    elif read_regular(place)[0] != read_regular(source)[0]:
        raise UsageError(f"{place} already exists with other content", code="output-exists")
