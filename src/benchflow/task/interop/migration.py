"""Split layouts and Terminal-Bench folders -> native packages, in place, completely or not at all.

The rendered `task.md` is parsed again before anything is written: its configuration and prompt must equal those of the
source. Keys that the native format does not have go to `benchflow.compat.extra`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue, PackageError, UsageError
from benchflow.files import copy_file, write_atomic
from benchflow.task.config.task_config import TaskConfig, TaskConfigError
from benchflow.task.document.compat_extra import leaf_paths
from benchflow.task.document.markdown import MarkdownError, decode, normalise
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.document.task_text import render_checked
from benchflow.task.document.task_toml import read_task_toml
from benchflow.task.filemap import read_regular
from benchflow.task.interop.instruction_text import source_instruction
from benchflow.task.interop.split_layout import NativeTrees, plan_native_trees, with_plain_artifacts, with_rubric_below
from benchflow.task.interop.terminal_bench import SOURCE, TerminalBenchTask, is_terminal_bench, read_terminal_bench
from benchflow.task.interop.toml_export import Preserved
from benchflow.task.package import INSTRUCTION, TASK_TOML


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What a migration did to a folder; all paths are relative to it."""

    task_dir: Path
    source: str
    created: tuple[str, ...]
    removed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    extra_paths: tuple[str, ...] = ()
    """Preserved foreign keys."""
    issues: tuple[Issue, ...] = ()
    """Warnings: keys preserved without effect, and what the author has to complete."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.task_dir),
            "source": self.source,
            "created": list(self.created),
            "removed": list(self.removed),
            "renamed": [{"from": old, "to": new} for old, new in self.renamed],
            "extra_paths": list(self.extra_paths),
            "issues": [issue.to_dict() for issue in self.issues],
        }


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of a `task.md`, and what was learnt from its source."""

    text: str
    steps: tuple[str, ...]
    extra_paths: tuple[str, ...]
    issues: tuple[Issue, ...]


def render_task_md_from_legacy(task_dir: Path | str) -> str:
    """The `task.md` equivalent to a folder's `task.toml` and `instruction.md`; raises `PackageError`."""
    return _render_folder(Path(task_dir), native_trees=False).text


def migrate_task_to_task_md(
    task_dir: Path | str, *, overwrite: bool = False, remove_legacy: bool = False
) -> MigrationResult:
    """Write the `task.md` of a split or Terminal-Bench folder.

    `remove_legacy` removes superseded files and gives folders their native names. A folder that already has a
    `task.md` is refused unless `overwrite` is set and a split definition exists. Raises `UsageError` for any other
    folder and `PackageError` for one that cannot be migrated; then nothing has changed.
    """
    folder = Path(task_dir)
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", code="not-a-folder")
    if is_terminal_bench(folder):
        return migrate_terminal_bench(folder, remove_legacy=remove_legacy)
    if (folder / TASK_MD).exists() and not (overwrite and (folder / TASK_TOML).exists()):
        raise PackageError(f"{folder} already has a task.md", code="already-native", file=TASK_MD)
    if not (folder / TASK_TOML).exists():
        raise UsageError(f"{folder} contains neither task.toml nor task.yaml", code="no-package")
    rendered = _render_folder(folder, native_trees=remove_legacy)
    trees = plan_native_trees(folder, rendered.steps) if remove_legacy else NativeTrees()
    write_atomic(folder / TASK_MD, rendered.text)
    renamed, dropped = trees.apply(folder)
    removed = _remove(folder, (TASK_TOML, INSTRUCTION)) if remove_legacy else ()
    return MigrationResult(
        folder, "split", (TASK_MD,), (*removed, *dropped), renamed, rendered.extra_paths, rendered.issues
    )


def _render_folder(folder: Path, *, native_trees: bool) -> Rendered:
    toml = _read(folder, TASK_TOML)
    if toml is None:
        raise PackageError("task.toml is missing", code="missing-file", file=TASK_TOML)
    return render_split(toml, _read(folder, INSTRUCTION), native_trees=native_trees)


