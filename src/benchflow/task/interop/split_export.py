"""Native packages -> the split layout, with a report of what is lost.

The output is built beside its destination and then moved into place; it never overlaps its source. Foreign keys that an
import preserved are restored; native settings that the target does not know are omitted.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import tomli_w

from benchflow.errors import UsageError
from benchflow.files import copy_file, staged_folder, write_atomic
from benchflow.task.config.namespace import SourceInstruction
from benchflow.task.config.task_config import TaskConfig
from benchflow.task.document.markdown import decode
from benchflow.task.document.toml_source import parse_toml
from benchflow.task.filemap import scan
from benchflow.task.interop.export_plan import (
    FilePlan,
    document_losses,
    harbor_refusals,
    namespace_losses,
    plan_files,
)
from benchflow.task.interop.export_report import CompatibilityExportLoss, CompatibilityExportReport, ExportRefusedError
from benchflow.task.interop.harbor_tests import (
    ASIDE,
    TEST_SH,
    HarborTests,
    came_from_split,
    harbor_tests,
    verifier_losses,
)
from benchflow.task.interop.instruction_text import as_in_source, source_instruction
from benchflow.task.interop.split_layout import with_rubric_below
from benchflow.task.interop.toml_export import HarborToml, Preserved, harbor_toml
from benchflow.task.package import INSTRUCTION, TASK_TOML, TaskPackage, load_package

TARGETS: Final = ("harbor",)
REPORT: Final = "compatibility/export-report.json"
WRITTEN: Final = ""
"""The source of a file that is written, not copied."""
_SCRIPT_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything that an export writes, and its report."""

    toml: str
    instruction: str | None
    test_sh: str | None
    files: FilePlan
    report: CompatibilityExportReport


def build_compatibility_export_report(
    task: Path | str | TaskPackage, *, target: str = "harbor"
) -> CompatibilityExportReport:
    """What an export would restore and lose; writes nothing. Alias collisions are reported, not refused."""
    return _plan(_load(task, target, allow_collisions=True), target).report


def export_task_to_split_layout(
    task: Path | str | TaskPackage,
    output_dir: Path | str,
    *,
    target: str = "harbor",
    overwrite: bool = False,
    sync: bool = True,
) -> CompatibilityExportReport:
    """Write a package in the split layout to a new or empty folder; `overwrite` replaces an existing one.

    Raises `UsageError` for an unknown target or an output that exists or overlaps its source, and
    `ExportRefusedError` for a package that is invalid; then nothing has changed.
    """
    package = _load(task, target, allow_collisions=False)
    output = Path(output_dir)
    _require_apart(package.path, output)
    plan = _plan(package, target)
    try:
        with staged_folder(output, overwrite=overwrite, sync=sync) as folder:
            return _write(package, plan, folder)
    except FileExistsError as problem:
        raise UsageError(str(problem), code="output-exists") from None


def _load(task: Path | str | TaskPackage, target: str, *, allow_collisions: bool) -> TaskPackage:
    if target not in TARGETS:
        raise UsageError(f"unknown target '{target}'; available: {', '.join(TARGETS)}", code="unknown-target")
    package = task if isinstance(task, TaskPackage) else load_package(task)
    ignored = "alias-drift" if allow_collisions else None
    return ExportRefusedError.require(package, (issue for issue in package.issues if issue.code != ignored))


def _require_apart(source: Path, output: Path) -> None:
    here, there = Path(os.path.realpath(source)), Path(os.path.realpath(output))
    if here == there or here in there.parents or there in here.parents:
        raise UsageError(f"{output} overlaps the package to be exported", code="output-overlaps")


