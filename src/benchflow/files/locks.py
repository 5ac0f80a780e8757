"""Files that a process keeps locked as long as it lives: proof of who is there and who is gone.

A lock belongs to the open file, so it outlives none of the processes that hold its descriptor, whatever ends them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def new_lock(path: Path) -> int | None:
    """A descriptor of a new file, locked; None where whoever looks for leftovers took the file for one."""
    lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == os.fstat(lock).st_ino:
            return lock
    os.close(lock)
    return None


def free_lock(path: Path) -> int | None:
    """A descriptor of a file that nobody had locked, now locked; None where somebody has or it cannot be opened."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if try_lock(lock):
        return lock
    os.close(lock)
    return None


def try_lock(descriptor: int) -> bool:
    """Lock an open file unless somebody else has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
