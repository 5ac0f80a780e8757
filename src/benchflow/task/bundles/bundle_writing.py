"""Writes packages into one canonical archive: same content, same bytes, whatever the order, machine, times or umask.

`gather` reads one package (many run at once in worker processes), `make_index` puts packages together, `write_bundle`
writes the file under a temporary name and renames it. What a bundle cannot keep exactly is refused, never left out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchflow.errors import PackageError, UsageError
from benchflow.task.bundles import zip_layout as layout
from benchflow.task.bundles.bundle_index import (
    INDEX_NAME,
    BadIndexError,
    Benchmark,
    BundleIndex,
    Member,
    PackageEntry,
    require_sound,
)
from benchflow.task.bundles.canonical_archive import write_archive
from benchflow.task.bundles.member_paths import link_problem
from benchflow.task.filemap import printable
from benchflow.task.package import TaskPackage, load_package

_INLINE: Final = 1 << 20
"""Packages up to this size are handed over in memory, larger ones are read again when they are written."""


class Gathered(NamedTuple):
    """A package as it goes into a bundle."""

    entry: PackageEntry
    members: tuple[Member, ...]
    """With paths in the bundle; files beside the package are among them."""
    contents: tuple[bytes | str, ...]
    """Of each member: its bytes, or the path of the file to read them from."""
    valid: bool
    problem: str = ""
    """Why it cannot be part of a bundle, as one sentence."""


def gather(folder: Path, path: str, shown: str) -> Gathered:
    """Read a package that is to be at `path` in the bundle; `shown` names it in messages."""
    package = load_package(folder)
    try:
        return gather_package(package, path)
    except PackageError as problem:
        entry = PackageEntry(path, package.name, package.digest, package.content_digest)
        return Gathered(entry, (), (), package.valid, f"{printable(shown)}: {problem}")


def gather_package(package: TaskPackage, path: str) -> Gathered:
    """A package that has been loaded; raises `PackageError` for what a bundle cannot keep."""
    files = package.files
    if files.issues:
        raise PackageError(files.issues[0].message)
    small = sum(entry.size for entry in files.files.values()) <= _INLINE
    root = os.fspath(package.path)
    rows: list[tuple[Member, bytes | str]] = []
    for name, found in files.files.items():
        place = f"{root}/{name}"
        kind: layout.Kind = "program" if os.stat(place).st_mode & 0o100 else "file"  # noqa: PTH116 - many files
        data = found.data if small and found.data is not None else place
        rows.append((Member(f"{path}/{name}", kind, found.size, found.sha256), data))
    for name, target in files.links.items():
        problem = link_problem(name, target)
        if problem is not None:
            raise PackageError(f"{name} {problem}, which a bundle cannot keep")
        data = os.fsencode(target)
        rows.append((Member(f"{path}/{name}", "link", len(data), hashlib.sha256(data).hexdigest()), data))
    filled = {str(above) for name in (*files.files, *files.links) for above in _above(name)}
    inner = {str(above) for name in files.folders for above in _above(name)}
    rows += [(Member(f"{path}/{name}", "folder", 0, ""), b"") for name in files.folders - filled - inner]
    entry = PackageEntry(path, package.name, package.digest, package.content_digest, tuple(sorted(package.shared)))
    rows.extend(_beside(package, entry))
    return Gathered(entry, tuple(row[0] for row in rows), tuple(row[1] for row in rows), package.valid)


def _above(name: str) -> Iterator[str]:
    """The folders above a name, nearest first."""
    while name := name.rpartition("/")[0]:
        yield name


def _beside(package: TaskPackage, entry: PackageEntry) -> Iterator[tuple[Member, bytes | str]]:
    for written, sha256 in package.shared.items():
        place = os.path.realpath(package.path / written)
        if place != os.path.normpath(f"{os.path.realpath(package.path)}/{written}"):
            raise PackageError(f"{written} is reached through a link, which a bundle cannot keep")
        kind: layout.Kind = "program" if os.stat(place).st_mode & 0o100 else "file"  # noqa: PTH116
        yield Member(entry.beside_path(written), kind, os.stat(place).st_size, sha256), place  # noqa: PTH116


class Contents(NamedTuple):
    """The index of a bundle, and where the content of each member comes from."""

    listing: BundleIndex
    sources: tuple[bytes | str, ...]


def make_index(packages: Sequence[Gathered], benchmark: Benchmark) -> Contents:
    """Put packages together; raises `UsageError` if they do not fit into one bundle."""
    found: dict[str, tuple[Member, bytes | str]] = {}
    for package in packages:
        for member, source in zip(package.members, package.contents, strict=True):
            known = found.setdefault(member.path, (member, source))[0]
            if known != member:
                message = (
                    f"{member.path} would occur twice in the bundle with different content; bundle a common folder"
                )
                raise UsageError(message, code="bundle-clash")
    rows = [found[path] for path in sorted(found)]
    entries = sorted(package.entry for package in packages)
    index = BundleIndex(benchmark, tuple(entries), tuple(row[0] for row in rows))
    try:
        require_sound(index)
    except BadIndexError as problem:
        raise UsageError(f"These packages cannot be bundled: the bundle {problem}.", code="bundle-clash") from problem
    return Contents(index, tuple(row[1] for row in rows))


def write_bundle(path: Path, contents: Contents) -> str:
    """Write the file atomically, in place of an existing one; returns its digest."""
    index = contents.listing
    return write_archive(path, INDEX_NAME, index.render(), index.members, contents.sources)