def render_split(toml: str, instruction: str | None, *, native_trees: bool = False) -> Rendered:
    """The `task.md` of a `task.toml` and an `instruction.md`, both as they were written; raises `PackageError`.

    `native_trees` says that the folders get their native names.
    """
    reading = read_task_toml(normalise(toml))
    imported = TaskConfigError.require(reading.config, reading.issues)
    config = with_rubric_below(imported, "tests", "verifier") if native_trees else imported
    steps = tuple(step.name for step in config.steps or ())
    if instruction is None and not steps:
        raise PackageError("instruction.md is missing", code="missing-file", file=INSTRUCTION)
    compat = Preserved.of_source(imported, reading.compatibility, reading.data).to_compat()
    if instruction is not None:
        form = source_instruction(instruction).to_declared_dict()
        compat.update({"instruction": form} if form else {})
    frontmatter = {**_frontmatter(config), "benchflow": {"compat": compat}}
    text = render_checked(frontmatter, normalise(instruction or ""), config)
    return Rendered(text, steps, reading.compatibility.config_extra_paths, reading.issues)


def _frontmatter(config: TaskConfig) -> dict[str, Any]:
    """Declared keys in their order, with the schema version first."""
    declared = with_plain_artifacts(config.to_declared_dict())
    version = declared.pop("schema_version", None)
    return {**({"schema_version": version} if version is not None else {}), **declared}


def _read(folder: Path, name: str) -> str | None:
    """The text of a definition file as written, or None if it does not exist; only regular UTF-8 files are accepted."""
    path = folder / name
    if not path.exists() and not path.is_symlink():
        return None
    try:
        data = read_regular(path)[0]
        decode(data)
    except MarkdownError as problem:
        raise PackageError(f"{name} {problem}", code=problem.code, file=name, line=problem.line) from None
    except OSError as problem:
        message = f"{name} cannot be read: {problem.strerror or problem}"
        raise PackageError(message, code="unreadable", file=name) from None
    return data.decode()


def _remove(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(name for name in names if (folder / name).exists())
    for name in found:
        (folder / name).unlink()
    return found


_SCRIPT_MODE: Final = 0o755


def migrate_terminal_bench(folder: Path, *, remove_legacy: bool = False) -> MigrationResult:
    """Write `task.md`, `environment/`, `tests/` and `solution/` beside the existing files.

    `remove_legacy` removes superseded files and gives folders their native names.
    """
    task = read_terminal_bench(folder)
    paths = tuple(sorted(leaf_paths(task.extra)))
    frontmatter: dict[str, Any] = dict(task.frontmatter)
    if task.extra:
        frontmatter["benchflow"] = {"compat": Preserved(SOURCE, frozenset(paths), task.extra).to_compat()}
    text = render_checked(frontmatter, task.instruction, None)
    created = _write_task(folder, task, text)
    trees = plan_native_trees(folder, ()) if remove_legacy else NativeTrees()
    renamed, _ = trees.apply(folder)
    removed = _remove_superseded(folder, task.superseded) if remove_legacy else ()
    final = _after_renames(created, dict(renamed))
    return MigrationResult(folder, SOURCE, final, removed, renamed, paths, task.issues)


def _write_task(folder: Path, task: TerminalBenchTask, text: str) -> tuple[str, ...]:
    """Write every new file, the definition last; undo everything if one cannot be written."""
    made: list[Path] = []
    folders = [name for name in ("environment", "solution", "tests") if not (folder / name).exists()]
    try:
        for name, original in task.copies.items():
            copy_file(folder / original, folder / name)
            made.append(folder / name)
        for name, content in task.texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, content, mode=_SCRIPT_MODE if name.endswith(".sh") else None)
            made.append(folder / name)
        for name, target in task.links.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(target)
            made.append(folder / name)
        write_atomic(folder / TASK_MD, text)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        for name in folders:
            shutil.rmtree(folder / name, ignore_errors=True)
        raise
    return (TASK_MD, *sorted(path.relative_to(folder).as_posix() for path in made))


def _after_renames(created: tuple[str, ...], renamed: Mapping[str, str]) -> tuple[str, ...]:
    def place(path: str) -> str:
        top, slash, rest = path.partition("/")
        return renamed.get(top, top) + slash + rest

    return tuple(place(path) for path in created)


def _remove_superseded(folder: Path, superseded: tuple[str, ...]) -> tuple[str, ...]:
    for name in superseded:
        (folder / name).unlink()
        parent = (folder / name).parent
        while parent != folder and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent
    return superseded
