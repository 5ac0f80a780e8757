"""Native packages -> the split layout, with a report of what is lost.

The output is built beside its destination and then moved into place; it never overlaps its source. Foreign keys that an
import preserved are restored; native settings that the target does not know are omitted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import tomli_w

from benchflow.errors import UsageError
from benchflow.files import copy_file, staged_folder, write_atomic
from benchflow.task.document.compat_extra import leaf_paths, restore_extra
from benchflow.task.document.harbor_keys import NO_SUCH_SETTING, express, step_name_problem, without_nulls
from benchflow.task.filemap import scan
from benchflow.task.interop import terminal_bench
from benchflow.task.interop.export_plan import (
    FilePlan,
    document_losses,
    harbor_refusals,
    namespace_losses,
    plan_files,
)
from benchflow.task.interop.export_report import CompatibilityExportLoss, CompatibilityExportReport, ExportRefusedError
from benchflow.task.interop.harbor_tests import ASIDE, TEST_SH, HarborTests, harbor_tests, verifier_losses
from benchflow.task.interop.split_layout import declared_config, with_rubric_below
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
        raise UsageError(f"unknown target '{target}'; choose one of {', '.join(TARGETS)}", code="unknown-target")
    package = task if isinstance(task, TaskPackage) else load_package(task)
    ignored = "alias-drift" if allow_collisions else None
    return ExportRefusedError.require(package, (issue for issue in package.issues if issue.code != ignored))


def _require_apart(source: Path, output: Path) -> None:
    here, there = Path(os.path.realpath(source)), Path(os.path.realpath(output))
    if here == there or here in there.parents or there in here.parents:
        raise UsageError(f"{output} overlaps the package to be exported", code="output-overlaps")


def _plan(package: TaskPackage, target: str) -> _Plan:
    data, losses, restored = _configuration(package)
    files = plan_files(package)
    tests = harbor_tests(package)
    _place_test_script(files, tests)
    document = package.document
    ordered = [
        *(document_losses(document) if document is not None else ()),
        *(namespace_losses(document) if document is not None else ()),
        *verifier_losses(package, tests),
        *harbor_refusals(package, files, tests_refused=tests.refusal is not None),
        *losses,
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
        restored_extension_paths=tuple(restored),
        alias_collisions=collisions,
        losses=tuple(ordered),
    )
    return _Plan(tomli_w.dumps(data), prompt, tests.script, files, report)


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
    """The base prompt, or the prompt of the first turn; None when every step has its own."""
    text = (package.instruction or "").strip()
    if not text and package.config is not None and package.config.steps:
        return None
    if not text and package.prompt_plan.turns:
        text = package.prompt_plan.turns[0].prompt.strip()
    return f"{text}\n"


def _configuration(package: TaskPackage) -> tuple[dict[str, Any], list[CompatibilityExportLoss], list[str]]:
    """`task.toml` as a mapping, the lost settings, and the restored foreign paths."""
    config = package.config
    if config is None:  # a package without errors has a configuration
        return {}, [], []
    if package.verifier_dir == "verifier":
        config = with_rubric_below(config, "verifier", "tests")
    expressed = express(declared_config(config))
    source, paths, extra = _preserved(package)
    losses: list[CompatibilityExportLoss] = []
    restored: list[str] = []
    data = expressed.kept
    for setting in expressed.lost:
        if setting.path in paths and setting.value is not None:
            _set(data, setting.path, without_nulls(setting.value))
            restored.append(setting.path)
            if setting.reason != NO_SUCH_SETTING:
                losses.append(CompatibilityExportLoss(_spelled(package, setting.path), setting.reason, "refusal"))
        else:
            losses.append(CompatibilityExportLoss(_spelled(package, setting.path), setting.reason))
    for index, step in enumerate(config.steps or ()):
        problem = step_name_problem(step.name)
        if problem:
            losses.append(CompatibilityExportLoss(f"steps[{index}].name", problem, "refusal"))
    if source == terminal_bench.SOURCE:
        blocked = sorted(leaf_paths(extra))
    else:
        data, back = restore_extra(data, extra)
        restored += back
        blocked = sorted(set(leaf_paths(extra)) - set(back))
    for path in blocked:
        reason = "the preserved key does not fit this task.toml"
        losses.append(CompatibilityExportLoss(f"benchflow.compat.extra.{path}", reason, "warning"))
    cleaned: dict[str, Any] = without_nulls(data)
    return cleaned, losses, sorted(restored)


def _preserved(package: TaskPackage) -> tuple[str | None, frozenset[str], Mapping[str, Any]]:
    """The source of foreign keys, every foreign path, and the keys that have no native equivalent."""
    if package.imported is not None:
        imported = package.imported
        return imported.source, frozenset(imported.config_extra_paths), imported.config_extra
    compat = package.document.namespace.compat if package.document is not None else None
    if compat is None:
        return None, frozenset(), {}
    return compat.source, frozenset(compat.extra_paths), compat.extra


def _set(data: dict[str, Any], path: str, value: Any) -> None:
    """Set a value at its path, unless the list item it belongs to no longer exists."""
    keys: list[str | int] = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
    keys[0] = "solution" if keys[0] == "oracle" else keys[0]
    node: Any = data
    for key in keys[:-1]:
        if isinstance(key, int):
            node = node[key] if isinstance(node, list) and key < len(node) else {}
        else:
            node = node.setdefault(key, {})
    if isinstance(node, dict):
        node[keys[-1]] = value


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
