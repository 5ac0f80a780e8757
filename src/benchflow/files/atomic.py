"""One file, written whole: temporary name in the same folder, flushed to disk, renamed over the target.

In a folder that nobody reads yet the file needs no temporary name of its own.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def temporary_sibling(path: Path) -> Path:
    """A fresh hidden name in the folder of `path`, short enough for any file system and never guessable."""
    return path.parent / _temporary_name()


def _temporary_name() -> str:
    return f".benchflow-{os.urandom(8).hex()}.tmp"


def write_atomic(path: Path, data: bytes | str, *, mode: int | None = None, sync: bool = True) -> None:
    """Make `path` hold exactly `data`; on any error it keeps what it held and nothing else is left behind.

    Text is written as UTF-8 with its line ends as they are. A replaced file keeps its permissions unless
    `mode` says otherwise. `sync=False` leaves the moment of reaching the disk to the system: a crash of the
    process loses nothing, a crash of the machine may. Raises `OSError`.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = f"{path.parent}/{_temporary_name()}"
    wanted = _permissions(path) if mode is None else mode
    descriptor = os.open(temporary, _NEW, 0o666)
    try:
        try:
            _write_all(descriptor, content)
            if wanted is not None:
                os.fchmod(descriptor, wanted)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)  # noqa: PTH105 - records are written often, and text needs no parsing
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def write_unseen(path: Path, data: bytes | str) -> None:
    """Make `path` hold exactly `data`, in a folder that nobody reads before it is moved to its place.

    So the file is written under its own name, over a file that is there already. What is there and is no plain file of
    its own, a link for instance, is replaced. Raises `OSError`.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        descriptor = os.open(path, _NEW, 0o666)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not os.access(path, os.W_OK):
            write_atomic(path, content, sync=False)
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _write_all(descriptor, content)
        if os.fstat(descriptor).st_size > len(content):
            os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename inside it survives a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    """All of it: one call may write less than it is given."""
    done = os.write(descriptor, content) if content else 0
    while done < len(content):
        done += os.write(descriptor, memoryview(content)[done:])


def _permissions(path: Path) -> int | None:
    """Permissions of the regular file that would be replaced; none when there is no such file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else None


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file to a path that does not exist; missing folders are made. Raises `OSError`.

    The last part of `source` is never followed as a link, and opening it never blocks. Permissions are those
    of the source without its set-id and sticky bits.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(f"{source} is not a regular file")
        with target.open("xb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
            os.fchmod(copy.fileno(), stat.S_IMODE(mode) & 0o777)
