"""A folder as a stream of records, faster than an archive and with nothing in it that could point elsewhere.

    DIRECTORY name … LEAVE      FILE name data      LINK name target      END

Names are single names, never paths, so a reader can only create below its current folder. `pack` refuses special
files; `unpack` refuses bad names, links that leave the tree and anything beyond its limits. Both are used on both
sides: the reader does not trust the writer.

A small folder travels as a parcel, its whole stream in a memory file that one message carries, because a child inside
the sandbox would cost more than the copy.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
from typing import BinaryIO, Final, NamedTuple

from benchflow.sandbox.inside import beneath

_HEADER: Final = struct.Struct("<BHIQq")  # kind, length of the name, mode, size, time of change in ns
_END, _DIRECTORY, _LEAVE, _FILE, _LINK = range(5)
DEEPEST: Final = 256
"""Folders in each other that leave a sandbox."""
_KINDS: Final = {
    errno.ENOENT: "no-such-file", errno.ENOTDIR: "no-such-file", errno.ENOSPC: "disk-full", errno.EDQUOT: "disk-full",
}  # fmt: skip
_WHOLE: Final = 1 << 18
_LONGEST_LINK: Final = 4096
_CREATE: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PARCEL_BYTES: Final = 256 << 10
_PARCEL_ENTRIES: Final = 100


class Refused(ValueError):
    """Something in a tree that is not copied."""


class Intake(NamedTuple):
    """What a reader takes."""

    max_bytes: int
    max_files: int
    owner: tuple[int, int] | None = None
    """None keeps what a new file gets."""
    any_links: bool = False
    """Accept all links unchanged; otherwise only those that stay inside the tree."""
    replace: bool = True
    """Existing files are replaced; otherwise they are an error."""
    deepest: int = DEEPEST
    """Folders in each other."""


def pack(directory: int, output: BinaryIO, *, deepest: int = DEEPEST) -> None:
    """Write all below a directory to the stream. The caller flushes. Nothing is followed, nothing special is opened."""
    _pack_directory(directory, output, "", deepest)
    output.write(_HEADER.pack(_END, 0, 0, 0, 0))


def _pack_directory(directory: int, output: BinaryIO, prefix: str, deepest: int) -> None:
    if prefix.count("/") > deepest:
        raise Refused(f"Folders are nested more than {deepest} deep.")
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        info = os.lstat(name, dir_fd=directory)
        encoded = os.fsencode(name)
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFREG:
            _pack_file(directory, name, encoded, output, prefix)
        elif kind == stat.S_IFDIR:
            below = os.open(name, _OPEN_DIRECTORY, dir_fd=directory)
            try:
                output.write(_record(_DIRECTORY, encoded, info.st_mode, 0, info.st_mtime_ns))
                _pack_directory(below, output, f"{prefix}{name}/", deepest)
                output.write(_record(_LEAVE, b"", 0, 0, info.st_mtime_ns))
            finally:
                os.close(below)
        elif kind == stat.S_IFLNK:
            target = os.fsencode(os.readlink(name, dir_fd=directory))
            output.write(_record(_LINK, encoded, 0, len(target), 0) + target)
        else:
            raise Refused(f"'{prefix}{name}' is neither a file, a folder nor a link.")


def _pack_file(directory: int, name: str, encoded: bytes, output: BinaryIO, prefix: str) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=directory)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise Refused(f"'{prefix}{name}' is not a regular file.")
        size = info.st_size
        header = _record(_FILE, encoded, info.st_mode, size, info.st_mtime_ns)
        if size <= _WHOLE:
            data = os.read(fd, size) if size else b""
            if len(data) != size:
                raise Refused(f"'{prefix}{name}' changed while it was copied.")
            output.write(header + data)
            return
        output.write(header)
        output.flush()
        remaining = size
        while remaining:
            sent = os.sendfile(output.fileno(), fd, None, remaining)
            if not sent:
                raise Refused(f"'{prefix}{name}' changed while it was copied.")
            remaining -= sent
    finally:
        os.close(fd)


def _record(kind: int, name: bytes, mode: int, size: int, time_ns: int) -> bytes:
    return _HEADER.pack(kind, len(name), mode & 0o777, size, time_ns) + name


def unpack(directory: int, source: BinaryIO, intake: Intake) -> None:
    """Create what the stream says below a directory. The stream may be hostile; the tree on disk may be too."""
    _Reader(directory, source, intake).run()


class _Reader:
    def __init__(self, directory: int, source: BinaryIO, intake: Intake) -> None:
        self.stack: list[tuple[int, str, int]] = [(directory, "", 0o755)]
        self.source = source
        self.intake = intake
        self.bytes = 0
        self.entries = 0

    def run(self) -> None:
        try:
            while self._next():
                pass
        finally:
            for fd, _, _ in self.stack[1:]:
                os.close(fd)

    def _exactly(self, count: int) -> bytes:
        data = self.source.read(count)
        if len(data) != count:
            raise Refused("The copy ended early.")
        return data

    def _next(self) -> bool:
        kind, length, mode, size, time_ns = _HEADER.unpack(self._exactly(_HEADER.size))
        if kind == _END:
            return False
        if kind == _LEAVE:
            self._leave(time_ns)
            return True
        name = os.fsdecode(self._exactly(length))
        if not beneath.is_name(name):
            raise Refused(f"'{name}' is not a file name.")
        self.entries += 1
        self.bytes += size
        if self.entries > self.intake.max_files:
            raise Refused(f"There are more than {self.intake.max_files} files.")
        if self.bytes > self.intake.max_bytes:
            raise Refused(f"There are more than {self.intake.max_bytes} bytes.")
        mode &= 0o777
        if kind == _DIRECTORY:
            self._enter(name, mode)
        elif kind == _FILE:
            self._file(name, mode, size, time_ns)
        elif kind == _LINK:
            self._link(name, size)
        else:
            raise Refused("The copy is damaged.")
        return True

    def _leave(self, time_ns: int) -> None:
        if len(self.stack) == 1:
            raise Refused("The copy is damaged.")
        fd, _, mode = self.stack.pop()
        try:
            self._own(fd)
            os.fchmod(fd, mode)
            os.utime(fd, ns=(time_ns, time_ns))
        finally:
            os.close(fd)

    def _enter(self, name: str, mode: int) -> None:
        parent = self.stack[-1][0]
        if len(self.stack) > self.intake.deepest:
            raise Refused(f"Folders are nested more than {self.intake.deepest} deep.")
        if self.intake.replace:
            beneath.remove_unless(parent, name, stat.S_ISDIR)
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not self.intake.replace:
                raise
        self.stack.append((os.open(name, _OPEN_DIRECTORY, dir_fd=parent), name, mode))

    def _create(self, name: str) -> int:
        parent = self.stack[-1][0]
        try:
            return os.open(name, _CREATE, 0o600, dir_fd=parent)
        except FileExistsError:
            if not self.intake.replace:
                raise
        beneath.remove_unless(parent, name, beneath.nothing)
        return os.open(name, _CREATE, 0o600, dir_fd=parent)

    def _file(self, name: str, mode: int, size: int, time_ns: int) -> None:
        fd = self._create(name)
        try:
            remaining = size
            while remaining:
                remaining -= _write_all(fd, self._exactly(min(remaining, 1 << 20)))
            self._own(fd)
            os.fchmod(fd, mode)  # the umask belongs to all threads and is not touched
            os.utime(fd, ns=(time_ns, time_ns))
        finally:
            os.close(fd)

    def _link(self, name: str, size: int) -> None:
        if size > _LONGEST_LINK:
            raise Refused(f"The link '{name}' is too long.")
        target = os.fsdecode(self._exactly(size))
        if not self.intake.any_links and not beneath.stays_inside(target, len(self.stack) - 1):
            raise Refused(f"The link '{name}' points outside the copied tree to '{target}'.")
        parent = self.stack[-1][0]
        if self.intake.replace:
            beneath.remove_unless(parent, name, beneath.nothing)
        os.symlink(target, name, dir_fd=parent)
        if self.intake.owner is not None:
            os.chown(name, *self.intake.owner, dir_fd=parent, follow_symlinks=False)

    def _own(self, fd: int) -> None:
        if self.intake.owner is not None:
            os.fchown(fd, *self.intake.owner)


def _write_all(fd: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)


class _TooLarge(OSError):
    """The folder is not small."""


class _Bounded(io.BytesIO):
    def write(self, data: bytes) -> int:  # type: ignore[override] # `pack` writes bytes only
        if self.tell() + len(data) > PARCEL_BYTES:
            raise _TooLarge
        return super().write(data)


def pack_parcel(directory: int) -> int | None:
    """A memory file, at its beginning, with the stream of a directory; None when it is not small or cannot be read."""
    output = _Bounded()
    try:
        if _count(directory, _PARCEL_ENTRIES) > _PARCEL_ENTRIES:
            return None
        pack(directory, output)
    except (OSError, Refused):
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
                below = os.open(entry.name, _OPEN_DIRECTORY, dir_fd=directory)
                try:
                    count += _count(below, most - count)
                finally:
                    os.close(below)
    return count


def open_parcel(parcel: int) -> bytes:
    """The stream in an untrusted memory file; closes it."""
    with os.fdopen(parcel, "rb") as file:
        return file.read(PARCEL_BYTES)


def copy_bytes(source: int, target: int, size: int) -> int:
    """Copy up to `size` bytes between files without passing them through this process; how many there were."""
    copied = 0
    while copied < size:
        sent = os.sendfile(target, source, None, min(size - copied, 1 << 30))
        if not sent:
            break
        copied += sent
    return copied


def kind_of(error: OSError) -> str:
    """The code of an error as `SandboxFailure` has it; empty when it says nothing about a path."""
    return _KINDS.get(error.errno or 0, "")


def describe(error: OSError) -> str:
    """What went wrong, for the caller on the other side."""
    if error.errno == errno.ENOSPC:
        return "No space is left in the sandbox: its storage limit, or the disk of this machine, is reached."
    return error.strerror if error.strerror and error.filename is None else str(error)
