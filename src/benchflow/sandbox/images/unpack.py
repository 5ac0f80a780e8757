"""Untrusted tar streams -> layer folders.

Every entry lands inside the layer: names are normalised, parents must be folders that the same archive made
(a link in the way is refused, never followed), sizes and counts are bounded. Whiteouts of the image format
become those of the overlay. Device nodes, pipes and sockets are left out and counted.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.layer_store import OPAQUE
from benchflow.sandbox.images.layer_tree import is_whiteout
from benchflow.sandbox.inside.beneath import is_plain, names_of

_WHITEOUT: Final = ".wh."
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_OPAQUE_MARK: Final = ".wh..wh..opq"
_CAPABILITY: Final = "SCHILY.xattr.security.capability"


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """What one archive may hold."""

    max_bytes: int = 64 << 30
    max_entries: int = 4_000_000


@dataclass(slots=True)
class Unpacked:
    """What came out of an archive."""

    entries: int = 0
    size: int = 0
    left_out: int = 0
    """Device nodes, pipes and sockets."""


def unpack_layer(
    stream: BinaryIO, target: Path, *, whiteouts: bool = True, limits: UnpackLimits | None = None
) -> Unpacked:
    """Unpack a tar stream, compressed or not, into the existing folder `target`.

    With `whiteouts` names that start with `.wh.` mean what an image layer means by them; without, they are
    files. Raises `EnvironmentFailure` with code `archive-unsafe` or `archive-invalid`; the caller throws
    the folder away.
    """
    unpacker = _Unpacker(target, whiteouts, limits or UnpackLimits())
    try:
        with tarfile.open(fileobj=_without_zstd(stream), mode="r|*", bufsize=1 << 20) as archive:
            for member in archive:
                unpacker.add(archive, member)
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise EnvironmentFailure(f"The archive cannot be read: {error}.", code="archive-invalid") from error
    except OSError as error:
        raise _readable(error) from error
    unpacker.finish()
    return unpacker.result


def _without_zstd(stream: BinaryIO) -> BinaryIO:
    """The stream, decompressed where it is in zstd, which `tarfile` does not know."""
    if not stream.seekable():
        return stream
    start = stream.read(len(_ZSTD))
    stream.seek(-len(start), os.SEEK_CUR)
    if start != _ZSTD:
        return stream
    try:
        import zstandard
    except ImportError:
        from cube.extras import extra_command

        message = f"The archive is compressed with zstd, which needs the extra 'zstd': {extra_command('zstd')}"
        raise EnvironmentFailure(message, code="archive-invalid") from None
    reader: BinaryIO = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    return reader


def _readable(error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error
    if error.errno is None:  # gzip, bz2 and lzma raise it for damaged data
        return EnvironmentFailure(f"The archive cannot be read: {error}.", code="archive-invalid")
    return EnvironmentFailure(f"The archive cannot be unpacked: {error.strerror}.", code="archive-invalid")


class _Unpacker:
    """One archive on its way into one folder."""

    def __init__(self, target: Path, whiteouts: bool, limits: UnpackLimits) -> None:
        self.target = target
        self.whiteouts = whiteouts
        self.limits = limits
        self.result = Unpacked()
        self._owns = os.geteuid() == 0
        self._directories: dict[Path, tarfile.TarInfo] = {}

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self.result.entries += 1
        if self.result.entries > self.limits.max_entries:
            raise _unsafe(f"it contains more than {self.limits.max_entries} entries")
        parts = _safe_parts(member.name)
        if not parts:
            if member.isdir():
                self._directories[self.target] = member
            return
        parent = self._parent(parts[:-1], member.name)
        if self.whiteouts and parts[-1].startswith(_WHITEOUT):
            self._whiteout(parent, parts[-1])
        else:
            self._entry(archive, member, parent / parts[-1])

    def _parent(self, parts: list[str], name: str) -> Path:
        folder = self.target
        for part in parts:
            folder = folder / part
            try:
                status = folder.lstat()
            except FileNotFoundError:
                folder.mkdir()
                folder.chmod(0o755)
                continue
            if is_whiteout(status):
                self._replace_whiteout_by_folder(folder)
            elif not stat.S_ISDIR(status.st_mode):
                raise _unsafe(f"the entry {name} passes through {part}, which is not a folder")
        return folder

    def _replace_whiteout_by_folder(self, folder: Path) -> None:
        folder.unlink()
        folder.mkdir()
        folder.chmod(0o755)
        os.setxattr(folder, OPAQUE, b"y")

    def _whiteout(self, parent: Path, name: str) -> None:
        if name == _OPAQUE_MARK:
            os.setxattr(parent, OPAQUE, b"y")
            return
        gone = name.removeprefix(_WHITEOUT)
        if gone in ("", ".", ".."):
            raise _unsafe(f"the whiteout {name} has no target")
        if gone.startswith(_WHITEOUT):  # bookkeeping of a file system that some builders used
            return
        path = parent / gone
        try:
            status = path.lstat()
        except FileNotFoundError:
            os.mknod(path, stat.S_IFCHR, 0)
            return
        # The layer itself has the name too: only the entry in lower layers is hidden.
        if stat.S_ISDIR(status.st_mode):
            os.setxattr(path, OPAQUE, b"y")

    def _entry(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        if member.isdir():
            self._directory(member, path)
            return
        if not (member.isreg() or member.issym() or member.islnk()):
            self.result.left_out += 1
            return
        self._clear(path)
        if member.islnk():
            self._hard_link(member, path)
        elif member.issym():
            path.symlink_to(member.linkname)
            self._own(path, member)
        else:
            self._regular(archive, member, path)

    def _directory(self, member: tarfile.TarInfo, path: Path) -> None:
        try:
            status = path.lstat()
        except FileNotFoundError:
            path.mkdir()
        else:
            if is_whiteout(status):
                self._replace_whiteout_by_folder(path)
            elif not stat.S_ISDIR(status.st_mode):
                path.unlink()
                path.mkdir()
        self._directories[path] = member

    def _clear(self, path: Path) -> None:
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISDIR(status.st_mode):
            raise _unsafe(f"{path.name} is both a folder and a file")
        path.unlink()

    def _hard_link(self, member: tarfile.TarInfo, path: Path) -> None:
        parts = _safe_parts(member.linkname)
        source = self.target
        for part in parts:
            if source.is_symlink():
                raise _unsafe(f"the hard link {member.name} passes through a symbolic link")
            source = source / part
        if not parts or source.is_symlink() or not source.is_file():
            raise _unsafe(f"the hard link {member.name} points to {member.linkname}, which is not a file in it")
        os.link(source, path, follow_symlinks=False)

    def _regular(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        self.result.size += member.size
        if self.result.size > self.limits.max_bytes:
            raise _unsafe(f"it unpacks to more than {self.limits.max_bytes} bytes")
        source = archive.extractfile(member)
        if source is None:
            raise _unsafe(f"the entry {member.name} has no content")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
            if file.tell() != member.size:
                raise EnvironmentFailure(f"The archive ends inside {member.name}.", code="archive-invalid")
            if self._owns:
                os.fchown(file.fileno(), member.uid, member.gid)
            os.fchmod(file.fileno(), stat.S_IMODE(member.mode))
            capability = member.pax_headers.get(_CAPABILITY)
            if capability and self._owns:
                os.setxattr(file.fileno(), "security.capability", capability.encode("utf-8", "surrogateescape"))
            file.flush()
            os.utime(file.fileno(), (member.mtime, member.mtime))

    def _own(self, path: Path, member: tarfile.TarInfo) -> None:
        if self._owns:
            os.chown(path, member.uid, member.gid, follow_symlinks=False)

    def finish(self) -> None:
        """Owners, permissions and times of folders last, so that a read-only folder could be filled."""
        for path, member in sorted(self._directories.items(), reverse=True):
            self._own(path, member)
            mode = stat.S_IMODE(member.mode)
            path.chmod(mode if self._owns else mode | 0o700)
            os.utime(path, (member.mtime, member.mtime))


def _safe_parts(name: str) -> list[str]:
    if not is_plain(name):
        raise _unsafe(f"the entry {name!r} points outside it")
    return names_of(name)


def _unsafe(reason: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"The archive is refused: {reason}.", code="archive-unsafe")
