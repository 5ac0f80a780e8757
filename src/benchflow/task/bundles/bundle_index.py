"""The index of a bundle: the benchmark, its packages with their digests, every file with its SHA-256. Pure.

`render` writes an index in its only form; `parse_index` reads one and accepts nothing that `render` would not write of
safe names, so that equal content has equal bytes.
"""

from __future__ import annotations

import json
import posixpath
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.task.bundles.member_paths import clashes, path_problem
from benchflow.task.bundles.zip_layout import KINDS, Kind
from benchflow.task.filemap import MAX_FILE_BYTES, MAX_FILES, MAX_PACKAGE_BYTES, digest_of

SCHEMA: Final = "benchcube.bundle.v1"
INDEX_NAME: Final = "bundle.json"
MAX_INDEX_BYTES: Final = 256 << 20
MAX_PACKAGES: Final = 200_000
MAX_MEMBERS: Final = 2_000_000
MAX_LINK: Final = 4096
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class BadIndexError(ValueError):
    """Why an index is refused; the message continues a sentence that starts with the name of the bundle."""


class Member(NamedTuple):
    """One file, link or empty folder of a bundle."""

    path: str
    kind: Kind
    size: int
    sha256: str
    """Of the content; of a link, of its target; empty for a folder."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What the packages are together."""

    name: str = ""
    version: str = ""
    license: str = ""
    description: str = ""
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> paths of packages in the bundle, sorted."""

    def to_dict(self) -> dict[str, Any]:
        splits = {name: list(paths) for name, paths in sorted(self.splits.items())}
        text = {"name": self.name, "version": self.version, "license": self.license, "description": self.description}
        return {**text, "splits": splits}


class PackageEntry(NamedTuple):
    """One package of a bundle."""

    path: str
    name: str
    digest: str
    content_digest: str
    beside: tuple[str, ...] = ()
    """Files beside the package that belong to it, relative to it, as the package states them."""

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return self.path.rpartition("/")[2]

    def beside_path(self, written: str) -> str:
        """Where such a file is in the bundle."""
        return posixpath.normpath(f"{self.path}/{written}")


@dataclass(frozen=True)
class BundleIndex:
    """Everything in a bundle, sorted by path."""

    benchmark: Benchmark
    packages: tuple[PackageEntry, ...]
    members: tuple[Member, ...]

    @cached_property
    def _paths(self) -> list[str]:
        return [member.path for member in self.members]

    @cached_property
    def by_path(self) -> dict[str, int]:
        """The position of each member."""
        return {path: position for position, path in enumerate(self._paths)}

    def span(self, package: PackageEntry) -> range:
        """The positions of the members inside a package; sorted names with one prefix are neighbours."""
        return range(bisect_left(self._paths, f"{package.path}/"), bisect_left(self._paths, f"{package.path}0"))

    def beside(self, package: PackageEntry) -> dict[str, int]:
        """The positions of the files beside a package, by the path that the package states."""
        return {written: self.by_path[package.beside_path(written)] for written in package.beside}

    def render(self) -> bytes:
        """The one text of this index."""
        head = {"schema": SCHEMA, "benchmark": self.benchmark.to_dict()}
        lines = [json.dumps(head)[:-1] + ', "packages": [']
        lines.append(",\n".join(json.dumps([*entry[:4], list(entry.beside)]) for entry in self.packages))
        lines.append('], "files": [')
        lines.append(",\n".join(json.dumps(member) for member in self.members))
        lines.append("]}\n")
        return "\n".join(lines).encode()


def parse_index(data: bytes) -> BundleIndex:
    """The index of a text; raises `BadIndexError`."""
    try:
        document = parse_json(data)
    except StrictJSONError as problem:
        raise BadIndexError(f"has an index that {problem}") from problem
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise BadIndexError(f"has an index of another kind than {SCHEMA}; it may be from a newer version")
    try:
        members = tuple(Member(*row) for row in document["files"])
        packages = tuple(
            PackageEntry(path, name, digest, content, tuple(beside))
            for path, name, digest, content, beside in document["packages"]
        )
        given = dict(document["benchmark"])
        splits = {name: tuple(paths) for name, paths in given.pop("splits").items()}
        index = BundleIndex(Benchmark(**given, splits=splits), packages, members)
        _require_types(index)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadIndexError("has a damaged index") from error
    require_sound(index)
    if index.render() != data:
        raise BadIndexError("has an index that is not written as this version writes it")
    return index


def _require_types(index: BundleIndex) -> None:
    texts = [*index.benchmark.to_dict().values()][:4]
    texts += [text for entry in index.packages for text in (*entry[:4], *entry.beside)]
    texts += [text for member in index.members for text in (member.path, member.kind, member.sha256)]
    texts += [path for name, paths in index.benchmark.splits.items() for path in (name, *paths)]
    if not all(type(text) is str for text in texts) or not all(type(member.size) is int for member in index.members):
        raise TypeError


def require_sound(index: BundleIndex) -> None:
    """Refuse an index whose names are not safe, or whose parts do not fit together; raises `BadIndexError`."""
    if not index.packages:
        raise BadIndexError("has no packages")
    if len(index.packages) > MAX_PACKAGES or len(index.members) > MAX_MEMBERS:
        raise BadIndexError(f"has more than {MAX_PACKAGES:,} packages or {MAX_MEMBERS:,} files")
    for path in (*(entry.path for entry in index.packages), *(member.path for member in index.members)):
        problem = path_problem(path)
        if problem is not None:
            raise BadIndexError(f"has the name {path[:200]!r}, which {problem}")
    problem = clashes([INDEX_NAME, *(member.path for member in index.members)])
    if problem is not None:
        raise BadIndexError(f"has names that clash: {problem}")
    for member in index.members:
        _require_member(member)
    ordered = ([entry.path for entry in index.packages], [member.path for member in index.members])
    if any(one >= other for names in ordered for one, other in pairwise(names)):
        raise BadIndexError("does not list its packages and files in order")
    _require_packages(index)
    known = {entry.path for entry in index.packages}
    for name, paths in index.benchmark.splits.items():
        if not paths or list(paths) != sorted(set(paths)) or not known.issuperset(paths):
            raise BadIndexError(f"has the split {name[:60]!r}, which does not list packages of this bundle")


def _require_member(member: Member) -> None:
    if member.kind not in KINDS:
        raise BadIndexError(f"has '{member.path}', which is neither a file nor a link nor a folder")
    most = {"link": MAX_LINK, "folder": 0}.get(member.kind, MAX_FILE_BYTES)
    if not 0 <= member.size <= most:
        raise BadIndexError(f"has '{member.path}', whose size of {member.size:,} bytes is not allowed")
    if (member.sha256 != "") if member.kind == "folder" else _HEX.fullmatch(member.sha256) is None:
        raise BadIndexError(f"has '{member.path}' without a SHA-256")


def _require_packages(index: BundleIndex) -> None:
    """Every file belongs to exactly one package or is beside one, and digests are those of the files."""
    owned: set[int] = set()
    shared: set[int] = set()
    known = {entry.path for entry in index.packages}
    for entry in index.packages:
        if "/" in entry.path and not known.isdisjoint(str(above) for above in PurePosixPath(entry.path).parents):
            raise BadIndexError(f"has the package '{entry.path}' inside another one")
        end = f"{entry.path}/"
        span = index.span(entry)
        owned.update(span)
        members = index.members[span.start : span.stop]
        if len(members) > MAX_FILES or sum(member.size for member in members) > MAX_PACKAGE_BYTES:
            raise BadIndexError(f"has the package '{entry.path}', which is too large")
        try:
            beside = index.beside(entry)
        except KeyError:
            raise BadIndexError(f"lacks a file that the package '{entry.path}' needs") from None
        shared.update(beside.values())
        hashes = dict(_hashes(members, len(end)))
        hashes.update((written, index.members[position].sha256) for written, position in beside.items())
        if _DIGEST.fullmatch(entry.content_digest) is None or entry.digest != digest_of(hashes):
            raise BadIndexError(f"has a wrong digest for the package '{entry.path}'")
    for position, member in enumerate(index.members):
        if position not in owned and (position not in shared or member.kind not in ("file", "program")):
            raise BadIndexError(f"has '{member.path}', which belongs to no package")


def _hashes(members: Sequence[Member], cut: int) -> Iterator[tuple[str, str]]:
    for member in members:
        if member.kind in ("file", "program"):
            yield member.path[cut:], member.sha256
