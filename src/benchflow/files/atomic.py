"""One file, written whole: temporary name in the same folder, flushed to disk, renamed over the target."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def temporary_sibling(path: Path) -> Path:
    """A fresh hidden name in the folder of `path`, short enough for any file system and never guessable."""
    return path.parent / f".benchflow-{os.urandom(8).hex()}.tmp"


def write_atomic(path: Path, data: bytes | str, *, mode: int | None = None, sync: bool = True) -> None:
    """Make `path` hold exactly `data`; on any error it keeps what it held and nothing else is left behind.

    Text is written as UTF-8 with its line ends as they are. A replaced file keeps its permissions unless
    `mode` says otherwise. `sync=False` leaves the moment of reaching the disk to the system: a crash of the
    process loses nothing, a crash of the machine may. Raises `OSError`.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = temporary_sibling(path)
    wanted = _permissions(path) if mode is None else mode
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            if wanted is not None:
                os.fchmod(stream.fileno(), wanted)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename inside it survives a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _permissions(path: Path) -> int | None:
    """Permissions of the regular file that would be replaced; none when there is no such file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else None
