"""Temporary folders that are removed even if the process is killed.

    <temporary folder>/benchcube-<user>/<process>.lock    locked while the process runs
    <temporary folder>/benchcube-<user>/<process>/…       its folders

They are removed when the process ends; the last process also removes the common folder. What a killed process left is
removed by the next one, which finds its lock free.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchflow.files.locks import free_lock, new_lock

_guard: Final = threading.Lock()
_SWEEP: Final = """
exec 3<&0 </dev/null
{
    read -r _ <&3
    for _ in 1 2 3 4 5 6 7 8 9 10; do  # what it has started ends with it, but may take a moment
        rm -rf "$1" && break
        sleep 1
    done
    rm -f "$1.lock"
    rmdir "${1%/*}"
} 2>/dev/null &
"""
"""The shell ends at once and leaves the rest to a child that is nobody's: a supervisor that ends the children of its
workers does not find it."""
_own: dict[int, Path] = {}
"""The folder of this process, by process id: a forked child creates its own."""


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A new empty folder that exists for the duration of a block."""
    folder = scratch_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def scratch_folder(prefix: str) -> Path:
    """A new empty folder, removed when this process ends or, if it is killed, by the next process of this user."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_root()))


def sweep_after_death() -> None:
    """Let a small process remove the folders of this process as soon as that has ended.

    Otherwise what a killed process leaves stays until the next one of this user comes, and on a node there may be none.
    """
    reader, writer = os.pipe()  # the writer is never closed: the end of this process ends it
    try:
        command = ["sh", "-c", _SWEEP, "sweep", str(_root())]
        subprocess.run(command, stdin=reader, stdout=subprocess.DEVNULL, start_new_session=True, check=True)
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)


def _root() -> Path:
    """The folder of this process."""
    with _guard:
        root = _own.get(os.getpid())
        if root is None or not root.is_dir():
            root = _own[os.getpid()] = _claim()
        return root


def _place() -> Path:
    """The folder of this user, shared by all processes; one created by someone else is not used."""
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
            continue  # another process has just removed the common folder
        if lock is not None:
            root.mkdir(mode=0o700)
            atexit.register(_remove, root, lock, os.getpid())
            return root


def _collect(place: Path) -> None:
    """Remove what ended processes have left."""
    for path in place.glob("*.lock"):
        lock = free_lock(path)
        if lock is not None:
            _remove(path.with_suffix(""), lock, os.getpid())


def _remove(root: Path, lock: int, process: int) -> None:
    if process != os.getpid():
        return  # the folder belongs to the parent of this forked process
    shutil.rmtree(root, ignore_errors=True)
    if not root.exists():
        root.with_suffix(".lock").unlink(missing_ok=True)
    os.close(lock)
    with contextlib.suppress(OSError):  # other processes still use it
        root.parent.rmdir()
