"""Opens a bundle: compares every header with the layout that its index has, and content with the digests in the index.

Nothing in the file is trusted: an archive that is not exactly what `bundle_writing` makes of its index is refused, with
a `UsageError` of one sentence.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from benchflow.task.bundles import zip_layout as layout
from benchflow.task.bundles.bundle_index import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    BadIndexError,
    BundleIndex,
    Member,
    PackageEntry,
    parse_index,
)
from benchflow.task.bundles.canonical_archive import ArchiveFile, ArchiveKind, Place
from benchflow.task.bundles.member_paths import link_problem
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.filemap import KEEP_BYTES, KEEP_TOTAL, FileEntry, FileMap, printable
from benchflow.task.package_layout import content_digest

BUNDLE: Final = ArchiveKind(INDEX_NAME, "bundle", "bundles", "bench tasks bundle", "bundle-invalid", MAX_INDEX_BYTES)
_READ_BY_NAME: Final = (b"-profile", b"manifest")
"""Keys of `task.md` whose files are read from the folder by name."""


def is_bundle(path: Path) -> bool:
    """Whether a file starts as zip archives do."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == layout.LOCAL_SIGNATURE
    except OSError:
        return False


@dataclass(frozen=True)
class Bundle:
    """An open bundle whose headers are sound. `content` of a member is compared with the index when it is read."""

    path: Path
    index: BundleIndex
    places: tuple[Place, ...]
    """Of the members, in their order."""
    source: ArchiveFile

    @cached_property
    def digest(self) -> str:
        """The digest of the file, as `sha256sum` prints it."""
        return f"sha256:{self.source.sha256()}"

    def content(self, position: int) -> bytes:
        """The verified content of a member."""
        member, place = self.index.members[position], self.places[position]
        data = self.source.read(place.start, member.size)
        if zlib.crc32(data) != place.crc:
            self.source.refuse(f"is damaged: '{member.path}' does not have the checksum in its header")
        if member.kind != "folder" and hashlib.sha256(data).hexdigest() != member.sha256:
            self.source.refuse(f"is damaged: '{member.path}' does not have the SHA-256 that the index states")
        return data

    def entries(self, package: PackageEntry) -> Iterator[tuple[Member, bytes]]:
        """The verified members of a package with paths relative to it; those beside it as the package states them."""
        cut = len(package.path) + 1
        for position in self.index.span(package):
            member, data = self.index.members[position], self.content(position)
            name = member.path[cut:]
            if member.kind == "link":
                problem = link_problem(name, data.decode("utf-8", "replace"))
                if problem is not None:
                    self.source.refuse(f"is not safe: '{printable(member.path)}' {printable(problem)}")
            yield member._replace(path=name), data
        for written, position in self.index.beside(package).items():
            yield self.index.members[position]._replace(path=written), self.content(position)

    def files_in_memory(self, package: PackageEntry, root: Path) -> FileMap | None:
        """The file map that the package has once it is at `root`; None if only the folder itself shows all of it."""
        members = [self.index.members[position] for position in self.index.span(package)]
        small = all(member.size <= KEEP_BYTES for member in members) and sum(m.size for m in members) <= KEEP_TOTAL
        if package.beside or not small or any(member.kind == "link" for member in members):
            return None
        files: dict[str, FileEntry] = {}
        folders: set[str] = set()
        for member, data in self.entries(package):
            path = f"{member.path}/" if member.kind == "folder" else member.path
            while path := path.rpartition("/")[0]:
                folders.add(path)
            if member.path == TASK_MD and any(word in data for word in _READ_BY_NAME):
                return None
            if member.kind != "folder":
                files[member.path] = FileEntry(bytes.fromhex(member.sha256), member.size, data)
        return FileMap(root, files, frozenset(folders), {})

    def verify(self, package: PackageEntry) -> None:
        """Compare everything that belongs to a package with the index; raises `UsageError`."""
        own: dict[str, FileEntry] = {}
        outside: dict[str, str] = {}
        for member, data in self.entries(package):
            if member.path in package.beside:
                outside[member.path] = member.sha256
            elif member.kind in ("file", "program"):
                own[member.path] = FileEntry(bytes.fromhex(member.sha256), member.size, data)
        files = FileMap(self.path, own, frozenset(), {})
        if content_digest(files, outside) != package.content_digest:
            self.source.refuse(f"has a wrong content digest for the package '{package.path}'")


def open_bundle(path: Path) -> Bundle:
    """The bundle in a file; raises `UsageError` for anything that is not a sound one."""
    source = ArchiveFile(path, BUNDLE)
    text = source.index()
    try:
        index = parse_index(text)
    except BadIndexError as problem:
        source.refuse(printable(str(problem)))
    return Bundle(path, index, tuple(source.places(index.members, len(text))), source)
