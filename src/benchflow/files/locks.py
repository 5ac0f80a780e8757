"""Files that a process keeps locked while it runs, so that others can tell whether it has ended.

A lock belongs to the open file, so the kernel releases it when the last process that holds its descriptor ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def new_lock(path: Path) -> int | None:
    """A locked descriptor of a new file; None if a cleanup has removed the file in the meantime."""
    lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == os.fstat(lock).st_ino:
            return lock
    os.close(lock)
    return None


def free_lock(path: Path) -> int | None:
    """A locked descriptor of an existing file; None if it is locked by someone else or cannot be opened."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if try_lock(lock):
        return lock
    os.close(lock)
    return None


def try_lock(descriptor: int) -> bool:
    """Lock an open file; false if someone else holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
