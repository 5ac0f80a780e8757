"""Atomic folders: built beside the destination under a temporary name, flushed, then renamed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchflow.files.atomic import sync_folder, temporary_sibling


@contextmanager
def staged_folder(destination: Path, *, overwrite: bool = False, sync: bool = True) -> Iterator[Path]:
    """An empty folder to fill; it becomes `destination` if the block succeeds and is removed if it fails.

    `destination` may be missing (its parents are created) or empty. A folder with content is refused with
    `FileExistsError` unless `overwrite` is set, which replaces it as a whole and restores it on failure. A link or file
    in its place is always refused. A refused or failed call leaves no new folders. `sync=False` does not flush to disk.
    """
    _require_free(destination, overwrite=overwrite)
    made = _make_parents(destination.parent)
    staging = temporary_sibling(destination)
    try:
        staging.mkdir()
        yield staging
        if sync:
            _sync_tree(staging)
        taken = _require_free(destination, overwrite=overwrite)
        _move_in(staging, destination, taken=taken)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in reversed(made):
            _remove_if_empty(folder)
        raise
    if sync:
        sync_folder(destination.parent)


def _require_free(destination: Path, *, overwrite: bool) -> bool:
    """Whether there is a folder with content to be replaced."""
    try:
        mode = destination.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(mode):
        raise FileExistsError(f"{destination} exists and is not a folder")
    taken = any(destination.iterdir())
    if taken and not overwrite:
        raise FileExistsError(f"{destination} already exists and is not empty")
    return taken


def _make_parents(parent: Path) -> list[Path]:
    """Create the missing folders down to `parent`; returns them, outermost first."""
    missing: list[Path] = []
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    made: list[Path] = []
    for folder in reversed(missing):
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError:
            for earlier in reversed(made):
                _remove_if_empty(earlier)
            raise
        made.append(folder)
    return made


def _move_in(staging: Path, destination: Path, *, taken: bool) -> None:
    if not taken:
        staging.rename(destination)
        return
    previous = temporary_sibling(destination)
    destination.rename(previous)
    try:
        staging.rename(destination)
    except BaseException:
        previous.rename(destination)
        raise
    shutil.rmtree(previous)


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink():
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(folder))


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