def _plan(package: TaskPackage, target: str) -> _Plan:
    preserved = _preserved(package)
    config = _split_names(package)
    toml = harbor_toml(config, preserved) if config is not None else HarborToml({}, (), ())
    files = plan_files(package, everything=came_from_split(package))
    tests = harbor_tests(package)
    _place_test_script(files, tests)
    document = package.document
    ordered = [
        *(document_losses(document) if document is not None else ()),
        *(namespace_losses(document) if document is not None else ()),
        *verifier_losses(package, tests),
        *harbor_refusals(package, files, tests_refused=tests.refusal is not None),
        *(replace(loss, path=_spelled(package, loss.path)) for loss in toml.losses),
        *files.losses,
    ]
    collisions = tuple(sorted(issue.path for issue in package.issues if issue.code == "alias-drift"))
    ordered += [CompatibilityExportLoss(path, "the two differ, so an export is refused") for path in collisions]
    prompt = _prompt(package)
    report = CompatibilityExportReport(
        target=target,
        source_task_dir=str(package.path.absolute()),
        selected_entrypoint=package.entrypoint or "",
        selected_prompt=INSTRUCTION if prompt is not None else None,
        selected_oracle_dir=package.oracle_dir,
        selected_verifier_dir=package.verifier_dir,
        input_hashes=package.source_hashes,
        restored_extension_paths=toml.restored,
        alias_collisions=collisions,
        losses=tuple(ordered),
    )
    return _Plan(tomli_w.dumps(toml.data), prompt, tests.script, files, report)


def _place_test_script(files: FilePlan, tests: HarborTests) -> None:
    """Make room for the script that is written; leave out one that would score by other means than the strategy."""
    own = files.copies.get(f"tests/{TEST_SH}")
    if tests.script is None and tests.refusal is None:
        return
    if own is not None:
        del files.copies[f"tests/{TEST_SH}"]
    if tests.script is not None:
        if own is not None:
            files.copies[f"tests/{ASIDE}"] = own
        files.copies[f"tests/{TEST_SH}"] = WRITTEN


def _prompt(package: TaskPackage) -> str | None:
    """The base prompt, framed as in its source, or the prompt of the first turn; None when every step has its own."""
    form = _instruction_form(package)
    text = (package.instruction or "").strip()
    if not text and form is None and package.config is not None and package.config.steps:
        return None
    if not text and package.prompt_plan.turns:
        text = package.prompt_plan.turns[0].prompt.strip()
    return as_in_source(text, form or SourceInstruction())


def _instruction_form(package: TaskPackage) -> SourceInstruction | None:
    if package.imported is not None and INSTRUCTION in package.files:
        return source_instruction(package.files.read(INSTRUCTION).decode())
    compat = package.document.namespace.compat if package.document is not None else None
    return compat.instruction if compat is not None else None


def _preserved(package: TaskPackage) -> Preserved:
    """What an import preserved: by the record in `task.md`, or by the `task.toml` of a split package."""
    config = _split_names(package)
    if package.imported is not None and config is not None:
        data = parse_toml(decode(package.files.read(TASK_TOML)))
        return Preserved.of_source(config, package.imported, data)
    return Preserved.of_document(package.document.namespace.compat if package.document is not None else None)


def _split_names(package: TaskPackage) -> TaskConfig | None:
    """The configuration, its paths as they are in the split layout."""
    if package.config is None or package.verifier_dir != "verifier":
        return package.config
    return with_rubric_below(package.config, "verifier", "tests")


def _spelled(package: TaskPackage, path: str) -> str:
    """The path with its section as spelled by the author."""
    root = re.split(r"[.\[]", path, maxsplit=1)[0]
    written = package.document.spelling.get(root, root) if package.document is not None else root
    return written + path.removeprefix(root)


def _write(package: TaskPackage, plan: _Plan, folder: Path) -> CompatibilityExportReport:
    image = package.config is not None and package.config.environment.docker_image is not None
    for name in (*(("environment",) if image else ()), *plan.files.folders):  # Harbor wants the folder beside an image
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, source in plan.files.copies.items():
        if source != WRITTEN:
            copy_file(package.path / source, folder / name)
    for name, source in plan.files.beside.items():
        copy_file(Path(os.path.realpath(package.path / source)), folder / name)
    for name, link in plan.files.links.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(link)
    if plan.test_sh is not None:
        (folder / "tests").mkdir(exist_ok=True)
        write_atomic(folder / "tests/test.sh", plan.test_sh, mode=_SCRIPT_MODE, sync=False)
    write_atomic(folder / TASK_TOML, plan.toml, sync=False)
    if plan.instruction is not None:
        write_atomic(folder / INSTRUCTION, plan.instruction, sync=False)
    hashes = scan(folder).hashes()
    report = replace(plan.report, emitted_files=tuple(hashes), output_hashes=hashes)
    (folder / REPORT).parent.mkdir(exist_ok=True)
    write_atomic(folder / REPORT, report.to_json(), sync=False)
    return report
