"""Atomic files and folders: a temporary name in the same folder, flushed to disk, renamed over the target.

A file in a folder that nobody reads yet needs no temporary name. `copy_file` copies regular files only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FICLONE: Final = 0x40049409
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_CLONED: Final = 1 << 20
"""Smaller files are copied faster than they are cloned."""


def temporary_sibling(path: Path) -> Path:
    """A new hidden name in the folder of `path`, unpredictable and short enough for any file system."""
    return path.parent / _temporary_name()


def _temporary_name() -> str:
    return f".benchflow-{os.urandom(8).hex()}.tmp"


def write_atomic(path: Path, data: bytes | str, *, mode: int | None = None, sync: bool = True) -> None:
    """Replace the content of `path` with `data`; on error the old content is kept and nothing is left behind.

    Text is written as UTF-8, line endings unchanged. A replaced file keeps its permissions unless `mode` is given.
    With `sync=False` a crash of the machine may lose the data, a crash of the process does not. Raises `OSError`.
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
        os.replace(temporary, path)  # noqa: PTH105 - faster for records, which are written often
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


@contextmanager
def growing_file(path: Path) -> Iterator[TextIO]:
    """A file to write piece by piece; it becomes `path` if the block succeeds and is removed if it fails."""
    temporary = temporary_sibling(path)
    try:
        with temporary.open("x", encoding="utf-8", newline="") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_unseen(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` in a folder that nobody reads before it is moved into place.

    The file is written under its own name, over an existing one. Anything else at that path, such as a link, is
    replaced. Raises `OSError`.
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
    """Flush the entries of a folder, so that a rename in it survives a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    """Write everything: a single call may write less."""
    done = os.write(descriptor, content) if content else 0
    while done < len(content):
        done += os.write(descriptor, memoryview(content)[done:])


def _permissions(path: Path) -> int | None:
    """Permissions of the regular file to be replaced; None if there is none."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else None


def copy_file(source: Path, target: Path) -> os.stat_result:
    """Copy a regular file to a path that does not exist, creating missing folders. Raises `OSError`.

    `source` is not followed if it is a link, and opening it never blocks. Permissions are copied, without set-id and
    sticky bits. The copy shares its blocks with the source where the file system can do that, never the file itself.
    Returns the status of the source.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{source} is not a regular file")
        with target.open("xb") as copy:
            if status.st_size < _CLONED or not _clone(descriptor, copy.fileno()):
                shutil.copyfileobj(stream, copy, 1 << 20)
            os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode) & 0o777)
        return status


def _clone(source: int, target: int) -> bool:
    """Let two open files share their blocks until one is written; false where the file system does not offer that."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


@contextmanager
def staged_folder(destination: Path, *, overwrite: bool = False, sync: bool = True) -> Iterator[Path]:
    """An empty folder to fill; it becomes `destination` if the block succeeds and is removed if it fails.

    `destination` may be missing (its parents are created) or empty. A folder with content is refused with
    `FileExistsError` unless `overwrite` is set, which replaces it as a whole and restores it on failure. A link or file
    in its place is always refused. A refused or failed call leaves no new folders. `sync=False` does not flush to disk.
    """
    _require_free(destination, overwrite=overwrite)
    made = _make_parents(destination.parent)
    staging = temporary_sibling(destination)
    try:
        staging.mkdir()
        yield staging
        if sync:
            _sync_tree(staging)
        taken = _require_free(destination, overwrite=overwrite)
        _move_in(staging, destination, taken=taken)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in reversed(made):
            _remove_if_empty(folder)
        raise
    if sync:
        sync_folder(destination.parent)


def exchange(path: Path, other: Path) -> None:
    """Swap two files or folders of one file system in one step, so that a reader finds one or the other, never neither.

    Raises `OSError`, also where the system cannot do that.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        raise OSError(errno.ENOSYS, "this system cannot exchange two folders", str(path)) from None
    if rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    sync_folder(path.parent)


def _require_free(destination: Path, *, overwrite: bool) -> bool:
    """Whether there is a folder with content to be replaced."""
    try:
        mode = destination.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(mode):
        raise FileExistsError(f"{destination} exists and is not a folder")
    taken = any(destination.iterdir())
    if taken and not overwrite:
        raise FileExistsError(f"{destination} already exists and is not empty")
    return taken


def _make_parents(parent: Path) -> list[Path]:
    """Create the missing folders down to `parent`; returns them, outermost first."""
    missing: list[Path] = []
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    made: list[Path] = []
    for folder in reversed(missing):
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError:
            for earlier in reversed(made):
                _remove_if_empty(earlier)
            raise
        made.append(folder)
    return made


def _move_in(staging: Path, destination: Path, *, taken: bool) -> None:
    if not taken:
        staging.rename(destination)
        return
    previous = temporary_sibling(destination)
    destination.rename(previous)
    try:
        staging.rename(destination)
    except BaseException:
        previous.rename(destination)
        raise
    shutil.rmtree(previous)


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink():
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(folder))


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
