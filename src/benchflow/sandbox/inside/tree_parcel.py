"""A small folder as one piece: its whole stream (`stream`) in a memory file that one message carries.

For such a folder a child inside the sandbox would cost more than the copy; larger ones go through a pipe.
"""

from __future__ import annotations

import io
import os
from typing import Final

from benchflow.sandbox.inside import tree_stream as stream

MAX_BYTES: Final = 256 << 10
_MAX_ENTRIES: Final = 100
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _TooLarge(OSError):
    """The folder is not small."""


class _Bounded(io.BytesIO):
    def write(self, data: bytes) -> int:  # type: ignore[override] # `pack` writes bytes only
        if self.tell() + len(data) > MAX_BYTES:
            raise _TooLarge
        return super().write(data)


def pack(directory: int) -> int | None:
    """A memory file, at its beginning, with the stream of a directory; None when it is not small or cannot be read."""
    output = _Bounded()
    try:
        if _count(directory, _MAX_ENTRIES) > _MAX_ENTRIES:
            return None
        stream.pack(directory, output)
    except (OSError, stream.Refused):
        return None  # the long way tells why
    parcel = os.memfd_create("parcel", os.MFD_CLOEXEC)
    os.write(parcel, output.getbuffer())
    os.lseek(parcel, 0, os.SEEK_SET)
    return parcel


def _count(directory: int, most: int) -> int:
    """How many entries there are, as far as it matters: past `most` nothing is listed, nor any folder entered."""
    count = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            count += 1
            if count > most:
                break
            if entry.is_dir(follow_symlinks=False):
                below = os.open(entry.name, _DIRECTORY, dir_fd=directory)
                try:
                    count += _count(below, most - count)
                finally:
                    os.close(below)
    return count


def open_parcel(parcel: int) -> bytes:
    """The stream in an untrusted memory file; closes it."""
    with os.fdopen(parcel, "rb") as file:
        return file.read(MAX_BYTES)
