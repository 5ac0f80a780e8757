"""Reads files from untrusted sources: regular files only, up to a size limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class RefusedFileError(ValueError):
    """Not a regular file, or too large; the message continues a sentence that starts with its name."""


def read_regular(path: Path, *, max_bytes: int) -> bytes:
    """The bytes of a regular file of at most `max_bytes`.

    Raises `RefusedFileError` for links, pipes, sockets, devices and larger files, without reading from them, and
    `OSError` for all other problems, such as a missing file.
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
            raise RefusedFileError(f"has {status.st_size:,} bytes; at most {max_bytes:,} are allowed")
        data = _read_all(descriptor, max_bytes + 1, expected=status.st_size)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise RefusedFileError(f"grew beyond the limit of {max_bytes:,} bytes while it was read")
    return data


def open_below(root: Path, relative: str) -> int:
    """A descriptor of a regular file below a folder, for reading; links are not followed anywhere on the way.

    Raises `RefusedFileError` for names that lead elsewhere and for anything that is not a regular file, and `OSError`.
    """
    names = relative.split("/")
    if "\0" in relative or any(name in ("", ".", "..") for name in names):
        raise RefusedFileError("is not a name below its folder")
    *above, last = names
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in above:
            below = os.open(name, flags | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = below
        try:
            descriptor = os.open(last, flags, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise RefusedFileError("is not a regular file") from error
            raise
    finally:
        os.close(folder)
    try:
        _require_regular(os.fstat(descriptor))
    except RefusedFileError:
        os.close(descriptor)
        raise
    return descriptor


def _read_all(descriptor: int, most: int, *, expected: int) -> bytes:
    """Up to `most` bytes; memory is allocated for what is there, not for the limit."""
    parts: list[bytes] = []
    room = most
    while room and (part := os.read(descriptor, min(room, max(expected + 1, 1 << 13)))):
        parts.append(part)
        room -= len(part)
    return b"".join(parts)


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise RefusedFileError("is not a regular file")
