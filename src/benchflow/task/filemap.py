"""The files of a package: read once, hashed, kept in memory if small; links are never followed.

`scan` lists every regular file below a folder. Links are not followed and not counted; links that point outside the
folder, pipes, sockets and devices are reported. Nothing here can block: only regular files are opened, and never in a
blocking way.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchflow.errors import Issue
from benchflow.task.config.parsed_record import MAX_ISSUES

if TYPE_CHECKING:
    from benchflow.task.taken import Copy

KEEP_BYTES: Final = 256 << 10
KEEP_TOTAL: Final = 16 << 20
READ_BYTES: Final = 64 << 20
MAX_FILE_BYTES: Final = 1 << 30
MAX_PACKAGE_BYTES: Final = 4 << 30
"""The most that is hashed per file and per package, so that reading a package takes bounded time."""
MAX_FILES: Final = 200_000
MAX_DEPTH: Final = 128
_CHUNK: Final = 1 << 20
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNMARKED: Final = _FLAGS | getattr(os, "O_NOATIME", 0)
"""Do not update the access time, which would cost a write; the kernel allows this only to the owner of a file."""
_FIRST: Final = 16 << 10
"""Size of the first read: most files are shorter and need no second one."""


class FileEntry(NamedTuple):
    """One regular file: its SHA-256 and size."""

    digest: bytes
    size: int
    data: bytes | None = None
    """The content, if small."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the content, in hexadecimal."""
        return self.digest.hex()

    def __repr__(self) -> str:
        return f"FileEntry({self.sha256!r}, {self.size})"


_new_entry: Final = tuple.__new__  # faster than `FileEntry(…)`; packages have many files


@dataclass(frozen=True, slots=True)
class FileMap:
    """All regular files of a package by POSIX path, sorted, with its folders and links."""

    root: Path
    files: Mapping[str, FileEntry]
    folders: frozenset[str]
    links: Mapping[str, str]
    """Link -> target as written."""
    issues: tuple[Issue, ...] = ()
    copy: Copy | None = field(default=None, compare=False, repr=False)
    """What holds `root`, if it is a copy of the author's folder."""

    def __contains__(self, path: str) -> bool:
        return path in self.files

    def below(self, folder: str) -> dict[str, FileEntry]:
        """The files below a folder, by path relative to it."""
        prefix = f"{folder}/"
        cut = len(prefix)
        return {path[cut:]: entry for path, entry in self.files.items() if path.startswith(prefix)}

    def hashes(self, folder: str = "") -> dict[str, str]:
        """Path -> SHA-256 of all files, or of those below one folder."""
        chosen = self.below(folder) if folder else self.files
        return {path: entry.sha256 for path, entry in chosen.items()}

    def read(self, path: str) -> bytes:
        """The content of a file. Raises `KeyError`, or `OSError`, also when the file is too large for a text."""
        entry = self.files[path]
        return entry.data if entry.data is not None else read_regular(self.root / path, READ_BYTES)[0]

    def digest(self, extra: Mapping[str, str] | None = None) -> str:
        """`sha256:` over path and content hash of every file; `extra` adds files outside the package (profiles)."""
        digests = {path: entry.digest for path, entry in self.files.items()}
        for path, outside in (extra or {}).items():
            digests[path] = bytes.fromhex(outside)
        return _digest_of(dict(sorted(digests.items())) if extra else digests)


def digest_of(hashes: Mapping[str, str]) -> str:
    """The digest of a file map: sorted paths, each followed by NUL and its raw content hash."""
    return _digest_of({path: bytes.fromhex(hashes[path]) for path in sorted(hashes)})


def _digest_of(digests: Mapping[str, bytes]) -> str:
    parts = [b"%b\0%b" % (path.encode("utf-8", "surrogateescape"), digest) for path, digest in digests.items()]
    return f"sha256:{sha256(b''.join(parts)).hexdigest()}"


