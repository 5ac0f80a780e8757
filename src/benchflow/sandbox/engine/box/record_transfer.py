"""Host folders to records and records to host folders, with every trick refused on the way.

Going in, the host's tree is read without following links. Coming out, nothing in the stream is trusted: links that
leave the copied tree, special files, odd names and oversized trees end the transfer, and what was written is removed.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from benchflow.errors import SandboxFailure, UsageError
from benchflow.sandbox.engine.box.file_records import Record, RecordReader
from benchflow.sandbox.inside.beneath import is_name, stays_inside

_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Owner:
    """Numeric owner that files get inside."""

    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may come out."""

    max_bytes: int
    max_files: int


async def upload_stream(source: Path, target: str, owner: Owner) -> AsyncIterator[bytes]:
    """The records that put a host file at `target`, or a folder's contents into `target`."""
    for record, path in await anyio.to_thread.run_sync(lambda: list(_listing(source, target, owner))):
        yield record.header()
        if record.type == "l":
            yield os.fsencode(Path.readlink(path))
        elif record.type == "f":
            async for part in _exactly(path, record.size):
                yield part


def _listing(source: Path, target: str, owner: Owner) -> Iterator[tuple[Record, Path]]:
    """Every file below `source` with the record it becomes, folders before what they hold."""
    root = _entry(source, target, owner)
    if root.type != "d":
        yield root, source
        return
    # Its contents are copied, not the folder itself, which may be closed to others on this side.
    yield replace(root, mode=0o755), source
    for folder, folders, names in os.walk(source, followlinks=False):
        folders.sort()
        for name in sorted([*folders, *names]):
            path = Path(folder) / name
            inside = posixpath.join(target, *path.relative_to(source).parts)
            yield _entry(path, inside, owner), path


def _entry(path: Path, inside: str, owner: Owner) -> Record:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        return Record("d", inside, 0, mode, owner.uid, owner.gid, status.st_mtime_ns)
    if stat.S_ISREG(status.st_mode):
        return Record("f", inside, status.st_size, mode & 0o777, owner.uid, owner.gid, status.st_mtime_ns)
    if stat.S_ISLNK(status.st_mode):
        size = len(os.fsencode(path.readlink()))
        return Record("l", inside, size, mode, owner.uid, owner.gid, status.st_mtime_ns)
    raise UsageError(f"'{path}' is neither a file nor a folder and cannot be uploaded.", code="special-file")


async def _exactly(path: Path, size: int) -> AsyncIterator[bytes]:
    """The first `size` bytes of a file; one that became shorter is an error."""
    async with await anyio.open_file(path, "rb") as file:
        left = size
        while left:
            part = await file.read(min(left, _CHUNK))
            if not part:
                raise UsageError(f"'{path}' changed while it was uploaded.", code="changed-file")
            left -= len(part)
            yield part


async def receive_tree(reader: RecordReader, source: str, target: Path, bounds: Bounds) -> None:
    """Write the tree that the reader delivers to `target`; after an error nothing of it is left there."""
    there_before = _exists(target)
    try:
        await _Receiver(reader, source, target, bounds).run()
    except BaseException:
        if not there_before:
            _remove(target)
        raise


def _exists(path: Path) -> bool:
    return path.exists()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class _Receiver:
    def __init__(self, reader: RecordReader, source: str, target: Path, bounds: Bounds) -> None:
        self._reader = reader
        self._source = source
        self._target = target
        self._bounds = bounds
        self._bytes = 0
        self._files = 0

    async def run(self) -> None:
        root = await self._reader.next()
        if root is None:
            raise self._refuse("", "could not be read")
        if root.type == "f":
            await self._file(root, self._target)
            return
        if root.type != "d":
            raise self._refuse("", "is neither a file nor a folder")
        self._target.mkdir(parents=True, exist_ok=True)
        links: list[tuple[Path, str]] = []
        while (record := await self._reader.next()) is not None:
            await self._entry(record, links)
        for path, value in links:
            path.symlink_to(value)

    async def _entry(self, record: Record, links: list[tuple[Path, str]]) -> None:
        self._files += 1
        if self._files > self._bounds.max_files:
            raise self._refuse("", f"has more than {self._bounds.max_files} files")
        parts = record.path.split("/")
        if not all(is_name(part) for part in parts):
            raise self._refuse(record.path, "has an impossible path")
        path = self._target.joinpath(*parts)
        if record.type == "d":
            path.mkdir(exist_ok=True)
        elif record.type == "f":
            await self._file(record, path)
        elif record.type == "l":
            self._count(record)
            value = os.fsdecode(await self._reader.take(record.size))
            if not stays_inside(value, len(parts) - 1):
                raise self._refuse(record.path, f"is a link that leaves the copied tree ('{value}')")
            # Links come last, so that nothing is ever written through one.
            links.append((path, value))
        else:
            raise self._refuse(record.path, "is a special file")

    async def _file(self, record: Record, path: Path) -> None:
        self._count(record)
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, record.mode & 0o777 | 0o600), "wb") as file:
            async for part in self._reader.data(record.size):
                file.write(part)

    def _count(self, record: Record) -> None:
        self._bytes += record.size
        if self._bytes > self._bounds.max_bytes:
            raise self._refuse(record.path, f"makes the copy larger than {self._bounds.max_bytes} bytes", "too-large")

    def _refuse(self, inside: str, why: str, code: str = "refused-file") -> SandboxFailure:
        return SandboxFailure(f"'{posixpath.join(self._source, inside).rstrip('/')}' {why}.", code=code)
