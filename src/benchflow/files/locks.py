"""Locks that end with their holder, however it ends: the kernel releases them with the last open file of it.

A file that a process keeps locked while it runs tells others whether it has ended (`new_lock`, `free_lock`). `Leases`
are names that any number of processes hold; one that removes a name first makes sure that nobody does. All names of a
folder share one file, in which each is one byte to lock, so one descriptor holds thousands of names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
import sys
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

_LONGEST_PAUSE: Final = 0.25
_PAUSE_SEC: Final = 0.002
_LONGEST_SEC: Final = 60.0
"""A remover has a name for the time of one rename; one that was stopped in it must not stop others for good."""
_TAKEN: Final = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
_LOCK: Final = "hhqqi4x"
"""`struct flock` of 64-bit Linux."""


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


class Leases:
    """The names that this object holds; they are released by `close`, or when the object is gone."""

    def __init__(self, path: Path) -> None:
        """`path` is the file of the locks; it is made when its folder exists and something is held."""
        self._path: Final = path
        self._held: set[str] = set()
        self._open: weakref.finalize[[int], Leases] | None = None
        self._descriptor = -1

    async def hold(self, name: str) -> None:
        """Keep `name` from being removed; a `TimeoutError` if it is being removed for too long."""
        import anyio

        until = time.monotonic() + _LONGEST_SEC
        while not self.try_hold(name):
            if time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, f"A cleanup of '{self._path.parent}' does not continue")
            await anyio.sleep(_PAUSE_SEC)

    def try_hold(self, name: str) -> bool:
        """Keep `name` from being removed, unless it is being removed now.

        In a folder that does not exist there is nothing to keep. Where the file system has no such locks nothing is
        held, and for the same reason nothing is removed.
        """
        if name in self._held:
            return True
        try:
            if not _lock(self._file(), fcntl.F_RDLCK, name):
                return False
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        self._held.add(name)
        return True

    def drop(self, name: str) -> None:
        """Hold a name no longer."""
        if name in self._held:
            self._held.discard(name)
            with contextlib.suppress(OSError):
                _lock(self._descriptor, fcntl.F_UNLCK, name)

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[bool]:
        """Whether nobody holds `name`, this object included; if so, nobody can until the block ends."""
        descriptor = _open(self._path)
        try:
            try:
                mine = _lock(descriptor, fcntl.F_WRLCK, name)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                mine = False
            yield mine
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Release everything."""
        self._held.clear()
        if self._open is not None:
            self._open()
            self._open = None

    def _file(self) -> int:
        if self._open is None:
            self._descriptor = _open(self._path)
            self._open = weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(descriptor: int, kind: int, name: str) -> bool:
    """Lock or unlock the byte of a name; two names with the same byte are only ever held longer than needed."""
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 2
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_LOCK, kind, os.SEEK_SET, place, 1, 0))
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True
