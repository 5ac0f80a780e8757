"""Reading a file that someone else wrote: regular files only, and never more than the reader can take."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class RefusedFileError(ValueError):
    """Not a regular file, or larger than the reader takes; `str()` is the end of a sentence about it."""


def read_regular(path: Path, *, max_bytes: int) -> bytes:
    """The bytes of a regular file of at most `max_bytes`.

    Links are not followed, pipes, sockets and devices are not waited for or opened, and of a larger file
    nothing is read. Raises `RefusedFileError` for those, `OSError` (`FileNotFoundError` when there is
    nothing) for the rest.
    """
    _require_regular(path.lstat())
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise RefusedFileError("is not a regular file") from error
        raise
    try:
        status = os.fstat(descriptor)
        _require_regular(status)
        if status.st_size > max_bytes:
            raise RefusedFileError(f"has {status.st_size:,} bytes, more than the {max_bytes:,} allowed")
        data = _read_all(descriptor, max_bytes + 1, expected=status.st_size)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise RefusedFileError(f"grew past the {max_bytes:,} bytes allowed while it was read")
    return data


def _read_all(descriptor: int, most: int, *, expected: int) -> bytes:
    """What can be read, up to `most` bytes; memory is taken for as many as are there."""
    parts: list[bytes] = []
    room = most
    while room and (part := os.read(descriptor, min(room, max(expected + 1, 1 << 13)))):
        parts.append(part)
        room -= len(part)
    return b"".join(parts)


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise RefusedFileError("is not a regular file")
