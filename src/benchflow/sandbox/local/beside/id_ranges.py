"""Ranges of user ids, one for each sandbox of this machine while the driver is root.

The kernel limits some things per user, whatever the process: descriptors in flight, inotify instances and watches, pipe
buffers. Sandboxes with ids of their own cannot exhaust each other's. A range is a locked byte of one file that every
driver opens. The kernel drops the lock when the last process that has the file open ends, so nothing needs cleaning up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final

from benchflow.sandbox.inside.accounts import IDS

FIRST: Final = 2_000_000_000
"""Where the ranges begin: far from people, services and granted ranges."""
COUNT: Final = (0x7FFE_0000 - FIRST) // IDS
"""They end below the ids that systemd keeps for foreign images, and so below what some programs take for negative."""
_SHARED_FOLDER: Final = "/run/benchcube"
_FLOCK: Final = struct.Struct("hh4xqqi4x")


class IdRanges:
    """The ranges that the sandboxes of one zygote have."""

    def __init__(self, fallback: str) -> None:
        """The file lies where all drivers of the machine find it, or in `fallback` where that cannot be written."""
        self.file = _open_file(_SHARED_FOLDER, fallback)
        self._taken: set[int] = set()
        self._next = int.from_bytes(os.urandom(8)) % COUNT  # `secrets` brings `random`, which seeds itself in each fork
        """Begins anywhere, so that drivers which do not see each other's file hardly ever meet."""

    def take(self) -> int:
        """The first id of a range that no other sandbox has."""
        for _ in range(COUNT):
            number, self._next = self._next, (self._next + 1) % COUNT
            if number not in self._taken and self._lock(number, fcntl.F_WRLCK):
                self._taken.add(number)
                return FIRST + number * IDS
        raise OSError(errno.EUSERS, f"all {COUNT} ranges of user ids are in use by sandboxes")

    def give_back(self, first: int) -> None:
        """Let others have the range; no process of its sandbox is left."""
        number = (first - FIRST) // IDS
        self._taken.discard(number)
        self._lock(number, fcntl.F_UNLCK)

    def _lock(self, number: int, kind: int) -> bool:
        try:
            fcntl.fcntl(self.file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, number, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


def _open_file(*folders: str) -> int:
    problem = OSError()
    for folder in folders:
        try:
            os.makedirs(folder, 0o755, exist_ok=True)
            return os.open(f"{folder}/id-ranges", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            problem = error
    raise problem
