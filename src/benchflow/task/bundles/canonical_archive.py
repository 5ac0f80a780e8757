"""Canonical archives on disk: one member is the index, and the list of the others in it decides every byte of headers.

`ArchiveFile` opens one and refuses whatever is not exactly the archive that its index describes, so tricks with
headers, extra members, links and sizes have no room; `write_archive` makes one. The caller knows the index.
"""

from __future__ import annotations

import hashlib
import os
import stat
import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, NoReturn

from benchflow.errors import PackageError, UsageError
from benchflow.files.atomic import sync_folder, temporary_sibling
from benchflow.task.bundles import zip_layout as layout
from benchflow.task.bundles.bundle_index import Member

_SHOWN: Final = 400
"""How much of a header is looked at to say what is wrong with it."""
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ArchiveKind:
    """One use of canonical archives."""

    index: str
    """The name of the first member."""
    noun: str
    plural: str
    command: str
    """The command that writes such files."""
    code: str
    """The code of refusals."""
    max_index: int


class Place(NamedTuple):
    """Where the content of a member starts, and its checksum in the header."""

    start: int
    crc: int


class ArchiveFile:
    """A regular file, read by position: a file that shrinks meanwhile gives less, where a mapped one would kill us."""

    def __init__(self, path: Path, kind: ArchiveKind) -> None:
        self.path: Final = path
        self.kind: Final = kind
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self.refuse(f"cannot be read: {error.strerror or error}")
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.refuse("is not a regular file")
        self.size: Final = status.st_size

    def read(self, start: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, start)

    def sha256(self) -> str:
        """Of the whole file."""
        with os.fdopen(os.dup(self._descriptor), "rb", buffering=0) as stream:
            stream.seek(0)
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def refuse(self, reason: str) -> NoReturn:
        """The one error of a file that cannot be used; the reason continues a sentence that starts with the file."""
        raise UsageError(f"{self.path} {reason}.", code=self.kind.code)

    def index(self) -> bytes:
        """The text of the index, whose header is sound."""
        kind = self.kind
        name = kind.index.encode()
        found = layout.read_header(self.read(0, _SHOWN))
        if found is None or found.name != name:
            self.refuse(
                f"is a zip archive but not a {kind.noun}: its first member is not {kind.index}; see {kind.command}"
            )
        start = layout.LOCAL_BYTES + len(found.name)
        if found.size > kind.max_index:
            self.refuse(f"has an index of {found.size:,} bytes; at most {kind.max_index:,} are read")
        if start + found.size > self.size:
            self.refuse("is cut short: its index is not complete")
        text = self.read(start, found.size)
        expected = layout.local_header(name, found.size, zlib.crc32(text))
        header = self.read(0, len(expected))
        if header != expected:
            if header == layout.local_header(name, found.size, int.from_bytes(header[layout.CRC_AT :][:4], "little")):
                self.refuse(f"is damaged: '{kind.index}' does not have the checksum in its header")
            self._diagnose(0, expected)
        return text

    def places(self, members: Sequence[Member], index_size: int) -> Iterator[Place]:
        """Compare all headers, the directory and the end with the layout of the index; yields where contents start."""
        first = Member(self.kind.index, "file", index_size, "")
        central: list[bytes] = []
        offset = 0
        for member in (first, *members):
            name = layout.member_name(member.path, member.kind)
            start = offset + layout.LOCAL_BYTES + len(name)
            header = self.read(offset, start - offset)
            crc = int.from_bytes(header[layout.CRC_AT : layout.CRC_AT + 4], "little")
            expected = layout.local_header(name, member.size, crc)
            if header != expected:
                self._diagnose(offset, expected)
            central.append(layout.central_header(name, member.kind, member.size, crc, offset))
            if member is not first:
                yield Place(start, crc)
            offset = start + member.size
        directory = b"".join(central)
        end = layout.end_records(len(central), offset, len(directory))
        if self.read(offset, len(directory) + len(end)) != directory + end:
            for expected in central:
                if self.read(offset, len(expected)) != expected:
                    self._diagnose(offset, expected)
                offset += len(expected)
            self.refuse("is cut short or damaged: its end is not that of the archive that the index describes")
        rest = self.size - offset - len(directory) - len(end)
        if rest:
            self.refuse(f"has {rest:,} bytes after its end")

    def _diagnose(self, offset: int, expected: bytes) -> NoReturn:
        """Say how a header differs from the expected one."""
        actual = self.read(offset, _SHOWN)
        wanted, found = layout.read_header(expected), layout.read_header(actual)
        if wanted is None or found is None or len(actual) < min(len(expected), _SHOWN):
            self.refuse("is cut short or damaged: a header is missing")
        if expected[:4] != actual[:4]:
            reason = "does not list" if actual.startswith(layout.LOCAL_SIGNATURE) else "lists elsewhere"
            self.refuse(f"has the member '{found.shown}', which its index {reason}")
        if found.encrypted:
            self.refuse(f"has the encrypted member '{found.shown}'; members of {self.kind.plural} are not encrypted")
        if found.compressed:
            self.refuse(
                f"has the compressed member '{found.shown}'; members of {self.kind.plural} are stored as they are"
            )
        if found.name != wanted.name:
            where = "directory" if wanted.attributes is not None else "header"
            self.refuse(f"has a {where} that names '{found.shown}' where its index names '{wanted.shown}'")
        if found.size != wanted.size:
            self.refuse(f"has a header of '{wanted.shown}' that states another size than the index")
        if found.special or found.linked != wanted.linked:
            self.refuse(f"has '{wanted.shown}' as a {'link' if found.linked else 'device or other special file'}")
        self.refuse(f"has a header of '{wanted.shown}' that is not as this version writes it")


