"""Temporary folders that a killed process cannot leave for good.

    <temporary folder>/benchcube-<user>/<process>.lock    held as long as the process lives
    <temporary folder>/benchcube-<user>/<process>/…       its folders

They go when the process ends, and the last one takes the place along; what a killed process left is removed by the
next, which its free lock allows.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchflow.files.locks import free_lock, new_lock

_guard: Final = threading.Lock()
_own: dict[int, Path] = {}
"""The folder of this process, by its id: a forked child makes its own."""


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A new empty folder for the length of a block."""
    folder = scratch_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def scratch_folder(prefix: str) -> Path:
    """A new empty folder, removed at the latest when this process, or the next of this user, notices its end."""
    with _guard:
        root = _own.get(os.getpid())
        if root is None or not root.is_dir():
            root = _own[os.getpid()] = _claim()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=root))


def _place() -> Path:
    """This user's folder for all processes; one that somebody else made is not used."""
    place = Path(tempfile.gettempdir()) / f"benchcube-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    try:
        info = place.lstat()
    except FileNotFoundError:
        return _place()
    if place.is_symlink() or info.st_uid != os.getuid() or info.st_mode & 0o077:
        return Path(tempfile.mkdtemp(prefix="benchcube-"))
    _collect(place)
    return place


def _claim() -> Path:
    while True:
        root = _place() / f"{os.getpid()}-{secrets.token_hex(4)}"
        try:
            lock = new_lock(root.with_suffix(".lock"))
        except FileNotFoundError:
            continue  # the last of the other processes has just taken the place along
        if lock is not None:
            root.mkdir(mode=0o700)
            atexit.register(_remove, root, lock, os.getpid())
            return root


def _collect(place: Path) -> None:
    """Remove what processes left that are gone."""
    for path in place.glob("*.lock"):
        lock = free_lock(path)
        if lock is not None:
            _remove(path.with_suffix(""), lock, os.getpid())


def _remove(root: Path, lock: int, process: int) -> None:
    if process != os.getpid():
        return  # the folder of the process that this one was forked from
    shutil.rmtree(root, ignore_errors=True)
    if not root.exists():
        root.with_suffix(".lock").unlink(missing_ok=True)
    os.close(lock)
    with contextlib.suppress(OSError):  # others are there
        root.parent.rmdir()