def read_regular(path: str | Path, limit: int | None = None) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file; raises `OSError` for links, special files and files over the limit."""
    descriptor = os.open(path, _FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if limit is not None and status.st_size > limit:
            raise OSError(f"larger than {limit} bytes")
        return _read(descriptor, status.st_size), status
    finally:
        os.close(descriptor)


def _read(descriptor: int, size: int) -> bytes:
    """`size` bytes, or fewer if the file has shrunk."""
    data = os.read(descriptor, size)
    if len(data) == size:
        return data
    parts = [data]
    missing = size - len(data)
    while missing and (part := os.read(descriptor, missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


class _TooLargeError(Exception):
    """A file too large to be hashed; the message continues a sentence that starts with its path."""


class _Scan:
    """The state of one scan."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.files: dict[str, FileEntry] = {}
        self.folders: list[str] = []
        self.links: dict[str, str] = {}
        self.issues: list[Issue] = []
        self.kept = 0
        self.hashed = 0
        self.flags = _UNMARKED

    def problem(self, code: str, path: str, message: str) -> None:
        if len(self.issues) >= MAX_ISSUES:
            return
        shown = printable(path)
        self.issues.append(Issue(code, "error", "", f"{shown} {message}", shown))

    def walk(self) -> None:
        pending: list[tuple[str, str, int]] = [(self.root, "", 0)]
        while pending:
            folder, prefix, depth = pending.pop()
            try:
                with os.scandir(folder) as found:
                    for entry in found:
                        if entry.is_file(follow_symlinks=False):
                            self.file(entry.path, prefix + entry.name)
                        elif entry.is_dir(follow_symlinks=False):
                            self.folders.append(prefix + entry.name)
                            pending.append((entry.path, f"{prefix}{entry.name}/", depth + 1))
                        elif entry.is_symlink():
                            self.link(entry.path, prefix + entry.name)
                        else:
                            kind = _special(entry)
                            self.problem(
                                "special-file", prefix + entry.name, f"is {kind}, which a package cannot contain"
                            )
            except OSError as error:
                self.problem("unreadable", prefix.rstrip("/") or ".", f"cannot be read: {error.strerror or error}")
            if depth >= MAX_DEPTH:
                self.problem("too-deep", prefix.rstrip("/"), f"is nested deeper than {MAX_DEPTH} folders")
                return
            if len(self.files) > MAX_FILES:
                self.problem("too-many-files", ".", f"has more than {MAX_FILES} files")
                return

    def link(self, full: str, path: str) -> None:
        target = os.readlink(full)  # noqa: PTH115  # names may hold any bytes
        self.links[path] = target
        root = os.path.realpath(self.root)
        resolved = os.path.realpath(full)
        if resolved != root and not resolved.startswith(f"{root}/"):
            self.problem("link-escape", path, f"is a link that points outside the package (to '{printable(target)}')")

    def file(self, full: str, path: str) -> None:
        try:
            try:
                descriptor = os.open(full, self.flags)
            except PermissionError:
                self.flags = _FLAGS
                descriptor = os.open(full, _FLAGS)
            try:
                data = os.read(descriptor, _FIRST)
                size = len(data)
                if size == _FIRST or self.kept + size > KEEP_TOTAL or self.hashed + size > MAX_PACKAGE_BYTES:
                    self.files[path] = self.longer(descriptor, data)
                else:
                    self.kept += size
                    self.hashed += size
                    self.files[path] = _new_entry(FileEntry, (sha256(data).digest(), size, data))
            finally:
                os.close(descriptor)
        except _TooLargeError as error:
            self.problem("too-large", path, str(error))
            return
        except OSError as error:
            self.problem("unreadable", path, f"cannot be read: {error.strerror or error}")
            return
        if not path.isascii() and printable(path) != path:
            self.problem("bad-file-name", path, "has a name that is not UTF-8")

    def longer(self, descriptor: int, start: bytes) -> FileEntry:
        """A file that may be too large to keep or to hash; `start` has been read already."""
        status = os.fstat(descriptor)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if size > MAX_FILE_BYTES:
            raise _TooLargeError(f"is larger than {MAX_FILE_BYTES >> 30} GiB and is not read")
        self.hashed += size
        if self.hashed > MAX_PACKAGE_BYTES:
            raise _TooLargeError(f"is not read: the package is larger than {MAX_PACKAGE_BYTES >> 30} GiB")
        if size <= KEEP_BYTES and self.kept + size <= KEEP_TOTAL:
            data = start + _read(descriptor, max(0, size - len(start)))
            self.kept += len(data)
            return FileEntry(sha256(data).digest(), len(data), data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as stream:
            return FileEntry(hashlib.file_digest(stream, "sha256").digest(), size)


def _special(entry: os.DirEntry[str]) -> str:
    mode = entry.stat(follow_symlinks=False).st_mode
    names = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}
    return names.get(stat.S_IFMT(mode), "a special file")


def printable(path: str) -> str:
    """A path that can be printed and encoded, whatever bytes it contains."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def scan(root: Path | str) -> FileMap:
    """Read a package folder; never raises for what it contains."""
    walk = _Scan(os.fspath(root))
    walk.walk()
    files = dict(sorted(walk.files.items()))
    issues = tuple(sorted(walk.issues, key=lambda issue: issue.file or ""))
    return FileMap(root if isinstance(root, Path) else Path(root), files, frozenset(walk.folders), walk.links, issues)
