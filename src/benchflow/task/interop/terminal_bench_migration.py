"""A Terminal-Bench folder becomes a package where it stands; when that fails, it is as it was."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchflow.files import copy_file, write_atomic
from benchflow.task.document.compat_extra import leaf_paths
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.document.task_text import compat_namespace, render_checked
from benchflow.task.interop.migration_result import MigrationResult
from benchflow.task.interop.split_layout import NativeTrees, plan_native_trees
from benchflow.task.interop.terminal_bench import SOURCE, TerminalBenchTask, read_terminal_bench

_SCRIPT_MODE: Final = 0o755


def migrate_terminal_bench(folder: Path, *, remove_legacy: bool = False) -> MigrationResult:
    """Write `task.md`, `environment/`, `tests/` and `solution/` beside what is there.

    `remove_legacy` removes the files these supersede and gives the trees their native names.
    """
    task = read_terminal_bench(folder)
    paths = tuple(sorted(leaf_paths(task.extra)))
    frontmatter: dict[str, Any] = dict(task.frontmatter)
    if task.extra:
        frontmatter["benchflow"] = compat_namespace(SOURCE, paths, task.extra)
    text = render_checked(frontmatter, task.instruction, None)
    created = _write(folder, task, text)
    trees = plan_native_trees(folder, ()) if remove_legacy else NativeTrees()
    renamed, _ = trees.apply(folder)
    removed = _remove(folder, task.superseded) if remove_legacy else ()
    final = _after_renames(created, dict(renamed))
    return MigrationResult(folder, SOURCE, final, removed, renamed, paths, task.issues)


def _write(folder: Path, task: TerminalBenchTask, text: str) -> tuple[str, ...]:
    """Make every new file, the definition last; undo all of it when one cannot be made."""
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


def _remove(folder: Path, superseded: tuple[str, ...]) -> tuple[str, ...]:
    for name in superseded:
        (folder / name).unlink()
        parent = (folder / name).parent
        while parent != folder and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent
    return superseded
