"""Split -> `task.md` -> split, carried out in a temporary folder and compared."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from benchflow.errors import PackageError
from benchflow.files import copy_file
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.document.task_toml import TIME_AS_TEXT
from benchflow.task.filemap import FileMap
from benchflow.task.interop.export_report import ExportRefusedError
from benchflow.task.interop.migration import migrate_task_to_task_md
from benchflow.task.interop.split_export import export_task_to_split_layout
from benchflow.task.package import TaskPackage, load_package, normal_prompt

_TREES: Final = ("environment", "solution", "tests", "steps")


@dataclass(frozen=True, slots=True)
class HarborRoundTripMismatch:
    """One difference after the round trip."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class HarborRoundTripConformanceReport:
    """Whether a split package survives conversion to the native layout and back."""

    target: str
    source_task_dir: str
    config_equal: bool
    prompt_equal: bool
    environment_file_map_equal: bool
    solution_file_map_equal: bool
    tests_file_map_equal: bool
    steps_file_map_equal: bool
    restored_extension_paths: tuple[str, ...]
    mismatches: tuple[HarborRoundTripMismatch, ...]

    @property
    def status(self) -> Literal["lossless", "drift"]:
        return "drift" if self.mismatches else "lossless"

    def to_dict(self) -> dict[str, Any]:
        data = {**asdict(self), "status": self.status}
        data["restored_extension_paths"] = list(self.restored_extension_paths)
        data["mismatches"] = [asdict(mismatch) for mismatch in self.mismatches]
        return data


def build_harbor_roundtrip_conformance_report(
    task: Path | str | TaskPackage, *, target: str = "harbor"
) -> HarborRoundTripConformanceReport:
    """Test a split package, which is not changed; raises `PackageError` for a native or invalid one."""
    before = task if isinstance(task, TaskPackage) else load_package(task)
    if before.entrypoint == TASK_MD:
        raise PackageError(f"{before.path} is already native", code="already-native", file=TASK_MD)
    ExportRefusedError.require(before, before.issues)
    with tempfile.TemporaryDirectory(prefix="benchflow-roundtrip-") as scratch:
        native = Path(scratch, "native", before.path.absolute().name)
        _copy(before.files, native)
        migrate_task_to_task_md(native, remove_legacy=True)
        exported = Path(scratch, "split")
        report = export_task_to_split_layout(native, exported, target=target, sync=False)
        return _compare(before, load_package(exported), target, report.restored_extension_paths)


def _copy(files: FileMap, destination: Path) -> None:
    for folder in files.folders:
        (destination / folder).mkdir(parents=True, exist_ok=True)
    for path in files.files:
        copy_file(files.root / path, destination / path)
    for path, target in files.links.items():
        (destination / path).parent.mkdir(parents=True, exist_ok=True)
        (destination / path).symlink_to(target)


def _compare(
    before: TaskPackage, after: TaskPackage, target: str, restored: tuple[str, ...]
) -> HarborRoundTripConformanceReport:
    mismatches = [
        HarborRoundTripMismatch(issue.path, "the time of day became text")
        for issue in before.issues
        if issue.code == TIME_AS_TEXT
    ]
    config_equal = before.config == after.config and not mismatches
    if before.config != after.config:
        mismatches.append(HarborRoundTripMismatch("task.toml", "the configuration changed"))
    if before.imported != after.imported:
        mismatches.append(HarborRoundTripMismatch("task.toml", "a preserved foreign key changed"))
    prompt_equal = normal_prompt(before.instruction or "") == normal_prompt(after.instruction or "")
    if not prompt_equal:
        mismatches.append(HarborRoundTripMismatch("instruction.md", "the prompt changed"))
    equal = {}
    for tree in _TREES:
        mine, theirs = _split_hashes(before, tree), after.files.hashes(tree)
        equal[tree] = mine == theirs
        differing = sorted(path for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path))
        if differing:
            reason = f"files changed: {', '.join(differing[:3])}"
            mismatches.append(HarborRoundTripMismatch(f"{tree}/", reason))
    return HarborRoundTripConformanceReport(
        target=target,
        source_task_dir=str(before.path.absolute()),
        config_equal=config_equal,
        prompt_equal=prompt_equal,
        environment_file_map_equal=equal["environment"],
        solution_file_map_equal=equal["solution"],
        tests_file_map_equal=equal["tests"],
        steps_file_map_equal=equal["steps"],
        restored_extension_paths=restored,
        mismatches=tuple(mismatches),
    )


def _split_hashes(package: TaskPackage, tree: str) -> dict[str, str]:
    """The files of a folder of the split layout; the package may use its native name."""
    native = {"tests": package.verifier_dir, "solution": package.oracle_dir}.get(tree, tree)
    return package.files.hashes(native) if native is not None else {}
