"""Files that a process keeps locked while it runs, so that others can tell whether it has ended.

A lock belongs to the open file, so the kernel releases it when the last process that holds its descriptor ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

_LONGEST_PAUSE: Final = 0.25


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


@contextlib.asynccontextmanager
async def held_lock(path: Path) -> AsyncIterator[None]:
    """Hold the lock of a file, made if it is missing, against all tasks and processes; it ends with its holder."""
    import anyio

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        pause = 0.005
        while not try_lock(descriptor):
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        yield
    finally:
        os.close(descriptor)
