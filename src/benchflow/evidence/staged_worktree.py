"""The current working folder as live cases see it: a copy without caches and version control, with its SHA-256.

Links are resolved, so that the copy stands alone; one that leaves the folder is refused, because it would take files
into an environment that nobody named.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchflow.errors import UsageError
from benchflow.files.atomic import copy_file

LEFT_OUT: Final = frozenset(
    {
        ".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".uv-cache", "__pycache__", "htmlcov", "jobs",
        "node_modules",
    }
)  # fmt: skip
MAX_BYTES: Final = 2 << 30
MAX_FILES: Final = 200_000


def stage_worktree(source: Path, target: Path) -> str:
    """Copy `source` to the new folder `target`; the SHA-256 of the paths, modes and contents of its files.

    Raises `UsageError` for a folder that is too large, and for links that leave it.
    """
    root = source.resolve()
    total = 0
    tree = hashlib.sha256()
    target.mkdir()
    for number, path in enumerate(_files(root, root, frozenset()), 1):
        name = path.relative_to(root).as_posix()
        actual = path.resolve()
        total += actual.stat().st_size
        if total > MAX_BYTES or number > MAX_FILES:
            limits = f"{MAX_BYTES >> 30} GB or {MAX_FILES:,} files"
            raise UsageError(
                f"The current folder has more than {limits}, too much to stage.", code="workspace-too-large"
            )
        copy_file(actual, target / name)
        with actual.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        executable = "x" if os.access(actual, os.X_OK) else "-"
        tree.update(f"{name}\0{executable}\0{digest}\n".encode(errors="surrogateescape"))
    return tree.hexdigest()


def _files(folder: Path, root: Path, above: frozenset[Path]) -> Iterator[Path]:
    """Every regular file below a folder, by name; a link to a folder above itself ends there."""
    real = folder.resolve()
    if real in above:
        return
    for path in sorted(folder.iterdir()):
        if path.name in LEFT_OUT or path.name.endswith(".pyc"):
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            message = f"The link {path.relative_to(root)} leaves the current folder, so the folder cannot be staged."
            raise UsageError(message, code="workspace-link")
        if path.is_dir():
            yield from _files(path, root, above | {real})
        elif path.is_file():
            yield path
