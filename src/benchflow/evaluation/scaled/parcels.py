"""Packages on their way to nodes: one bundle per package, named by its digest, at most once to each node.

The driver makes a parcel from the package that was planned, and keeps small ones in bounded memory. A node compares
what arrived with the digest, puts the package into its cache, which is compared too, and loads it from there.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from benchflow.errors import InfrastructureFailure
from benchflow.files.scratch import scratch_folder
from benchflow.task.bundles.bundle_index import INDEX_NAME, Benchmark
from benchflow.task.bundles.bundle_reading import open_bundle
from benchflow.task.bundles.bundle_writing import gather_package, make_index
from benchflow.task.bundles.canonical_archive import write_members
from benchflow.task.bundles.kept_packages import hold, packages_place
from benchflow.task.bundles.package_files import listed_packages
from benchflow.task.package import TaskPackage, load_package

if TYPE_CHECKING:
    from benchflow.evaluation.scaled.fleet import Host

CHUNK_BYTES: Final = 4 << 20
MOST_BYTES: Final = 64 << 20
"""Of parcels that are kept in memory for further nodes."""


class Parcel(NamedTuple):
    """A package as a bundle, in memory or in a file."""

    digest: str
    size: int
    content: bytes | Path

    def part(self, offset: int) -> bytes:
        """The next piece from an offset."""
        if isinstance(self.content, bytes):
            return self.content[offset : offset + CHUNK_BYTES]
        with self.content.open("rb", buffering=0) as stream:
            stream.seek(offset)
            return stream.read(CHUNK_BYTES)

    def discard(self) -> None:
        """Remove its file, if it has one: a large parcel is made for each node that needs it."""
        if isinstance(self.content, Path):
            shutil.rmtree(self.content.parent, ignore_errors=True)


class Parcels:
    """The parcels of one job, on the driver."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._digests: Final[dict[Path, str]] = {}
        self._kept: Final[OrderedDict[Path, Parcel]] = OrderedDict()
        self._most_bytes: Final = most_bytes
        self._size = 0

    def digest(self, package: TaskPackage) -> str:
        """The digest of the parcel of a package, which names it. Raises as `parcel` does."""
        return self._digests.get(package.path) or self.parcel(package).digest

    def parcel(self, package: TaskPackage) -> Parcel:
        """The parcel of a package. A `PackageError` if a bundle cannot keep it, or if it has changed since planned."""
        found = self._kept.get(package.path)
        if found is not None:
            self._kept.move_to_end(package.path)
            return found
        made = _made(package)
        self._digests[package.path] = made.digest
        if isinstance(made.content, bytes):
            self._kept[package.path] = made
            self._size += made.size
            while self._size > self._most_bytes and len(self._kept) > 1:
                self._size -= self._kept.popitem(last=False)[1].size
        return made


def _made(package: TaskPackage) -> Parcel:
    gathered = gather_package(package, package.path.resolve().name)
    contents = make_index([gathered], Benchmark(package.name))
    index = contents.listing
    if sum(member.size for member in index.members) <= CHUNK_BYTES:
        buffer = io.BytesIO()
        write_members(buffer, INDEX_NAME, index.render(), index.members, contents.sources)
        data = buffer.getvalue()
        return Parcel(hashlib.sha256(data).hexdigest(), len(data), data)
    file = scratch_folder("parcel-") / "bundle"
    with file.open("xb", buffering=1 << 20) as stream:
        write_members(stream, INDEX_NAME, index.render(), index.members, contents.sources)
    with file.open("rb", buffering=0) as written:
        return Parcel(hashlib.file_digest(written, "sha256").hexdigest(), file.stat().st_size, file)


async def give(host: Host, digest: str, parcels: Parcels, package: TaskPackage) -> None:
    """Send a package to a node, unless it is there or on its way."""
    while (sent := host.parcels.get(digest)) is not None:
        await sent.wait()
        if host.parcels.get(digest) is sent:
            return
    sent = host.parcels[digest] = anyio.Event()
    parcel = None
    try:
        parcel = parcels.parcel(package)
        offset = 0
        while offset < parcel.size:
            part = parcel.part(offset)
            await host.call("take", digest, offset, parcel.size, part)
            offset += len(part)
    except BaseException:
        del host.parcels[digest]
        raise
    finally:
        if parcel is not None:
            parcel.discard()
        sent.set()


class Arrivals:
    """The parcels of one node."""

    def __init__(self, place: Path) -> None:
        self._place: Final = place
        self._packages: Final[dict[str, TaskPackage]] = {}

    def known(self, digest: str) -> TaskPackage | None:
        return self._packages.get(digest)

    def is_intact(self, digest: str) -> bool:
        """Whether a package in the cache is still as it arrived."""
        package = self._packages.get(digest)
        return package is not None and load_package(package.path).digest == package.digest

    def forget(self, digest: str) -> None:
        """The copy in the cache is damaged: the parcel has to come again."""
        self._packages.pop(digest, None)

    def take(self, digest: str, offset: int, size: int, data: bytes) -> None:
        """A piece of a parcel, in order; with the last one the package is there. Raises `InfrastructureFailure`."""
        file = self._place / f"{digest}.parcel"
        mode = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_TRUNC if offset == 0 else 0)
        with os.fdopen(os.open(file, mode, 0o600), "r+b" if offset else "wb", buffering=0) as stream:
            stream.seek(offset)
            stream.write(data)
        if offset + len(data) < size:
            return
        try:
            with file.open("rb", buffering=0) as written:
                if hashlib.file_digest(written, "sha256").hexdigest() != digest:
                    message = "A package did not arrive as it was sent: its digest is wrong."
                    raise InfrastructureFailure(message, code="parcel-damaged")
            self._packages[digest] = _unpacked(file)
        finally:
            file.unlink(missing_ok=True)


def _unpacked(file: Path) -> TaskPackage:
    """The package of a bundle, in the cache and loaded from there."""
    hold(packages_place())
    expected = open_bundle(file).index.packages[0]
    package = load_package(listed_packages(file)[0].take())
    if package.digest != expected.digest:
        message = f"The package {package.name} in the cache of this node is not the one that was sent."
        raise InfrastructureFailure(message, code="parcel-damaged")
    return package
