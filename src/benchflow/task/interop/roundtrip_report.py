"""Split -> `task.md` -> split, carried out in a temporary folder and compared.

The values of `task.toml` are compared as they are written, key by key, with their types; other files byte by byte.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from benchflow.errors import PackageError
from benchflow.files import copy_file
from benchflow.task.config.parsed_record import join
from benchflow.task.document.markdown import decode
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.document.toml_source import parse_toml, toml_locator
from benchflow.task.filemap import FileMap
from benchflow.task.interop.export_plan import split_names
from benchflow.task.interop.export_report import CompatibilityExportReport, ExportRefusedError
from benchflow.task.interop.migration import migrate_task_to_task_md
from benchflow.task.interop.spelling import same
from benchflow.task.interop.split_export import REPORT, export_task_to_split_layout
from benchflow.task.package import INSTRUCTION, TASK_TOML, TaskPackage, load_package


@dataclass(frozen=True, slots=True)
class HarborRoundTripMismatch:
    """One difference after the round trip: a key of `task.toml`, or a file."""

    code: str
    path: str
    """The dotted key, or the file."""
    reason: str
    file: str
    line: int | None = None
    """Of the key in the source, or of the nearest key above it."""


_REASONS: Final = {
    "key-added": "the key was added",
    "key-lost": "the key was lost",
    "key-changed": "the value or its type changed",
    "file-added": "the file was added",
    "file-lost": "the file was lost",
    "file-changed": "the content changed",
}


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
        return _compare(before, exported, report)


def _copy(files: FileMap, destination: Path) -> None:
    for folder in files.folders:
        (destination / folder).mkdir(parents=True, exist_ok=True)
    for path in files.files:
        copy_file(files.root / path, destination / path)
    for path, target in files.links.items():
        (destination / path).parent.mkdir(parents=True, exist_ok=True)
        (destination / path).symlink_to(target)


def _compare(
    before: TaskPackage, exported: Path, report: CompatibilityExportReport
) -> HarborRoundTripConformanceReport:
    keys = tuple(_keys(decode(before.files.read(TASK_TOML)), decode((exported / TASK_TOML).read_bytes())))
    files = tuple(_files(before, exported, report.output_hashes))
    changed = {mismatch.path for mismatch in files}

    def equal(tree: str) -> bool:
        return not any(path.startswith(f"{tree}/") for path in changed)

    return HarborRoundTripConformanceReport(
        target=report.target,
        source_task_dir=str(before.path.absolute()),
        config_equal=not keys,
        prompt_equal=INSTRUCTION not in changed,
        environment_file_map_equal=equal("environment"),
        solution_file_map_equal=equal("solution"),
        tests_file_map_equal=equal("tests"),
        steps_file_map_equal=equal("steps"),
        restored_extension_paths=report.restored_extension_paths,
        mismatches=(*keys, *files),
    )


def _keys(source: str, result: str) -> Iterator[HarborRoundTripMismatch]:
    """The keys of `task.toml` that differ, each at its line in the source."""
    locate = toml_locator(source)
    for code, path in _differences(parse_toml(source), parse_toml(result), ""):
        yield HarborRoundTripMismatch(code, path, _REASONS[code], TASK_TOML, locate(path))


def _differences(source: Any, result: Any, path: str) -> Iterator[tuple[str, str]]:
    """The code and path of each key that was added, lost or changed."""
    if same(source, result):
        return
    if isinstance(source, dict) and isinstance(result, dict):
        for key in sorted(source.keys() | result.keys()):
            where = join(path, key)
            if key not in result:
                yield "key-lost", where
            elif key not in source:
                yield "key-added", where
            else:
                yield from _differences(source[key], result[key], where)
    elif isinstance(source, list) and isinstance(result, list) and len(source) == len(result):
        for index, pair in enumerate(zip(source, result, strict=True)):
            yield from _differences(*pair, f"{path}[{index}]")
    else:
        yield "key-changed", path


def _files(before: TaskPackage, exported: Path, after: Mapping[str, str]) -> Iterator[HarborRoundTripMismatch]:
    """The files and links that differ, by their path in the split layout, bytes compared."""
    names = dict(split_names(before))
    expected = {_split_name(path, names): digest for path, digest in before.files.hashes().items()}
    for path in sorted((expected.keys() | after.keys()) - {TASK_TOML, REPORT}):
        if expected.get(path) != after.get(path):
            code = "file-lost" if path not in after else "file-added" if path not in expected else "file-changed"
            yield HarborRoundTripMismatch(code, path, _REASONS[code], path)
    for link, target in before.files.links.items():
        path = _split_name(link, names)
        copy = exported / path
        if not copy.is_symlink() or str(copy.readlink()) != target:
            yield HarborRoundTripMismatch("file-lost", path, "the link is missing or points elsewhere", path)


def _split_name(path: str, names: Mapping[str, str]) -> str:
    """The path in the split layout; the package may use native names of folders."""
    tree = next((tree for tree in names if path.startswith(f"{tree}/")), None)
    return path if tree is None else names[tree] + path.removeprefix(tree)