def write_archive(
    path: Path, index_name: str, text: bytes, members: Sequence[Member], sources: Sequence[bytes | str]
) -> str:
    """Write the file atomically, in place of an existing one; returns its digest."""
    temporary = temporary_sibling(path)
    try:
        with temporary.open("xb", buffering=_CHUNK) as stream:
            write_members(stream, index_name, text, members, sources)
            stream.flush()
            os.fsync(stream.fileno())
        with temporary.open("rb", buffering=0) as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.", code="output-unwritable") from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return f"sha256:{digest}"


def write_members(
    stream: BinaryIO, index_name: str, text: bytes, members: Sequence[Member], sources: Sequence[bytes | str]
) -> None:
    """The bytes of an archive; a source is the content of a member, or the path of the file to read it from."""
    first = Member(index_name, "file", len(text), hashlib.sha256(text).hexdigest())
    central: list[bytes] = []
    offset = 0
    for member, source in zip((first, *members), (text, *sources), strict=True):
        name = layout.member_name(member.path, member.kind)
        crc = zlib.crc32(source) if isinstance(source, bytes) else 0
        stream.write(layout.local_header(name, member.size, crc))
        if isinstance(source, bytes):
            stream.write(source)
        else:
            crc = _copy(source, member, stream)
            stream.seek(offset)
            stream.write(layout.local_header(name, member.size, crc))
            stream.seek(0, os.SEEK_END)
        central.append(layout.central_header(name, member.kind, member.size, crc, offset))
        offset += layout.LOCAL_BYTES + len(name) + member.size
    directory = b"".join(central)
    stream.write(directory + layout.end_records(len(central), offset, len(directory)))


def _copy(source: str, member: Member, stream: BinaryIO) -> int:
    """Copy a file that must still be what was gathered; returns its checksum."""
    crc, digest, size = 0, hashlib.sha256(), 0
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while size <= member.size and (part := file.read(_CHUNK)):
            stream.write(part)
            crc = zlib.crc32(part, crc)
            digest.update(part)
            size += len(part)
    if size != member.size or digest.hexdigest() != member.sha256:
        raise PackageError(f"{source} has changed while it was written", code="package-changed")
    return crc
